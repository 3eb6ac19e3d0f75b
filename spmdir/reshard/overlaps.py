"""What source and target shards have in common, counted without listing the ranks of large meshes.

Ranks whose shards are as long are counted together: along each axis, the runs of neighbouring ranks alike, found where
one side of a dimension is cut as the other one and then on. Where a dimension is cut by other axes on either side, and
both cut it evenly into digits of the same sizes, two shards overlap if these digits agree, whatever they are: digits
that must agree are one `_Class`. Elsewhere shards are compared one by one, up to POINTS of them.
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
from spmdir.core.placement.base import shard_lengths
from spmdir.core.placement.sharding import Sharding, shard_ranges
from spmdir.core.placement.standard import Shard
from spmdir.reshard.runs import cut_length, mark_runs

POINTS = 256
"""The most combinations of runs that are gone through."""

_Cuts = tuple[tuple[str, tuple[Any, int]], ...]
"""The axes that divide a dimension, major first, how each does and among how many ranks."""

_Digit = tuple[str, int]
"""An axis and the ranks outside of the digit, as in a sub-axis."""

_Points = tuple[tuple[str, tuple[int, ...]], ...]
"""Axes and, for each, the first rank of every run."""


@attrs.frozen
class Overlaps:
    """What source and target have in common.

    Attributes:
        total: elements that some needer of theirs holds.
        missing, needed: the most that one needer lacks, and needs.
        held, leaving: the most that one rank holds, and that it holds while some needer of theirs lacks them,
            where the axes that tell the rank from others all divide the target.
    """

    total: int
    missing: int
    needed: int
    held: int
    leaving: int


@attrs.frozen
class _Dim:
    """How both sides cut one dimension: alike by `shared`, then by `before` and by `after`."""

    size: int
    shared: _Cuts
    before: _Cuts
    after: _Cuts

    @staticmethod
    def of(source: Sharding, target: Sharding, mesh: Mesh, dim: int, size: int) -> _Dim:
        before, after = (
            tuple(zip(side.dim_axes(dim), side.dim_placements(dim, mesh), strict=True)) for side in (source, target)
        )
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False))
        alike = len(list(pairs))
        return _Dim(size, before[:alike], before[alike:], after[alike:])

    @property
    def nested(self) -> bool:
        return not (self.before and self.after)

    @property
    def axes(self) -> dict[str, int]:
        return {axis: count for axis, (_, count) in (*self.shared, *self.before, *self.after)}

    def is_even(self) -> bool:
        """Whether both sides cut what `shared` leaves into chunks of one length each."""
        sides = [math.prod(count for _, (_, count) in cuts) for cuts in (self.before, self.after)]
        extents = shard_lengths(tuple(cut for _, cut in self.shared), self.size)
        chunks = all(isinstance(placement, Shard) for _, (placement, _) in (*self.before, *self.after))
        return chunks and all(extent % side == 0 for extent in extents for side in sides)


@attrs.frozen
class _Class:
    """Digits of `size` each that must agree where shards are to overlap; of which `of` axes they are."""

    size: int
    of: tuple[str, ...]


def overlaps(
    shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh, moving: Sequence[str], left: Sequence[str]
) -> Overlaps | None:
    """Return what the shards of `source` and `target` have in common; None if that takes more than POINTS points.

    Args:
        moving: the axes that divide one of both.
        left: the axes whose reduction the target leaves.
    """
    cut = {placement.dim for _, placement in (*source.entries, *target.entries)}
    dims = [_Dim.of(source, target, mesh, dim, size) for dim, size in enumerate(shape) if dim in cut]
    uncut = math.prod(size for dim, size in enumerate(shape) if dim not in cut)
    starts: dict[str, set[int]] = {axis: {0} for axis in moving}
    for dim in dims:
        mark_runs(dim.size, (*dim.shared, *dim.before, *dim.after) if dim.nested else dim.shared, starts)
    crossing = [dim for dim in dims if not dim.nested]
    classes = _classes(crossing, starts) if crossing else ()
    if classes is None:
        for axis, (_, count) in (cut for dim in crossing for cut in (*dim.before, *dim.after)):
            starts[axis] = set(range(min(count, POINTS + 1)))
    agreeing = {axis for one in classes or () for axis in one.of}
    axes = tuple((axis, tuple(sorted(found))) for axis, found in starts.items() if axis not in agreeing)
    if math.prod(len(found) for _, found in axes) > POINTS or (classes is None and any(map(_is_scattered, crossing))):
        return None
    holding = [axis for axis in moving if source[axis].trait != "replicated"]
    needing = [axis for axis in moving if axis not in left]
    return _counted(dims, uncut, axes, classes, holding, needing, mesh)


def _is_scattered(dim: _Dim) -> bool:
    """Return whether ranks hold too many ranges of a dimension to compare them."""
    cuts = (cut for _, cut in (*dim.before, *dim.after))
    return any(placement.stretches(dim.size, count) > ENUMERATED.most for placement, count in cuts)


def _counted(
    dims: Sequence[_Dim],
    uncut: int,
    axes: _Points,
    classes: Sequence[_Class] | None,
    holding: Sequence[str],
    needing: Sequence[str],
    mesh: Mesh,
) -> Overlaps:
    """Return `overlaps` of `dims`, and of the others, which have `uncut` elements together."""
    both = own = need = [uncut] * math.prod(len(found) for _, found in axes)
    counts = tuple((axis, len(found)) for axis, found in axes)
    told = dict(axes)
    for dim in dims:
        here = tuple((axis, told[axis]) for axis in dim.axes if axis in told)
        meeting = _meeting(dim, here, classes is not None)
        at = _numbers(counts, tuple(axis for axis, _ in here))
        both = [numel * meeting[number][0] for numel, number in zip(both, at, strict=True)]
        own = [numel * meeting[number][1] for numel, number in zip(own, at, strict=True)]
        need = [numel * meeting[number][2] for numel, number in zip(need, at, strict=True)]

    def most_apart(kept: Sequence[str], whole: Sequence[int]) -> int:
        """Return the most by which `whole` exceeds what ranks that differ beside the `kept` axes have in common."""
        if any(sum(axis in kept for axis in one.of) > 1 for one in classes or ()):
            return max(whole)  # these digits may disagree
        times = math.prod(one.size for one in classes or () if not any(axis in kept for axis in one.of))
        groups = _numbers(counts, tuple(axis for axis, _ in counts if axis in kept))
        rest = dict(zip(groups, whole, strict=True))
        for group, numel, weight in zip(groups, both, _weights(axes, tuple(kept), mesh), strict=True):
            rest[group] -= numel * weight * times
        return max(rest.values())

    every = math.prod(one.size for one in classes or ())
    total = every * sum(map(int.__mul__, both, _weights(axes, (), mesh)))
    return Overlaps(total, most_apart(needing, need), max(need), max(own), most_apart(holding, own))


@functools.lru_cache(maxsize=4096)
def _weights(axes: _Points, kept: tuple[str, ...], mesh: Mesh) -> tuple[int, ...]:
    """For each point, the ranks that it stands for, `kept` axes apart."""
    weights = [1]
    for axis, found in axes:
        runs = [end - start for start, end in itertools.pairwise((*found, mesh.sizes[axis]))]
        weights = [weight * (1 if axis in kept else run) for weight in weights for run in runs]
    return tuple(weights)


@functools.lru_cache(maxsize=65536)
def _numbers(counts: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """For each point along `counts`, (axis, points) pairs, its number along `axes` alone, the first one major."""
    sizes, strides, stride = dict(counts), {}, 1
    for axis in reversed(axes):
        strides[axis] = stride
        stride *= sizes[axis]
    numbers = [0]
    for axis, size in counts:
        numbers = [number + strides.get(axis, 0) * index for number in numbers for index in range(size)]
    return tuple(numbers)


@functools.lru_cache(maxsize=65536)
def _meeting(dim: _Dim, points: _Points, agreeing: bool) -> tuple[tuple[int, int, int], ...]:
    """What ranks have in both cuts of a dimension, in the one before and in the one after, for each of the `points`.

    `agreeing` ranks have the digits in common by which shards overlap.
    """
    return tuple(
        _met(dim, dict(zip((axis for axis, _ in points), indices, strict=True)), agreeing)
        for indices in itertools.product(*(found for _, found in points))
    )


def _met(dim: _Dim, at: Mapping[str, int], agreeing: bool) -> tuple[int, int, int]:
    if not dim.nested and not agreeing:
        own, need = (_held((*dim.shared, *cuts), dim.size, at) for cuts in (dim.before, dim.after))
        return length(common(own, need)), length(own), length(need)
    extent = cut_length(dim.size, dim.shared, at)
    own, need = (cut_length(extent, cuts, at) for cuts in (dim.before, dim.after))
    return min(own, need), own, need


def _held(cuts: _Cuts, size: int, at: Mapping[str, int]) -> Any:
    return shard_ranges(tuple(cut for _, cut in cuts), size, tuple(at[axis] for axis, _ in cuts))


def _classes(dims: Sequence[_Dim], starts: Mapping[str, set[int]]) -> tuple[_Class, ...] | None:
    """The digits that must agree; None if shards do not overlap so, or ranks along the axes hold other lengths."""
    axes = {axis: count for dim in dims for axis, (_, count) in (*dim.before, *dim.after)}
    if any(len(starts[axis]) > 1 for axis in axes) or not all(dim.is_even() for dim in dims):
        return None
    digits = _digits(dims, axes)
    if digits is None:
        return None
    classes = [{(axis, outer)} for axis, ends in digits.items() for outer in ends[:-1]]
    for dim in dims:
        for pair in zip(*(_digits_of(cuts, digits) for cuts in (dim.before, dim.after)), strict=False):
            joined = [one for one in classes if not one.isdisjoint(pair)]
            classes = [*(one for one in classes if one not in joined), set().union(*joined)]
    return tuple(_Class(_size(next(iter(one)), digits), tuple(axis for axis, _ in one)) for one in classes)


def _digits(dims: Sequence[_Dim], axes: Mapping[str, int]) -> dict[str, list[int]] | None:
    """Axis → the ranks before each of its digits, and all of them, such that both sides of every dimension have digits
    of the same sizes; None if there are none."""
    digits = {axis: sorted({1, count}) for axis, count in axes.items()}
    while True:
        before = {axis: tuple(ends) for axis, ends in digits.items()}
        for dim in dims:
            sides = (_digits_of(dim.before, digits), _digits_of(dim.after, digits))
            edges = [list(itertools.accumulate((_size(d, digits) for d in side), int.__mul__)) for side in sides]
            for side, own, other in zip(sides, edges, edges[::-1], strict=True):
                for (axis, outer), start, end in zip(side, [1, *own], own, strict=False):
                    digits[axis] += [outer * (edge // start) for edge in other if start < edge < end]
                    if any(edge % start or end % edge for edge in other if start < edge < end):
                        return None
        digits = {axis: sorted(set(ends)) for axis, ends in digits.items()}
        if any(high % low for ends in digits.values() for low, high in itertools.pairwise(ends)):
            return None
        if before == {axis: tuple(ends) for axis, ends in digits.items()}:
            return digits


def _digits_of(cuts: Iterable[tuple[str, Any]], digits: Mapping[str, Sequence[int]]) -> list[_Digit]:
    return [(axis, outer) for axis, _ in cuts for outer in digits[axis][:-1]]


def _size(digit: _Digit, digits: Mapping[str, Sequence[int]]) -> int:
    axis, outer = digit
    ends = digits[axis]
    return ends[ends.index(outer) + 1] // outer
