"""Execute functional collectives in one process, given the calls of all ranks of a group."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from spmdir.core.errors import DivergenceError, PluginError
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.lowering.site import functional
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import collectives
from spmdir.simulator.rank_run import Issued

Tensor = torch.Tensor

Steps = Mapping[Any, Callable[[Sequence[Issued]], list[Tensor]]]
"""Functional collective → the function from the calls of a group to the results, both in rank order."""


def all_steps(extra_steps: Steps | None = None) -> Steps:
    """Return the steps of all collectives: of spmdir, of plug-ins, and `extra_steps`."""
    plugins = {_torch_op(spec, name): step for spec in collectives() for name, step in spec.executed.items()}
    return {**EXECUTED, **plugins, **(extra_steps or {})}


def _torch_op(spec: CollectiveSpec, name: str) -> Any:
    """Return the torch op that a plug-in collective names, as `mine.swap.default`."""
    try:
        return operator.attrgetter(name)(torch.ops)
    except AttributeError:
        raise PluginError(
            f"`executed` of {spec!r} names '{name}', which torch does not have; expected the name of an op that "
            "`lower` calls, such as 'mine.swap.default'",
            spec.place,
        ) from None


def _operands(calls: Sequence[Issued]) -> list[Tensor]:
    """Return the operand of each rank; raise DivergenceError if types, shapes or arguments differ between ranks."""
    tensors = [call.arguments[0] for call in calls]
    for call, tensor in zip(calls, tensors, strict=True):
        has_equal_type = tensor.dtype == tensors[0].dtype and tensor.shape == tensors[0].shape
        if not has_equal_type or call.arguments[1:] != calls[0].arguments[1:]:
            raise _difference_error(calls[0], call)
    return tensors


def _difference_error(first: Issued, other: Issued) -> DivergenceError:
    """Return the error for two calls of a group that do not fit together."""
    return first.error(f"differs between ranks of a group: {first} and {other}; expected equal types and arguments")


def _check_group_size(calls: Sequence[Issued], size: int) -> None:
    """Raise DivergenceError unless the argument `size` of a collective is the number of its ranks."""
    if size != len(calls):
        raise calls[0].error(
            f"has the group size {size}; expected {len(calls)}, the number of ranks of its group: correct the argument"
        )


def _reduce(calls: Sequence[Issued], tensors: Sequence[Tensor], op: str) -> Tensor:
    """Return the reduction of the tensors by `op`, in rank order; raise DivergenceError if torch cannot reduce them."""
    if op not in REDUCTIONS or (op == "avg" and not (tensors[0].is_floating_point() or tensors[0].is_complex())):
        raise calls[0].error(
            f"cannot reduce {tensors[0].dtype} by {op}; expected one of {', '.join(REDUCTIONS)}, and avg only of "
            "floating-point and complex numbers"
        )
    if tensors[0].is_complex() and op in ("sum", "avg"):
        # As process groups do: torch's complex sum differs for infinite parts and negative zeros.
        parts = [torch.view_as_real(tensor.resolve_conj()) for tensor in tensors]
        return torch.view_as_complex(_reduce(calls, parts, op))
    total = tensors[0]
    for tensor in tensors[1:]:
        total = REDUCTIONS[op].combine(total, tensor)
    return total / len(tensors) if op == "avg" else total.clone()


def _all_reduce(calls: Sequence[Issued]) -> list[Tensor]:
    """Reduce the tensors of all ranks; each rank gets the result."""
    total = _reduce(calls, _operands(calls), calls[0].arguments[1])
    return [total.clone() for _ in calls]


def _all_gather(calls: Sequence[Issued]) -> list[Tensor]:
    """Concatenate the tensors of all ranks along dimension 0; each rank gets the result."""
    tensors = _operands(calls)
    _check_group_size(calls, calls[0].arguments[1])
    if not tensors[0].dim():
        raise calls[0].error("gathers a 0-d tensor; expected at least one dimension: unsqueeze it first")
    gathered = torch.cat(tensors)
    return [gathered.clone() for _ in calls]


def _reduce_scatter(calls: Sequence[Issued]) -> list[Tensor]:
    """Reduce the tensors of all ranks, and give each rank one chunk of dimension 0 of the result."""
    tensors, (_, op, size, _) = _operands(calls), calls[0].arguments
    _check_group_size(calls, size)
    if not tensors[0].dim() or tensors[0].shape[0] % size:
        raise calls[0].error(
            f"scatters {list(tensors[0].shape)} over {size} ranks; expected a dimension 0 that the ranks divide: pad it"
        )
    if not tensors[0].shape[0]:
        return tensors
    return [chunk.clone() for chunk in _reduce(calls, tensors, op).chunk(size)]


def _all_to_all(calls: Sequence[Issued]) -> list[Tensor]:
    """Send each rank one block of every rank. The lengths in the calls cut each operand into blocks of dimension 0.

    For example, rank 0 sends [1, 2] and rank 1 sends [3, 4] elements. Then rank 0 receives [1, 3], and rank 1 [2, 4].
    """
    receives, sends = [list(call.arguments[1]) for call in calls], [list(call.arguments[2]) for call in calls]
    blocks = []
    for source, call in enumerate(calls):
        tensor = call.arguments[0]
        if tensor.dtype != calls[0].arguments[0].dtype or tensor.shape[1:] != calls[0].arguments[0].shape[1:]:
            raise _difference_error(calls[0], call)
        expected = [receives[target][source] for target in range(len(calls)) if source < len(receives[target])]
        if sends[source] != expected or sum(sends[source]) != tensor.shape[0]:
            raise calls[0].error(
                f"sends {sends[source]} of {tensor.shape[0]} elements from rank {source} of the group, "
                f"whose ranks expect {expected}; expected equal counts on both sides: correct the split sizes"
            )
        blocks.append(tensor.split(sends[source]))
    return [torch.cat([blocks[source][target] for source in range(len(calls))]) for target in range(len(calls))]


def _broadcast(calls: Sequence[Issued]) -> list[Tensor]:
    """Give each rank the tensor of one rank of the group."""
    tensors, root = _operands(calls), calls[0].arguments[1]
    if not 0 <= root < len(calls):
        raise calls[0].error(
            f"sends from rank {root} of a group of {len(calls)} ranks; expected a rank from 0 to {len(calls) - 1}"
        )
    return [tensors[root].clone() for _ in calls]


EXECUTED: Steps = {
    functional.all_reduce.default: _all_reduce,
    functional.all_gather_into_tensor.default: _all_gather,
    functional.reduce_scatter_tensor.default: _reduce_scatter,
    functional.all_to_all_single.default: _all_to_all,
    functional.broadcast.default: _broadcast,
}
"""The functional collectives that spmdir emits."""
