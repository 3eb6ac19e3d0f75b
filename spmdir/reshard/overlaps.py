"""Counts of the elements that source and target shards have in common, without a loop over all ranks.

Three cases, for each dimension:

- One side cuts the dimension by all axes of the other side, and then by further axes. Along each axis, neighbouring
  ranks with shards of equal length form a *run*, and one rank of each run is enough.
- Different axes cut the two sides, both evenly. The coordinate of a rank on an axis is written in digits. Their sizes
  are chosen such that both sides of the dimension have digits of the same sizes. Two shards overlap if these digits
  agree. Digits that must agree are one `_AgreeingDigits`.
- Otherwise, shards are compared one by one, up to POINTS of them.

For example, `a` of 4 ranks cuts a dimension on one side, and `x`, `y` of 2 ranks each cut it on the other. The
coordinate of `a` has two digits of size 2. The first must agree with the coordinate on `x`, and the second with `y`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from spmdir.core.intervals import common, length
from spmdir.core.limits import ENUMERATED
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, shard_ranges
from spmdir.core.placement.shards import shard_lengths
from spmdir.core.placement.standard import Shard
from spmdir.reshard.equal_shard_runs import cut_length, mark_runs

POINTS = 256
"""The largest number of combinations of runs, or of shards, to count."""

_Cuts = tuple[tuple[str, tuple[Any, int]], ...]
"""The axes that shard a dimension, outermost first, as (axis, (placement, number of ranks))."""

_Digit = tuple[str, int]
"""An axis, and the product of the sizes of its digits before this one, as in the name of a sub-axis."""

_RunStarts = tuple[tuple[str, tuple[int, ...]], ...]
"""Pairs of an axis and the first coordinate of each run along it."""


@attrs.frozen
class Overlaps:
    """Numbers of elements that source and target have in common. A *needer* is defined in `byte_bound.py`.

    Attributes:
        total: elements whose value, or partial value, is on a needer at the start.
        most_missing: the largest number of elements that one needer lacks.
        most_needed: the largest number of elements that one needer needs.
        most_held: the largest number of elements that one rank has.
        most_leaving: the largest number of elements that one rank has and a needer lacks. It is used only if all axes
            on which the local tensor of the rank depends shard the target, or stay partial.
    """

    total: int
    most_missing: int
    most_needed: int
    most_held: int
    most_leaving: int


@attrs.frozen
class _Dim:
    """The cuts of one dimension.

    Attributes:
        size: the size of the dimension.
        shared: the outermost cuts that source and target have in common.
        before, after: the further cuts of the source, and of the target.
    """

    size: int
    shared: _Cuts
    before: _Cuts
    after: _Cuts

    @staticmethod
    def of(source: Sharding, target: Sharding, mesh: Mesh, dim: int, size: int) -> _Dim:
        """Return the cuts of dimension `dim` of `size` elements."""
        before, after = (
            tuple(zip(side.dim_axes(dim), side.dim_placements(dim, mesh), strict=True)) for side in (source, target)
        )
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        common_count = len(list(pairs))
        return _Dim(size, before[:common_count], before[common_count:], after[common_count:])

    @property
    def is_nested(self) -> bool:
        """Return whether one side cuts the dimension by all axes of the other side, and then by further axes."""
        return not (self.before and self.after)

    @property
    def axes(self) -> dict[str, int]:
        """Return axis → its number of ranks, for all axes that cut the dimension on either side."""
        return {axis: count for axis, (_, count) in (*self.shared, *self.before, *self.after)}

    def is_even(self) -> bool:
        """Return whether each side cuts the chunks of `shared` by `S` into chunks of equal length."""
        chunk_counts = [math.prod(count for _, (_, count) in cuts) for cuts in (self.before, self.after)]
        outer_lengths = shard_lengths(tuple(cut for _, cut in self.shared), self.size)
        if not all(isinstance(placement, Shard) for _, (placement, _) in (*self.before, *self.after)):
            return False
        return all(outer_length % count == 0 for outer_length in outer_lengths for count in chunk_counts)


@attrs.frozen
class _AgreeingDigits:
    """Digits of `size` that must be equal for two shards to overlap, one on each of `axes`."""

    size: int
    axes: tuple[str, ...]


def count_overlaps(
    shape: tuple[int, ...],
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    sharding_axes: Sequence[str],
    remaining_partial: Sequence[str],
) -> Overlaps | None:
    """Return the numbers of elements that shards of `source` and `target` have in common.

    The result is None if there are more than POINTS combinations of runs or of shards to count. It is also None if
    shards have to be compared that are scattered over too many ranges.

    Args:
        sharding_axes: the axes that shard `source` or `target`.
        remaining_partial: the partial axes of the target.
    """
    cut_dims = {placement.dim for _, placement in (*source.entries, *target.entries)}
    dims = [_Dim.of(source, target, mesh, dim, size) for dim, size in enumerate(shape) if dim in cut_dims]
    uncut_numel = math.prod(size for dim, size in enumerate(shape) if dim not in cut_dims)
    # The three cases of the module. First: nested cuts, which are counted by runs.
    starts: dict[str, set[int]] = {axis: {0} for axis in sharding_axes}  # axis → the first coordinate of each run
    for dim in dims:
        mark_runs(dim.size, (*dim.shared, *dim.before, *dim.after) if dim.is_nested else dim.shared, starts)
    crossing_dims = [dim for dim in dims if not dim.is_nested]
    # Second: different axes on both sides, with digits that agree. Without such digits, shards are compared one by one.
    agreeing_digits = _find_agreeing_digits(crossing_dims, starts) if crossing_dims else ()
    if agreeing_digits is None:
        if any(map(_is_scattered, crossing_dims)):
            return None
        for dim in crossing_dims:
            for axis, (_, count) in (*dim.before, *dim.after):
                # Each rank is a run. More than POINTS runs make the result None below, so no more are listed.
                starts[axis] = set(range(min(count, POINTS + 1)))
    digit_axes = {axis for digits in agreeing_digits or () for axis in digits.axes}
    points = tuple((axis, tuple(sorted(run_starts))) for axis, run_starts in starts.items() if axis not in digit_axes)
    if math.prod(len(run_starts) for _, run_starts in points) > POINTS:
        return None
    source_axes = [axis for axis in sharding_axes if source[axis].trait != "replicated"]
    target_axes = [axis for axis in sharding_axes if axis not in remaining_partial]
    return _count(dims, uncut_numel, points, agreeing_digits, source_axes, target_axes, mesh)


def _is_scattered(dim: _Dim) -> bool:
    """Return whether shards of a dimension have too many ranges to compare."""
    cuts = (cut for _, cut in (*dim.before, *dim.after))
    return any(placement.stretches(dim.size, count) > ENUMERATED.most for placement, count in cuts)


def _count(
    dims: Sequence[_Dim],
    uncut_numel: int,
    points: _RunStarts,
    agreeing_digits: Sequence[_AgreeingDigits] | None,
    source_axes: Sequence[str],
    target_axes: Sequence[str],
    mesh: Mesh,
) -> Overlaps:
    """Return the numbers of `count_overlaps`, from the sharded dimensions `dims`.

    A point is one run for each axis of `points`. The number of elements in a shard is a product over dimensions, and
    each factor depends only on the axes of its dimension.

    For example, `a` of 4 ranks cuts 10 elements into shards of 3, 3, 3 and 1 before, and no axis does after. There are
    two runs along `a`: ranks 0 to 2, and rank 3. So there are two points, with 3 and 1 elements before, 10 and 10
    after, and 3 and 1 in common. The total is 3 · 3 + 1 · 1 = 10 elements, and rank 3 lacks most: 10 − 1 = 9.

    Args:
        uncut_numel: the product of the sizes of all other dimensions.
        points: axis → the first index of each run.
        agreeing_digits: None if shards are compared one by one.
        source_axes, target_axes: the axes on which the shard of a rank depends, before and after.
    """
    digits_of_crossing = agreeing_digits or ()
    run_counts = tuple((axis, len(run_starts)) for axis, run_starts in points)
    starts_of = dict(points)
    # For each point, the number of elements in the source shard, in the target shard, and in both.
    common_numels = source_numels = target_numels = [uncut_numel] * math.prod(count for _, count in run_counts)
    for dim in dims:
        dim_points = tuple((axis, starts_of[axis]) for axis in dim.axes if axis in starts_of)
        lengths_by_dim_point = _count_dim(dim, dim_points, agreeing_digits is not None)
        dim_point_of_point = _project(run_counts, tuple(axis for axis, _ in dim_points))
        lengths = [lengths_by_dim_point[dim_point] for dim_point in dim_point_of_point]
        common_lengths, source_lengths, target_lengths = zip(*lengths, strict=True)
        common_numels = list(map(int.__mul__, common_numels, common_lengths))
        source_numels = list(map(int.__mul__, source_numels, source_lengths))
        target_numels = list(map(int.__mul__, target_numels, target_lengths))
    # Each choice of values for the digits gives one overlap, as does each rank of a run.
    overlaps_per_point = math.prod(digits.size for digits in digits_of_crossing)
    total = overlaps_per_point * sum(map(int.__mul__, common_numels, _weights(points, (), mesh)))
    return Overlaps(
        total,
        most_missing=_most_lacking(target_numels, common_numels, target_axes, points, digits_of_crossing, mesh),
        most_needed=max(target_numels),
        most_held=max(source_numels),
        most_leaving=_most_lacking(source_numels, common_numels, source_axes, points, digits_of_crossing, mesh),
    )


def _most_lacking(
    numels: Sequence[int],
    common_numels: Sequence[int],
    own_axes: Sequence[str],
    points: _RunStarts,
    agreeing_digits: Sequence[_AgreeingDigits],
    mesh: Mesh,
) -> int:
    """Return the largest number of elements of a shard that are in no overlap with a shard of the other side.

    The ranks that have a shard differ on the axes other than `own_axes`, so it overlaps with a shard of the other side
    for each of these ranks. For example, ranks 0 to 2 of `a` have source shards of 3 elements, and rank 3 has one of 1.
    All target shards have 10 elements. If `a` is one of the own axes, rank 3 lacks 10 − 1. If not, the ranks need the
    elements together and lack 10 − 3 · 3 − 1 = 0.

    Args:
        numels: for each point, the elements of the shard.
        common_numels: for each point, the elements that source and target shard have in common.
        own_axes: the axes on which the shard depends.
        points: axis → the first index of each run. A point is one run for each axis.
        agreeing_digits: those of axes that are not in `points`. The shard has one value of a digit on an own axis, and
            overlaps for each value of a digit on other axes.
    """
    own_digit_counts = [sum(axis in own_axes for axis in digits.axes) for digits in agreeing_digits]
    if any(count > 1 for count in own_digit_counts):
        return max(numels)  # a shard whose digits differ has no overlap
    free_sizes = [digits.size for digits, count in zip(agreeing_digits, own_digit_counts, strict=True) if count == 0]
    overlaps_per_point = math.prod(free_sizes)
    run_counts = tuple((axis, len(run_starts)) for axis, run_starts in points)
    shard_of_point = _project(run_counts, tuple(axis for axis, _ in points if axis in own_axes))
    rank_counts = _weights(points, tuple(own_axes), mesh)
    lacking = dict(zip(shard_of_point, numels, strict=True))  # all points of one shard have the same number
    for shard, common_numel, rank_count in zip(shard_of_point, common_numels, rank_counts, strict=True):
        lacking[shard] -= common_numel * rank_count * overlaps_per_point
    return max(lacking.values())


@functools.lru_cache(maxsize=4096)
def _weights(points: _RunStarts, own_axes: tuple[str, ...], mesh: Mesh) -> tuple[int, ...]:
    """Return, for each point, the number of ranks in its runs along all axes except `own_axes`.

    For example, runs of `a` of 4 ranks start at 0 and 3, and there is one run of `x` of 2 ranks. The weights are (6,
    2), or (2, 2) if `a` is one of `own_axes`.
    """
    weights = [1]
    for axis, run_starts in points:
        runs = [end - start for start, end in itertools.pairwise((*run_starts, mesh.sizes[axis]))]
        weights = [weight * (1 if axis in own_axes else run) for weight in weights for run in runs]
    return tuple(weights)


@functools.lru_cache(maxsize=65536)
def _project(counts: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """Return, for each point along `counts`, its index among the points along `axes` alone, the first axis major.

    For example, `_project((("a", 2), ("b", 3)), ("b",))` is (0, 1, 2, 0, 1, 2).

    Args:
        counts: (axis, number of points) pairs.
    """
    sizes, strides, stride = dict(counts), {}, 1
    for axis in reversed(axes):
        strides[axis] = stride
        stride *= sizes[axis]
    projected = [0]
    for axis, size in counts:
        projected = [outer + strides.get(axis, 0) * index for outer in projected for index in range(size)]
    return tuple(projected)


@functools.lru_cache(maxsize=65536)
def _count_dim(dim: _Dim, points: _RunStarts, has_digits: bool) -> tuple[tuple[int, int, int], ...]:
    """Return (common, source, target) elements of a dimension at each of the `points`.

    Args:
        has_digits: whether the digits of overlapping shards are known. Then only lengths are compared.
    """
    return tuple(
        _count_point(dim, dict(zip((axis for axis, _ in points), indices, strict=True)), has_digits)
        for indices in itertools.product(*(run_starts for _, run_starts in points))
    )


def _count_point(dim: _Dim, coordinate: Mapping[str, int], has_digits: bool) -> tuple[int, int, int]:
    """Return (common, source, target) elements of a dimension at one `coordinate`, axis → index.

    If cuts are nested, or if the digits of both shards agree, one shard contains the other.
    """
    if not dim.is_nested and not has_digits:
        source, target = (_ranges_at((*dim.shared, *cuts), dim.size, coordinate) for cuts in (dim.before, dim.after))
        return length(common(source, target)), length(source), length(target)
    extent = cut_length(dim.size, dim.shared, coordinate)
    source, target = (cut_length(extent, cuts, coordinate) for cuts in (dim.before, dim.after))
    return min(source, target), source, target


def _ranges_at(cuts: _Cuts, size: int, coordinate: Mapping[str, int]) -> Any:
    """Return the ranges of positions in the shard at `coordinate`, of a dimension of `size`."""
    return shard_ranges(tuple(cut for _, cut in cuts), size, tuple(coordinate[axis] for axis, _ in cuts))


def _find_agreeing_digits(dims: Sequence[_Dim], starts: Mapping[str, set[int]]) -> tuple[_AgreeingDigits, ...] | None:
    """Return the digits that must agree; None if the cuts have no such digits, or if chunks are uneven.

    The digits of both sides of a dimension agree pairwise, in order. Pairs with a digit in common are one group. For
    example, `a` of 4 ranks cuts a dimension before, and `x` and `y` of 2 ranks each after. So `a` has two digits. The
    groups are {("a", 1), ("x", 1)} and {("a", 2), ("y", 1)}, both of size 2.
    """
    axes = {axis: count for dim in dims for axis, (_, count) in (*dim.before, *dim.after)}
    # An axis with several runs in another dimension cuts it into shards of unequal lengths.
    if any(len(starts[axis]) > 1 for axis in axes) or not all(dim.is_even() for dim in dims):
        return None
    digits = _find_digits(dims, axes)
    if digits is None:
        return None
    groups = [{(axis, outer)} for axis, ends in digits.items() for outer in ends[:-1]]
    for dim in dims:
        # The side with more chunks has more digits. The last of these agree with no digit of the other side.
        for pair in zip(_digits_of(dim.before, digits), _digits_of(dim.after, digits), strict=False):
            groups_of_pair = [group for group in groups if not group.isdisjoint(pair)]
            other_groups = [group for group in groups if group not in groups_of_pair]
            groups = [*other_groups, set().union(*groups_of_pair)]
    return tuple(
        _AgreeingDigits(_digit_size(next(iter(group)), digits), tuple(axis for axis, _ in group)) for group in groups
    )


def _find_digits(dims: Sequence[_Dim], axes: Mapping[str, int]) -> dict[str, list[int]] | None:
    """Split each axis into digits, such that both sides of every dimension have digits of the same sizes.

    A dimension is cut by digits, outermost first. The products of their sizes are its boundaries: (2, 4) for two digits
    of size 2. If the other side has a boundary within a digit, the digit is split there, until no digit is split.

    For example, `a` of 4 ranks cuts a dimension before, and `x`, `y` of 2 ranks each after. The boundaries are (4) and
    (2, 4). So `a` is split at 2: {"a": [1, 2, 4], "x": [1, 2], "y": [1, 2]}.

    Args:
        axes: axis → its number of ranks.

    Returns: axis → the products of digit sizes before each digit, then the size of the axis; None if there is no such
        split.
    """
    digits = {axis: sorted({1, count}) for axis, count in axes.items()}
    is_split = True
    while is_split:
        ends_before = {axis: tuple(ends) for axis, ends in digits.items()}
        for dim in dims:
            sides = (_digits_of(dim.before, digits), _digits_of(dim.after, digits))
            boundaries = [
                list(itertools.accumulate((_digit_size(digit, digits) for digit in side), int.__mul__))
                for side in sides
            ]
            for side, own_boundaries, other_boundaries in zip(sides, boundaries, boundaries[::-1], strict=True):
                for (axis, outer), start, end in zip(side, [1, *own_boundaries], own_boundaries, strict=False):
                    # Split this digit, which is between the boundaries `start` and `end` of its side.
                    splits = [boundary for boundary in other_boundaries if start < boundary < end]
                    if any(boundary % start or end % boundary for boundary in splits):
                        return None
                    # Boundaries are products over the dimension, and `digits` has products over one axis.
                    digits[axis] += [outer * (boundary // start) for boundary in splits]
        digits = {axis: sorted(set(ends)) for axis, ends in digits.items()}
        if any(high % low for ends in digits.values() for low, high in itertools.pairwise(ends)):
            return None
        is_split = ends_before != {axis: tuple(ends) for axis, ends in digits.items()}
    return digits


def _digits_of(cuts: Iterable[tuple[str, Any]], digits: Mapping[str, Sequence[int]]) -> list[_Digit]:
    """Return the digits of the axes of `cuts`, outermost first. `digits` is the result of `_find_digits`."""
    return [(axis, outer) for axis, _ in cuts for outer in digits[axis][:-1]]


def _digit_size(digit: _Digit, digits: Mapping[str, Sequence[int]]) -> int:
    """Return the size of one digit: 2 for the digit ("a", 2) of {"a": [1, 2, 4]}."""
    axis, outer = digit
    ends = digits[axis]
    return ends[ends.index(outer) + 1] // outer
