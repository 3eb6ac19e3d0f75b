"""The factors of a call, and which of them an axis can divide where other axes divide some already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from spmdir.core.errors import RuleError
from spmdir.rules.language.syntax_tree import Function, walk
from spmdir.rules.strategies.strategy import lifted_factors

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule


@attrs.frozen
class Factor:
    """A dimension that operands and results share.

    Attributes:
        name, size: the size is global.
        kind: "plain", "unsharded" (never sharded), "same" (results without it do not depend on it), or the reduction
            that results without it are partial by.
        rewrite: "expand" or "local" when dividing it replaces the op.
        least: how much of it every rank must hold.
        aligned: every rank must hold whole rows of 16 bytes of it.
        clause: which of the rule's clauses gives the rewrite.
        alone: the rewrite deals with one of the clause's factors at a time.
    """

    name: str
    size: int
    kind: str = "plain"
    rewrite: str | None = None
    least: int = 0
    aligned: bool = False
    clause: int | None = None
    alone: bool = False


def dividable(rule: OpRule, index: int, count: int, divided: Mapping[int, int], least: int = 0) -> bool:
    """Whether `count` ranks, and those of other axes, can divide the factor as S does, each with `least` at least."""
    factor, total = rule.factors[index], count * divided.get(index, 1)
    if not goes_with(rule, index, divided) or not _goes_with_lifted(rule, index, divided):
        return False
    if any(divided.get(f) != rule.factors[f].size for f in rule.majors.get(index, ())):
        return False
    if factor.size % total and beside(rule, index):
        return False
    if factor.aligned and factor.size * rule.call.operands[0].dtype.itemsize % (16 * total):
        return False
    least = max(least, least_held(factor))
    if not least:
        return True
    piece = -(-factor.size // total)
    if index in divided:
        return factor.size % total == 0 and piece >= least
    return factor.size - (total - 1) * piece >= least


def goes_with(rule: OpRule, index: int, divided: Mapping[int, int]) -> bool:
    """Whether the factor can be divided at all, in any way, where other axes divide factors already."""
    factor = rule.factors[index]
    if factor.size <= 1 or factor.kind == "unsharded":
        return False
    others = [rule.factors[f].clause for f in divided if f >= 0 and f != index]
    if factor.rewrite and any(clause not in (None, factor.clause) for clause in others):
        return False
    if factor.alone and factor.clause in others:
        return False
    every = (dims for dims in (*rule.operand_dims, *rule.result_dims) if dims)
    return all(sum(index in held for held in dims) <= 1 for dims in every)


def beside(rule: OpRule, index: int) -> set[int]:
    """The factors of several elements that share a dimension with the factor."""
    holding = (held for dims in (*rule.operand_dims, *rule.result_dims) for held in dims or () if index in held)
    return {f for held in holding for f in held if f != index and rule.factors[f].size != 1}


def least_held(factor: Factor) -> int:
    """How much of the factor every rank must hold."""
    return max(factor.least, factor.kind in ("max", "min") or factor.rewrite == "local")


def _goes_with_lifted(rule: OpRule, index: int, divided: Mapping[int, int]) -> bool:
    """Whether S of the factor goes with what lifted rows of other axes divide."""
    others = lifted_factors(divided)
    if not others:
        return True
    factor = rule.factors[index]
    if index in others and (factor.rewrite or factor.aligned or least_held(factor) or beside(rule, index)):
        return False
    if any(f in others for f in rule.majors.get(index, ())):
        return False
    if factor.rewrite == "expand":
        return not any(rule.factors[f].rewrite for f in others)
    return factor.rewrite is None or not any(local_form_reads(rule, index, f) for f in others)


def local_form_reads(rule: OpRule, index: int, other: int) -> bool:
    """Whether the local form for factor `index` may turn on how long ranks' pieces of factor `other` are.

    It does where windows are about, since their borders are sent, and where a function is asked about `other`.
    """
    if rule.layout.windows:
        return True
    clauses = [c for c in rule.active("local") if any(index in rule.layout.refer(name) for name in c.names)]
    return any(
        _asks(rule, function, other)
        for clause in clauses[-1:]
        for statement in clause.body
        for value in statement.values
        for function in walk(value)
        if isinstance(function, Function)
    )


_OF_NO_SIZES = ("rank", "dtype", "given", "dims", "others", "position", "column", "floating", "integral", "half")
"""The functions that say the same of a tensor whatever the sizes of its dimensions."""


def _asks(rule: OpRule, function: Function, factor: int) -> bool:
    if function.name in _OF_NO_SIZES:
        return False
    layout = rule.layout
    tensors = [
        dims for name in function.arguments for i in rule.binding.operands(name) for dims in layout.operand_dims[i]
    ]
    if "result" in function.arguments:
        tensors += [held for dims in layout.result_dims for held in dims or ()]
    return any(factor in _meant(rule, name) for name in function.arguments) or any(factor in held for held in tensors)


def _meant(rule: OpRule, reference: str) -> tuple[int, ...]:
    """The factors that an argument of a function means; none if it names a number that is no dimension."""
    try:
        return rule.layout.refer(reference)
    except RuleError:
        return ()
