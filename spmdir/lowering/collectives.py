"""The emitters of the shipped collectives. The field `lower` of a `CollectiveSpec` names its emitter.

An emitter appends the nodes that prepare the operand, and returns a `Message`: the functional collective that sends it,
and a function that computes the result from the received tensor. Process groups list ranks in mesh order, ascending.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.fx import Node

from spmdir.core.arguments import instance
from spmdir.core.declared_fields import GuardedFunction, evaluated
from spmdir.core.placement.base import PartialPlacement
from spmdir.lowering.group import Group
from spmdir.lowering.inline_code import EdgeCode, inline_all, require_kinds
from spmdir.lowering.partition import (
    DimPartition,
    drop_padding,
    flat_chunks,
    from_chunk_order,
    from_flat_chunks,
    join_even,
    pad_chunks,
    pad_end,
    split_even,
    to_chunk_order,
)
from spmdir.lowering.ranges import aten, narrow, take
from spmdir.lowering.reductions import identities, reduction_of
from spmdir.lowering.site import Message, Site, functional, here
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.cost import local_shape
from spmdir.reshard.moved_axes import permuted_axes
from spmdir.reshard.multi_axis_steps import permute_senders
from spmdir.torch_interop.dtypes import TORCH_DTYPES


def prepare_message(spec: CollectiveSpec, site: Site, x: Node) -> Message:
    """Emit the preparation of the operand `x` of the collective `spec`, and return its message.

    If all axes that the op names have one rank and do not change the tensor, the message is `x`, and sends nothing.

    Raises:
        SpmdirError: the declaration of a placement cannot be lowered.
    """
    if spec.names_axes and not site.named:
        return here(x)
    emitter = spec.emitter
    function = emitter.function if isinstance(emitter, GuardedFunction) else emitter
    return evaluated("lower", function, site, x, owner=repr(spec), returns=_MESSAGE)


_MESSAGE = instance(Message, expected="a Message, as `site.send`, `site.move` or `spmdir.lowering.site.here` return it")


def slice_message(site: Site, x: Node) -> Message:
    """Cut this rank's chunk out of a replicated tensor. The message sends nothing."""
    partition = site.partition(site.target, site.dim)
    ranges = site.own_ranges(partition)
    return Message(x, lambda replicated: take(site.emit, replicated, partition.dim, ranges, partition.extent))


def partition_message(site: Site, x: Node) -> Message:
    """Make a replicated tensor partial. The message sends nothing.

    The first rank of the group keeps the tensor, and the other ranks have the identity of the reduction. If copies of
    a value are valid partial values, as for a maximum, each rank keeps the tensor.
    """
    placement = site.target[site.named[0]]
    assert isinstance(placement, PartialPlacement)
    if placement.copies or placement.identity is None or site.mesh.index(site.rank, site.axes) == 0:
        return here(x)
    # Multiplying by zero would keep inf and nan.
    return here(identities(site, x, site.local(site.source), placement.identity))


def all_gather_message(site: Site, x: Node) -> Message:
    """Gather the chunks of a dimension. Each is padded to the longest for the message, and trimmed afterwards.

    For example, three ranks have 2, 2 and 1 rows of five. Each sends two rows. The result joins six rows and drops the
    last.
    """
    partition = site.partition(site.source, site.dim)
    shape = site.local(site.source)
    block = (*shape[: partition.dim], partition.step, *shape[partition.dim + 1 :])
    x = pad_end(site.emit, x, partition.dim, site.ranks, partition.step - shape[partition.dim])

    is_joined = partition.dim == 0 and partition.is_in_mesh_order

    def finish(result: Node) -> Node:
        joined = result if is_joined else join_even(site.emit, result, partition, block)
        return from_chunk_order(site.emit, drop_padding(site.emit, joined, partition), partition)

    # `join_even` accepts the chunks in any shape, also in one with a dimension of the ranks.
    received_shape = None if is_joined else (partition.count, *block)
    return site.move(
        functional.all_gather_into_tensor.default, x, partition.count, finish=finish, received_shape=received_shape
    )


def all_reduce_message(site: Site, x: Node) -> Message:
    """All-reduce a partial value. The functions `before` and `after` of its placement convert operand and result."""
    reduction = reduction_of(site)
    x, kind = reduction.before(x, (site.local(site.source), site.torch_dtype))
    return site.send(
        functional.all_reduce.default, x, reduction.name, finish=lambda result: reduction.after(result, kind)
    )


def reduce_scatter_message(site: Site, x: Node) -> Message:
    """Reduce partial values, and keep this rank's chunk. Chunks are sent in rank order, padded to the longest."""
    reduction = reduction_of(site)
    partition = site.partition(site.target, site.dim)
    local_shape_after = site.local(site.target)
    block = (*local_shape_after[: partition.dim], partition.step, *local_shape_after[partition.dim + 1 :])
    x, (_, dtype) = reduction.before(x, (site.local(site.source), site.torch_dtype))
    padded = pad_chunks(site.emit, to_chunk_order(site.emit, x, partition), partition, site.ranks)
    x = split_even(site.emit, padded, partition, block)
    length = local_shape_after[partition.dim]

    def finish(result: Node) -> Node:
        return reduction.after(
            narrow(site.emit, result, partition.dim, 0, length, partition.step), (local_shape_after, dtype)
        )

    return site.send(functional.reduce_scatter_tensor.default, x, reduction.name, partition.count, finish=finish)


def all_to_all_message(site: Site, x: Node) -> Message:
    """Move the sharding from dimension `dim` to dimension `to_dim`: send each rank its chunk of the new dimension."""
    source_partition = site.partition(site.source, site.dim)
    target_partition = site.partition(site.target, site.argument["to_dim"])
    source_shape, target_shape = site.local(site.source), site.local(site.target)
    sends = _chunk_sizes(target_partition, source_shape)
    receives = _chunk_sizes(source_partition, target_shape)
    flat = flat_chunks(site.emit, to_chunk_order(site.emit, x, target_partition), target_partition, source_shape)

    def finish(result: Node) -> Node:
        chunks = from_flat_chunks(site.emit, result, source_partition, target_shape)
        return from_chunk_order(site.emit, chunks, source_partition)

    return site.move(functional.all_to_all_single.default, flat, receives, sends, finish=finish)


def _chunk_sizes(partition: DimPartition, shape: Sequence[int]) -> list[int]:
    """Return the number of elements in the chunk of each rank, for a block of `shape` that `partition` cuts."""
    elements_per_index = math.prod(shape) // shape[partition.dim] if shape[partition.dim] else 0
    return [partition.chunks[chunk_number][1] * elements_per_index for chunk_number in partition.by_rank]


def permute_message(site: Site, x: Node) -> Message:
    """Send the whole local tensor to the one rank of the group whose shard it is under the target.

    The call is an all-to-all in which each rank sends to one rank and receives from one. If the axes that change have
    one rank each, nothing is sent.
    """
    axes = tuple(axis for axis in permuted_axes(site.source, site.target, site.mesh) if site.mesh.sizes[axis] > 1)
    if not axes:
        return here(x)
    shape = site.local(site.target)
    sender_of_rank = permute_senders(site.source, site.target, site.mesh, site.shape, site.rank)
    group = site.mesh.group(site.rank, [axis for axis in site.mesh.axis_names if axis in axes])
    receives = [math.prod(shape) * (sender_of_rank[site.rank] == member) for member in group]
    sends = [math.prod(shape) * (sender_of_rank[member] == site.rank) for member in group]
    flat = site.emit(aten.reshape.default, x, [-1])
    return site.move(
        functional.all_to_all_single.default,
        flat,
        receives,
        sends,
        axes=axes,
        finish=lambda result: site.emit(aten.reshape.default, result, list(shape)),
    )


def broadcast_message(site: Site, x: Node) -> Message:
    """Send the tensor of the first rank of the group to all of its ranks."""
    return site.move(functional.broadcast.default, x, 0, finish=lambda result: result)


def convert_message(site: Site, x: Node) -> Message:
    """Emit the code of an edge that a plug-in placement declares, and return its result as the message.

    The code converts a local tensor from the source to the target placement. It contains the collectives that it needs,
    so the message sends nothing. It also gets and returns the edge states of the op, if there are any.

    Raises:
        SpmdirError: the code fails, or its results differ in shape or element type from those of the op.
    """
    moved_axes = [axis for axis in site.mesh.axis_names if site.source[axis] != site.target[axis]]
    source, target = site.source[moved_axes[0]], site.target[moved_axes[0]]
    axes = [axis for axis in moved_axes if site.mesh.sizes[axis] > 1]
    result_type = site.local_type(site.target)
    group = Group(
        site.group(axes) if axes else "",
        site.mesh.group_size(moved_axes),
        site.mesh.index(site.rank, moved_axes),
        result_type.shape,
        result_type.dtype,
        None if target.dim is None else site.partition(site.target, target.dim, moved_axes),
    )
    # Edge states are padded to the largest local shape, so that they have one shape on all ranks.
    largest_shape = local_shape(site.source, site.shape, site.mesh)
    members = site.mesh.group(site.rank, moved_axes) if site.states else ()
    shapes = [site.source.local_shape(site.shape, site.mesh, site.mesh.coordinate(rank)) for rank in members]
    largest_in_group = tuple(map(max, zip(*shapes, strict=True)))
    code = EdgeCode(source, target, group, tuple(site.states), largest_shape, largest_in_group)
    tensors, kinds = zip((x, (site.local(site.source), site.torch_dtype)), *site.states.values(), strict=True)
    results, result_kinds = zip(*inline_all(site.emit, code, tensors, kinds), strict=True)
    require_kinds(code, result_kinds, ((result_type.shape, TORCH_DTYPES[result_type.dtype]), *kinds[1:]))
    return Message(x, lambda _: results[0], states=results[1:])
