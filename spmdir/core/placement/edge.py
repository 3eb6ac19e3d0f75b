"""The steps that placements declare: how they are lowered and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from spmdir.core.errors import ShardingError, shown
from spmdir.core.placement.evaluated import evaluated, place

Sent = float | tuple[float, ...]


@attrs.frozen(eq=False)
class Edge:
    """A step that a placement declares, along the axes of a group, to or from another placement.

    Attributes:
        lower: (what a rank holds, group) → what it holds afterwards, in torch ops and the collectives of
            `spmdir.lowering.group.Group`.
        target: the text of the placement that it goes to, or the trait "shard" for any that shards a dimension.
        source: the same, for the placement that it comes from. Exactly one of both is set; the other is the declaring
            placement.
        by: the collectives that it costs as, one after the other: one or several kinds in
            `spmdir.reshard.collectives`; None if nothing is sent.
        itemsize: bytes of an element on the wire, where a collective sends the tensor in elements of another size; by
            default those of the tensor.
        bytes: (local shape before the step, bytes of an element, number of ranks) → wire bytes that a rank sends: a
            number for each collective in `by`, a tuple where these are several. Where shards differ in size, the shape
            is that of the largest. By default as many as the collectives in `by` send of the whole tensor.
        seconds: (topology, local shape before the step, bytes of an element, number of ranks) → modelled time; by
            default that of the collectives in `by`.
    """

    lower: Callable[..., Any]
    target: str | None = None
    source: str | None = None
    by: str | tuple[str, ...] | None = None
    itemsize: float | None = None
    bytes: Callable[[tuple[int, ...], float, int], Sent] | None = None
    seconds: Callable[[Any, tuple[int, ...], float, int], float] | None = None

    def __attrs_post_init__(self) -> None:
        if self.bytes is not None and not self.collectives:
            raise ShardingError("an edge declares `bytes` and no collective; name in `by` what sends them", self.place)
        if self.bytes is not None and self.itemsize is not None:
            raise ShardingError("an edge declares `bytes` and `itemsize`; expected one of them", self.place)

    @property
    def collectives(self) -> tuple[str, ...]:
        """Return the names of the collectives that it costs as."""
        return (self.by,) if isinstance(self.by, str) else tuple(self.by or ())

    @property
    def place(self) -> Any:
        """Return where its lowering is written."""
        return place(self.lower)

    def sent(self, shape: Sequence[int], itemsize: float, count: int) -> tuple[float, ...]:
        """Return what `bytes` says each of `collectives` sends.

        Raises:
            ShardingError: it fails, or gives no such numbers.
        """
        assert self.bytes is not None  # or the collectives say it
        found = evaluated("bytes", self.bytes, tuple(shape), itemsize, count)
        each = found if isinstance(found, tuple) else (found,)
        if len(each) != len(self.collectives) or not all(_is_amount(number) for number in each):
            raise ShardingError(
                f"`bytes` gives {shown(found)} for {list(shape)} on {count} ranks; expected a number from 0 on for "
                f"each of {', '.join(self.collectives)}",
                place(self.bytes),
            )
        return each

    def time(self, topology: Any, shape: Sequence[int], itemsize: float, count: int) -> float:
        """Return what `seconds` says.

        Raises:
            ShardingError: it fails, or gives no time.
        """
        assert self.seconds is not None  # or the collectives say it
        found = evaluated("seconds", self.seconds, topology, tuple(shape), itemsize, count)
        if not _is_amount(found):
            raise ShardingError(
                f"`seconds` gives {shown(found)} for {list(shape)} on {count} ranks; expected a number from 0 on",
                place(self.seconds),
            )
        return found


def _is_amount(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
