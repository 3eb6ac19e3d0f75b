"""expand: replace an op that reduces inside a sharded dimension by the ops of its rule's `expand` clause.

`softmax` over a sharded dimension becomes a max, a subtraction, an exponential, a sum and a division. Each has its own
sharding. The partial max and sum are then resharded like any other value. These ops may be expanded too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_forms import EXPANSION, places_among, replaced_op_attribute
from spmdir.analysis.operand_choice import OperandChoice
from spmdir.analysis.type_check import required_shardings, sharded_factors, strategies_of
from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import shardings_attr
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names, copy_name
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.pipeline.recorded_options import machine_of
from spmdir.reshard.plan_tree import Planner
from spmdir.rules import RuleSet
from spmdir.rules.local.expansion import Expansion, Value
from spmdir.rules.strategies.expansion_layout import ExpansionLayout

Layouts = dict[str, ExpansionLayout]
"""Mesh axis → the strategies of an expansion's ops on this axis. Axes are in nesting order."""


@dataclass(frozen=True)
class ExpandPass(FunctionPass):
    """Replaces ops that reduce inside a sharded dimension, such as softmax, by several ops with partial results."""

    name = "expand"
    requires: ClassVar[str] = "decided"
    takes_layers: ClassVar[bool] = True

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        expand_all(function, ir.mesh(module), ctx)


def expand_all(function: FuncOp, mesh: Mesh, ctx: IRContext) -> None:
    """Expand every op of `function` whose shardings require it.

    Raises:
        ShardingError: such an op is ill typed.
        UnsupportedError: an op of its expansion has no strategy for these shardings.
    """
    choice = operand_choice(function, mesh, ctx)
    has_expansion: dict[str, bool] = {}
    ops_to_expand: list[AtenOp] = []
    for op in function.body.block.ops:
        if op.name not in has_expansion:
            alternatives = ctx.rules.alternatives(op.name) if isinstance(op, AtenOp) else ()
            has_expansion[op.name] = any(clause.kind == "expand" for rule in alternatives for clause in rule.clauses)
        if has_expansion[op.name] and _is_sharded(op):  # type: ignore  # a torch op
            ops_to_expand.append(op)  # type: ignore
    if ops_to_expand:
        names = Names(function.body.block)
        for op in ops_to_expand:
            _replace(op, choice, names)


def operand_choice(function: FuncOp, mesh: Mesh, ctx: IRContext) -> OperandChoice:
    """Return the choice of operand shardings, priced for the machine that lower-reshard plans for.

    This is the machine of the pipeline, or by default the machine that `function` was decided for.
    """

    def planner() -> Planner:
        pipeline = as_pipeline(ctx.pipeline)
        machine = machine_of(function, pipeline, pipeline.topology or "auto", os.fspath(pipeline.costs or ""))
        return Planner(mesh, machine.topology, ctx.collectives)

    return OperandChoice(mesh, ctx.rules, planner)


def _is_sharded(op: AtenOp) -> bool:
    """Return whether an operand or a result is not replicated."""
    return any(sharding and sharding.entries for sharding in (*required_shardings(op), *op.shardings))


def _replace(op: AtenOp, choice: OperandChoice, names: Names) -> None:
    """Replace `op` by its expansion, if its shardings require one. An attribute of the first new op describes `op`.

    From the attribute, verify-spmd can restore the replaced op.
    """
    if op.needs is None:
        _decide_operands(op, choice)
    operands, call, needs = tuple(op.operands), op.call(), required_shardings(op)
    ops, results = _expand(op, choice, names)
    if ops != [op]:
        ops[0].attributes[EXPANSION] = replaced_op_attribute(op, call, needs, places_among(ops, operands, results))


def _expand(op: AtenOp, choice: OperandChoice, names: Names) -> tuple[list[AtenOp], list[SSAValue | None]]:
    """Replace `op` by its expansion, and expand those of the new ops whose strategies require it.

    Returns: the new ops, and for each result of `op` the value that replaces it; None if the expansion leaves the
        result out. If `op` needs no expansion, these are `op` itself and its results.
    """
    expansion_with_layouts = expansion_of(op, choice.mesh, choice.rules)
    if expansion_with_layouts is None:
        return [op], list(op.results)
    expansion, layouts = expansion_with_layouts
    new_ops, values = _insert_ops(op, expansion, layouts, choice.mesh, names)
    new_results = [None if value is None else values[value] for value in expansion.results]
    for result, new_result in zip(op.results, new_results, strict=True):
        if new_result is not None:
            copy_name(new_result, result)
            result.replace_all_uses_with(new_result)
    Rewriter.erase_op(op)
    ops: list[AtenOp] = []
    replacements: dict[SSAValue, SSAValue | None] = {}  # result of a new op that is expanded too → its replacement
    for number, new in enumerate(new_ops):
        if not any(layout.strategies[number].rewrite == "expand" for layout in layouts.values()):
            ops.append(new)
            continue
        if new.needs is None:
            _decide_operands(new, choice)
        replaced_results = tuple(new.results)
        inner_ops, inner_results = _expand(new, choice, names)
        ops += inner_ops
        replacements.update(zip(replaced_results, inner_results, strict=True))
    return ops, [None if result is None else replacements.get(result, result) for result in new_results]


def _insert_ops(
    op: AtenOp, expansion: Expansion, layouts: Layouts, mesh: Mesh, names: Names
) -> tuple[list[AtenOp], dict[Value, SSAValue]]:
    """Insert the ops of an expansion before `op`, with their shardings and `needs`.

    Returns: the new ops, and the value of the program for each value of the expansion.
    """
    # value of the expansion → value of the program; operands first, then the results of each inserted op
    values = {Value("operand", index): operand for index, operand in enumerate(op.operands)}
    new_ops: list[AtenOp] = []
    for number, expanded in enumerate(expansion.ops):
        strategies = {axis: layout.strategies[number] for axis, layout in layouts.items()}
        results = _shardings({axis: strategy.results for axis, strategy in strategies.items()}, mesh)
        needs = _shardings({axis: strategy.operands for axis, strategy in strategies.items()}, mesh)
        operands, call = [values[value] for value in expanded.operands], expanded.call
        new: AtenOp = op_class(call.name).build_op(  # type: ignore
            operands, call.results, call.arguments, results, call.structure, op.location
        )
        _set_needs(new, needs)
        Rewriter.insert_op(new, InsertPoint.before(op))
        for index, result in enumerate(new.results):
            values[Value("op", number, index)] = result
            names.assign_name(result, op.results[0], call.name.split(".")[1])
        new_ops.append(new)
    return new_ops, values


def _shardings(placements: Mapping[str, Sequence[Placement]], mesh: Mesh) -> list[Sharding]:
    """Return the shardings of several values from their placements on each axis.

    For example, {"dp": (S(0), R), "tp": (S(1), P)} leads to <dp: S(0), tp: S(1)> and <tp: P>.

    Args:
        placements: axis of `mesh` or sub-axis → the placement of each value. Sub-axes of one axis are merged.
    """
    axes = list(placements)
    placements_by_value = zip(*placements.values(), strict=True)
    return [Sharding(list(zip(axes, on_axes, strict=True)), mesh.name).merged(mesh) for on_axes in placements_by_value]


def expansion_of(op: AtenOp, mesh: Mesh, rules: RuleSet) -> tuple[Expansion, Layouts] | None:
    """Return the expansion of `op` and its strategies on each axis; None if `op` needs no expansion.

    Raises:
        ShardingError: the op is ill typed.
        UnsupportedError: an op of its expansion has no strategy for these shardings.
    """
    rule, choice = strategies_of(op, mesh, rules)
    # Only strategies of one factor expand. Strategies written as text, of several factors, have local forms.
    factor = next((strategy.factors[0] for strategy in choice.values() if strategy.rewrite == "expand"), None)
    if rule is None or factor is None:
        return None
    expansion = rule.expansion(factor)
    refined_mesh = mesh.refine(choice)
    needs = [sharding.refined(refined_mesh) for sharding in required_shardings(op) if sharding is not None]
    layouts: Layouts = {}
    needed_axes = [axis for sharding in needs for axis, _ in sharding.entries]
    # Axes of needed shardings come first, in nesting order.
    for axis in dict.fromkeys((*needed_axes, *refined_mesh.axis_names)):
        placements = tuple(sharding[axis] for sharding in needs)
        sharded = sharded_factors(choice, refined_mesh, without=axis)
        layout = rule.lay_out(expansion, refined_mesh.sizes[axis], sharded, placements)
        if layout is None:
            texts = ", ".join(map(str, placements))
            raise UnsupportedError(
                f"'{op.name}' cannot be expanded on axis '{axis}' for the operand placements ({texts}); "
                "expected placements with which the op has an expansion: shard the operands over fewer "
                "axes",
                location_of(op),
            )
        layouts[axis] = layout
    return expansion, layouts


def _decide_operands(op: AtenOp, choice: OperandChoice) -> None:
    """Write the attribute `needs` of an op that has none: the operand shardings that are cheapest to reach.

    `insert-reshard` makes the same choice.
    """
    current = [decided_sharding(operand, op) for operand in op.tensors]
    _set_needs(op, choice.cheapest(op, current))


def decided_sharding(operand: SSAValue, user: AtenOp) -> Sharding:
    """Return the sharding of an operand of `user`; raise a located ShardingError if it is missing or has open axes."""
    sharding = sharding_of(operand)
    if sharding is None or sharding.open_axes:
        raise ShardingError(
            f"an operand of '{user.name}' has no sharding; expected one for each operand: run propagate first",
            location_of(user),
        )
    return sharding


def _set_needs(op: Operation, needs: Sequence[Sharding]) -> None:
    """Write the attribute `needs` of `op`: None for each operand that already has its needed sharding.

    If all operands have it, the attribute is not written.
    """
    differing = tuple(
        None if need == sharding_of(value) else need for need, value in zip(needs, op.operands, strict=False)
    )
    if any(need is not None for need in differing):
        op.properties["needs"] = shardings_attr(differing)
