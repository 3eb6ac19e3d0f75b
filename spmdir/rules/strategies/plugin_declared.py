"""Strategies that a plug-in placement returns from its method `lift`, and the helpers of `lift`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.arguments import instance
from spmdir.core.declared_fields import evaluated, place
from spmdir.core.errors import RuleError, SpmdirError, warn
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.standard import Placement, R, Shard
from spmdir.rules.local.suitability import usable_clauses
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import unshardable
from spmdir.rules.strategies.obstacle import ClauseLocation, Dropped, Obstacle
from spmdir.rules.strategies.per_axis import shard_operands
from spmdir.rules.strategies.strategy import ShardCounts, Strategy

_STRATEGIES = instance(Iterable, expected="strategies")  # type: ignore


def declared_strategies(
    rule: RuleInstance,
    count: int,
    sharded: ShardCounts,
    strategies: Sequence[Strategy],
    placements: Iterable[Placement],
) -> Iterator[Strategy | Dropped]:
    """Yield the strategies that `placements` add by `lift`, or reasons why these are omitted.

    A warning reports a strategy that is omitted because the local form of the rule requires shards of one range: the
    author of the placement can avoid it.

    Args:
        strategies: the strategies of the op so far, which `lift` receives.

    Raises:
        RuleError: a strategy has a wrong number of operands or results, or shards a dimension that a tensor lacks.
    """
    for placement in placements:
        for strategy in evaluated("lift", placement.lift, rule, strategies, owner=str(placement), returns=_STRATEGIES):
            _check_strategy(rule, placement, strategy)
            reason = _range_required(rule, strategy)
            if reason:
                text = f"placement {placement} adds '{strategy}' to {rule.name}, which is omitted: {reason}"
                warn(text, place(type(placement).lift))
            reason = reason or _unsupported(rule, strategy) or _rejected(rule, strategy, count)
            for factor in strategy.factors:
                reason = reason or _unshardable(rule, strategy, factor, count, sharded)
            yield Dropped(rule, strategy, None, reason) if reason else strategy


def _unsupported(rule: RuleInstance, strategy: Strategy) -> Obstacle | None:
    """Return the reason if a placement does not support the element type of its tensor, else None."""
    metas = (*rule.call.operands, *rule.call.results)
    for meta, placement in zip(metas, (*strategy.operands, *strategy.results), strict=True):
        if meta is not None and not placement.supports(meta.dtype):
            return Obstacle("{} does not support {}", (placement, meta.dtype))
    return None


def _rejected(rule: RuleInstance, strategy: Strategy, count: int) -> Obstacle | None:
    """Return the reason if a placement rejects the shape of its tensor, else None."""
    metas = (*rule.call.operands, *rule.call.results)
    for meta, placement in zip(metas, (*strategy.operands, *strategy.results), strict=True):
        if meta is None:
            continue
        try:
            placement.check(meta.shape, count)
        except SpmdirError as error:
            return Obstacle("{}", (error.message,))
    return None


def _range_required(rule: RuleInstance, strategy: Strategy) -> Obstacle | None:
    """Return the reason if the local form requires one range of a factor that a plug-in placement shards, else None."""
    if strategy.rewrite != "local":
        return None
    placements = (*strategy.operands, *strategy.results)
    scattered: set[int] = set()  # the factors that plug-in placements shard
    for placement, dims in zip(placements, (*rule.operand_dims, *rule.result_dims), strict=True):
        if placement.dim is not None and not isinstance(placement, Shard):
            scattered.update((dims or ())[placement.dim])
    if usable_clauses(rule, strategy.factors, scattered):
        return None
    clause = ClauseLocation(rule, ("local",), strategy.factors[0]) if strategy.factors else None
    return Obstacle("the local form of the rule requires shards of one range", (), clause)


def _unshardable(
    rule: RuleInstance, strategy: Strategy, factor: int, count: int, sharded: ShardCounts
) -> Obstacle | None:
    """Return why `count` ranks cannot shard the factor of a strategy that a placement added; None if they can.

    A strategy without the `expand` rewrite of its factor keeps the op. It is compatible with other such strategies, but
    not with an axis that expands the op.
    """
    partials = [placement for placement in strategy.results if isinstance(placement, PartialPlacement)]
    least = int(any(placement.reduce in ("max", "min") for placement in partials))  # these need an element on each rank
    expanding = [other for other in sharded.all_axes if rule.factors[other].rewrite == "expand"]
    if strategy.rewrite or rule.factors[factor].rewrite != "expand":
        return unshardable(rule, factor, count, sharded, least)
    if any(other not in sharded.by_plugins or sharded.by_s(other) > 1 for other in expanding):
        return Obstacle("another axis expands the op")
    # The strategies of the other axes keep the op too, so `unshardable` must not check whether they expand it.
    return unshardable(rule, factor, count, sharded.without_plugins_of(expanding), least)


def _check_strategy(rule: RuleInstance, placement: Placement, strategy: object) -> None:
    """Raise RuleError unless `strategy`, which `placement` added, fits the operands and results of the op."""
    metas = (*rule.call.operands, *rule.call.results)
    prefix = f"placement {placement} adds '{strategy}' to {rule.name}; expected "
    if not isinstance(strategy, Strategy):
        raise RuleError(f"{prefix}a Strategy")
    if (len(strategy.operands), len(strategy.results)) != (len(rule.call.operands), len(rule.call.results)):
        raise RuleError(f"{prefix}{len(rule.call.operands)} operands and {len(rule.call.results)} results")
    for placed, meta in zip((*strategy.operands, *strategy.results), metas, strict=True):
        if not isinstance(placed, Placement):
            raise RuleError(f"{prefix}placements, found {placed!r}")
        if meta is not None and placed.dim is not None and placed.dim >= meta.rank:
            raise RuleError(f"{prefix}dimensions below {meta.rank} of a tensor of rank {meta.rank}, found {placed}")


def combining(rule: RuleInstance, result: Placement) -> Iterator[Strategy]:
    """Yield the strategies that shard by S a factor that some result lacks; such a result has placement `result`.

    For example, `aten.mm` with `m k, k n -> m n` lacks `k` in its result: `(S(1), S(0)) -> (result)`.
    """
    for index, factor in enumerate(rule.factors):
        results: list[Placement] = []
        is_lacking = False
        for dims, meta in zip(rule.result_dims, rule.call.results, strict=True):
            dims_with_factor = [dim for dim, factors in enumerate(dims or ()) if index in factors]
            if dims_with_factor:
                results.append(Shard(dims_with_factor[0]))
            elif meta is None:
                results.append(R)
            else:
                results.append(result)
                is_lacking = True
        if not is_lacking or not any(index in factors for dims in rule.operand_dims for factors in dims):
            continue
        # A strategy that keeps an op which S would expand lists its placement. So `ShardCounts.by_plugins` contains the
        # factor, and `_unshardable` treats the axis as compatible with other strategies that keep the op.
        rewrite, factor_placements = (None, (Shard(0),)) if factor.rewrite == "expand" else (factor.rewrite, ())
        yield Strategy(shard_operands(rule, index), tuple(results), (index,), rewrite, factor_placements)


def is_pointwise(rule: RuleInstance) -> bool:
    """Return whether the op computes each element separately, in the same way, and broadcasts nothing.

    Then all operands and results have the same factors, and each may be sharded without a rewrite.
    """
    if any(factor.kind != "plain" or factor.rewrite for factor in rule.factors):
        return False
    tensor_dims = [*rule.operand_dims, *(dims for dims in rule.result_dims if dims is not None)]
    shapes = {meta.shape for meta in (*rule.call.operands, *rule.call.results) if meta is not None}
    return bool(rule.operand_dims) and len(shapes) == 1 and all(dims == tensor_dims[0] for dims in tensor_dims)


def pointwise(rule: RuleInstance, placement: Placement) -> Strategy:
    """Return the strategy in which every operand and result has `placement`."""
    results = tuple(R if meta is None else placement for meta in rule.call.results)
    return Strategy((placement,) * len(rule.call.operands), results)
