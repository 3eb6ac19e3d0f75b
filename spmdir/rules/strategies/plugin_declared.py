"""Strategies that a plug-in placement declares by its method `lift`, and what it builds them from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.arguments import instance
from spmdir.core.declared_fields import evaluated, place
from spmdir.core.errors import RuleError, SpmdirError, warn
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.standard import Placement, R, Shard
from spmdir.rules.local.suitability import serving
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import unshardable
from spmdir.rules.strategies.obstacle import Dropped, Obstacle, Place
from spmdir.rules.strategies.per_axis import shard_operands
from spmdir.rules.strategies.strategy import ShardCounts, Strategy

_STRATEGIES = instance(Iterable, expected="strategies")  # type: ignore


def declared_strategies(
    rule: RuleInstance, count: int, sharded: ShardCounts, known: Sequence[Strategy], lifting: Iterable[Placement]
) -> Iterator[Strategy | Dropped]:
    """Yield what placements add by `lift` to the `known` strategies, where element types and factors allow it.

    Raises:
        RuleError: one has not the op's number of operands or results, or shards what they do not have.
    """
    for placement in lifting:
        for strategy in evaluated("lift", placement.lift, rule, known, owner=str(placement), returns=_STRATEGIES):
            _check(rule, placement, strategy)
            reason = _out_of_range(rule, strategy)
            if reason:
                text = f"placement {placement} adds '{strategy}' to {rule.name}, which is left out: {reason}"
                warn(text, place(type(placement).lift))
            reason = reason or _unsupported(rule, strategy) or _unfit(rule, strategy, count)
            for factor in strategy.factors:
                reason = reason or _unshardable(rule, strategy, factor, count, sharded)
            yield Dropped(rule, strategy, None, reason) if reason else strategy


def _unsupported(rule: RuleInstance, strategy: Strategy) -> Obstacle | None:
    """Return the reason if values of the element types of operands and results cannot be placed so."""
    metas = (*rule.call.operands, *rule.call.results)
    for meta, placement in zip(metas, (*strategy.operands, *strategy.results), strict=True):
        if meta is not None and not placement.supports(meta.dtype):
            return Obstacle("{} does not support {}", (placement, meta.dtype))
    return None


def _unfit(rule: RuleInstance, strategy: Strategy, count: int) -> Obstacle | None:
    """Return the reason if a placement rejects the shape of its tensor."""
    metas = (*rule.call.operands, *rule.call.results)
    for meta, placement in zip(metas, (*strategy.operands, *strategy.results), strict=True):
        if meta is None:
            continue
        try:
            placement.check(meta.shape, count)
        except SpmdirError as error:
            return Obstacle("{}", (error.message,))
    return None


def _out_of_range(rule: RuleInstance, strategy: Strategy) -> Obstacle | None:
    """Return the reason if the local form that it uses asks for one range of what another placement than S shards."""
    if strategy.rewrite != "local":
        return None
    placed = zip((*strategy.operands, *strategy.results), (*rule.operand_dims, *rule.result_dims), strict=True)
    scattered = {f for p, dims in placed if p.dim is not None and not isinstance(p, Shard) for f in (dims or ())[p.dim]}
    if serving(rule, strategy.factors, scattered):
        return None
    place = Place(rule, ("local",), strategy.factors[0]) if strategy.factors else None
    return Obstacle("the local form of the rule is for shards that are one range each", (), place)


def _unshardable(
    rule: RuleInstance, strategy: Strategy, factor: int, count: int, sharded: ShardCounts
) -> Obstacle | None:
    """Return why `count` ranks cannot shard the factor of a strategy that a placement added; None if they can.

    Without the rewrite that its rule has for it the op stays as it is, so it goes with others such, but not with an
    axis that expands the op.
    """
    least = int(any(p.reduce in ("max", "min") for p in strategy.results if isinstance(p, PartialPlacement)))
    expanding = [f for f in sharded.all_axes if rule.factors[f].rewrite == "expand"]
    if strategy.rewrite or rule.factors[factor].rewrite != "expand":
        return unshardable(rule, factor, count, sharded, least)
    if any(f not in sharded.by_plugins or sharded.by_s(f) > 1 for f in expanding):
        return Obstacle("another axis expands the op")
    return unshardable(rule, factor, count, sharded.without_plugins_of(expanding), least)


def _check(rule: RuleInstance, placement: Placement, strategy: object) -> None:
    """Raise RuleError unless `strategy`, which `placement` added, can be one of the op."""
    metas = (*rule.call.operands, *rule.call.results)
    said = f"placement {placement} adds '{strategy}' to {rule.name}; expected "
    if not isinstance(strategy, Strategy):
        raise RuleError(f"{said}a Strategy")
    if (len(strategy.operands), len(strategy.results)) != (len(rule.call.operands), len(rule.call.results)):
        raise RuleError(f"{said}{len(rule.call.operands)} operands and {len(rule.call.results)} results")
    for placed, meta in zip((*strategy.operands, *strategy.results), metas, strict=True):
        if not isinstance(placed, Placement):
            raise RuleError(f"{said}placements, found {placed!r}")
        if meta is not None and placed.dim is not None and placed.dim >= meta.rank:
            raise RuleError(f"{said}dimensions below {meta.rank} of a tensor of rank {meta.rank}, found {placed}")


def combining(rule: RuleInstance, result: Placement) -> Iterator[Strategy]:
    """Yield the strategies that shard a factor by S that some result lacks, with `result` for such results."""
    for index, factor in enumerate(rule.factors):
        lacking = [meta is not None and not any(index in factors for factors in dims or ())
                   for dims, meta in zip(rule.result_dims, rule.call.results, strict=True)]  # fmt: skip
        if not any(lacking) or not any(index in factors for dims in rule.operand_dims for factors in dims):
            continue
        rewrite, placed = (None, (Shard(0),)) if factor.rewrite == "expand" else (factor.rewrite, ())
        kept = (next((Shard(d) for d, made_of in enumerate(dims or ()) if index in made_of), R)
                for dims in rule.result_dims)  # fmt: skip
        results = tuple(result if lacks else p for lacks, p in zip(lacking, kept, strict=True))
        yield Strategy(shard_operands(rule, index), results, (index,), rewrite, placed)


def is_pointwise(rule: RuleInstance) -> bool:
    """Return whether the op does the same to each element alone: every operand and result has the same dimensions, by
    the factors of the rule, and each of them may be sharded without a change of the op."""
    if any(factor.kind != "plain" or factor.rewrite for factor in rule.factors):
        return False
    made_of = [*rule.operand_dims, *(dims for dims in rule.result_dims if dims is not None)]
    shapes = {meta.shape for meta in (*rule.call.operands, *rule.call.results) if meta is not None}
    return bool(rule.operand_dims) and len(shapes) == 1 and all(dims == made_of[0] for dims in made_of)


def pointwise(rule: RuleInstance, placement: Placement) -> Strategy:
    """Return the strategy where every operand and result has `placement`."""
    results = tuple(R if meta is None else placement for meta in rule.call.results)
    return Strategy((placement,) * len(rule.call.operands), results)
