"""Replaces an op that is divided along a dimension it reduces inside by the ops its rule's `expand` clause gives.

`softmax` over a divided dimension becomes a max, a subtraction, an exponential, a sum and a division, each with
its own sharding; the pending max and sum are then reshards like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import shardings_attr
from spmdir.dialects.spmd import sharding_of
from spmdir.dialects.syntax import location_of
from spmdir.errors import UnsupportedError
from spmdir.mesh import Mesh
from spmdir.passes.typing import required, strategies_of
from spmdir.placement import Partial, Placement, R
from spmdir.rules import RuleSet
from spmdir.rules.rewrite import Expansion, Value
from spmdir.sharding import Sharding


def expand(op: AtenOp, mesh: Mesh, rules: RuleSet) -> None:
    """Replace `op` by its expansion if one of its strategies asks for that.

    Raises:
        ShardingError: the op is ill typed; UnsupportedError: a piece cannot be placed as the op is.
    """
    rule, choice = strategies_of(op, mesh, rules)
    factor = next((row.factor for row in choice.values() if row.rewrite == "expand"), None)
    if rule is None or factor is None:
        return
    expansion = rule.expansion(factor)
    wanted = [sharding for sharding in required(op) if sharding is not None]
    order = list(dict.fromkeys(axis for sharding in wanted for axis, _ in sharding.entries)) + list(mesh.axis_names)
    order = list(dict.fromkeys(order))
    columns = {axis: _column(op, expansion, axis, mesh, [s[axis] for s in wanted], rules) for axis in order}

    values = {Value("operand", index): operand for index, operand in enumerate(op.operands)}
    for number, piece in enumerate(expansion.pieces):
        results = [
            Sharding([(axis, columns[axis].made[Value("piece", number, r)]) for axis in order], mesh.name)
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
        needs = [Sharding([(a, columns[a].used[value]) for a in order], mesh.name) for value in piece.operands]
        differing = tuple(
            None if need == sharding_of(value) else need for need, value in zip(needs, new.operands, strict=True)
        )
        if any(need is not None for need in differing):
            new.properties["needs"] = shardings_attr(differing)
        for r, result in enumerate(new.results):
            values[Value("piece", number, r)] = result
    for result, value in zip(op.results, expansion.results, strict=True):
        if value is not None:
            values[value].name_hint = result.name_hint
            result.replace_all_uses_with(values[value])
    Rewriter.erase_op(op)


class _Column:
    """One mesh axis of an expansion: the placement each value is made with, and the one its users want."""

    def __init__(self, operands: Sequence[Placement]):
        self.made: dict[Value, Placement] = {}
        self.used: dict[Value, Placement] = {Value("operand", i): p for i, p in enumerate(operands)}


def _column(
    op: AtenOp,
    expansion: Expansion,
    axis: str,
    mesh: Mesh,
    operands: Sequence[Placement],
    rules: RuleSet,
) -> _Column:
    column = _Column(operands)
    used_inside = {value for piece in expansion.pieces for value in piece.operands}
    for number, piece in enumerate(expansion.pieces):
        inner = rules.instantiate(piece.call)
        wanted = tuple(column.used[value] for value in piece.operands)
        rows = inner.strategies(mesh.sizes[axis]) if inner else ()
        row = next((row for row in rows if row.operands == wanted), None)
        if row is None:
            raise UnsupportedError(
                f"'{op.name}' cannot be expanded on axis '{axis}': its piece {piece.call.name} has no strategy for "
                f"({', '.join(map(str, wanted))}); shard the op's operands by fewer axes",
                location_of(op),
            )
        for result, placement in enumerate(row.results):
            value = Value("piece", number, result)
            column.made[value] = placement
            column.used[value] = R if isinstance(placement, Partial) and value in used_inside else placement
    return column
