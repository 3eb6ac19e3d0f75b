"""lower-reshard: replace reshards by the planner's cheapest steps. All reshards of one value are planned together."""

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
from spmdir.dialects.names import Names, copy_name, name_of
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.values import function_attrs, sharding_of, signature_attrs
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.pipeline.recorded_options import is_for_shared_messages
from spmdir.reshard.edge_state import step_states
from spmdir.reshard.plan_tree import Planner, plan_tree
from spmdir.reshard.steps import Step
from spmdir.rules import RuleSet
from spmdir.search.shared_messages import Dependence, shared_values, without_latency


def add_states(step: Step, value: SSAValue, before: Operation, mesh: Mesh, names: Names) -> list[SSAValue]:
    """Add arguments to the function for the edge states that ranks keep for `step` of a reshard of `value`.

    Args:
        before: an op of the function.
        names: the value names of the function. Updated.

    Returns: the new arguments, which are the last of the function; [] if the step has no states.
    """
    meta, function = meta_of(value.type), before.parent_op()
    assert meta is not None and isinstance(function, FuncOp)  # reshards are in functions
    edge_states = step_states(step, meta, mesh)
    if not edge_states:
        return []
    arguments: list[SSAValue] = []
    for state in edge_states:
        block = function.body.block
        argument = block.insert_arg(type_of(state.meta), len(block.args))
        names.assign_name(argument, value, state.name)
        sharding_attributes = signature_attrs(None, "input", state.sharding).data
        attributes = {**sharding_attributes, "spmd.state": StringAttr(state.initial)}
        _append_attributes(function, "arg_attrs", len(block.args), DictionaryAttr(attributes))
        arguments.append(argument)
    _retype(function)
    return arguments


def return_states(op: Operation, states: Sequence[SSAValue]) -> None:
    """Add the new edge states, which are the results of `op` after the first, to the results of its function.

    Args:
        states: the arguments with the old states. Each new state is returned under the name of its argument.
    """
    function = op.parent_op()
    if not states:
        return
    assert isinstance(function, FuncOp)
    end = ir.terminator(function)
    for state, new in zip(states, op.results[1:], strict=True):
        end.operands = [*end.operands, new]
        attributes = signature_attrs(name_of(state), "state", sharding_of(state))
        _append_attributes(function, "res_attrs", len(end.operands), attributes)
    _retype(function)


def _append_attributes(function: FuncOp, attribute_name: str, count: int, new: DictionaryAttr) -> None:
    """Append the attributes of the last of `count` arguments or results to `attribute_name` of a function."""
    attributes = [DictionaryAttr(function_attrs(function, attribute_name, index)) for index in range(count - 1)]
    function.properties[attribute_name] = ArrayAttr([*attributes, new])


def _retype(function: FuncOp) -> None:
    """Set the type of a function to those of its arguments and returned values."""
    returned = ir.terminator(function).operand_types
    types = [argument.type for argument in function.args]
    function.properties["function_type"] = FunctionType.from_lists(types, returned)


@dataclass(frozen=True)
class LowerReshardPass(FunctionPass, MachineOptions):
    """Replaces each spmd.reshard by the cheapest steps of the planner. Reshards of one value share steps."""

    name = "lower-reshard"
    requires: ClassVar[str] = "resharded"
    produces: ClassVar[str | None] = "lowered"

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Plan all reshards of each value together, and replace them by the steps of the plan.

        If the function was decided for shared messages, reshards that share messages are planned without latency.
        """
        reshards: dict[SSAValue, list[SpmdOp]] = {}
        for reshard in function.body.block.ops:
            if type(reshard) is ReshardOp or type(reshard) is ConstraintOp:  # isinstance is slow for other ops
                reshards.setdefault(_origin(reshard), []).append(reshard)
        if not reshards:
            return  # without reshards, the file of the machine may be missing
        machine, pipeline = self.machine_with_remark(ctx, function), as_pipeline(ctx.pipeline)
        names, planner = Names(function.body.block), Planner(ir.mesh(module), machine.topology, ctx.collectives)
        shared: set[SSAValue] = set()
        if is_for_shared_messages(function, pipeline):
            shared = _shared_values(function, pipeline.rules)
        planner_of_shared = attrs.evolve(planner, topology=without_latency(machine.topology))
        for reshards_of_value in reshards.values():
            value = _origin(reshards_of_value[0])
            _lower(value, reshards_of_value, planner_of_shared if value in shared else planner, names)


def _shared_values(function: FuncOp, rules: RuleSet) -> set[SSAValue]:
    """Return the values whose reshards share messages with other reshards, such as parameters and gradients."""
    # The first dependence defines the arguments as inputs.
    uses = [Dependence[SSAValue]((), function.args, is_input=True, is_contraction=False)]
    for op in function.body.block.ops:
        rule = rules.instantiate(op.call()) if isinstance(op, AtenOp) else None
        uses.append(
            Dependence(op.operands, op.results, is_input=False, is_contraction=rule is not None and rule.is_contraction)
        )
    return shared_values(uses)


def _origin(op: SpmdOp) -> SSAValue:
    """Return the value that `op` reshards, looking through earlier reshards that are not lossy."""
    value = op.operands[0]
    while isinstance(value.owner, (ReshardOp, ConstraintOp)) and not value.owner.has_lossy:
        value = value.owner.operands[0]
    return value


def _lower(value: SSAValue, reshards: Sequence[SpmdOp], planner: Planner, names: Names) -> None:
    """Replace `reshards` of `value` by the steps of one plan.

    Each step is inserted before the first reshard that needs it.

    Args:
        reshards: in program order.
    """
    source, meta = sharding_of(value), meta_of(value.type)
    assert meta is not None
    if source is None:
        raise ShardingError(
            "the resharded value has no sharding; expected one: run propagate first", location_of(reshards[0])
        )
    used = _used_reshards(reshards)
    # Target → the location of the first reshard to it, which is the last one in reversed order.
    targets = {_target(reshard): location_of(reshard) for reshard in reversed(used)}
    for target, location in targets.items():
        try:
            planner.plan(meta, source, target)
        except SpmdirError as error:
            raise type(error)(f"cannot reshard from <{source}> to <{target}>: {error.message}", location) from None
    tree = plan_tree(meta, source, tuple(reversed(targets)), planner).steps if targets else {}
    values = {source: value}
    result_by_target = {_target(reshard): reshard.results[0] for reshard in reversed(reshards)}
    for reshard in used:
        _lower_to(_target(reshard), tree, values, reshard, planner, names)
        reshard.results[0].replace_all_uses_with(values[_target(reshard)])
    for target, result in list(values.items())[1:]:  # the first value is the original one
        if target in result_by_target:
            copy_name(result, result_by_target[target])
        else:
            names.assign_name(result, value, tree[target].kind)
    for reshard in reversed(reshards):
        Rewriter.erase_op(reshard)


def _used_reshards(reshards: Sequence[SpmdOp]) -> list[SpmdOp]:
    """Return the `reshards` of one value that have a user other than these reshards.

    All of them are planned from the original value, so a sharding that only other reshards use is not needed.
    """
    group = {*reshards}
    return [op for op in reshards if any(use.operation not in group for use in op.results[0].uses)]


def _target(op: SpmdOp) -> Sharding:
    """Return the sharding of the result of a reshard; raise ShardingError if it is not decided."""
    target = op.target
    if target is None or target.open_axes:
        raise ShardingError(
            f"'{op.name}' leaves an axis open; expected a placement on each axis: run propagate first", location_of(op)
        )
    return target


def _lower_to(
    target: Sharding,
    tree: Mapping[Sharding, Step],
    values: dict[Sharding, SSAValue],
    user: Operation,
    planner: Planner,
    names: Names,
) -> None:
    """Insert the steps to `target` that are not in `values` yet, before `user`.

    Args:
        tree: sharding → the step that produces it.
        values: sharding → the value that has it. The first entry is the original value. New values are added.
    """
    if target in values:
        return
    step = tree[target]
    _lower_to(step.source, tree, values, user, planner, names)
    origin = next(iter(values.values()))
    states = add_states(step, origin, user, planner.mesh, names)
    op = build_collective(step, values[step.source], user.location, states)
    Rewriter.insert_op(op, InsertPoint.before(user))
    return_states(op, states)
    values[target] = op.results[0]
