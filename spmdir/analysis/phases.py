"""The phases of a training step, told by data flow: forward, backward, optimizer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import is_of_backward, signature_kind, signature_name

PHASES = ("forward", "backward", "optimizer")


def phases(function: FuncOp, kinds: Mapping[SSAValue, str]) -> dict[Operation, str]:
    """Return op → its phase.

    The forward makes the results that are new: not gradients, nor new values of arguments. Of the rest, the backward is
    what gradients need, unless the optimizer's state, or a number that the forward does not read, goes into it; so what
    only the backward reads is of the backward, recomputations among it. The optimizer is what else makes results out of
    gradients. What is left, as running statistics, is of the forward, and so is all in a program without gradients.

    Args:
        kinds: what values are held for, as `memory_classes` says.
    """
    ops = list(function.body.block.ops)
    results = ir.terminator(function).operands
    names = {signature_name(function, "arg_attrs", index) for index in range(len(function.args))}
    told = [signature_name(function, "res_attrs", index) for index in range(len(results))]
    is_plain = [not (name and (name in names or name.removeprefix("grad.") in names)) for name in told]
    forward = _needed(value for value, plain in zip(results, is_plain, strict=True) if plain)
    gradients = [value for op in ops for value in op.results if kinds.get(value) == "gradients" and op not in forward]
    gradients += [value for value, name in zip(results, told, strict=True) if name and name.startswith("grad.")]
    if not gradients:
        return dict.fromkeys(ops, "forward")
    own = [value for value in function.args if _is_of_optimizer(value, kinds, forward)]
    updating = _using(own) - forward
    backward = _needed(gradients) - forward - updating
    after = _using(value for op in backward for value in op.results)
    updates = _needed(value for value in results if isinstance(value, OpResult) and value.op in after)
    found = {op: "optimizer" if op in updates else "forward" for op in ops}
    return found | dict.fromkeys(forward, "forward") | dict.fromkeys(backward, "backward")


def _is_of_optimizer(argument: BlockArgument, kinds: Mapping[SSAValue, str], forward: Collection[Operation]) -> bool:
    """Return whether an argument is state of the optimizer, or a number for it, as a learning rate."""
    meta, function = meta_of(argument.type), argument.block.parent_op()
    if any(use.operation in forward for use in argument.uses):
        return False
    is_number = meta is not None and not meta.shape
    is_state = signature_kind(function, "arg_attrs", argument.index) == "state"
    is_told = is_state or is_of_backward(function, argument.index)
    return kinds.get(argument) == "optimizer state" or (is_number and not is_told)


def _needed(values: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops by which values are made."""
    found: set[Operation] = set()
    waiting = [value for value in values if isinstance(value, OpResult)]
    while waiting:
        op = waiting.pop().op
        if op not in found:
            found.add(op)
            waiting += [operand for operand in op.operands if isinstance(operand, OpResult)]
    return found


def _using(values: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops that values reach."""
    found: set[Operation] = set()
    waiting = list(values)
    while waiting:
        for use in waiting.pop().uses:
            if use.operation not in found:
                found.add(use.operation)
                waiting += use.operation.results
    return found
