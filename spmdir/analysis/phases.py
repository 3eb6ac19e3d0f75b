"""Find the phases of a training step by data flow: forward, backward and optimizer.

For example, a step computes a loss %l from `w`, the gradient %g from %l, and the new `w` from `w` and %g times `lr`.
The ops that compute %l are forward, those that compute %g backward, and those that compute the new `w` optimizer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.values import is_backward_input, signature_kind, signature_name

PHASES = ("forward", "backward", "optimizer")
"""The phases, in the order of execution."""


def phases(function: FuncOp, kinds: Mapping[SSAValue, str]) -> dict[Operation, str]:
    """Return op → its phase.

    - Forward: the ops that compute results other than gradients and new values of arguments.
    - Backward: the other ops that gradients depend on, including recomputations. Ops are excluded if they depend on
      optimizer state, or on a number that the forward part does not use.
    - Optimizer: the other ops that compute results from the results of the backward part.
    - Forward as well: all remaining ops, such as updates of running statistics. Without gradients, these are all ops.

    Args:
        kinds: value → what its memory contains, such as parameters or activations: the result of `memory_classes`.
    """
    ops = list(function.body.block.ops)
    results = ir.terminator(function).operands
    names = {signature_name(function, "arg_attrs", index) for index in range(len(function.args))}
    result_names = [signature_name(function, "res_attrs", index) for index in range(len(results))]
    outputs = [
        value
        for value, name in zip(results, result_names, strict=True)
        if not name or (name not in names and name.removeprefix("grad.") not in names)
    ]
    forward = _ops_that_compute(outputs)
    gradients = [value for op in ops for value in op.results if kinds.get(value) == "gradients" and op not in forward]
    gradients += [value for value, name in zip(results, result_names, strict=True) if name and name.startswith("grad.")]
    if not gradients:
        return dict.fromkeys(ops, "forward")
    optimizer_inputs = [value for value in function.args if _is_for_optimizer(value, kinds, forward)]
    users_of_optimizer_inputs = _ops_that_use(optimizer_inputs) - forward
    backward = _ops_that_compute(gradients) - forward - users_of_optimizer_inputs
    after_backward = _ops_that_use(value for op in backward for value in op.results)
    new_values = [value for value in results if isinstance(value, OpResult) and value.op in after_backward]
    optimizer = _ops_that_compute(new_values)
    phase_of = {op: "optimizer" if op in optimizer else "forward" for op in ops}
    return phase_of | dict.fromkeys(forward, "forward") | dict.fromkeys(backward, "backward")


def _is_for_optimizer(argument: BlockArgument, kinds: Mapping[SSAValue, str], forward: Collection[Operation]) -> bool:
    """Return whether an argument is optimizer state, or a number for the optimizer such as a learning rate.

    A number is a scalar that is no state of the model, no buffer and no tangent. False if the forward part uses the
    argument.

    Args:
        kinds: as of `phases`.
        forward: the ops of the forward part.
    """
    meta, function = meta_of(argument.type), argument.block.parent_op()
    if any(use.operation in forward for use in argument.uses):
        return False
    if kinds.get(argument) == "optimizer state":
        return True
    is_scalar = meta is not None and not meta.shape
    is_model_state = signature_kind(function, "arg_attrs", argument.index) == "state"
    is_tangent_or_buffer = is_backward_input(function, argument.index)
    return is_scalar and not is_model_state and not is_tangent_or_buffer


def _ops_that_compute(values: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops that `values` depend on, directly or through other ops."""
    ops: set[Operation] = set()
    stack = [value for value in values if isinstance(value, OpResult)]
    while stack:
        op = stack.pop().op
        if op not in ops:
            ops.add(op)
            stack += [operand for operand in op.operands if isinstance(operand, OpResult)]
    return ops


def _ops_that_use(values: Iterable[SSAValue]) -> set[Operation]:
    """Return the ops that depend on `values`, directly or through other ops."""
    ops: set[Operation] = set()
    stack = list(values)
    while stack:
        for use in stack.pop().uses:
            if use.operation not in ops:
                ops.add(use.operation)
                stack += use.operation.results
    return ops
