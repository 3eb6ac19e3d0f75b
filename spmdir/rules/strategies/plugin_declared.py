"""Rows that plug-in placements add to those of a rule by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spmdir.core.errors import RuleError
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.standard import Placement, R, Shard
from spmdir.rules.strategies.divisibility import dividable
from spmdir.rules.strategies.per_axis import divide
from spmdir.rules.strategies.strategy import Strategy

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule


def added_rows(
    rule: OpRule, count: int, divided: Mapping[int, int], rows: Sequence[Strategy], lifting: Iterable[Placement]
) -> Iterator[Strategy]:
    """The rows that placements add by `lift` to `rows`, where their element types and factors allow them.

    Raises:
        RuleError: a row has not the op's number of operands or results, or divides what they do not have.
    """
    for placement in lifting:
        for row in placement.lift(rule, rows):
            _check(rule, placement, row)
            if _holds(rule, row) and (row.factor is None or _goes_with(rule, row, count, divided)):
                yield row


def _holds(rule: OpRule, row: Strategy) -> bool:
    """Whether values of the element types of operands and results can be held so."""
    metas = (*rule.call.operands, *rule.call.results)
    pairs = zip((*row.operands, *row.results), metas, strict=True)
    return all(meta is None or placement.holds(meta.dtype) for placement, meta in pairs)


def _goes_with(rule: OpRule, row: Strategy, count: int, divided: Mapping[int, int]) -> bool:
    """Whether `count` ranks can divide the factor of a row that a placement added.

    Without the rewrite that its rule has for it the op stays as it is, so it goes with others such, but not with an
    axis that expands the op.
    """
    assert row.factor is not None
    least = int(any(p.reduce in ("max", "min") for p in row.results if isinstance(p, PartialPlacement)))
    expanding = [f for f in divided if f >= 0 and rule.factors[f].rewrite == "expand"]
    if row.rewrite or rule.factors[row.factor].rewrite != "expand":
        return dividable(rule, row.factor, count, divided, least)
    if any(divided.get(~f) != divided[f] for f in expanding):
        return False
    return dividable(rule, row.factor, count, {f: n for f, n in divided.items() if ~f not in expanding}, least)


def _check(rule: OpRule, placement: Placement, row: object) -> None:
    """Raise RuleError unless `row`, which `placement` added, can be a row of the op."""
    metas = (*rule.call.operands, *rule.call.results)
    said = f"placement {placement} adds '{row}' to {rule.name}; expected "
    if not isinstance(row, Strategy):
        raise RuleError(f"{said}a Strategy")
    if (len(row.operands), len(row.results)) != (len(rule.call.operands), len(rule.call.results)):
        raise RuleError(f"{said}{len(rule.call.operands)} operands and {len(rule.call.results)} results")
    for held, meta in zip((*row.operands, *row.results), metas, strict=True):
        if not isinstance(held, Placement):
            raise RuleError(f"{said}placements, found {held!r}")
        if meta is not None and held.dim is not None and held.dim >= meta.rank:
            raise RuleError(f"{said}dimensions below {meta.rank} of a tensor of rank {meta.rank}, found {held}")


def combining_rows(rule: OpRule, result: Placement) -> Iterator[Strategy]:
    """The rows that divide a factor by S that some result lacks, with `result` for the results that lack it."""
    for index, factor in enumerate(rule.factors):
        lacking = [meta is not None and not any(index in held for held in dims or ())
                   for dims, meta in zip(rule.result_dims, rule.call.results, strict=True)]  # fmt: skip
        if not any(lacking) or not any(index in held for dims in rule.operand_dims for held in dims):
            continue
        rewrite, cut = (None, Shard(0)) if factor.rewrite == "expand" else (factor.rewrite, None)
        kept = (next((Shard(d) for d, held in enumerate(dims or ()) if index in held), R) for dims in rule.result_dims)
        results = tuple(result if lacks else p for lacks, p in zip(lacking, kept, strict=True))
        yield Strategy(divide(rule, index), results, index, rewrite, cut)
