"""When a graph must be traced again before it is imported, and by which decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.admitted_nodes import iterate_calls
from spmdir.importer.as_strided import SLICED
from spmdir.importer.foreach_ops import entrywise_forms, has_entrywise_form, has_written_form, works_on_lists
from spmdir.importer.liveness import without_dead_code
from spmdir.importer.locations import source_line
from spmdir.importer.running_statistics import writes_statistics
from spmdir.torch_interop.graphs import AUTOCAST_CALLS
from spmdir.torch_interop.schemas import is_mutable

_PUT = torch.ops.aten.index_put.default


def needs_retrace(module: fx.GraphModule) -> bool:
    """Return whether some op mutates, computes under autocast, works on lists or puts by a mask: the IR says these
    otherwise.

    Raises:
        UnsupportedError: an op updates lists of tensors in one kernel that nothing tells the entries of.
    """
    kernel = next(
        (n for n in iterate_calls(module) if works_on_lists(n.target) and not has_entrywise_form(n.target)), None
    )
    if kernel is not None:
        raise UnsupportedError(
            f"'{kernel.name}' calls {kernel.target}, which updates lists of tensors in one kernel; "
            "make the optimizer with fused=False, or trace a spmdir.training_step",
            source_line(kernel.meta.get("stack_trace")),
        )
    return any(
        is_mutable(node.target)
        or getattr(node.target, "__name__", "") in AUTOCAST_CALLS
        or works_on_lists(node.target)
        or writes_statistics(node.target, node.args, node.kwargs)
        or (node.target is _PUT and any(_is_mask(index.meta.get("val")) for index in node.args[1] if index))  # type: ignore
        for node in iterate_calls(module)
    )


def is_exact(module: fx.GraphModule, imported: fx.Graph) -> bool:
    """Return whether what is imported for each op is this op, or one that gives the same bits.

    An op that torch composes of others, as binary_cross_entropy_with_logits, is these if the graph was traced again.

    Args:
        imported: the graph that is imported for `module`.
    """
    kept = {node.target for node in imported.nodes}
    live = iterate_calls(without_dead_code(module))
    return not any(has_written_form(n.target) or not (is_mutable(n.target) or n.target in kept) for n in live)


def decompositions(module: fx.GraphModule) -> dict[Any, Callable[..., Any]]:
    """Return op of the graph, in functional form → the same by simpler ops, for a trace.

    These are ops on lists, puts by a mask, and parts that are said by strides.
    """
    return {**entrywise_forms(node.target for node in iterate_calls(module)), _PUT: _masked_put, **SLICED}


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool


def _masked_put(self: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """Return `self[mask] = values` without a shape that depends on data; other puts stay as they are.

    It is a choice where all chosen places get the same, else a masked_scatter, which takes the values in their order.
    """
    at = [position for position, index in enumerate(indices) if index is not None]
    if len(at) != 1 or not _is_mask(indices[at[0]]):
        return NotImplemented
    (first,), mask = at, indices[at[0]]
    behind = self.dim() - first - mask.dim()
    if values.numel() == 1:
        values = values.reshape(())
    whole = mask.reshape((*mask.shape, *(1,) * behind))
    before = values.dim() - behind - 1
    if before >= 0 and values.shape[before] == 1:
        values = values.reshape((*values.shape[:before], *(1,) * mask.dim(), *values.shape[before + 1 :]))
        before = -1
    if before < 0:
        return torch.where(whole, self + values if accumulate else values, self)
    chosen = values.shape[before]
    values = values.expand(*self.shape[:first], chosen, *self.shape[self.dim() - behind :])
    front = list(range(mask.dim()))
    moved = self.movedim([first + dim for dim in front], front)
    mask = mask.reshape((*mask.shape, *(1,) * (self.dim() - mask.dim()))).expand(moved.shape)
    result = moved.masked_scatter(mask, values.movedim(first, 0))
    if accumulate:
        result = torch.where(mask, moved + result, moved)
    return result.movedim(front, [first + dim for dim in front])
