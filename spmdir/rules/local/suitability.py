"""Which of an op's rewrites serve a choice of sharded factors: a local form may ask for shards that are one range."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from spmdir.core.errors import RuleError
from spmdir.rules.language.functions import OF_ONE_RANGE
from spmdir.rules.language.syntax_tree import Function, Statement, statements, walk
from spmdir.rules.shapes.instance import RuleInstance


def serving(rule: RuleInstance, sharded: Collection[int], scattered: Collection[int] = ()) -> tuple[int, ...] | None:
    """Return the numbers of the clauses that may rewrite the op; None if no sharded factor has any.

    Each is a clause of all sharded factors that have some and asks for one range of none that is scattered. The last
    one counts.

    Args:
        sharded: the factors that are sharded.
        scattered: those of which a rank may have several ranges.
    """
    needing = [rule.factors[f] for f in sharded if rule.factors[f].clauses]
    if not needing:
        return None
    first, *others = needing
    shared = [n for n in first.clauses if all(n in other.clauses and n not in other.alone for other in others)]
    return tuple(number for number in shared if not any(_asks_for_range(rule, number, f) for f in scattered))


def _asks_for_range(rule: RuleInstance, number: int, factor: int) -> bool:
    clause = rule.rule.clauses[number]
    return clause.kind == "local" and asks_for_range(rule, clause.body, factor)


def asks_for_range(rule: RuleInstance, body: Iterable[Statement], factor: int) -> bool:
    """Return whether a local form with the statements `body` is for shards of `factor` that are one range each.

    It is where there are windows, whose halos are sent, and where a function asks where the shard begins or ends.
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
    return any(factor in _meant(rule, name) for function in functions for name in function.arguments)


def _meant(rule: RuleInstance, reference: str) -> tuple[int, ...]:
    """Return the factors that an argument of a function means; none if it names a number that is not a dimension."""
    try:
        return rule.layout.refer(reference)
    except RuleError:
        return ()
