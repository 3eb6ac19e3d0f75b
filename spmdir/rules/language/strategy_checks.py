"""What can be wrong with a strategy written as text before it meets any call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from spmdir.core.errors import ParseError, SpmdirError, did_you_mean, raise_all
from spmdir.core.placement.base import placement_type
from spmdir.core.placement.text import field_types
from spmdir.rules.language.checks import (
    Maps,
    Problem,
    Signatures,
    body_problems,
    call_errors,
    expression_problems,
    factor_names,
)
from spmdir.rules.language.syntax_tree import (
    Constant,
    Expression,
    Name,
    Pattern,
    PlacementTerm,
    Rule,
    StateCall,
    TextStrategy,
    statements,
)


class Alternatives(Signatures, Protocol):
    """The ops that have rules."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the ops that have rules."""
        ...

    def alternatives(self, name: str) -> tuple[Rule, ...]:
        """Return the rules of op `name`."""
        ...


def check_strategy(strategy: TextStrategy, ops: Alternatives, maps: Maps) -> None:
    """Raise unless a strategy has the operands and results of its op, and names only what there is.

    Raises:
        ParseError: one thing is wrong. SpmdirErrors: several are.
    """
    rules = ops.alternatives(strategy.op)
    if not rules:
        hint = did_you_mean(strategy.op, ops.names)
        raise ParseError(
            f"a strategy of '{strategy.op}', which has no rule; expected one of an op that has one{hint}",
            strategy.location,
        )
    errors: list[SpmdirError] = [ParseError(*problem) for problem in _problems(strategy, rules, maps)]
    errors += call_errors([value for statement in statements(strategy.body) for value in statement.values], ops)
    raise_all(sorted(errors, key=lambda e: (e.location.line, e.location.column) if e.location else (0, 0)))


def _problems(strategy: TextStrategy, rules: Sequence[Rule], maps: Maps) -> Iterator[Problem]:
    rule = rules[0]
    least = max((at for at, p in enumerate(rule.tensors, 1) if not p.optional), default=0)
    most = len(rule.tensors)
    if not least <= len(strategy.operands) <= most:
        names = ", ".join(p.name for p in rule.tensors)
        expected = f"{least}" if least == most else f"{least} to {most}"
        yield (
            f"placements of operands: found {len(strategy.operands)}, expected {expected}, for {names}",
            strategy.location,
        )
    results = 1 if rule.result_list else len(rule.results)
    if len(strategy.results) != results:
        yield f"placements of results: found {len(strategy.results)}, expected {results}", strategy.location
    for parameter, term in zip(rule.tensors, strategy.operands, strict=False):
        yield from _repeated(term, parameter.is_list, f"operand '{parameter.name}'")
    for term in strategy.results:
        yield from _repeated(term, rule.result_list, "the result")
    names = {p.name for r in rules for p in r.parameters}
    factors = {name for r in rules for pattern in _patterns(r) for name in factor_names(pattern, maps)}
    for parameter, term in zip(rule.tensors, strategy.operands, strict=False):
        yield from _placement(term, parameter.pattern or (), rule, names, factors)
    for result, term in zip(rule.results, strategy.results, strict=False):
        yield from _placement(term, result.pattern, rule, names, factors)
    for condition in strategy.conditions:
        yield from expression_problems(condition, names, factors)
    yield from body_problems(strategy.body, names, factors, is_local=True)
    for statement in strategy.body:
        given = len(statement.values)
        if not statement.targets and not rule.result_list and given != results and not _is_state(statement.values):
            yield f"`return` gives {given} values; expected {results}, as {rule.op} has results", statement.location


def _is_state(values: tuple[Expression, ...]) -> bool:
    """Return whether values may be the results of the op as one state."""
    return len(values) == 1 and isinstance(values[0], (Name, StateCall))


def _patterns(rule: Rule) -> Iterator[Pattern]:
    yield from (p.pattern for p in rule.parameters if p.pattern is not None)
    yield from (r.pattern for r in rule.results)


def _repeated(term: PlacementTerm, is_list: bool, what: str) -> Iterator[Problem]:
    if term.repeated and not is_list:
        yield f"`…` after {term.name}, but {what} is one tensor; leave it out", term.location
    elif is_list and not term.repeated:
        yield f"{what} is a list of tensors; expected one placement for all of them, followed by `…`", term.location


def _placement(
    term: PlacementTerm, pattern: Pattern, rule: Rule, names: set[str], factors: set[str]
) -> Iterator[Problem]:
    """Yield what is wrong with a placement of a tensor whose dimensions are those of `pattern`."""
    if term.is_any_shard:
        fields: Mapping[str, object] = {"dim": int}
    elif term.name == "?":
        yield "a strategy cannot leave a placement open; expected R, S, P or another one", term.location
        return
    else:
        try:
            kind = placement_type(term.name)
            fields = field_types(kind)
        except SpmdirError as error:
            yield error.message, term.location
            return
        if not term.fields and all(f.default is not attrs.NOTHING for f in attrs.fields(kind) if f.name in fields):
            return
    if len(term.fields) != len(fields):
        listed = f": {', '.join(fields)}" if fields else ""
        yield f"{term.name} has {len(term.fields)} fields; expected {len(fields)}{listed}", term.location
    for (name, of), field in zip(fields.items(), term.fields, strict=False):
        if isinstance(field, Name) and rule.parameter(field.name) in rule.tensors:
            yield f"'{field.name}' is a tensor; expected a number, an argument or a factor", term.location
        elif of is not str:  # where a name stands for itself, as in P(sum)
            yield from expression_problems(field, names | factors, factors)
        number = field.value if name == "dim" and isinstance(field, Constant) else None
        is_fixed, rank = all(one.kind in ("factor", "one", "group") for one in pattern), len(pattern)
        if is_fixed and isinstance(number, int) and not -rank <= number < rank:
            yield f"dimension {number} of a tensor of rank {rank}", term.location
