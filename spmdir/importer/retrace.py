"""Decide whether a graph must be traced again before the import, and with which decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.admitted_nodes import iterate_calls
from spmdir.importer.as_strided import STRIDED_FORMS
from spmdir.importer.foreach_ops import entrywise_forms, has_entrywise_form, has_written_form, works_on_lists
from spmdir.importer.liveness import without_dead_code
from spmdir.importer.locations import innermost_frame
from spmdir.importer.running_statistics import writes_statistics
from spmdir.torch_interop.graphs import AUTOCAST_CALLS
from spmdir.torch_interop.schemas import is_mutable

_PUT = torch.ops.aten.index_put.default


def needs_retrace(module: fx.GraphModule) -> bool:
    """Return whether the IR lacks some op of `module`: an in-place op, an op on lists, a masked put, autocast.

    The op may also write running statistics.


    Raises:
        UnsupportedError: a kernel updates lists of tensors, and has no form by ops on entries.
    """
    for node in iterate_calls(module):
        if works_on_lists(node.target) and not has_entrywise_form(node.target):
            raise UnsupportedError(
                f"'{node.name}' calls {node.target}, which updates lists of tensors in one kernel; expected ops on "
                "tensors: create the optimizer with fused=False, or trace a spmdir.training_step",
                innermost_frame(node.meta.get("stack_trace")),
            )
    return any(map(_needs_other_ops, iterate_calls(module)))


def _needs_other_ops(node: fx.Node) -> bool:
    """Return whether the IR cannot express the op of a node, so a retrace has to replace it by other ops."""
    if is_mutable(node.target) or works_on_lists(node.target):
        return True
    if getattr(node.target, "__name__", "") in AUTOCAST_CALLS:
        return True
    if node.target is _PUT:
        return any(_is_mask(index.meta.get("val")) for index in node.args[1] if index)  # type: ignore
    return writes_statistics(node.target, node.args, node.kwargs)


def is_bitwise_exact(module: fx.GraphModule, imported: fx.Graph) -> bool:
    """Return whether the retrace kept each live op of `module`, so that all results are equal in each bit.

    A retrace decomposes composite ops, such as binary_cross_entropy_with_logits, which may then round differently. An
    in-place op is always replaced, by its functional variant, which runs the same kernel. So only its absence is no
    reason for a difference. Kernels on lists, such as `_fused_adam_`, are replaced by the formulas in
    `foreach_ops.ENTRYWISE_FORMS` (`has_written_form`), which may round differently.

    Args:
        module: the original graph.
        imported: the graph that is imported for `module`, after the retrace.
    """
    imported_ops = {node.target for node in imported.nodes}
    for call in iterate_calls(without_dead_code(module)):
        is_decomposed = not is_mutable(call.target) and call.target not in imported_ops
        if is_decomposed or has_written_form(call.target):
            return False
    return True


def retrace_decompositions(module: fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """Return functional op → a function that computes it by simpler ops.

    The table has the ops on lists that `module` calls, `index_put` (for masks), and the ops on strides.
    """
    return {**entrywise_forms(node.target for node in iterate_calls(module)), _PUT: _masked_put, **STRIDED_FORMS}


def _is_mask(index: Any) -> bool:
    """Return whether an index of a put is a tensor of booleans."""
    return isinstance(index, Tensor) and index.dtype == torch.bool


def _masked_put(self: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """Compute `self[mask] = values` without shapes that depend on data; return NotImplemented for other puts.

    If all selected elements get the same value, it is a `where`. Otherwise it is a `masked_scatter`, which consumes the
    values in order.

    Example:
        >>> _masked_put(torch.zeros(3), [torch.tensor([True, False, True])], torch.tensor([5.0, 7.0]))
        tensor([5., 0., 7.])
    """
    mask_positions = [position for position, index in enumerate(indices) if index is not None]
    if len(mask_positions) != 1 or not _is_mask(indices[mask_positions[0]]):
        return NotImplemented
    # The mask covers the dimensions of `self` from `first_dim` on; `trailing_rank` dimensions follow.
    first_dim = mask_positions[0]
    mask = indices[first_dim]
    trailing_rank = self.dim() - first_dim - mask.dim()
    if values.numel() == 1:
        values = values.reshape(())
    broadcast_mask = mask.reshape((*mask.shape, *(1,) * trailing_rank))
    # The dimension of `values` that lists the selected elements; negative if all get the same value.
    count_dim = values.dim() - trailing_rank - 1
    if count_dim >= 0 and values.shape[count_dim] == 1:
        values = values.reshape((*values.shape[:count_dim], *(1,) * mask.dim(), *values.shape[count_dim + 1 :]))
        count_dim = -1
    if count_dim < 0:
        return torch.where(broadcast_mask, self + values if accumulate else values, self)
    # masked_scatter takes values in memory order, so the masked dimensions move to the front.
    count = values.shape[count_dim]
    values = values.expand(*self.shape[:first_dim], count, *self.shape[self.dim() - trailing_rank :])
    mask_dims = list(range(mask.dim()))
    moved_self = self.movedim([first_dim + dim for dim in mask_dims], mask_dims)
    mask = mask.reshape((*mask.shape, *(1,) * (self.dim() - mask.dim()))).expand(moved_self.shape)
    result = moved_self.masked_scatter(mask, values.movedim(first_dim, 0))
    if accumulate:
        result = torch.where(mask, moved_self + result, moved_self)
    return result.movedim(mask_dims, [first_dim + dim for dim in mask_dims])
