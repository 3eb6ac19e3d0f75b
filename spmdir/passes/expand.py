"""Replaces an op that is divided along a dimension it reduces inside by the ops its rule's `expand` clause gives.

`softmax` over a divided dimension becomes a max, a subtraction, an exponential, a sum and a division, each with
its own sharding; the pending max and sum are then reshards like any other. Pieces may expand in turn.
"""

from __future__ import annotations

from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Placement
from spmdir.core.sharding import Sharding
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import shardings_attr
from spmdir.dialects.names import Names, take_name
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.values import sharding_of
from spmdir.passes.type_check.type_check import divided_factors, required, strategies_of
from spmdir.rules import OpRule, RuleSet
from spmdir.rules.local.expansion import Expansion, Value
from spmdir.rules.strategies.expansion_layout import ExpansionLayout
from spmdir.rules.strategies.strategy import ShardCounts


def expand(op: AtenOp, mesh: Mesh, rules: RuleSet, names: Names) -> None:
    """Replace `op` by its expansion if one of its strategies asks for that.

    Raises:
        ShardingError: the op is ill typed; UnsupportedError: a piece cannot be placed as the op is.
    """
    rule, choice = strategies_of(op, mesh, rules)
    factor = next((row.factor for row in choice.values() if row.rewrite == "expand"), None)
    if rule is None or factor is None:
        return
    expansion = rule.expansion(factor)
    fine = mesh.refine(choice)
    wanted = [sharding.refined(fine) for sharding in required(op) if sharding is not None]
    order = list(dict.fromkeys(axis for sharding in wanted for axis, _ in sharding.entries)) + list(fine.axis_names)
    order = list(dict.fromkeys(order))
    placed = {}
    for axis in order:
        sharded = divided_factors(choice, fine, without=axis)
        operands = tuple(sharding[axis] for sharding in wanted)
        placed[axis] = _placed(op, rule, expansion, operands, axis, fine.sizes[axis], sharded)

    values = {Value("operand", index): operand for index, operand in enumerate(op.operands)}
    nested: list[AtenOp] = []
    for number, piece in enumerate(expansion.ops):
        results = [
            Sharding([(axis, placed[axis].strategies[number].results[r]) for axis in order], mesh.name).merged(mesh)
            for r in range(len(piece.call.results))
        ]
        new = op_class(piece.call.name).build_op(
            [values[value] for value in piece.operands],
            piece.call.results,
            piece.call.arguments,
            results,
            piece.call.structure,
            op.location,
        )
        Rewriter.insert_op(new, InsertPoint.before(op))
        needs = [
            Sharding([(axis, placed[axis].strategies[number].operands[i]) for axis in order], mesh.name).merged(mesh)
            for i in range(len(piece.operands))
        ]
        differing = tuple(
            None if need == sharding_of(value) else need for need, value in zip(needs, new.operands, strict=True)
        )
        if any(need is not None for need in differing):
            new.properties["needs"] = shardings_attr(differing)
        for r, result in enumerate(new.results):
            values[Value("op", number, r)] = result
            names.give(result, op.results[0], piece.call.name.split(".")[1])
        if any(placed[axis].strategies[number].rewrite == "expand" for axis in order):
            nested.append(new)  # type: ignore  # a rule expands into torch ops
    for result, value in zip(op.results, expansion.results, strict=True):
        if value is not None:
            take_name(values[value], result)
            result.replace_all_uses_with(values[value])
    Rewriter.erase_op(op)
    for piece in nested:
        expand(piece, mesh, rules, names)


def _placed(
    op: AtenOp,
    rule: OpRule,
    expansion: Expansion,
    operands: tuple[Placement, ...],
    axis: str,
    count: int,
    sharded: ShardCounts,
) -> ExpansionLayout:
    placed = rule.lay_out(expansion, count, sharded, operands)
    if placed is None:
        raise UnsupportedError(
            f"'{op.name}' cannot be expanded on axis '{axis}' for operands placed ({', '.join(map(str, operands))}); "
            "shard them by fewer axes",
            location_of(op),
        )
    return placed
