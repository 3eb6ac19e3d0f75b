"""The steps that placements declare: how they are lowered and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from spmdir.core.arguments import AMOUNT, CALLABLE, TEXT, Kind, is_amount
from spmdir.core.declared_fields import check_fields, evaluated, place
from spmdir.core.dtype import as_dtype
from spmdir.core.errors import ShardingError, shown

Sent = float | tuple[float, ...]


INITIAL = ("zeros", "ones", "random")
"""What a state may begin with; "random" is the same normal numbers on every run."""


@attrs.frozen(eq=False)
class EdgeState:
    """A tensor that ranks keep for a step from one run of the program to the next.

    Attributes:
        shape: (local shape before the step, number of ranks) → its shape on a rank; by default the local shape. A rank
            whose shard is smaller than the largest has the first elements of each dimension, of a `shared` one as many
            as the ranks of the step that have most.
        dtype: the name of its element type; that of the tensor if None.
        initial: what it begins with, one of INITIAL.
        shared: whether it is equal on the ranks of the step, as what follows from reduced values is; else each rank
            has one of its own.
        feedback: whether it is what earlier runs left out, which later ones add, so that errors do not add up. The
            check of placements asks it of such states alone; of others, that they stay finite.
    """

    shape: Callable[[tuple[int, ...], int], tuple[int, ...]] | None = None
    dtype: str | None = None
    initial: str = "zeros"
    shared: bool = False
    feedback: bool = False

    def __attrs_post_init__(self) -> None:
        if self.initial not in INITIAL:
            raise ShardingError(
                f"`initial` of an EdgeState is {shown(self.initial)}; expected one of {', '.join(INITIAL)}"
            )
        if self.dtype is not None:
            as_dtype(self.dtype)

    def local_shape(self, shape: Sequence[int], count: int) -> tuple[int, ...]:
        """Return its shape on a rank, for a tensor of local `shape`.

        Raises:
            ShardingError: `shape` fails, or gives no shape.
        """
        if self.shape is None:
            return tuple(shape)
        state_shape = evaluated("shape", self.shape, tuple(shape), count)
        if not (isinstance(state_shape, tuple) and all(type(n) is int and n >= 0 for n in state_shape)):
            raise ShardingError(
                f"`shape` of an EdgeState gives {shown(state_shape)} for {list(shape)} on {count} ranks; expected a "
                "tuple of sizes from 0 on",
                place(self.shape),
            )
        return state_shape


@attrs.frozen(eq=False)
class Edge:
    """A step that a placement declares, along the axes of a group, to or from another placement.

    Attributes:
        lower: (what a rank holds, group) → what it holds afterwards, in torch ops and the collectives of
            `spmdir.lowering.group.Group`.
        target: the text of the placement that it goes to, or the trait "shard" for any that shards a dimension.
        source: the same, for the placement that it comes from. Exactly one of both is set; the other is the declaring
            placement.
        when: of a step whose end is "shard": (placement) → whether it is one to or from that placement.
        by: the collectives that it costs as, one after the other: one or several kinds in
            `spmdir.reshard.collectives`; None if nothing is sent.
        itemsize: bytes of an element on the wire, where a collective sends the tensor in elements of another size; by
            default those of the tensor.
        bytes: (local shape before the step, bytes of an element, number of ranks) → wire bytes that a rank sends: a
            number for each collective in `by`, a tuple where these are several. Where shards differ in size, the shape
            is that of the largest. By default as many as the collectives in `by` send of the whole tensor.
        seconds: (topology, local shape before the step, bytes of an element, number of ranks) → modelled time; by
            default that of the collectives in `by`.
        state: name → a tensor that the ranks keep for it from one run to the next; or (local shape before the step,
            number of ranks) → these, none where it keeps none. Where shards differ in size, the shape is that of the
            largest. `lower` is then (what a rank holds, group, {name: tensor}) → (what it holds afterwards, {name:
            new tensor}).
    """

    lower: Callable[..., Any]
    target: str | None = None
    source: str | None = None
    by: str | tuple[str, ...] | None = None
    itemsize: float | None = None
    bytes: Callable[[tuple[int, ...], float, int], Sent] | None = None
    seconds: Callable[[Any, tuple[int, ...], float, int], float] | None = None
    when: Callable[[Any], bool] | None = None
    state: Mapping[str, EdgeState] | Callable[[tuple[int, ...], int], Mapping[str, EdgeState]] = attrs.field(
        factory=dict
    )

    def __repr__(self) -> str:
        end = f"from {self.source}" if self.target is None else f"to {self.target}"
        return f"<Edge {end}: {' + '.join(self.collectives) or 'nothing sent'}>"

    def __attrs_post_init__(self) -> None:
        check_fields(self, _FIELDS)
        if self.bytes is not None and not self.collectives:
            raise ShardingError("an edge declares `bytes` and no collective; name in `by` what sends them", self.place)
        if self.bytes is not None and self.itemsize is not None:
            raise ShardingError("an edge declares `bytes` and `itemsize`; expected one of them", self.place)
        if not callable(self.state):
            self._check_states(self.state)

    def states(self, shape: Sequence[int], count: int) -> Mapping[str, EdgeState]:
        """Return what the ranks keep for it, of a tensor whose largest local shape is `shape`.

        Raises:
            ShardingError: `state` fails, or gives something else.
        """
        if not callable(self.state):
            return self.state
        states = evaluated("state", self.state, tuple(shape), count)
        self._check_states(states)
        return states

    def _check_states(self, declared: object) -> None:
        states = declared if isinstance(declared, Mapping) else {"": declared}
        for name, state in states.items():
            if not isinstance(state, EdgeState) or not name.isidentifier():
                raise ShardingError(
                    f"`state` of an edge has {shown(name)}: {shown(state)}; expected names of States, as in "
                    "{'error': EdgeState()}",
                    self.place,
                )

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
        declared = evaluated("bytes", self.bytes, tuple(shape), itemsize, count)
        amounts = declared if isinstance(declared, tuple) else (declared,)
        if len(amounts) != len(self.collectives) or not all(is_amount(amount) for amount in amounts):
            raise ShardingError(
                f"`bytes` gives {shown(declared)} for {list(shape)} on {count} ranks; expected a number from 0 on for "
                f"each of {', '.join(self.collectives)}",
                place(self.bytes),
            )
        return amounts

    def time(self, topology: Any, shape: Sequence[int], itemsize: float, count: int) -> float:
        """Return what `seconds` says.

        Raises:
            ShardingError: it fails, or gives no time.
        """
        assert self.seconds is not None  # or the collectives say it
        seconds = evaluated("seconds", self.seconds, topology, tuple(shape), itemsize, count)
        if not is_amount(seconds):
            raise ShardingError(
                f"`seconds` gives {shown(seconds)} for {list(shape)} on {count} ranks; expected a number from 0 on",
                place(self.seconds),
            )
        return seconds


def _is_name_or_names(value: object) -> bool:
    names = value if isinstance(value, tuple) else (value,)
    return value is None or all(isinstance(name, str) for name in names)


_FIELDS = {
    "lower": CALLABLE,
    "target": TEXT.optional,
    "source": TEXT.optional,
    "by": Kind(_is_name_or_names, "the name of a collective, or a tuple of names"),
    "itemsize": AMOUNT.optional,
    "bytes": CALLABLE.optional,
    "seconds": CALLABLE.optional,
    "when": CALLABLE.optional,
}
"""Field of an edge → its kind."""
