"""Placements that shard a dimension: the base class, and the lengths and runs of their shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

from spmdir.core.arguments import instance
from spmdir.core.declared_fields import evaluated, place
from spmdir.core.dtype import DType
from spmdir.core.errors import ShardingError, shown, wrong_argument
from spmdir.core.intervals import Ranges, Run, joined, length, summed_runs
from spmdir.core.limits import ENUMERATED
from spmdir.core.placement.base import LocalType, Noise, Placement, enumerated
from spmdir.core.placement.text import print_placement


class ShardPlacement(Placement):
    """A placement that shards dimension `dim`, its first field: every position is on exactly one rank.

    `ranges` determines everything else: local shapes, distribution, slices, gathers, exchanges and strategies.
    """

    trait: ClassVar[str] = "shard"
    has_own_type: ClassVar[bool] = False  # type: ignore[assignment]
    dim: int

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "local_type" in vars(cls):
            raise ShardingError(
                f"{cls.__name__} is a ShardPlacement and declares `local_type`, but its `ranges` determine "
                "the local tensors; expected no `local_type`: remove it, or, for padding or another "
                "element type, derive the class from Placement and declare `edges`, as "
                "spmdir.placements.padded does"
            )

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dim, int):
            raise wrong_argument("dim", self.dim, "a number from 0 on")
        if self.dim < 0:
            # The object has no hash yet, which the memoised function needs.
            text = print_placement.__wrapped__(self)
            raise ShardingError(f"invalid dimension in {text}; expected a dimension counted from 0, as in S(0)")

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        """Return the (start, end) ranges of positions of `size` on rank `index` of `count`, in its local order."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `ranges`; expected a method that returns the ranges of a rank: define it"
        )

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        """Return the runs of neighbouring ranks with shards of equal length, in the order of ranks.

        A run is (first rank, number of ranks, length). For example, 10 elements in chunks of 3 on 4 ranks have the runs
        (0, 3, 3) and (3, 1, 1).

        The default evaluates `ranges` rank by rank. Override it to support large meshes; `spmd check-placement`
        compares it with `ranges`.

        Raises:
            ShardingError: there are more than ENUMERATED ranks, and the class does not override this method.
        """
        lengths = (length(self.ranges(size, count, index)) for index in enumerated(self, count))
        return summed_runs([(1, [(index, 1, local_length) for index, local_length in enumerate(lengths)])], count)

    def stretches(self, size: int, count: int) -> int:
        """Return an upper bound of the total number of `ranges` of all ranks; by default one for each rank."""
        return count

    def scaled(self, inner: int) -> Placement | None:
        """Return the placement after every position was replaced by `inner` positions; None if there is none.

        For example, `Cyclic(0, 2).scaled(3)` is `Cyclic(0, 6)`: blocks of 2 positions become blocks of 6.
        """
        return self if inner == 1 else None

    def unscaled(self, inner: int) -> Placement | None:
        """Return the placement whose `scaled(inner)` is this placement; None if there is none."""
        return self if inner == 1 else None

    def inside(self, outer: int) -> Placement | None:
        """Return the placement inside each of `outer` equal blocks of the dimension.

        Returns None if blocks have different placements or none.
        """
        return self if outer == 1 else None

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        local_size = shard_length(self, shape[self.dim], count, index)
        return (*shape[: self.dim], local_size, *shape[self.dim + 1 :]), dtype

    def local_types(self, shape: tuple[int, ...], dtype: DType, count: int) -> frozenset[LocalType]:
        lengths = shard_lengths(((self, count),), shape[self.dim])
        return frozenset(((*shape[: self.dim], local_size, *shape[self.dim + 1 :]), dtype) for local_size in lengths)

    def held_ranges(self, shape: tuple[int, ...], count: int, index: int) -> Mapping[int, Ranges]:
        return {self.dim: self.ranges(shape[self.dim], count, index)}

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        size = tensor.shape[self.dim]
        return [take(tensor, self.dim, self.ranges(size, count, index)).clone() for index in range(count)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        """Copy each shard to the positions of its `ranges`. Where ranges overlap, the last rank decides."""
        tensor = shards[0].new_empty(shape)
        for index, shard in enumerate(shards):
            offset = 0
            for start, end in self.ranges(shape[self.dim], len(shards), index):
                tensor.narrow(self.dim, start, end - start).copy_(shard.narrow(self.dim, offset, end - start))
                offset += end - start
        return tensor


def take(tensor: Any, dim: int, ranges: Ranges) -> Any:
    """Return the part of a tensor at the positions `ranges` of dimension `dim`, in their order.

    If they are one range, the result is a view of the tensor; otherwise it is a copy.
    """
    if len(ranges) == 1:
        return tensor.narrow(dim, ranges[0][0], ranges[0][1] - ranges[0][0])
    shape = list(tensor.shape)
    shape[dim] = length(ranges)
    result, offset = tensor.new_empty(shape), 0
    for start, end in ranges:
        result.narrow(dim, offset, end - start).copy_(tensor.narrow(dim, start, end - start))
        offset += end - start
    return result


def _is_pair(value: object) -> bool:
    """Return whether a value is a tuple of two ints."""
    return isinstance(value, tuple) and [*map(type, value)] == [int, int]


@lru_cache(maxsize=65536)
def check_partition(placement: ShardPlacement, size: int, count: int) -> None:
    """Raise ShardingError unless every one of `size` positions is on exactly one of `count` ranks.

    Classes that override `runs` are not checked here, but by `spmd check-placement`.
    """
    if type(placement).runs is not ShardPlacement.runs:
        return
    ranges_of_ranks = [placement.ranges(size, count, index) for index in enumerated(placement, count)]
    for ranges in ranges_of_ranks:
        if not isinstance(ranges, tuple) or not all(map(_is_pair, ranges)):
            raise ShardingError(
                f"`ranges` of {placement} gives {shown(ranges)}; expected a tuple of (start, end) pairs of integers",
                place(placement.ranges),
            )
    covered_to, is_partition = 0, True  # sorted ranges must follow each other without gaps and overlaps
    for start, end in sorted(pair for ranges in ranges_of_ranks for pair in ranges):
        if start != end:  # not empty
            is_partition = is_partition and covered_to == start < end
            covered_to = end
    if not is_partition or covered_to != size:
        raise ShardingError(
            f"{placement} over {count} ranks is not a partition of {size} positions; expected each position "
            "in one range of one rank: correct its `ranges`"
        )


@lru_cache(maxsize=65536)
def shard_lengths(placements: tuple[tuple[Any, int], ...], size: int) -> frozenset[int]:
    """Return the lengths of the shards of `size` elements, sharded by each (shard placement, ranks) in turn.

    For example, S over 4 ranks cuts 10 elements into shards of 3 and 1, and S over 2 ranks cuts these further into
    shards of 2, 1 and 0.
    """
    extents = frozenset([size])
    for placement, count in placements:
        extents = frozenset(
            local_length for extent in extents for _, _, local_length in runs_of(placement, extent, count)
        )
    return extents


@lru_cache(maxsize=65536)
def is_contiguous(placement: ShardPlacement, size: int, count: int) -> bool:
    """Return whether each shard of `size` positions on `count` ranks is at most one range.

    Returns False if there are more than ENUMERATED ranks, because all of them would have to be evaluated.
    """
    if count > ENUMERATED.most:
        return False
    return all(len(joined(placement.ranges(size, count, index))) <= 1 for index in range(count))


_RUNS = instance(tuple, expected="a tuple of (first rank, ranks, length)")


@lru_cache(maxsize=65536)
def runs_of(placement: ShardPlacement, size: int, count: int) -> tuple[Run, ...]:
    """Return `placement.runs(size, count)`, cached. Raise PluginError if the method fails or returns no tuple."""
    return evaluated("runs", placement.runs, size, count, owner=str(placement), returns=_RUNS)


def shard_length(placement: ShardPlacement, size: int, count: int, index: int) -> int:
    """Return the length of the shard of `size` elements on rank `index` of `count`."""
    if type(placement).runs is ShardPlacement.runs:
        return length(placement.ranges(size, count, index))
    runs = runs_of(placement, size, count)
    return next(local_length for first_rank, ranks, local_length in runs if index < first_rank + ranks)
