"""Select the rewrites of an op that support the sharded factors: some local forms require shards of one range."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spmdir.core.errors import RuleError
from spmdir.rules.language.functions import OF_ONE_RANGE
from spmdir.rules.language.syntax_tree import Function, Statement, statements, walk
from spmdir.rules.shapes.instance import RuleInstance


def usable_clauses(
    rule: RuleInstance, sharded: Collection[int], scattered: Collection[int] = ()
) -> tuple[int, ...] | None:
    """Return the numbers of the clauses that may rewrite the op. The last one is used.

    A clause must belong to every sharded factor that has rewrites, and must not require one range of a scattered
    factor. Return None if no sharded factor has a rewrite. For example, `local l` and `local l s` are the clauses 0 and
    1 of a rule. If l and s are sharded, clause 1 may rewrite the op, and if only l is sharded, both may.

    Args:
        sharded: the sharded factors.
        scattered: the factors that may have several ranges on a rank.
    """
    rewritten_factors = [rule.factors[index] for index in sharded if rule.factors[index].clauses]
    if not rewritten_factors:
        return None
    first_factor, *other_factors = rewritten_factors
    usable = []
    for number in first_factor.clauses:
        is_shared = all(number in factor.clauses and number not in factor.alone for factor in other_factors)
        if is_shared and not any(_clause_needs_one_range(rule, number, factor) for factor in scattered):
            usable.append(number)
    return tuple(usable)


def _clause_needs_one_range(rule: RuleInstance, number: int, factor: int) -> bool:
    """Return whether clause `number` is a local form that requires that each shard of `factor` is one range."""
    clause = rule.rule.clauses[number]
    return clause.kind == "local" and needs_one_range(rule, clause.body, factor)


def needs_one_range(rule: RuleInstance, body: Iterable[Statement], factor: int) -> bool:
    """Return whether a local form requires that each shard of `factor` is one range.

    Windows require it for their halos, and functions such as `offset` for the begin or end of a shard.

    Args:
        body: the statements of the local form.
    """
    if rule.layout.windows:
        return True
    functions = (
        function
        for statement in statements(body)
        for value in statement.values
        for function in walk(value)
        if isinstance(function, Function) and function.name in OF_ONE_RANGE
    )
    return any(factor in _referred_factors(rule, name) for function in functions for name in function.arguments)


def _referred_factors(rule: RuleInstance, reference: str) -> tuple[int, ...]:
    """Return the factors that an argument of a function refers to; () if it refers to no dimension."""
    try:
        return rule.layout.refer(reference)
    except RuleError:
        return ()
