"""The strategies of a rule on one mesh axis by R, S and partial values: replicated, one a factor, partial ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial

from spmdir.core.dtype import DType
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.reductions import REDUCTIONS, reductions_of, unreduced
from spmdir.core.placement.standard import Partial, Placement, R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.promotion import sums_exactly
from spmdir.rules.language.syntax_tree import LINEAR, PASSING, RuleClause
from spmdir.rules.shapes.factor import Dims
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.divisibility import rewrite_beside, unshardable
from spmdir.rules.strategies.expansion_layout import LayOut
from spmdir.rules.strategies.obstacle import Dropped, Obstacle, Place
from spmdir.rules.strategies.strategy import ShardCounts, Strategy

PARTIALS = tuple(map(Partial, REDUCTIONS))
"""The partial placements that every program may have."""

_PARTIAL = dict(zip(REDUCTIONS, PARTIALS, strict=True))
_SUM = _PARTIAL["sum"]
_s = lru_cache(maxsize=None)(Shard)

PlacementOf = Callable[[Dims], Placement | None]
"""Dimensions of an operand or result → its placement; None where the sharded factor makes up none of them."""

OPPOSITE = {"max": "min", "min": "max", "any": "all", "all": "any"}
"""What a partial reduction becomes behind an antitone op."""


def replicated(rule: RuleInstance) -> Strategy:
    """Return the strategy where every rank has everything."""
    return Strategy((R,) * len(rule.call.operands), (R,) * len(rule.call.results))


Known = dict[tuple[int, str | None], "Strategy | Obstacle"]
"""(Factor, rewrite) → what sharding it by S gives, on however many ranks and beside whatever other axes shard."""


def factor_strategies(
    rule: RuleInstance, count: int, sharded: ShardCounts, layouts: LayOut, known: Known
) -> Iterator[Strategy | Dropped]:
    """Yield a strategy for each factor that `count` ranks can shard by S beside what other axes shard.

    Args:
        known: what was found for this rule before; what is found is added.
    """
    for index in range(len(rule.factors)):
        found: Strategy | Obstacle | None = unshardable(rule, index, count, sharded)
        if found is None:
            rewrite: str | Obstacle | None = rule.factors[index].rewrite
            if sharded.by_plugins:
                rewrite = rewrite_beside(rule, index, sharded, scattered=False)
            assert not isinstance(rewrite, Obstacle)  # it is shardable
            found = known.get((index, rewrite))
            if found is None:
                found = factor_strategy(rule, index, count, sharded, partial(_shard, index), layouts, rewrite)
            if rewrite != "expand":  # which ops of an expansion have strategies is another matter on other ranks
                known[index, rewrite] = found
        yield Dropped(rule, Shard(0), index, found) if isinstance(found, Obstacle) else found


def factor_strategy(
    rule: RuleInstance,
    index: int,
    count: int,
    sharded: ShardCounts,
    placement_of: PlacementOf,
    layouts: LayOut,
    rewrite: str | None,
    factor_placements: tuple[Placement, ...] = (),
) -> Strategy | Obstacle:
    """Return the strategy that shards the factor as `placement_of` says; why there is none if results cannot be placed
    so.

    Args:
        layouts: lays out the op's expansion, where sharding the factor expands it.
        rewrite: "local", "expand" or none.
        factor_placements: how the factor is sharded, if not by S.
    """
    operands = tuple([placement_of(dims) or R for dims in rule.operand_dims])
    if rewrite == "expand":
        layout = layouts(index, count, sharded, operands)
        if layout is None:
            return Obstacle("an op of its expansion has no such strategy", (), Place(rule, ("expand",), index))
        return Strategy(operands, layout.results, (index,), "expand", factor_placements)
    results = tuple([_result_placement(rule, index, dims, placement_of) for dims in rule.result_dims])
    additive, number = rule.additive
    reduced = next((p for p in results if isinstance(p, Partial)), None)
    if None in results:
        return Obstacle("no placement of the result corresponds to it")
    if reduced and (number or (additive and reduced.op != "sum")):
        return Obstacle("the result would be {}, and the op adds something to it", (reduced,))
    for placed, meta in zip(results, rule.call.results, strict=True):
        if meta is not None and placed is not None and (reason := _unreduced(placed, meta.dtype)):
            return reason
    if reduced == _SUM and not rule.scales_finitely:
        return Obstacle("the result would be a sum, and a number among the arguments is not finite")
    if reduced:
        operands = tuple(reduced if i in additive else p for i, p in enumerate(operands))
    return Strategy(operands, tuple([p for p in results if p]), (index,), rewrite or None, factor_placements)


def _shard(index: int, dims: Dims) -> Placement | None:
    for dim, factors in enumerate(dims):
        if index in factors:
            return _s(dim)
    return None


def shard_operands(rule: RuleInstance, index: int) -> tuple[Placement, ...]:
    """Return the placements of the operands that shard the factor by S."""
    return tuple(_shard(index, dims) or R for dims in rule.operand_dims)


def _result_placement(rule: RuleInstance, index: int, dims: Dims | None, placement_of: PlacementOf) -> Placement | None:
    placed = R if dims is None else placement_of(dims)
    if placed is not None:
        return placed
    kind = rule.factors[index].kind
    if kind == "same" or any(rule.factors[f].size == 0 for d in dims or () for f in d):
        return R
    if kind == "plain":
        return R if index in rule.ignored else None
    return _PARTIAL[kind]


def partial_strategies(rule: RuleInstance, candidates: tuple[PartialPlacement, ...] = PARTIALS) -> Iterator[Strategy]:
    """Yield a strategy for each of `candidates` that operands may have and that passes to the results."""
    return (found for _, found in _decisions(rule, candidates) if isinstance(found, Strategy))


def plugin_partial_strategies(
    rule: RuleInstance, candidates: tuple[PartialPlacement, ...]
) -> Iterator[Strategy | Dropped]:
    """Yield the strategies in which plug-in placements pass to the results, and those of them that pass nothing."""
    decisions = tuple(_decisions(rule, candidates)) if candidates else ()
    yield from (found for _, found in decisions if isinstance(found, Strategy))
    passed = {placement for placement, found in decisions if isinstance(found, Strategy)}
    for placement, found in decisions:
        if isinstance(found, Obstacle) and placement not in passed:
            yield Dropped(rule, placement, None, found)
    for placement in () if decisions else candidates:
        yield Dropped(rule, placement, None, Obstacle("the rule has no clause that lets partial values pass"))


def _decisions(
    rule: RuleInstance, candidates: tuple[PartialPlacement, ...]
) -> Iterator[tuple[PartialPlacement, Strategy | Obstacle]]:
    """Yield, by each clause that lets partial values pass, the strategy of each of `candidates`, or why it has none."""
    for clause in rule.active(*PASSING):
        names = clause.names or (rule.rule.tensors[0].name,)
        members = tuple(i for name in names for i in rule.binding.operands(name))
        if clause.kind == "ignores":
            for i in members:
                for p in candidates:
                    dtype = rule.call.operands[i].dtype
                    yield p, _strategy(rule, {i: p}, R, ()) if _may_be(p, dtype) else _unsupported(dtype)
        elif obstacle := _number_among(rule, clause, names):
            yield from ((p, obstacle) for p in candidates)
        elif clause.kind == "multilinear":
            for member in members:
                yield from _passing(rule, clause, (member,), candidates)
        elif members:
            yield from _passing(rule, clause, members, candidates)


def _number_among(rule: RuleInstance, clause: RuleClause, names: tuple[str, ...]) -> Obstacle | None:
    """Return why numbers among the arguments keep all partial values from passing by `clause`."""
    if clause.kind in LINEAR and not rule.scales_finitely:
        return Obstacle("a number among the arguments is not finite, and `{}` scales by it", (clause.kind,))
    if clause.kind == "multilinear":
        return None
    for name in names:
        number = rule.binding.arguments.get(name)
        if number is not None and number != 0:
            message = "`{}` is of tensors, and '{}' is the number {}, which every rank would have"
            return Obstacle(message, (clause.kind, name, number), clause.location)
    if clause.kind == "linear" and rule.additive[1]:
        return Obstacle("the op adds a number to what is `linear`, which every rank would have")
    return None


def _passing(
    rule: RuleInstance, clause: RuleClause, members: tuple[int, ...], candidates: Iterable[PartialPlacement]
) -> Iterator[tuple[PartialPlacement, Strategy | Obstacle]]:
    """Yield the strategies where all `members`, and by `clause` the results that take their values, are partial."""
    additive = rule.additive[0] if clause.kind == "linear" else ()
    taking = _taking(rule, clause, members)
    before = [rule.call.operands[i].dtype for i in members]
    after = [meta.dtype for meta in taking]
    inexact = next(((a, b) for a in before for b in after if not sums_exactly(a, b)), None)
    dtypes = tuple(dict.fromkeys((*before, *after)))
    obstacle = Obstacle("it does not pass `{}`", (" ".join((clause.kind, *clause.reductions)),), clause.location)
    for p in candidates:
        unsupported = next((dtype for dtype in dtypes if not _may_be(p, dtype)), None)
        if unsupported is not None:
            yield p, _unsupported(unsupported)
        elif inexact and p.reduce not in ("max", "min"):
            yield p, Obstacle("sums of {} are not those of what they become as {}", inexact)
        elif (result := _passed(clause, p)) is None:
            yield p, obstacle
        elif reason := next((found for dtype in after if (found := _unreduced(result, dtype))), None):
            yield p, reason
        else:
            yield p, _strategy(rule, dict.fromkeys((*members, *additive), p), result, taking)


def _passed(clause: RuleClause, placement: PartialPlacement) -> Placement | None:
    """Return what `placement` becomes behind an op by `clause`; None where it does not pass."""
    if clause.kind == "swaps":
        return Partial(OPPOSITE[placement.op]) if placement.op in OPPOSITE else None
    return placement if placement.passes(clause.kind, clause.reductions) else None


def _unreduced(result: Placement, dtype: DType) -> Obstacle | None:
    """Return why a result of `dtype` is not made partial as `result` says: process groups could not reduce it."""
    reason = unreduced(result.op, dtype) if isinstance(result, Partial) else None
    return None if reason is None else Obstacle("the result would be {}, and {}", (result, reason))


def _unsupported(dtype: DType) -> Obstacle:
    return Obstacle("it does not support {}", (dtype,))


def _taking(rule: RuleInstance, clause: RuleClause, members: tuple[int, ...]) -> tuple[TensorMeta, ...]:
    """Return the results that take values of `members`: what is linear in floats is not an integer, or constant."""
    results = tuple(meta for meta in rule.call.results if meta is not None)
    if clause.kind in LINEAR and all(rule.call.operands[i].dtype.is_inexact for i in members):
        return tuple(meta for meta in results if meta.dtype.is_inexact) or results
    return results


def _may_be(placement: PartialPlacement, dtype: DType) -> bool:
    """Return whether values of `dtype` may be partial so; of truth values rules write `any`, not `max`."""
    return placement.op in reductions_of(dtype) if isinstance(placement, Partial) else placement.supports(dtype)


def _strategy(
    rule: RuleInstance, operands: Mapping[int, Placement], result: Placement, taking: tuple[TensorMeta, ...]
) -> Strategy:
    placed = tuple(operands.get(i, R) for i in range(len(rule.call.operands)))
    return Strategy(placed, tuple(result if meta in taking else R for meta in rule.call.results))
