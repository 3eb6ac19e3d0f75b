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
import itertools
import math

import attrs

from spmdir.errors import ShardingError
from spmdir.mesh import Mesh
from spmdir.pieces import Ranges, common, joined, length, select
from spmdir.placement_type import ShardPlacement
from spmdir.planner.steps import refinement, splits_evenly
from spmdir.sharding import Sharding


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
    tables = []
    for dim, size in enumerate(shape):
        before, after = source.dim_axes(dim), target.dim_axes(dim)
        tables.append((before, _ranges(source, dim, size, mesh), after, _ranges(target, dim, size, mesh)))
    total = 0
    held: dict[tuple[int, ...], int] = {}
    needed: dict[tuple[int, ...], int] = {}
    owned: dict[tuple[int, ...], int] = {}
    staying: dict[tuple[int, ...], int] = {}
    telling = [axis for axis in moving if source[axis].trait != "replicated"]
    for point in itertools.product(*(range(mesh.sizes[axis]) for axis in moving)):
        here = dict(zip(moving, point, strict=True))
        both = need = own = 1
        for before, held_ranges, after, needed_ranges in tables:
            (holding, held_length) = held_ranges[tuple([here[axis] for axis in before])]
            (needing, needed_length) = needed_ranges[tuple([here[axis] for axis in after])]
            both *= length(common(holding, needing)) if both else 0
            need *= needed_length
            own *= held_length
        needer = tuple([here[axis] for axis in moving if axis not in left])
        holder = tuple([here[axis] for axis in telling])
        total += both
        held[needer] = held.get(needer, 0) + both
        needed[needer] = need
        owned[holder] = own
        staying[holder] = staying.get(holder, 0) + both
    return _Overlaps(
        total,
        max(needed[needer] - held[needer] for needer in needed),
        max(needed.values()),
        max(owned.values()),
        max(owned[holder] - staying[holder] for holder in owned),
    )


def _sharded(sharding: Sharding) -> list[str]:
    return [axis for axis, placement in sharding.entries if placement.trait == "shard"]


def _ranges(sharding: Sharding, dim: int, size: int, mesh: Mesh) -> dict[tuple[int, ...], tuple[Ranges, int]]:
    """Coordinates along the axes that divide a dimension of `size` elements → the piece there, and its length."""
    pieces: dict[tuple[int, ...], Ranges] = {(): ((0, size),)}
    for axis in sharding.dim_axes(dim):
        placement, count = sharding[axis], mesh.sizes[axis]
        assert isinstance(placement, ShardPlacement)
        pieces = {
            (*at, index): select(held, placement.ranges(length(held), count, index))
            for at, held in pieces.items()
            for index in range(count)
        }
    return {at: (joined(held), length(held)) for at, held in pieces.items()}
