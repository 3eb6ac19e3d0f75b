"""Emitters of the exchanges of rows between the ranks of experts. The number of rows is read on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

import spmdir.torch_interop.expert_ops  # noqa: F401  # registers torch.ops.experts
from spmdir.core.mesh import Mesh
from spmdir.dialects.row_exchanges import ExpertExchangeOp
from spmdir.lowering.process_groups import GroupName
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.ring import Arrive
from spmdir.lowering.site import WAIT, functional
from spmdir.lowering.wire_types import view_as_sendable

REQUIRE_CAPACITY = torch.ops.experts.require_within_capacity.default
"""Raises an error if rows were dropped. No op before it may write to the state."""


def host_copy(counts: Tensor) -> Tensor:
    """Return counts in host memory. On an accelerator, the host waits for all kernels that were issued before."""
    return counts.cpu()


def host_list(counts: Tensor) -> list[int]:
    """Return the numbers of a vector in the memory of the host."""
    return counts.tolist()


def exchange_counts(emit: Emit, group: str, size: int, counts: Node, is_read: bool) -> Arrive:
    """Send each rank the numbers of rows that this rank has for the experts of that rank.

    Args:
        size: the number of ranks of the group.
        counts: [E]: the number of rows of this rank for each expert.
        is_read: whether the host reads the received counts, which then are copied to the host.

    Returns: a function that emits the wait for the counts of this rank's experts on each rank: [E] → [size, E / size].
    """
    matrix = emit(aten.reshape.default, counts, [size, -1])
    ones = [1] * size
    started = emit(functional.all_to_all_single.default, matrix, ones, ones, group)
    return lambda: emit(host_copy, emit(WAIT, started)) if is_read else emit(WAIT, started)


def exchange_rows(
    emit: Emit, once: Emit, group: str, size: int, rows: Node, dtype: torch.dtype, sent: Node, received: Node
) -> Arrive:
    """Send rows to the ranks of their experts, or back.

    Returns: a function that emits the wait for the rows that this rank receives, ordered by the rank that sends them.

    Args:
        once: as `emit`, for calls that all exchanges of a route share.
        size: the number of ranks of the group.
        rows: [rows, …], ordered by the rank that receives them.
        dtype: the element type of `rows`.
        sent, received: the numbers of rows of each expert that this rank sends to and receives from each rank, with the
            ranks in the leading dimension.
    """
    sends, receives = (
        once(host_list, _sum_by_rank(once, size, once(host_copy, counts))) for counts in (sent, received)
    )
    rows, unpack = view_as_sendable(emit, rows, dtype)
    rows = emit(aten.contiguous.default, rows)
    started = emit(functional.all_to_all_single.default, rows, receives, sends, group)
    return lambda: unpack(emit(WAIT, started))


def exchange_slots(
    emit: Emit, group: str, size: int, rows: Node, row_shape: tuple[int, ...], dtype: torch.dtype
) -> Arrive:
    """Send each rank an equal part of the rows: [rows, *row_shape]. Returns a function as that of `exchange_rows`."""
    rows, unpack = view_as_sendable(emit, emit(aten.reshape.default, rows, [size, -1, *row_shape]), dtype)
    rows, ones = emit(aten.contiguous.default, rows), [1] * size
    started = emit(functional.all_to_all_single.default, rows, ones, ones, group)
    return lambda: emit(aten.reshape.default, unpack(emit(WAIT, started)), [-1, *row_shape])


def count_exceeding(emit: Emit, counts: Node, capacity: int) -> Node:
    """Return the number of rows beyond the capacity of their expert, as a tensor of one element."""
    exceeding = emit(aten.clamp.default, emit(aten.sub.Tensor, counts, capacity), 0)
    return emit(aten.sum.dim_IntList, exceeding, [0], True)


def require_capacity(emit: Emit, exceeding: Sequence[tuple[Node, int]], group: str | None) -> None:
    """Emit an error on all ranks if rows exceed the capacity of an expert on any rank.

    All checks share one message of the ranks, and one read of the host.

    Args:
        exceeding: for each check, the number of rows beyond the capacity, and the capacity.
        group: the name of the group of all ranks; None if there is one rank.
    """
    numbers = emit(aten.cat.default, [number for number, _ in exceeding])
    if group is not None:
        numbers = emit(WAIT, emit(functional.all_reduce.default, numbers, "sum", group))
    emit(REQUIRE_CAPACITY, numbers, [capacity for _, capacity in exceeding])


def exchange_group(mesh: Mesh, op: ExpertExchangeOp, group_name: GroupName) -> tuple[str, int]:
    """Return the name and the size of the process group of an exchange."""
    axes = tuple(axis for axis in op.axes if mesh.sizes[axis] > 1)
    refined_mesh = mesh.refine(axes)
    sub_axes = {sub_axis for axis in axes for sub_axis in refined_mesh.parts(axis)}
    group_axes = refined_mesh.merge(axis for axis in refined_mesh.axis_names if axis in sub_axes)
    return group_name(group_axes), mesh.group_size(axes)


def _sum_by_rank(emit: Emit, size: int, counts: Node) -> Node:
    """Return the number of rows for each rank: the sums of `counts` of shape [size, …] over all other dimensions."""
    return emit(aten.sum.dim_IntList, emit(aten.reshape.default, counts, [size, -1]), [1])
