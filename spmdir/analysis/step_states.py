"""What ranks keep for steps, as arguments and results of the function."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of, type_of
from spmdir.dialects.names import Names, name_of
from spmdir.dialects.values import function_attrs, sharding_of, signature_attrs
from spmdir.reshard.edge_state import step_state
from spmdir.reshard.steps import Step


def add_states(step: Step, value: SSAValue, before: Operation, mesh: Mesh, names: Names) -> list[SSAValue]:
    """Return new arguments of the function around `before`: what ranks keep for `step`, on a form of `value`."""
    meta, function = meta_of(value.type), before.parent_op()
    assert meta is not None and isinstance(function, FuncOp)  # it is resharded in a function
    found = step_state(step, meta, mesh)
    if not found:
        return []
    arguments: list[SSAValue] = []
    for state in found:
        block = function.body.block
        argument = block.insert_arg(type_of(state.meta), len(block.args))
        names.give(argument, value, state.name)
        said = signature_attrs(None, "input", state.sharding).data
        attributes = {**said, "spmd.state": StringAttr(state.initial)}
        _append(function, "arg_attrs", len(block.args), DictionaryAttr(attributes))
        arguments.append(argument)
    _retype(function)
    return arguments


def return_states(op: Operation, states: Sequence[SSAValue]) -> None:
    """Return the new states that `op` gives from its function, under the names of `states`, which it took."""
    function = op.parent_op()
    if not states:
        return
    assert isinstance(function, FuncOp)
    end = ir.terminator(function)
    for state, new in zip(states, op.results[1:], strict=True):
        end.operands = [*end.operands, new]
        attributes = signature_attrs(name_of(state), "state", sharding_of(state))
        _append(function, "res_attrs", len(end.operands), attributes)
    _retype(function)


def _append(function: FuncOp, which: str, count: int, last: DictionaryAttr) -> None:
    given = [DictionaryAttr(function_attrs(function, which, index)) for index in range(count - 1)]
    function.properties[which] = ArrayAttr([*given, last])


def _retype(function: FuncOp) -> None:
    returned = ir.terminator(function).operand_types
    types = [argument.type for argument in function.args]
    function.properties["function_type"] = FunctionType.from_lists(types, returned)
