"""Derive the strategies of a rule on one mesh axis: replicated, sharded by S, and with partial values.

For example, `aten.mm(self: m k, mat2: k n) -> m n    sum k    multilinear self mat2` has these on an axis of 2 ranks:

    replicated:                     (R, R) -> (R)
    one strategy for each factor:   m: (S(0), R) -> (S(0))    k: (S(1), S(0)) -> (P(sum))    n: (R, S(1)) -> (S(1))
    partial values that pass:       (P(sum), R) -> (P(sum)), (R, P(sum)) -> (P(sum)), and the same for P(avg)

The result lacks `k`, so the clause `sum k` makes it partial. If `k` has 1 element, its strategy is omitted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial

from spmdir.core.dtype import DType
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.reductions import REDUCTIONS, reductions_of, why_not_reduced
from spmdir.core.placement.standard import Partial, Placement, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.promotion import sums_exactly
from spmdir.rules.language.syntax_tree import LINEAR, PASSING, RuleClause
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import compatible_rewrite, unshardable
from spmdir.rules.strategies.expansion_layout import LayOutExpansion
from spmdir.rules.strategies.obstacle import ClauseLocation, Dropped, Obstacle
from spmdir.rules.strategies.strategy import ShardCounts, Strategy

PARTIALS = tuple(map(Partial, REDUCTIONS))
"""The partial placements that are not plug-ins."""

_PARTIAL = dict(zip(REDUCTIONS, PARTIALS, strict=True))
_SUM = _PARTIAL["sum"]
_cached_shard = lru_cache(maxsize=None)(Shard)

PlacementOf = Callable[[Dims], Placement | None]
"""Dimensions of an operand or result → its placement; None if they do not contain the sharded factor."""

OPPOSITE = {"max": "min", "min": "max", "any": "all", "all": "any"}
"""Reduction of an operand of a nonincreasing op → reduction of its result."""


def replicated(rule: RuleInstance) -> Strategy:
    """Return the strategy in which all operands and results are replicated."""
    return Strategy((R,) * len(rule.call.operands), (R,) * len(rule.call.results))


StrategyCache = dict[tuple[int, str | None], "Strategy | Obstacle"]
"""(factor, rewrite) → the strategy that shards the factor by S. It is the same for all axis sizes and other axes."""


def factor_strategies(
    rule: RuleInstance, count: int, sharded: ShardCounts, lay_out: LayOutExpansion, cache: StrategyCache
) -> Iterator[Strategy | Dropped]:
    """Yield a strategy for each factor that `count` ranks can shard by S, and the reason for each other factor.

    Args:
        sharded: how other axes shard the factors.
        lay_out: returns the layout of the op's expansion.
        cache: the earlier results for this rule; new results are added.
    """
    for index in range(len(rule.factors)):
        outcome: Strategy | Obstacle | None = unshardable(rule, index, count, sharded)
        if outcome is None:
            rewrite: str | Obstacle | None = rule.factors[index].rewrite
            if sharded.by_plugins:
                rewrite = compatible_rewrite(rule, index, sharded, scattered=False)
            assert not isinstance(rewrite, Obstacle)  # it is shardable
            outcome = cache.get((index, rewrite))
            if outcome is None:
                outcome = factor_strategy(rule, index, count, sharded, partial(_shard, index), lay_out, rewrite)
            if rewrite != "expand":  # the strategies of an expansion depend on the number of ranks
                cache[index, rewrite] = outcome
        yield Dropped(rule, Shard(0), index, outcome) if isinstance(outcome, Obstacle) else outcome


def factor_strategy(
    rule: RuleInstance,
    index: int,
    count: int,
    sharded: ShardCounts,
    placement_of: PlacementOf,
    lay_out: LayOutExpansion,
    rewrite: str | None,
    factor_placements: tuple[Placement, ...] = (),
) -> Strategy | Obstacle:
    """Return the strategy that shards the factor, or the reason if a result has no placement.

    A partial result is only sound if each rank may add all that the op adds. For example, `addmm(bias, a, b)` sharded
    along k gives P(sum), so bias must be P(sum) too. `add(x, 1)` of such a result is rejected: each rank would add 1.

    Args:
        index: the factor.
        placement_of: dimensions of an operand or result → its placement; None if they lack the factor.
        lay_out: returns the layout of the op's expansion.
        rewrite: "local", "expand" or none.
        factor_placements: the placement of the factor, if it is not S.
    """
    operands = tuple([placement_of(dims) or R for dims in rule.operand_dims])
    if rewrite == "expand":
        layout = lay_out(index, count, sharded, operands)
        if layout is None:
            return Obstacle("an op of its expansion has no such strategy", (), ClauseLocation(rule, ("expand",), index))
        return Strategy(operands, layout.results, (index,), "expand", factor_placements)
    results = tuple([_result_placement(rule, index, dims, placement_of) for dims in rule.result_dims])
    additive, adds_number = rule.additive  # the operands that the op adds to its result; whether it adds a number
    partial_result = next((placement for placement in results if isinstance(placement, Partial)), None)
    if None in results:
        return Obstacle("no placement of the result corresponds to this sharding")
    if partial_result and (adds_number or (additive and partial_result.op != "sum")):
        return Obstacle("the result would be {}, but the op adds another operand or a number to it", (partial_result,))
    for placement, meta in zip(results, rule.call.results, strict=True):
        reason = _unreducible(placement, meta.dtype) if meta is not None and placement is not None else None
        if reason is not None:
            return reason
    if partial_result == _SUM and not rule.scales_finitely:
        return Obstacle("the result would be a partial sum, but an argument is a number that is not finite")
    if partial_result:  # the operands that the op adds must be partial too, else every rank would add them
        operands = tuple(
            partial_result if operand in additive else placement for operand, placement in enumerate(operands)
        )
    result_placements = tuple([placement for placement in results if placement is not None])
    return Strategy(operands, result_placements, (index,), rewrite or None, factor_placements)


def _shard(index: int, dims: Dims) -> Placement | None:
    """Return S of the dimension with factor `index`; None if no dimension has it."""
    for dim, factors in enumerate(dims):
        if index in factors:
            return _cached_shard(dim)
    return None


def shard_operands(rule: RuleInstance, index: int) -> tuple[Placement, ...]:
    """Return the placements of the operands that shard the factor by S."""
    return tuple(_shard(index, dims) or R for dims in rule.operand_dims)


def _result_placement(rule: RuleInstance, index: int, dims: Dims | None, placement_of: PlacementOf) -> Placement | None:
    """Return the placement of a result if factor `index` is sharded; None if no placement is sound.

    A result with the factor is sharded. Else the kind of the factor decides whether it is partial or replicated. For
    example, factor k of `m k, k n -> m n` with `sum k` makes the result P(sum).

    Args:
        dims: the factors of each dimension of the result; None if the result is absent.
    """
    placement = R if dims is None else placement_of(dims)
    if placement is not None:
        return placement
    kind = rule.factors[index].kind
    # A result without elements needs no reduction.
    is_empty = any(rule.factors[factor].size == 0 for factors in dims or () for factor in factors)
    if kind == "same" or is_empty:
        return R
    if kind == "plain":
        return R if index in rule.ignored else None
    return _PARTIAL[kind]


def partial_strategies(rule: RuleInstance, candidates: tuple[PartialPlacement, ...] = PARTIALS) -> Iterator[Strategy]:
    """Yield the strategies in which a partial placement among `candidates` passes from operands to results."""
    return (strategy for _, strategy in _partial_decisions(rule, candidates) if isinstance(strategy, Strategy))


def plugin_partial_strategies(
    rule: RuleInstance, candidates: tuple[PartialPlacement, ...]
) -> Iterator[Strategy | Dropped]:
    """Yield the strategies in which partial plug-in placements pass, and the reasons for those that do not pass."""
    if not candidates:
        return
    decisions = tuple(_partial_decisions(rule, candidates))
    yield from (outcome for _, outcome in decisions if isinstance(outcome, Strategy))
    passed = {placement for placement, outcome in decisions if isinstance(outcome, Strategy)}
    for placement, outcome in decisions:
        if isinstance(outcome, Obstacle) and placement not in passed:
            yield Dropped(rule, placement, None, outcome)
    if not decisions:
        for placement in candidates:
            yield Dropped(rule, placement, None, Obstacle("the rule has no clause that passes partial values"))


def _partial_decisions(
    rule: RuleInstance, candidates: tuple[PartialPlacement, ...]
) -> Iterator[tuple[PartialPlacement, Strategy | Obstacle]]:
    """Yield a strategy or a reason for each clause that passes partial values and each of `candidates`.

    An `ignores` clause passes a partial operand to replicated results. In a `multilinear` clause, one operand at a time
    is partial. In any other clause, all its operands are partial together.
    """
    for clause in rule.active(*PASSING):
        names = clause.names or (rule.rule.tensors[0].name,)
        indices = tuple(index for name in names for index in rule.binding.operands(name))
        if clause.kind == "ignores":
            for index in indices:
                dtype = rule.call.operands[index].dtype
                for placement in candidates:
                    if _can_be_partial(placement, dtype):
                        yield placement, _strategy(rule, {index: placement}, R, ())
                    else:
                        yield placement, _unsupported(dtype)
        elif obstacle := _blocking_number(rule, clause, names):
            yield from ((placement, obstacle) for placement in candidates)
        elif clause.kind == "multilinear":
            for index in indices:
                yield from _passing(rule, clause, (index,), candidates)
        elif indices:
            yield from _passing(rule, clause, indices, candidates)


def _blocking_number(rule: RuleInstance, clause: RuleClause, names: tuple[str, ...]) -> Obstacle | None:
    """Return the reason if a number among the arguments stops all partial values at `clause`, else None.

    Infinite factors would turn partial sums into NaN. A number in place of a partial operand, or one that the op adds,
    would be added by every rank.
    """
    if clause.kind in LINEAR and not rule.scales_finitely:
        return Obstacle("an argument is a number that is not finite, and a `{}` op may multiply by it", (clause.kind,))
    if clause.kind == "multilinear":
        return None
    for name in names:
        number = rule.binding.arguments.get(name)
        if number is not None and number != 0:
            message = "`{}` requires a tensor, but '{}' is the number {}, which every rank would add"
            return Obstacle(message, (clause.kind, name, number), clause.location)
    if clause.kind == "linear" and rule.additive[1]:
        return Obstacle("the op adds a number to a `linear` operand, and every rank would add it")
    return None


def _passing(
    rule: RuleInstance, clause: RuleClause, indices: tuple[int, ...], candidates: Iterable[PartialPlacement]
) -> Iterator[tuple[PartialPlacement, Strategy | Obstacle]]:
    """Yield a strategy or a reason for each of `candidates` that `clause` may pass from operands to results.

    For example, `linear self` and the candidate P(sum) give `(P(sum)) -> (P(sum))`.

    Args:
        indices: the operands that are partial together.
    """
    additive = rule.additive[0] if clause.kind == "linear" else ()
    partial_results = _partial_results(rule, clause, indices)
    operand_dtypes = [rule.call.operands[index].dtype for index in indices]
    result_dtypes = [meta.dtype for meta in partial_results]
    casts = itertools.product(operand_dtypes, result_dtypes)
    inexact_cast = next(((source, target) for source, target in casts if not sums_exactly(source, target)), None)
    dtypes = tuple(dict.fromkeys((*operand_dtypes, *result_dtypes)))
    heading = " ".join((clause.kind, *clause.reductions))
    not_passed = Obstacle("this placement does not pass `{}`", (heading,), clause.location)
    for placement in candidates:
        unsupported = next((dtype for dtype in dtypes if not _can_be_partial(placement, dtype)), None)
        result = _passed_placement(clause, placement)
        if unsupported is not None:
            yield placement, _unsupported(unsupported)
        elif inexact_cast and placement.reduce not in ("max", "min"):
            yield placement, Obstacle("the sum of {} values differs from their sum as {}", inexact_cast)
        elif result is None:
            yield placement, not_passed
        else:
            obstacles = (_unreducible(result, dtype) for dtype in result_dtypes)
            obstacle = next(filter(None, obstacles), None)
            operands = dict.fromkeys((*indices, *additive), placement)
            yield placement, obstacle or _strategy(rule, operands, result, partial_results)


def _passed_placement(clause: RuleClause, placement: PartialPlacement) -> Placement | None:
    """Return the placement of the result if an operand has `placement`; None if it does not pass `clause`."""
    if clause.kind == "swaps":
        return Partial(OPPOSITE[placement.op]) if placement.op in OPPOSITE else None
    return placement if placement.passes(clause.kind, clause.reductions) else None


def _unreducible(result: Placement, dtype: DType) -> Obstacle | None:
    """Return the reason if process groups cannot reduce values of `dtype` with the reduction of `result`, else None."""
    reason = why_not_reduced(result.op, dtype) if isinstance(result, Partial) else None
    return None if reason is None else Obstacle("the result would be {}, and {}", (result, reason))


def _unsupported(dtype: DType) -> Obstacle:
    """Return the reason that a placement does not support values of `dtype`."""
    return Obstacle("this placement does not support {}", (dtype,))


def _partial_results(rule: RuleInstance, clause: RuleClause, indices: tuple[int, ...]) -> tuple[TensorMeta, ...]:
    """Return the results that become partial if the operands `indices` are.

    Integer results of a linear op on floating-point operands stay replicated: they are not linear.
    """
    results = tuple(meta for meta in rule.call.results if meta is not None)
    if clause.kind in LINEAR and all(rule.call.operands[index].dtype.is_inexact for index in indices):
        # If all results are integers, they stay listed, and `_passing` rejects the inexact cast.
        return tuple(meta for meta in results if meta.dtype.is_inexact) or results
    return results


def _can_be_partial(placement: PartialPlacement, dtype: DType) -> bool:
    """Return whether values of `dtype` may have this placement. Rules use `any` for booleans, not `max`."""
    return placement.op in reductions_of(dtype) if isinstance(placement, Partial) else placement.supports(dtype)


def _strategy(
    rule: RuleInstance, operands: Mapping[int, Placement], result: Placement, partial_results: tuple[TensorMeta, ...]
) -> Strategy:
    """Return the strategy with these placements of `operands`, and `result` for `partial_results`; others are R."""
    placements = tuple(operands.get(index, R) for index in range(len(rule.call.operands)))
    return Strategy(placements, tuple(result if meta in partial_results else R for meta in rule.call.results))
