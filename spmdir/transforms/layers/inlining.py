"""Replace calls by the bodies of the functions that they call."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from xdsl.dialects.builtin import CallSiteLoc, ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.errors import UnsupportedError
from spmdir.core.limits import INLINED
from spmdir.dialects import ir
from spmdir.dialects.layer_calls import layer_named
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names, copy_name, keep_name, make_names_unique, name_of, text_name
from spmdir.dialects.reshard_ops import ConstraintOp
from spmdir.dialects.stage import is_local
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.transforms.layers.layer_names import of_layer


def inline(module: ModuleOp, layers_only: bool = False, named: dict[str, SSAValue] | None = None) -> None:
    """Inline the calls of a module, and erase the private functions that are no longer called.

    Args:
        layers_only: inline only the calls of outlined layers.
        named: a dict to update: name of a value in the function of a layer → the inlined value of its first call.

    Raises:
        UnsupportedError: a call cannot be inlined; located.
    """
    functions = {function.sym_name.data: function for function in ir.functions(module)}
    ordered_functions, called = callees_first(functions), set[str]()
    _check_size(ordered_functions)
    for function in ordered_functions:
        names = Names(function.body.block)
        calls = [call for call in calls_in(function) if not layers_only or layer_named(call) is not None]
        called.update(call.callee.string_value() for call in calls)
        for call in calls:
            callee = functions[call.callee.string_value()]
            _check_call(call, callee, function)
            values = _inline(call, callee, names)
            if named is not None and layer_named(call) is not None:
                named |= {name: value for name, value in values.items() if name not in named}
        if calls:
            make_names_unique(function.body.block)
    # Erase private functions that were called and are not any more, and those of layers.
    remaining = {call.callee.string_value() for function in ordered_functions for call in calls_in(function)}
    called.update(name for name, function in functions.items() if layer_named(function) is not None)
    for name in sorted(called - remaining):
        visibility = functions[name].sym_visibility
        if visibility is not None and visibility.data == "private":
            Rewriter.erase_op(functions[name])


def calls_in(function: FuncOp) -> list[CallOp]:
    """Return the calls of a function, in order."""
    return [op for op in function.body.block.ops if isinstance(op, CallOp)]


def callees_first(functions: Mapping[str, FuncOp]) -> list[FuncOp]:
    """Return the functions in an order with callees before callers.

    Args:
        functions: name → function.

    Raises:
        UnsupportedError: calls are recursive, or a called function has no body; located.
    """
    calls = {name: calls_in(function) for name, function in functions.items()}
    for call in itertools.chain(*calls.values()):
        if call.callee.string_value() not in functions:
            raise UnsupportedError(
                f"{call.callee} has no body; expected a function with a body: define it in this module",
                location_of(call),
            )
    order = TopologicalSorter(
        {name: {call.callee.string_value() for call in function_calls} for name, function_calls in calls.items()}
    )
    try:
        return [functions[name] for name in order.static_order()]
    except CycleError as error:
        *_, cycle = error.args
        path = " -> ".join(f"@{name}" for name in reversed(cycle))
        raise UnsupportedError(
            f"functions call each other in a cycle, {path}; expected calls without recursion",
            location_of(functions[cycle[0]]),
        ) from None


def _check_size(ordered: Sequence[FuncOp]) -> None:
    """Raise LimitError if a function would have more ops than `INLINED` after inlining."""
    sizes: dict[str, int] = {}
    for function in ordered:
        called = sum(sizes[call.callee.string_value()] for call in calls_in(function))
        sizes[function.sym_name.data] = size = called + len(function.body.block.ops)
        INLINED.check(size, location_of(function))


def _check_call(call: CallOp, callee: FuncOp, caller: FuncOp) -> None:
    """Raise a located UnsupportedError unless the body of `callee` can replace the call.

    A call of an outlined layer always can. Other functions must not be local, and the call must have no attributes. The
    callee must have no `spmd.outputs`, mutated arguments or `spmd.like` results, which only a main function may have.
    """
    if layer_named(call) is not None:
        return
    if is_local(callee) or is_local(caller):
        raise UnsupportedError(
            "cannot inline a call of a localized function; expected global types: run inline before localize",
            location_of(call),
        )
    if call.attributes:
        raise UnsupportedError(
            f"a call has the attributes {', '.join(call.attributes)}; expected none: annotate the results of "
            f"{call.callee}, or add a spmd.constraint",
            location_of(call),
        )
    kinds = [function_attrs(callee, "res_attrs", index).get("spmd.kind") for index in range(len(call.results))]
    likes = any("spmd.like" in function_attrs(callee, "res_attrs", index) for index in range(len(call.results)))
    if "spmd.outputs" in callee.attributes or StringAttr("mutation") in kinds or likes:
        raise UnsupportedError(
            f"{call.callee} is called, but has `spmd.outputs`, mutated arguments or `spmd.like` results; expected "
            "these only on the main function: remove them",
            location_of(call),
        )


def _inline(call: CallOp, callee: FuncOp, names: Names) -> dict[str, SSAValue]:
    """Replace a call by the body of its function.

    Annotations of the callee become constraints. An inlined value that is named after an argument, such as `w.reshape`,
    is renamed after the operand of the call. Locations contain the place of the call.

    Returns: name of a value in the callee → the inlined value.
    """
    body, layer = callee.body.block, layer_named(call)
    operands = [_constrain(operand, callee, "arg_attrs", index, call) for index, operand in enumerate(call.operands)]
    values: dict[SSAValue, SSAValue] = dict(zip(body.args, operands, strict=True))
    operand_name: dict[str, str | None] = {}  # name of an argument of the callee → name of its operand
    for argument, value in values.items():
        argument_name = name_of(argument)
        if argument_name:
            operand_name[argument_name] = name_of(value)
    end = ir.terminator(callee)
    for op in body.ops:
        if op is end:
            break
        new = op.clone(values)
        if layer is None:
            new.location = CallSiteLoc(op.location, call.location)
        else:
            new.location = of_layer(op.location, layer_named(callee) or "", layer)
        for old_result, new_result in zip(op.results, new.results, strict=True):
            hint = name_of(old_result)
            argument_name = _origin(hint, operand_name) if hint else ""
            new_prefix = operand_name.get(argument_name)
            # A value without a name is named after the result of the call, unless it belongs to a layer.
            if hint and new_prefix:
                keep_name(new_result, new_prefix + hint.removeprefix(argument_name))
            elif hint or not call.results or layer is not None:
                copy_name(new_result, old_result)
            else:
                names.assign_name(new_result, call.results[0], op.name.split(".")[1])
        Rewriter.insert_op(new, InsertPoint.before(call))
    results = [values.get(value, value) for value in end.operands]
    for index, (old, value) in enumerate(zip(call.results, results, strict=True)):
        new = _constrain(value, callee, "res_attrs", index, call)
        if value not in operands:
            copy_name(new, old)
        old.replace_all_uses_with(new)
    Rewriter.erase_op(call)
    return {text_name(old): value for old, value in values.items()}


def _origin(name: str, arguments: Collection[str]) -> str:
    """Return the longest name in `arguments` that prefixes a name, such as `w` for `w.reshape`; "" if there is none."""
    origin = name.rpartition(".")[0]
    while origin and origin not in arguments:
        origin = origin.rpartition(".")[0]
    return origin


def _constrain(value: SSAValue, callee: FuncOp, which: str, index: int, call: CallOp) -> SSAValue:
    """Return `value` with a constraint to the annotation of argument or result `index` of the callee, if any."""
    annotation = function_attrs(callee, which, index).get("spmd.sharding")
    if annotation is None or annotation.data == sharding_of(value):
        return value
    constraint = ConstraintOp.build(value, annotation.data, call.location)
    copy_name(constraint.results[0], value)
    Rewriter.insert_op(constraint, InsertPoint.before(call))
    return constraint.results[0]
