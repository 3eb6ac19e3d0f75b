"""A lower bound on the bytes that any algorithm moves for a reshard, without reduction in the network.

One-way gossip argument. Fix an element. Each of the k combinations of coordinates on the source's pending axes is a
class: its ranks hold one and the same addend. Ranks that differ along the target's pending axes together need the
value: they are one needer. Where no needer has all addends, the first one to have the value lacked some, each of which
some rank outside sent at least once, and every other needer then receives at least one message. Where some needers
have them all, messages connect the k classes and the needers that lack some. The mean over ranks of these messages
bounds the bytes of the busiest rank, and so do what a needer receives at the least and what a class must send.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import attrs

from spmdir.errors import ShardingError
from spmdir.mesh import Mesh
from spmdir.pieces import common, length
from spmdir.planner.conditions import refinement, splits_evenly
from spmdir.sharding import Sharding, piece_ranges


@functools.cache
def lower_bound(shape: tuple[int, ...], itemsize: float, source: Sharding, target: Sharding, mesh: Mesh) -> float:
    """Bytes that the busiest rank must send or receive to take `source` to `target`, at the least.

    `shape` is global, `itemsize` the bytes of an element. Exact sums over ranks; see the module for the argument. Where
    the shardings take uneven pieces apart by sub-axes, no bound but 0 is known, nor where a placement is neither whole
    nor a piece nor a pending reduction. Elements that an inexact placement sends smaller count as what it sends.
    """
    if source == target:
        return 0.0
    placements = [placement for _, placement in (*source.entries, *target.entries)]
    if any(placement.trait == "other" for placement in placements):
        return 0.0
    inexact = (placement for placement in placements if placement.error)
    sizes = [edge.itemsize for placement in inexact for edge in placement.edges() if edge.itemsize is not None]
    itemsize = min([itemsize, *sizes])
    try:
        fine = refinement(mesh, source, target)
    except ShardingError:
        return 0.0
    if fine is not mesh:
        if not all(splits_evenly(sharding, fine, shape) for sharding in (source, target)):
            return 0.0
        return lower_bound(shape, itemsize, source.refined(fine), target.refined(fine), fine)
    pending, left = [axis for axis, _ in source.partial], [axis for axis, _ in target.partial]
    cut, wanted = _sharded(source), _sharded(target)
    classes = mesh.group_size(pending)
    together = mesh.group_size(left)
    held_classes = mesh.group_size(axis for axis in pending if axis in left)
    needers = mesh.world_size // together // mesh.group_size(wanted)
    owners = needers // mesh.group_size(axis for axis in cut if axis not in wanted and axis not in left)

    own = [axis for axis in (*cut, *pending) if mesh.sizes[axis] > 1]
    overlaps = _overlaps(shape, source, target, mesh, [*dict.fromkeys([*cut, *wanted])], left)
    if held_classes == classes:
        per_overlap, received = classes + needers - owners - 1 if needers > owners else 0, overlaps.missing
    else:
        per_overlap, received = classes - held_classes + needers - 1, overlaps.needed
    messages = overlaps.total * per_overlap + (math.prod(shape) - overlaps.total) * (classes + needers - 1)
    stays = set(own) <= {*wanted, *left}
    sent = overlaps.leaving if stays else overlaps.held
    holders = mesh.world_size // mesh.group_size(own)
    return itemsize * max(messages / mesh.world_size, received / together, sent / holders)


@attrs.frozen
class _Overlaps:
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


def _overlaps(
    shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh, moving: list[str], left: list[str]
) -> _Overlaps:
    axes = tuple((axis, mesh.sizes[axis]) for axis in moving)
    points = math.prod(count for _, count in axes)
    both, own, need = [1] * points, [1] * points, [1] * points
    for dim, size in enumerate(shape):
        before, after = (tuple(zip(side.dim_axes(dim), side.cuts(dim, mesh), strict=True)) for side in (source, target))
        meeting = _meeting(before, after, size)
        at = _numbers(axes, tuple(dict.fromkeys(axis for axis, _ in (*before, *after))))
        both = [numel * meeting[number][0] for numel, number in zip(both, at, strict=True)]
        own = [numel * meeting[number][1] for numel, number in zip(own, at, strict=True)]
        need = [numel * meeting[number][2] for numel, number in zip(need, at, strict=True)]
    holders = _numbers(axes, tuple(axis for axis in moving if source[axis].trait != "replicated"))
    needers = _numbers(axes, tuple(axis for axis in moving if axis not in left))
    staying, held = dict(zip(holders, own, strict=True)), dict(zip(needers, need, strict=True))
    for holder, needer, numel in zip(holders, needers, both, strict=True):
        staying[holder] -= numel
        held[needer] -= numel
    return _Overlaps(sum(both), max(held.values()), max(need), max(own), max(staying.values()))


@functools.lru_cache(maxsize=65536)
def _numbers(moving: tuple[tuple[str, int], ...], axes: tuple[str, ...]) -> tuple[int, ...]:
    """For each point along `moving`, (axis, ranks) pairs, its number along `axes` alone, the first one major."""
    sizes, strides, stride = dict(moving), {}, 1
    for axis in reversed(axes):
        strides[axis] = stride
        stride *= sizes[axis]
    numbers = [0]
    for axis, size in moving:
        numbers = [number + strides.get(axis, 0) * index for number in numbers for index in range(size)]
    return tuple(numbers)


_Cuts = tuple[tuple[str, tuple[Any, int]], ...]
"""The axes that divide a dimension, major first, how each does and among how many ranks."""


@functools.lru_cache(maxsize=65536)
def _meeting(before: _Cuts, after: _Cuts, size: int) -> tuple[tuple[int, int, int], ...]:
    """What each rank has in both cuts of `size` elements, in the one `before` and in the one `after`.

    Ranks are told apart along the axes that divide it before, and then those that only do so after.
    """
    held, needed = (piece_ranges(tuple(cut for _, cut in cuts), size) for cuts in (before, after))
    axes = tuple({axis: count for axis, (_, count) in (*before, *after)}.items())
    numbers = zip(*(_numbers(axes, tuple(axis for axis, _ in cuts)) for cuts in (before, after)), strict=True)
    meeting = [(held[holding], needed[needing]) for holding, needing in numbers]
    return tuple((length(common(own, need)), length(own), length(need)) for own, need in meeting)


def _sharded(sharding: Sharding) -> list[str]:
    return [axis for axis, placement in sharding.entries if placement.trait == "shard"]
