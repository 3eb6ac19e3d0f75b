"""`Ragged(dim, [sizes])`: each rank has one range, with a separate length.

It is for unequal amounts of data: sequences packed by length, experts with unequal numbers of tokens, or machines of
unequal speed. With `Ragged(0, [1, 6, 3])`, three ranks have these of ten rows:

    rank 0: 0           rank 1: 1 2 3 4 5 6     rank 2: 7 8 9
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, ClassVar

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.intervals import Ranges
from spmdir.core.placement.shards import ShardPlacement


def _check_sizes(_: Any, __: Any, sizes: tuple[int, ...]) -> None:
    """Raise ShardingError for no sizes or a negative one; a validator of attrs."""
    if not sizes or min(sizes) < 0:
        raise ShardingError(f"invalid sizes {list(sizes)}; expected one size of at least 0 for each rank")


@attrs.frozen
class Ragged(ShardPlacement):
    """Rank i has `sizes[i]` elements. They follow those of rank i - 1."""

    text: ClassVar[str] = "Ragged({dim}, {sizes})"
    dim: int
    sizes: tuple[int, ...] = attrs.field(converter=tuple, validator=_check_sizes)

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        ends = list(accumulate(self.sizes[: index + 1]))
        return ((ends[-1] - self.sizes[index], ends[-1]),)

    def check(self, shape: tuple[int, ...], count: int) -> None:
        """Raise ShardingError unless there is one size for each rank, and the sizes add up to the dimension."""
        if len(self.sizes) != count:
            raise ShardingError(
                f"{self} has {len(self.sizes)} sizes, but the axis has {count} ranks; expected one size for each rank"
            )
        if sum(self.sizes) != shape[self.dim]:
            raise ShardingError(
                f"the sizes of {self} add up to {sum(self.sizes)}; "
                f"expected {shape[self.dim]}, the size of dimension {self.dim}"
            )

    def scaled(self, inner: int) -> Ragged:
        return Ragged(self.dim, tuple(size * inner for size in self.sizes))

    def unscaled(self, inner: int) -> Ragged | None:
        if not inner or any(size % inner for size in self.sizes):
            return None
        return Ragged(self.dim, tuple(size // inner for size in self.sizes))
