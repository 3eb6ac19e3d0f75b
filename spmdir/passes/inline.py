"""Calls → the bodies of the functions that they call."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from xdsl.context import Context
from xdsl.dialects.builtin import CallSiteLoc, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.errors import UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.names import Names, distinguish, name_of, take_name
from spmdir.dialects.reshard_ops import ConstraintOp
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.values import function_attrs, sharding_of


@dataclass(frozen=True)
class InlinePass(ModulePass):
    """Replace each call by the body of the function it calls, and drop private functions that nothing calls any more.

    Shardings that the called function annotates on its arguments and results become constraints.
    """

    name = "inline"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        functions = {function.sym_name.data: function for function in ir.functions(op)}
        for function in callees_first(functions):
            calls, names = calls_in(function), Names(function.body.block)
            for call in calls:
                _inline(call, functions[call.callee.string_value()], names)
            if calls:
                distinguish(function.body.block)
        for function in functions.values():
            if function.sym_visibility is not None and function.sym_visibility.data == "private":
                Rewriter.erase_op(function)


def calls_in(function: FuncOp) -> list[CallOp]:
    """Return the calls of a function, in order."""
    return [op for op in function.body.block.ops if isinstance(op, CallOp)]


def callees_first(functions: Mapping[str, FuncOp]) -> list[FuncOp]:
    """Return functions, given by name, in an order in which each comes after those that it calls.

    Raises:
        UnsupportedError: a function calls itself, or one that has no body; located.
    """
    calls = {name: calls_in(function) for name, function in functions.items()}
    for call in itertools.chain(*calls.values()):
        if call.callee.string_value() not in functions:
            raise UnsupportedError(f"{call.callee} has no body to be inlined; give it one", location_of(call))
    order = TopologicalSorter({name: {call.callee.string_value() for call in found} for name, found in calls.items()})
    try:
        return [functions[name] for name in order.static_order()]
    except CycleError as error:
        *_, cycle = error.args
        path = " -> ".join(f"@{name}" for name in reversed(cycle))
        raise UnsupportedError(
            f"functions call each other in a cycle, {path}; expected calls without recursion",
            location_of(functions[cycle[0]]),
        ) from None


def _inline(call: CallOp, callee: FuncOp, names: Names) -> None:
    body = callee.body.block
    operands = [_constrained(operand, callee, "arg_attrs", index, call) for index, operand in enumerate(call.operands)]
    values: dict[SSAValue, SSAValue] = dict(zip(body.args, operands, strict=True))
    end = ir.terminator(callee)
    for op in body.ops:
        if op is end:
            break
        new = op.clone(values)
        new.location = CallSiteLoc(op.location, call.location)
        for before, after in zip(op.results, new.results, strict=True):
            if name_of(before) or not call.results:
                take_name(after, before)
            else:
                names.give(after, call.results[0], op.name.split(".")[1])
        Rewriter.insert_op(new, InsertPoint.before(call))
    results = [values.get(value, value) for value in end.operands]
    for index, (old, value) in enumerate(zip(call.results, results, strict=True)):
        new = _constrained(value, callee, "res_attrs", index, call)
        if value not in operands:
            take_name(new, old)
        old.replace_all_uses_with(new)
    Rewriter.erase_op(call)


def _constrained(value: SSAValue, callee: FuncOp, which: str, index: int, call: CallOp) -> SSAValue:
    """Return `value`, constrained as the function that is called annotates its argument or result `index`."""
    annotation = function_attrs(callee, which, index).get("spmd.sharding")
    if annotation is None or annotation.data == sharding_of(value):
        return value
    constraint = ConstraintOp.build(value, annotation.data, call.location)
    take_name(constraint.results[0], value)
    Rewriter.insert_op(constraint, InsertPoint.before(call))
    return constraint.results[0]
