"""The strategies of an instantiated rule on one mesh axis: rows that divide a factor, rows with a pending reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from spmdir.core.call import TensorMeta
from spmdir.core.dtype import DType
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.reductions import REDUCTIONS, reductions_of
from spmdir.core.placement.standard import Partial, Placement, R, Shard
from spmdir.rules.language.promotion import sums_exactly
from spmdir.rules.language.syntax_tree import Clause
from spmdir.rules.shapes.layout import Dims
from spmdir.rules.strategies.divisibility import dividable
from spmdir.rules.strategies.strategy import Strategy

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule

REDUCED = tuple(map(Partial, REDUCTIONS))
"""The pending reductions that every program may have."""

Held = Callable[[Dims], Placement | None]
"""Dimensions of an operand or result → its placement; None where what is divided makes up none of them."""

PENDING = ("linear", "multilinear", "carries", "moves", "commutes", "swaps", "ignores")
"""The clauses that let a pending reduction pass."""

LINEAR = ("linear", "multilinear")
"""Those of them that let a sum through what multiplies it."""

OPPOSITE = {"max": "min", "min": "max", "any": "all", "all": "any"}
"""What a pending reduction becomes behind an antitone op."""


def replicated(rule: OpRule) -> Strategy:
    """Every rank has everything."""
    return Strategy((R,) * len(rule.call.operands), (R,) * len(rule.call.results))


def factor_rows(rule: OpRule, count: int, divided: Mapping[int, int]) -> Iterator[Strategy]:
    """A row for each factor that `count` ranks can divide where other axes divide factors already."""
    for index in range(len(rule.factors)):
        if dividable(rule, index, count, divided):
            row = factor_row(rule, index, count, divided, partial(_shard, index))
            if row:
                yield row


def factor_row(
    rule: OpRule, index: int, count: int, divided: Mapping[int, int], held: Held, cut: Placement | None = None
) -> Strategy | None:
    """The row that divides the factor as `held` says; None if results cannot be placed so.

    Args:
        held: dimensions of an operand or result → its placement if the factor makes up some of them.
        cut: how ranks hold the factor, if that is not as S divides it.
    """
    factor = rule.factors[index]
    operands = tuple(held(dims) or R for dims in rule.operand_dims)
    if factor.rewrite == "expand":
        placed = rule.placed(index, count, divided, operands)
        return Strategy(operands, placed.results, index, "expand", cut) if placed else None
    results = tuple(_result_placement(rule, index, dims, held) for dims in rule.result_dims)
    additive, number = rule.additive
    pending = next((p for p in results if isinstance(p, Partial)), None)
    if None in results or (pending and (number or (additive and pending.op != "sum"))):
        return None
    metas = zip(results, rule.call.results, strict=True)
    if any(meta is not None and meta.dtype.is_bool and p == Partial("sum") for p, meta in metas):
        return None
    if pending == Partial("sum") and not rule.scales_finitely:
        return None
    if pending:
        operands = tuple(pending if i in additive else p for i, p in enumerate(operands))
    return Strategy(operands, tuple(p for p in results if p), index, factor.rewrite, cut)


def _shard(index: int, dims: Dims) -> Placement | None:
    return next((Shard(d) for d, factors in enumerate(dims) if index in factors), None)


def divide(rule: OpRule, index: int) -> tuple[Placement, ...]:
    """The placements of the operands that divide the factor as S does."""
    return tuple(_shard(index, dims) or R for dims in rule.operand_dims)


def _result_placement(rule: OpRule, index: int, dims: Dims | None, held: Held) -> Placement | None:
    if dims is None:
        return R
    kind = rule.factors[index].kind
    if kind == "same" or any(rule.factors[f].size == 0 for d in dims for f in d):
        return held(dims) or R
    alone = R if index in rule.ignored else None
    return held(dims) or (alone if kind == "plain" else Partial(kind))


def pending_rows(rule: OpRule, candidates: tuple[PartialPlacement, ...] = REDUCED) -> Iterator[Strategy]:
    """A row for each of `candidates` that may be pending in operands and passes to the results."""
    for clause in rule.active(*PENDING):
        if clause.kind in LINEAR and not rule.scales_finitely:
            continue
        names = clause.names or (rule.rule.tensors[0].name,)
        members = tuple(i for name in names for i in rule.binding.operands(name))
        numbers = [v for name in names if (v := rule.binding.arguments.get(name)) is not None]
        if clause.kind == "ignores":
            possible = ((i, p) for i in members for p in candidates if _may_pend(p, rule.call.operands[i].dtype))
            yield from (_row(rule, {i: p}, R, ()) for i, p in possible)
        elif clause.kind == "multilinear":
            for member in members:
                yield from _passing(rule, clause, (member,), candidates)
        elif members and not any(number != 0 for number in numbers):
            yield from _passing(rule, clause, members, candidates)


def _passing(
    rule: OpRule, clause: Clause, members: tuple[int, ...], candidates: Iterable[PartialPlacement]
) -> Iterator[Strategy]:
    """The rows where what is pending in all `members` is, by `clause`, in the results that take their values."""
    additive, number = rule.additive if clause.kind == "linear" else ((), False)
    if number:
        return
    answering = _answering(rule, clause, members)
    for given, gives in _reductions(rule, clause, members, answering, candidates):
        yield _row(rule, dict.fromkeys((*members, *additive), given), gives, answering)


def _answering(rule: OpRule, clause: Clause, members: tuple[int, ...]) -> tuple[TensorMeta, ...]:
    """The results that take values of `members`: what is linear in floating numbers is no integer, or constant."""
    results = tuple(meta for meta in rule.call.results if meta is not None)
    if clause.kind in LINEAR and all(rule.call.operands[i].dtype.is_inexact for i in members):
        return tuple(meta for meta in results if meta.dtype.is_inexact) or results
    return results


def _reductions(
    rule: OpRule,
    clause: Clause,
    members: tuple[int, ...],
    answering: tuple[TensorMeta, ...],
    candidates: Iterable[PartialPlacement],
) -> Iterator[tuple[Placement, Placement]]:
    """(what is pending in the members, what is in the results) that `clause` allows for their element types."""
    given = [rule.call.operands[i].dtype for i in members]
    gives = [meta.dtype for meta in answering]
    possible = [p for p in candidates if all(_may_pend(p, dtype) for dtype in (*given, *gives))]
    if not all(sums_exactly(a, b) for a in given for b in gives):
        possible = [p for p in possible if p.reduce in ("max", "min")]
    if clause.kind == "swaps":
        yield from ((p, Partial(OPPOSITE[p.op])) for p in possible if p.op in OPPOSITE)
        return
    yield from ((p, p) for p in possible if p.passes(clause.kind, clause.reductions))


def _may_pend(placement: PartialPlacement, dtype: DType) -> bool:
    """Whether it may be pending in an op's operands or results; of truth values rules write `any`, not `max`."""
    return placement.op in reductions_of(dtype) if isinstance(placement, Partial) else placement.holds(dtype)


def _row(
    rule: OpRule, operands: Mapping[int, Placement], result: Placement, answering: tuple[TensorMeta, ...]
) -> Strategy:
    placed = tuple(operands.get(i, R) for i in range(len(rule.call.operands)))
    return Strategy(placed, tuple(result if meta in answering else R for meta in rule.call.results))
