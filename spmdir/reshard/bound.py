"""A lower bound on the bytes that any algorithm moves for a reshard, without reduction in the network.

One-way gossip argument. Fix an element. Each of the k combinations of coordinates on the source's partial axes is a
class: its ranks have one and the same partial value. Ranks that differ along the target's partial axes together need
the value: they are one needer. Where no needer has all partials, the first one to have the value lacked some, each
of which some rank outside sent at least once, and every other needer then receives at least one message. Where
some needers have them all, messages connect the k classes and the needers that lack some. The mean over ranks of these
messages bounds the bytes of the busiest rank, and so do what a needer receives at the least and what a class must send.
"""

from __future__ import annotations

import functools
import math

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement, splits_evenly
from spmdir.reshard.overlaps import Overlaps, overlaps


@functools.lru_cache(maxsize=65536)
def lower_bound(
    shape: tuple[int, ...], itemsize: float, source: Sharding, target: Sharding, mesh: Mesh
) -> float | None:
    """Bytes that the busiest rank must send or receive to take `source` to `target`, at the least.

    `shape` is global, `itemsize` the bytes of an element. Exact sums over ranks; see the module for the argument. Where
    the shardings take uneven chunks apart by sub-axes, none is known, which is None, nor where a placement is neither
    replicated nor a shard nor a partial value, or declares bytes that depend on the shape. Elements that a lossy
    placement sends smaller count as what it sends.
    """
    if source == target:
        return 0.0
    placements = [placement for _, placement in (*source.entries, *target.entries)]
    if any(placement.trait == "other" for placement in placements):
        return None
    edges = [(placement, edge) for placement in placements for edge in placement.edges()]
    if any(edge.bytes is not None for _, edge in edges):
        return None
    sizes = [edge.itemsize for placement, edge in edges if placement.error and edge.itemsize is not None]
    itemsize = min([itemsize, *sizes])
    try:
        fine = refinement(mesh, source, target)
    except ShardingError:
        return None
    if fine is not mesh:
        if not all(splits_evenly(sharding, fine, shape) for sharding in (source, target)):
            return None
        return lower_bound(shape, itemsize, source.refined(fine), target.refined(fine), fine)
    partial, left = [axis for axis, _ in source.partial], [axis for axis, _ in target.partial]
    sharded, wanted = _sharded(source), _sharded(target)
    classes = mesh.group_size(partial)
    together = mesh.group_size(left)
    held_classes = mesh.group_size(axis for axis in partial if axis in left)
    needers = mesh.world_size // together // mesh.group_size(wanted)
    owners = needers // mesh.group_size(axis for axis in sharded if axis not in wanted and axis not in left)

    own = [axis for axis in (*sharded, *partial) if mesh.sizes[axis] > 1]
    moving = [*dict.fromkeys([*sharded, *wanted])]
    met = overlaps(shape, source, target, mesh, moving, left) or _at_most(shape, source, target, mesh, moving, left)
    if held_classes == classes:
        per_overlap, received = classes + needers - owners - 1 if needers > owners else 0, met.missing
    else:
        per_overlap, received = classes - held_classes + needers - 1, met.needed
    messages = met.total * per_overlap + (math.prod(shape) - met.total) * (classes + needers - 1)
    stays = set(own) <= {*wanted, *left}
    sent = met.leaving if stays else met.held
    holders = mesh.world_size // mesh.group_size(own)
    return itemsize * max(messages / mesh.world_size, received / together, sent / holders)


def _at_most(
    shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh, moving: list[str], left: list[str]
) -> Overlaps:
    """At least what must move: as if ranks held as much as they can of what they need. Lengths alone tell that."""
    own, need = (
        math.prod(max(side.lengths(dim, size, mesh)) for dim, size in enumerate(shape)) for side in (source, target)
    )
    total = min(math.prod(shape), mesh.group_size(moving) * min(own, need))
    having = own * mesh.group_size(axis for axis in moving if axis in left)
    return Overlaps(total, max(need - having, 0), need, own, 0)


def _sharded(sharding: Sharding) -> list[str]:
    return [axis for axis, placement in sharding.entries if placement.trait == "shard"]
