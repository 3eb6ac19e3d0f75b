"""Errors for ops whose operands have a wrong placement: what the op gets, what it accepts, what makes it legal."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from spmdir.analysis.type_check import STRATEGIES_SHOWN, plugins_of
from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import name_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.read_back.global_calls import NoStrategyError
from spmdir.reshard.conditions import refinement
from spmdir.rules import OpRule, Strategy


def describe_failure(op: ValueOp, operands: Sequence[SSAValue], error: NoStrategyError, mesh: Mesh) -> ShardingError:
    """Return the located error of an op that is not legal on its operands."""
    shardings = [sharding_of(operand) or Sharding((), mesh.name) for operand in operands]
    if error.rule is not None:
        fine = refinement(mesh, *shardings)
        refined = [sharding.refined(fine) for sharding in shardings]
        for axis, size in fine.axes:
            message = _axis_failure(error.rule, axis, size, refined)
            if message is not None:
                return ShardingError(f"'{op.name}' {message}", location_of(op))
    types = ", ".join(
        f"%{name_of(operand) or index}: tensor<{meta_of(operand.type)}> <{sharding}>"
        for index, (operand, sharding) in enumerate(zip(operands, shardings, strict=True))
    )
    reason = error.message.removeprefix(f"{op.name}: ")
    return ShardingError(
        f"'{op.name}' has no global form on its operands ({types}): {reason}; expected operands whose shards are those "
        "of one global op: correct the shardings of the inputs, or add the missing collective",
        location_of(op),
    )


def _axis_failure(rule: OpRule, axis: str, size: int, shardings: Sequence[Sharding]) -> str | None:
    """Return the end of an error about one axis; None if a strategy has the placements of all operands, or none exists.

    The error explains the first operand whose placement differs from that of the nearest strategy.
    """
    placements = tuple(sharding[axis] for sharding in shardings)
    strategies = [s for s in rule.strategies(size, placements=plugins_of(shardings)) if s.rewrite is None]
    if not strategies or any(strategy.operands == placements for strategy in strategies):
        return None
    nearest = max(strategies, key=lambda strategy: _likeness(strategy, placements))
    index = next(i for i, pair in enumerate(zip(placements, nearest.operands, strict=True)) if pair[0] != pair[1])
    actual, expected = placements[index], nearest.operands[index]
    accepted = "; ".join(f"({_join(s.operands)}) -> ({_join(s.results)})" for s in strategies[:STRATEGIES_SHOWN])
    accepted += "; …" if len(strategies) > STRATEGIES_SHOWN else ""
    return (
        f"gets {describe(actual)} over {axis} as {_operand(rule, index)}; expected {describe(expected)}: "
        f"{advice(actual, expected, axis)}. On axis '{axis}' its operands are ({_join(placements)}); it accepts "
        f"{accepted}"
    )


def _likeness(strategy: Strategy, placements: Sequence[Placement]) -> tuple[int, int]:
    """Return the sort key of a strategy: (number of equal operands, minus the number of its partial results)."""
    equal = sum(p == q for p, q in zip(strategy.operands, placements, strict=True))
    return equal, -sum(result.trait == "partial" for result in strategy.results)


def describe(placement: Placement) -> str:
    """Return a placement in words."""
    if placement == R:
        return "a complete value"
    if placement.trait == "partial":
        names = {"P(sum)": "a partial sum", "P(avg)": "a partial average"}
        return names.get(str(placement), f"a partial value {placement}")
    return f"a shard of dimension {placement.dim}" if str(placement).startswith("S(") else f"a value {placement}"


def advice(actual: Placement, expected: Placement, axis: str) -> str:
    """Return the collective that converts one placement to another."""
    if actual.trait == "partial" and expected == R:
        return f"add an all_reduce over {axis} before it"
    if actual.trait == "partial" and expected.dim is not None:
        return f"add a reduce_scatter over {axis} along dimension {expected.dim} before it"
    if actual.dim is not None and expected == R:
        return f"add an all_gather over {axis} along dimension {actual.dim} before it"
    if actual.dim is not None and expected.dim is not None:
        return f"add an all_to_all over {axis} from dimension {actual.dim} to {expected.dim} before it"
    if actual == R and expected.dim is not None:
        return f"pass only the rank's part along dimension {expected.dim}"
    if actual == R and expected.trait == "partial":
        return f"divide it by the number of ranks, or reduce the other operands over {axis} first"
    return f"convert {actual} to {expected} before it"


def _operand(rule: OpRule, index: int) -> str:
    """Return the number and the name of an operand."""
    names = [tensor.name for tensor in rule.rule.tensors if index in rule.binding.operands(tensor.name)]
    return f"operand {index} ({names[0]})" if names else f"operand {index}"


def _join(placements: Sequence[Placement]) -> str:
    """Return placements as text, separated by commas."""
    return ", ".join(map(str, placements))


def collective_error(op: ValueOp, axes: Sequence[str], sharding: Sharding | None, mesh: Mesh) -> ShardingError:
    """Return the located error of a collective that is not legal on its operand, or whose result is used wrongly.

    Args:
        sharding: the sharding of the operand; None if the operand has no global form.
    """
    kind, over = op.name.partition(".")[2], ", ".join(axes)
    if sharding is None:
        return ShardingError(
            f"'{op.name}' over {over} has a result whose parts are used in another order than that of the "
            "ranks; expected the order of the ranks: unpack its result in this order",
            location_of(op),
        )
    placements = {axis: sharding.along(axis, mesh) or R for axis in axes}
    operand = " and ".join(f"{describe(placement)} over {axis}" for axis, placement in placements.items())
    if "reduce" not in kind:
        return ShardingError(
            f"'{op.name}' gets {operand}, and its result is not joined along a sharded dimension; expected a shard of "
            f"the joined dimension, with {over} as its innermost axes: join the received parts along the sharded "
            "dimension, in the order of the ranks, or correct the group",
            location_of(op),
        )
    reduction, effect = op.argument["reduce_op"], ""
    remedy = "reduce over the axes along which the value is partial"
    if all(placement == R for placement in placements.values()):
        remedy = f"remove the {kind}"
        if reduction == "sum":
            effect = f", so the result would be {mesh.group_size(axes)} times the value"
    elif any(placement.dim is not None for placement in placements.values()):
        remedy = "gather the shards instead of adding them, or compute partial sums before it"
    return ShardingError(
        f"'{op.name}' gets {operand}{effect}; expected a partial value of '{reduction}' over {over}: {remedy}",
        location_of(op),
    )
