"""`Ragged(dim, [sizes])`: every rank holds one range, of a length of its own.

For data that comes in unequal amounts: sequences packed by length, experts with unequal numbers of tokens, machines of
unequal speed. With `Ragged(0, [1, 6, 3])`, three ranks hold of ten rows

    rank 0: 0           rank 1: 1 2 3 4 5 6     rank 2: 7 8 9
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, ClassVar

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.intervals import Ranges
from spmdir.core.placement.base import ShardPlacement


def _no_negative_size(_: Any, __: Any, sizes: tuple[int, ...]) -> None:
    if not sizes or min(sizes) < 0:
        raise ShardingError(f"the sizes {list(sizes)} shard nothing; expected one of at least 0 for each rank")


@attrs.frozen
class Ragged(ShardPlacement):
    """Rank i holds `sizes[i]` elements, behind those of the ranks before it."""

    text: ClassVar[str] = "Ragged({dim}, {sizes})"
    dim: int
    sizes: tuple[int, ...] = attrs.field(converter=tuple, validator=_no_negative_size)

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        ends = list(accumulate(self.sizes[: index + 1]))
        return ((ends[-1] - self.sizes[index], ends[-1]),)

    def check(self, shape: tuple[int, ...], count: int) -> None:
        if len(self.sizes) != count:
            raise ShardingError(f"{self} is for {len(self.sizes)} ranks, and the axis has {count}; give a size a rank")
        if sum(self.sizes) != shape[self.dim]:
            raise ShardingError(
                f"the sizes of {self} make {sum(self.sizes)}, and dimension {self.dim} holds {shape[self.dim]}; "
                "expected sizes that add up to it"
            )

    def scaled(self, inner: int) -> Ragged:
        return Ragged(self.dim, tuple(size * inner for size in self.sizes))

    def unscaled(self, inner: int) -> Ragged | None:
        if not inner or any(size % inner for size in self.sizes):
            return None
        return Ragged(self.dim, tuple(size // inner for size in self.sizes))
