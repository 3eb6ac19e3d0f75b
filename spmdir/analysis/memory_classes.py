"""What the values of a program are held for: parameters, gradients, optimizer state, and so on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from xdsl.dialects.func import FuncOp
from xdsl.ir import OpResult, SSAValue

from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective
from spmdir.dialects.reshard_ops import FORMS, unresharded
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import signature_kind, signature_name
from spmdir.rules import RuleSet

_BY_KIND = {"parameter": "parameters", "buffer": "parameters", "state": "communication buffers"}
"""`spmd.kind` of an argument → what it is held for."""


def memory_classes(function: FuncOp, rules: RuleSet) -> dict[SSAValue, str]:
    """Return what the values of a decided `function` are held for, where that is not "activations".

    `spmd.kind` says it of parameters and buffers. Of a training step it follows from its names and data flow: a result
    with the name of an argument is its new value if it is computed from it element by element, else its gradient; an
    argument of which nothing but new values are made is optimizer state; and what new values are made of besides
    arguments are gradients.
    """
    is_source = cache(partial(_is_source, rules))
    found: dict[SSAValue, str] = {}
    by_name = {signature_name(function, "arg_attrs", index): value for index, value in enumerate(function.args)}
    renewed: dict[SSAValue, SSAValue] = {}
    updating: set[object] = set()
    for index, value in enumerate(ir.terminator(function).operands):
        argument = by_name.get(signature_name(function, "res_attrs", index))
        if argument is None or not _shape(value):
            continue
        made_of = dict.fromkeys(_elementwise(value, is_source))
        if argument in made_of:
            renewed[value] = argument
            updating.update(one.owner for one in made_of if not is_source(one))
            found.update((one, "gradients") for one in made_of if _is_gradient(one, is_source))
        else:
            found[argument] = "parameters"
            found.update((one, "gradients") for one in made_of if _is_gradient(one, is_source))
    for argument in function.args:
        kind = _BY_KIND.get(signature_kind(function, "arg_attrs", argument.index))
        if kind is None and argument in renewed.values():
            only_updated = all(use.operation in updating for use in argument.uses)
            kind = "optimizer state" if only_updated else "parameters"
        found.setdefault(argument, kind or "inputs")
    found.update((value, found[argument]) for value, argument in renewed.items())
    return found | _gathered(function, found)


def _shape(value: SSAValue) -> tuple[int, ...]:
    meta = meta_of(value.type)
    return meta.shape if meta else ()


def _is_source(rules: RuleSet, value: SSAValue) -> bool:
    """Return whether a value is no form of another, nor made element by element of tensors of its shape."""
    if not isinstance(value, OpResult) or not isinstance(value.op, ValueOp):
        return True
    if isinstance(value.op, FORMS):
        return False
    shapes = [shape for shape in map(_shape, value.op.tensors) if shape]
    if not shapes or any(shape != _shape(value) for shape in shapes):
        return True
    rule = rules.instantiate(value.op.call()) if isinstance(value.op, AtenOp) else None
    return rule is None or any(dims != rule.result_dims[value.index] for dims in rule.operand_dims if dims)


def _elementwise(value: SSAValue, is_source: Callable[[SSAValue], bool]) -> Iterator[SSAValue]:
    """Yield what `value` is made of by collectives and element by element, itself included, and the sources of it."""
    seen, waiting = {value}, [value]
    while waiting:
        one = waiting.pop()
        if not _shape(one):
            continue
        yield one
        if isinstance(one, OpResult) and not is_source(one):
            fresh = [operand for operand in one.op.operands if operand not in seen]
            seen.update(fresh)
            waiting += fresh


def _is_gradient(value: SSAValue, is_source: Callable[[SSAValue], bool]) -> bool:
    """Return whether a value that an update is made of is a source that is computed, or collected from one."""
    made = unresharded(value)
    return isinstance(made, OpResult) and is_source(made)


def _gathered(function: FuncOp, found: dict[SSAValue, str]) -> dict[SSAValue, str]:
    """Return the values that collectives make of parameters alone."""
    derived: set[SSAValue] = {value for value in function.args if found[value] == "parameters"}
    gathered: dict[SSAValue, str] = {}
    for op in function.body.block.ops:
        if not isinstance(op, ValueOp) or not op.tensors or not derived.issuperset(op.tensors):
            continue
        own = [result for result in op.results if result not in found]
        derived.update(own)
        if isinstance(op, Collective) or any(operand in gathered for operand in op.tensors):
            gathered.update(dict.fromkeys(own, "gathered weights"))
    return gathered
