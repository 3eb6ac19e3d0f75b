"""The strategies of an instantiated rule on one mesh axis: rows that divide a factor, rows with a pending reduction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from spmdir.call import DTYPE_BYTES, TensorMeta
from spmdir.placement import REDUCTIONS, Partial, Placement, R, Shard
from spmdir.rules.dtypes import sums_exactly
from spmdir.rules.layout import Dims
from spmdir.rules.strategy import Strategy
from spmdir.rules.syntax import Clause

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule

LINEAR = ("sum", "avg")
"""The pending reductions that a linear op passes on."""

PENDING = ("linear", "multilinear", "carries", "moves", "commutes", "swaps", "ignores")
"""The clauses that let a pending reduction pass."""

OPPOSITE = {"max": "min", "min": "max", "any": "all", "all": "any"}
"""What a pending reduction becomes behind an antitone op."""


def replicated(rule: OpRule) -> Strategy:
    """Every rank has everything."""
    return Strategy((R,) * len(rule.call.operands), (R,) * len(rule.call.results))


def factor_rows(rule: OpRule, count: int, divided: Mapping[int, int]) -> Iterator[Strategy]:
    """A row for each factor that `count` ranks can divide where other axes divide factors already."""
    for index, factor in enumerate(rule.factors):
        total = count * divided.get(index, 1)
        if not _dividable(rule, index, total, divided):
            continue
        operands = divide(rule, index)
        if factor.rewrite == "expand":
            placed = rule.placed(index, count, divided)
            if placed:
                yield Strategy(operands, placed.results, index, "expand")
            continue
        results = tuple(_result_placement(rule, index, dims) for dims in rule.result_dims)
        additive, number = rule.additive
        pending = next((p for p in results if isinstance(p, Partial)), None)
        if None in results or (pending and (number or (additive and pending.op != "sum"))):
            continue
        metas = zip(results, rule.call.results, strict=True)
        if any(meta is not None and meta.dtype == "i1" and p == Partial("sum") for p, meta in metas):
            continue
        if pending:
            operands = tuple(pending if i in additive else p for i, p in enumerate(operands))
        yield Strategy(operands, tuple(p for p in results if p), index, factor.rewrite)


def _dividable(rule: OpRule, index: int, total: int, divided: Mapping[int, int]) -> bool:
    """Whether `total` ranks, over all axes, can divide the factor."""
    factor = rule.factors[index]
    if factor.size <= 1 or factor.kind == "whole":
        return False
    if factor.rewrite and any(rule.factors[f].clause not in (None, factor.clause) for f in divided):
        return False
    if factor.alone and any(f != index and rule.factors[f].clause == factor.clause for f in divided):
        return False
    if any(divided.get(f) != rule.factors[f].size for f in rule.majors.get(index, ())):
        return False
    for dims in (*rule.operand_dims, *rule.result_dims):
        holders = [d for d in dims or () if index in d]
        if len(holders) > 1:
            return False
        beside = [f for held in holders for f in held if f != index]
        if factor.size % total and any(rule.factors[f].size != 1 for f in beside):
            return False
    if factor.aligned and factor.size * DTYPE_BYTES[rule.call.operands[0].dtype] % (16 * total):
        return False
    least = max(factor.least, factor.kind in ("max", "min") or factor.rewrite == "local")
    if not least:
        return True
    piece = -(-factor.size // total)
    if index in divided:
        return factor.size % total == 0 and piece >= least
    return factor.size - (total - 1) * piece >= least


def divide(rule: OpRule, index: int) -> tuple[Placement, ...]:
    """The placements of the operands that divide the factor."""
    return tuple(_shard(index, dims) or R for dims in rule.operand_dims)


def _shard(index: int, dims: Dims) -> Placement | None:
    return next((Shard(d) for d, factors in enumerate(dims) if index in factors), None)


def _result_placement(rule: OpRule, index: int, dims: Dims | None) -> Placement | None:
    if dims is None:
        return R
    kind = rule.factors[index].kind
    if kind == "same" or any(rule.factors[f].size == 0 for d in dims for f in d):
        return _shard(index, dims) or R
    alone = R if index in rule.ignored else None
    return _shard(index, dims) or (alone if kind == "plain" else Partial(kind))


def pending_rows(rule: OpRule) -> Iterator[Strategy]:
    """A row for each reduction that may be pending in operands and passes to the results."""
    for clause in rule.active(*PENDING):
        names = clause.names or (rule.rule.tensors[0].name,)
        members = tuple(i for name in names for i in rule.binding.operands(name))
        numbers = [v for name in names if (v := rule.binding.arguments.get(name)) is not None]
        if clause.kind == "ignores":
            yield from (_row(rule, {i: Partial(op)}, R, ()) for i in members for op in _possible(rule.call.operands[i]))
        elif clause.kind == "multilinear":
            for member in members:
                yield from _passing(rule, clause, (member,))
        elif members and not any(number != 0 for number in numbers):
            yield from _passing(rule, clause, members)


def _passing(rule: OpRule, clause: Clause, members: tuple[int, ...]) -> Iterator[Strategy]:
    """The rows where what is pending in all `members` is, by `clause`, in the results that take their values."""
    additive, number = rule.additive if clause.kind == "linear" else ((), False)
    if number:
        return
    answering = _answering(rule, clause, members)
    for given, gives in _reductions(rule, clause, members, answering):
        yield _row(rule, dict.fromkeys((*members, *additive), Partial(given)), Partial(gives), answering)


def _answering(rule: OpRule, clause: Clause, members: tuple[int, ...]) -> tuple[TensorMeta, ...]:
    """The results that take values of `members`: what is linear in floating numbers is no integer, or constant."""
    results = tuple(meta for meta in rule.call.results if meta is not None)
    if clause.kind in ("linear", "multilinear") and all(rule.call.operands[i].floating for i in members):
        return tuple(meta for meta in results if meta.floating) or results
    return results


def _reductions(
    rule: OpRule, clause: Clause, members: tuple[int, ...], answering: tuple[TensorMeta, ...]
) -> Iterator[tuple[str, str]]:
    """(pending reduction of the members, that of the results) which `clause` allows for their element types."""
    given = [rule.call.operands[i] for i in members]
    kinds = tuple(k for k in REDUCTIONS if all(k in _possible(meta) for meta in (*given, *answering)))
    if "sum" in kinds and not all(sums_exactly(a.dtype, b.dtype) for a in given for b in answering):
        kinds = tuple(k for k in kinds if k in ("max", "min"))
    if clause.kind == "swaps":
        yield from ((k, OPPOSITE[k]) for k in kinds if k in OPPOSITE)
        return
    allowed = {"linear": LINEAR, "multilinear": LINEAR, "carries": kinds, "moves": kinds}
    yield from ((k, k) for k in kinds if k in allowed.get(clause.kind, clause.reductions))


def _row(
    rule: OpRule, operands: Mapping[int, Placement], result: Placement, answering: tuple[TensorMeta, ...]
) -> Strategy:
    placed = tuple(operands.get(i, R) for i in range(len(rule.call.operands)))
    return Strategy(placed, tuple(result if meta in answering else R for meta in rule.call.results))


def _possible(meta: TensorMeta) -> tuple[str, ...]:
    """The reductions that can be pending in a tensor of this element type."""
    if meta.dtype == "i1":
        return ("any", "all")
    if meta.dtype.startswith("complex"):
        return ("sum", "avg", "product")
    return ("sum", "avg", "max", "min", "product") if meta.floating else ("sum", "max", "min", "product")
