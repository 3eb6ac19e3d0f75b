"""Reshards → collectives: the planner's cheapest steps, found together for all reshards of one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import attrs
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of, type_of
from spmdir.dialects.collectives import SpmdOp, build_collective
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names, name_of, take_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.values import function_attrs, sharding_of, signature_attrs
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.noted_options import is_for_shared_messages
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.reshard.edge_state import step_states
from spmdir.reshard.plan_tree import Planner, plan_tree
from spmdir.reshard.steps import Step
from spmdir.rules import RuleSet
from spmdir.search.shared_messages import Dependence, shared_values, without_latency


def add_states(step: Step, value: SSAValue, before: Operation, mesh: Mesh, names: Names) -> list[SSAValue]:
    """Return new arguments of the function around `before`: what ranks keep for `step`, on a form of `value`."""
    meta, function = meta_of(value.type), before.parent_op()
    assert meta is not None and isinstance(function, FuncOp)  # it is resharded in a function
    found = step_states(step, meta, mesh)
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


@dataclass(frozen=True)
class LowerReshardPass(FunctionPass, MachineOptions):
    """Turns each spmd.reshard into the cheapest collectives; reshards of one value share their steps."""

    name = "lower-reshard"
    requires: ClassVar[str] = "resharded"
    produces: ClassVar[str | None] = "lowered"

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        reshards: dict[SSAValue, list[SpmdOp]] = {}
        for reshard in function.body.block.ops:
            if type(reshard) is ReshardOp or type(reshard) is ConstraintOp:  # isinstance is slow on other ops
                reshards.setdefault(_origin(reshard), []).append(reshard)
        if not reshards:
            return  # the file of a machine that nothing is priced by need not be there
        machine, pipeline = self.machine_with_remark(ctx, function), as_pipeline(ctx.pipeline)
        names, planner = Names(function.body.block), Planner(ir.mesh(module), machine.topology, ctx.collectives)
        shared: set[SSAValue] = set()
        if is_for_shared_messages(function, pipeline):
            shared = _shared_values(function, pipeline.rules)
        of_shared = attrs.evolve(planner, topology=without_latency(machine.topology))
        for of_value in reshards.values():
            value = _origin(of_value[0])
            _lower(value, of_value, of_shared if value in shared else planner, names)


def _shared_values(function: FuncOp, rules: RuleSet) -> set[SSAValue]:
    """Return the values whose reshards share messages."""
    uses = [Dependence[SSAValue]((), function.args, is_input=True, is_contraction=False)]
    for op in function.body.block.ops:
        rule = rules.instantiate(op.call()) if isinstance(op, AtenOp) else None
        uses.append(
            Dependence(op.operands, op.results, is_input=False, is_contraction=rule is not None and rule.is_contraction)
        )
    return shared_values(uses)


def _origin(op: SpmdOp) -> SSAValue:
    """Return the value that `op` reshards, through earlier reshards that are exact."""
    value = op.operands[0]
    while isinstance(value.owner, (ReshardOp, ConstraintOp)) and not value.owner.has_lossy:
        value = value.owner.operands[0]
    return value


def _lower(value: SSAValue, reshards: Sequence[SpmdOp], planner: Planner, names: Names) -> None:
    """Replace `reshards`, in program order, of `value`; each step is done before the first one that needs it."""
    source, meta = sharding_of(value), meta_of(value.type)
    assert meta is not None
    if source is None:
        raise ShardingError("the resharded value has no sharding; run propagate first", location_of(reshards[0]))
    taken = _taken(reshards)
    targets = {_target(reshard): location_of(reshard) for reshard in reversed(taken)}
    for target, location in targets.items():
        try:
            planner.plan(meta, source, target)
        except SpmdirError as error:
            raise type(error)(f"cannot reshard from <{source}> to <{target}>: {error.message}", location) from None
    tree = plan_tree(meta, source, tuple(reversed(targets)), planner).steps if targets else {}
    made = {source: value}
    given = {_target(reshard): reshard.results[0] for reshard in reversed(reshards)}
    for reshard in taken:
        _make(_target(reshard), tree, made, reshard, planner, names)
        reshard.results[0].replace_all_uses_with(made[_target(reshard)])
    for target, result in list(made.items())[1:]:
        take_name(result, given[target]) if target in given else names.give(result, value, tree[target].kind)
    for reshard in reversed(reshards):
        Rewriter.erase_op(reshard)


def _taken(reshards: Sequence[SpmdOp]) -> list[SpmdOp]:
    """Return those of the `reshards` of one value whose results other ops take.

    All are planned from that value, so a sharding that only leads to another one, as of a constraint that no op
    follows, need not be made.
    """
    group = {*reshards}
    return [op for op in reshards if any(use.operation not in group for use in op.results[0].uses)]


def _target(op: SpmdOp) -> Sharding:
    target = op.target
    if target is None or target.open_axes:
        raise ShardingError(f"'{op.name}' does not say how to place every axis; run propagate first", location_of(op))
    return target


def _make(
    target: Sharding,
    tree: Mapping[Sharding, Step],
    made: dict[Sharding, SSAValue],
    before: Operation,
    planner: Planner,
    names: Names,
) -> None:
    """Do the steps to `target` that are not in `made` yet, before the op `before`."""
    if target in made:
        return
    step = tree[target]
    _make(step.source, tree, made, before, planner, names)
    origin = next(iter(made.values()))
    states = add_states(step, origin, before, planner.mesh, names)
    op = build_collective(step, made[step.source], before.location, states)
    Rewriter.insert_op(op, InsertPoint.before(before))
    return_states(op, states)
    made[target] = op.results[0]
