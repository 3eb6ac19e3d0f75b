"""A lower bound on the bytes that any algorithm moves for a reshard, without reduction in the network.

Fix an element. Its value is the reduction of k partial values, one for each position along the source's partial axes.
Ranks that differ only along the target's partial axes need the value together: they are one *needer*. r is the number
of needers, and m is the largest number of partial values that one needer has at the start.

- If m = k, messages must connect the k partial values and the needers that lack a partial value. If l of them do, that
  takes k + l − 1 messages, or none if l = 0.
- If m < k, the first needer to finish lacked at least k − m partial values. A rank outside that needer sent each of
  them at least once. Every other needer then receives a message: (k − m) + (r − 1) messages.

For example, an all-reduce over 4 ranks has k = r = 4 and m = 1: 3 + 3 = 6 messages for each element. The mean over 4
ranks is 1.5 messages, so a tensor of 1000 bytes needs 1500 bytes. A ring also sends 2 (n − 1)/n times the tensor.

    lower_bound((250,), 4, <a: P(sum)>, <>, Mesh({"a": 4})) = 1500.0

The bound is the largest of three numbers: the mean number of messages over ranks, the messages that one needer must
receive, and the messages that one rank must send. The argument is that of Patarasu and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations" (2009), extended to other placements.
"""

from __future__ import annotations

import functools
import math

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement, splits_evenly
from spmdir.reshard.overlaps import Overlaps, count_overlaps


@functools.lru_cache(maxsize=65536)
def lower_bound(
    shape: tuple[int, ...], itemsize: float, source: Sharding, target: Sharding, mesh: Mesh
) -> float | None:
    """Return the fewest bytes that the busiest rank must send or receive for a reshard; None if no bound is known.

    There is no bound in three cases: a placement is neither replicated nor a shard nor a partial value; a placement
    declares bytes that depend on the shape; or sub-axes split uneven chunks.

    Args:
        shape: the global shape.
        itemsize: bytes of an element. If a lossy placement sends smaller elements, their size is used.
    """
    if source == target:
        return 0.0
    placements = [placement for _, placement in (*source.entries, *target.entries)]
    if any(placement.trait == "other" for placement in placements):
        return None
    edges = [(placement, edge) for placement in placements for edge in placement.edges()]
    if any(edge.bytes is not None for _, edge in edges):
        return None
    sent_itemsizes = [edge.itemsize for placement, edge in edges if placement.error and edge.itemsize is not None]
    itemsize = min([itemsize, *sent_itemsizes])
    try:
        fine = refinement(mesh, source, target)
    except ShardingError:
        return None
    if fine is not mesh:
        if not all(splits_evenly(sharding, fine, shape) for sharding in (source, target)):
            return None
        return lower_bound(shape, itemsize, source.refined(fine), target.refined(fine), fine)
    return itemsize * _least_messages(shape, source, target, mesh)


def _least_messages(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> float:
    """Return the fewest elements that the busiest rank must send or receive.

    A needer is a set of ranks that need the value of an element together: they differ only along the target's partial
    axes. For example, an all-reduce of 250 elements over 4 ranks has 4 partial values and 4 needers. Each needer has 1
    partial value at the start. So each element takes (4 − 1) + (4 − 1) = 6 messages, and each rank sends
    250 · 6 / 4 = 375 elements. If the overlaps of shards are too many to count, the largest possible ones replace them.
    """
    partial_axes, remaining_partial = [axis for axis, _ in source.partial], [axis for axis, _ in target.partial]
    source_axes, target_axes = _sharding_axes(source), _sharding_axes(target)
    partial_count = mesh.group_size(partial_axes)  # k in the text of the module
    needer_size = mesh.group_size(remaining_partial)  # ranks
    own_partial_count = mesh.group_size(axis for axis in partial_axes if axis in remaining_partial)  # m
    needer_count = mesh.world_size // needer_size // mesh.group_size(target_axes)  # r
    # Needers that have the element at the start do not differ along the axes that shard only the source.
    gathered_axes = [axis for axis in source_axes if axis not in target_axes and axis not in remaining_partial]
    owning_needer_count = needer_count // mesh.group_size(gathered_axes)
    # The local tensors of two ranks are equal unless they differ along one of these axes.
    distinct_axes = [axis for axis in (*source_axes, *partial_axes) if mesh.sizes[axis] > 1]
    sharding_axes = [*dict.fromkeys([*source_axes, *target_axes])]
    overlap = count_overlaps(shape, source, target, mesh, sharding_axes, remaining_partial) or _overlaps_from_lengths(
        shape, source, target, mesh, sharding_axes, remaining_partial
    )
    if own_partial_count == partial_count:
        lacking_needer_count = needer_count - owning_needer_count
        messages_per_overlap = partial_count + lacking_needer_count - 1 if lacking_needer_count else 0
        received = overlap.most_missing
    else:
        messages_per_overlap = partial_count - own_partial_count + needer_count - 1
        received = overlap.most_needed
    # Elements outside overlaps are on no needer at the start.
    messages_elsewhere = (math.prod(shape) - overlap.total) * (partial_count + needer_count - 1)
    messages = overlap.total * messages_per_overlap + messages_elsewhere
    mean_over_ranks = messages / mesh.world_size
    received_by_rank = received / needer_size  # the ranks of a needer share what it receives
    is_never_reduced = set(distinct_axes) <= {*target_axes, *remaining_partial}
    sent = overlap.most_leaving if is_never_reduced else overlap.most_held
    replica_count = mesh.world_size // mesh.group_size(distinct_axes)
    sent_by_rank = sent / replica_count  # the ranks with equal local tensors share what they send
    return max(mean_over_ranks, received_by_rank, sent_by_rank)


def _overlaps_from_lengths(
    shape: tuple[int, ...],
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    sharding_axes: list[str],
    remaining_partial: list[str],
) -> Overlaps:
    """Return bounds on the numbers of `Overlaps` from the lengths of shards alone, if there are too many to count.

    They assume that each rank has as much of its target shard as fits into its source shard. So ranks lack at least as
    many elements as in the result. For example, a rank with a source shard of 3 elements and a target shard of 5 lacks
    at least 2.

    Args:
        sharding_axes, remaining_partial: as of `count_overlaps`.
    """
    source_numel, target_numel = (
        math.prod(max(side.lengths(dim, size, mesh)) for dim, size in enumerate(shape)) for side in (source, target)
    )
    total = min(math.prod(shape), mesh.group_size(sharding_axes) * min(source_numel, target_numel))
    numel_of_needer = source_numel * mesh.group_size(axis for axis in sharding_axes if axis in remaining_partial)
    most_missing = max(target_numel - numel_of_needer, 0)
    return Overlaps(total, most_missing, most_needed=target_numel, most_held=source_numel, most_leaving=0)


def _sharding_axes(sharding: Sharding) -> list[str]:
    """Return the axes that shard a dimension."""
    return [axis for axis, placement in sharding.entries if placement.trait == "shard"]
