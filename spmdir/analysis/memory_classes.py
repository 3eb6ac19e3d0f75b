"""Classify the values of a program by their use of memory: parameters, gradients, optimizer state, and so on.

For example, a training step has the arguments `w` and `exp_avg.w`, and results with both names. The new `w` is computed
element by element from `w`, the new `exp_avg.w` and the product %g. So `w` is a parameter, %g its gradient, and
`exp_avg.w`, which only updates use, is optimizer state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from xdsl.dialects.func import FuncOp
from xdsl.ir import OpResult, SSAValue

from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.caches import CACHE_KIND as CACHE
from spmdir.dialects.collectives import Collective
from spmdir.dialects.reshard_ops import FORMS, unresharded
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import signature_kind, signature_name
from spmdir.rules import RuleSet

_BY_KIND = {"parameter": "parameters", "buffer": "parameters", CACHE: "caches", "state": "communication buffers"}
"""`spmd.kind` of an argument → its class of memory."""


def memory_classes(function: FuncOp, rules: RuleSet) -> dict[SSAValue, str]:
    """Return value → its class of memory, for the values of a decided `function` that are not "activations".

    `spmd.kind` marks parameters and buffers, and edge states, which count as communication buffers. All other arguments
    are inputs, except in a training step, where names and data flow define the classes:

    - A result with the name of an argument is the new value of the argument if it is computed from it element by
      element. Otherwise it is the gradient of the argument.
    - An argument that is only used to compute new values is optimizer state.
    - The other values that new values are computed from are gradients.

    Values that collectives compute only from parameters, and values computed only from these, are gathered weights.

    For example, a step returns `m = 0.9 * m + g` and `w = w - lr * m`, where g is the result of a matrix product. Then
    w is a parameter, m is optimizer state, because only new values are computed from it, and g is a gradient.
    """
    is_source = cache(partial(_is_source, rules))
    inputs_of = cache(partial(_inputs_of, is_source))
    is_gradient = cache(partial(_is_gradient, is_source))
    classes: dict[SSAValue, str] = {}
    argument_named = {signature_name(function, "arg_attrs", index): value for index, value in enumerate(function.args)}
    argument_of_update: dict[SSAValue, SSAValue] = {}
    update_ops: set[object] = set()
    for index, value in enumerate(ir.terminator(function).operands):
        argument = argument_named.get(signature_name(function, "res_attrs", index))
        is_cache = argument is not None and signature_kind(function, "arg_attrs", argument.index) == CACHE
        if argument is None or is_cache or not _shape(value):
            continue
        inputs = _elementwise_inputs(value, inputs_of)
        if argument in inputs:
            argument_of_update[value] = argument
            update_ops.update(input_.owner for input_ in inputs if not is_source(input_))
        else:  # the result is the gradient of the argument
            classes[argument] = "parameters"
        classes.update((input_, "gradients") for input_ in inputs if is_gradient(input_))
    for argument in function.args:
        kind = _BY_KIND.get(signature_kind(function, "arg_attrs", argument.index))
        if kind is None and argument in argument_of_update.values():
            only_updated = all(use.operation in update_ops for use in argument.uses)
            kind = "optimizer state" if only_updated else "parameters"
        classes.setdefault(argument, kind or "inputs")
    classes.update((value, classes[argument]) for value, argument in argument_of_update.items())
    return classes | _gathered_weights(function, classes)


def _shape(value: SSAValue) -> tuple[int, ...]:
    """Return the shape of a tensor; () for a scalar, or a value that is no tensor."""
    meta = meta_of(value.type)
    return meta.shape if meta else ()


def _is_source(rules: RuleSet, value: SSAValue) -> bool:
    """Return whether a value is neither a reshard nor an elementwise result of tensors of its shape.

    Scalar operands are allowed: an update multiplies by a learning rate, for example.
    """
    if not isinstance(value, OpResult) or not isinstance(value.op, ValueOp):
        return True
    if isinstance(value.op, FORMS):
        return False
    shapes = [shape for shape in map(_shape, value.op.tensors) if shape]
    if not shapes or any(shape != _shape(value) for shape in shapes):
        return True
    rule = rules.instantiate(value.op.call()) if isinstance(value.op, AtenOp) else None
    return rule is None or any(dims != rule.result_dims[value.index] for dims in rule.operand_dims if dims)


def _inputs_of(is_source: Callable[[SSAValue], bool], value: SSAValue) -> list[SSAValue]:
    """Return the operands of a reshard or an elementwise op, without scalars; [] for a source."""
    if not isinstance(value, OpResult) or is_source(value):
        return []
    return [operand for operand in value.op.operands if _shape(operand)]


def _elementwise_inputs(value: SSAValue, inputs_of: Callable[[SSAValue], list[SSAValue]]) -> dict[SSAValue, None]:
    """Return `value`, the values that it is computed from by reshards and elementwise ops, and their sources."""
    inputs, stack = {value: None}, [value]
    while stack:
        new_inputs = [input_ for input_ in inputs_of(stack.pop()) if input_ not in inputs]
        inputs.update(dict.fromkeys(new_inputs))
        stack += new_inputs
    return inputs


def _is_gradient(is_source: Callable[[SSAValue], bool], value: SSAValue) -> bool:
    """Return whether an input of an update is a computed source, or a reshard of one."""
    value_before_reshard = unresharded(value)
    return isinstance(value_before_reshard, OpResult) and is_source(value_before_reshard)


def _gathered_weights(function: FuncOp, classes: dict[SSAValue, str]) -> dict[SSAValue, str]:
    """Return value → "gathered weights" for each gathered weight.

    It is computed only from parameters: by a collective, or by an op on a gathered weight.

    Args:
        classes: the classes so far; arguments must have one.
    """
    from_parameters: set[SSAValue] = {value for value in function.args if classes[value] == "parameters"}
    gathered: dict[SSAValue, str] = {}
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp) or not op.tensors or not from_parameters.issuperset(op.tensors):
            continue
        unclassified = [result for result in op.results if result not in classes]
        from_parameters.update(unclassified)
        if isinstance(op, Collective) or any(operand in gathered for operand in op.tensors):
            gathered.update(dict.fromkeys(unclassified, "gathered weights"))
    return gathered
