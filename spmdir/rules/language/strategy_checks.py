"""Check a strategy written as text without a call: its op, placements, names and local form."""

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
    patterns_of,
    position_of_error,
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
    """Raise if a strategy does not fit the operands and results of its op, or uses an unknown name.

    Raises:
        ParseError: there is one error.
        SpmdirErrors: there are several.
    """
    rules = ops.alternatives(strategy.op)
    if not rules:
        hint = did_you_mean(strategy.op, ops.names)
        raise ParseError(
            f"'{strategy.op}' has no rule; expected a strategy of an op with a rule{hint}",
            strategy.location,
        )
    errors: list[SpmdirError] = [ParseError(*problem) for problem in _problems(strategy, rules, maps)]
    errors += call_errors([value for statement in statements(strategy.body) for value in statement.values], ops)
    raise_all(sorted(errors, key=position_of_error))


def _problems(strategy: TextStrategy, rules: Sequence[Rule], maps: Maps) -> Iterator[Problem]:
    """Yield the errors in a strategy of the op of `rules`: the number of placements, then names, then returned values.

    The alternatives of an op have the same tensor parameters, so these are read from the first.
    """
    rule = rules[0]
    # Optional operands at the end may be omitted.
    min_operands = max((number for number, operand in enumerate(rule.tensors, 1) if not operand.optional), default=0)
    max_operands = len(rule.tensors)
    if not min_operands <= len(strategy.operands) <= max_operands:
        names = ", ".join(parameter.name for parameter in rule.tensors)
        expected = f"{min_operands}" if min_operands == max_operands else f"{min_operands} to {max_operands}"
        yield (
            f"placements of operands: found {len(strategy.operands)}, expected {expected}, for {names}",
            strategy.location,
        )
    result_count = 1 if rule.result_list else len(rule.results)
    if len(strategy.results) != result_count:
        yield f"placements of results: found {len(strategy.results)}, expected {result_count}", strategy.location
    for parameter, term in zip(rule.tensors, strategy.operands, strict=False):
        yield from _repetition_problems(term, parameter.is_list, f"operand '{parameter.name}'")
    for term in strategy.results:
        yield from _repetition_problems(term, rule.result_list, "the result")
    names = {parameter.name for alternative in rules for parameter in alternative.parameters}
    patterns = [pattern for alternative in rules for pattern in patterns_of(alternative)]
    factors = {name for pattern in patterns for name in factor_names(pattern, maps)}
    for parameter, term in zip(rule.tensors, strategy.operands, strict=False):
        yield from _placement_problems(term, parameter.pattern or (), rule, names, factors)
    for result, term in zip(rule.results, strategy.results, strict=False):
        yield from _placement_problems(term, result.pattern, rule, names, factors)
    for condition in strategy.conditions:
        yield from expression_problems(condition, names, factors)
    yield from body_problems(strategy.body, names, factors, is_local=True)
    for statement in strategy.body:
        is_return, count = not statement.targets, len(statement.values)
        if is_return and not rule.result_list and count != result_count and not _is_state(statement.values):
            yield (
                f"`return` gives {count} values; expected {result_count}, as {rule.op} has results",
                statement.location,
            )


def _is_state(values: tuple[Expression, ...]) -> bool:
    """Return whether the returned values may be one state, which contains all results."""
    return len(values) == 1 and isinstance(values[0], (Name, StateCall))


def _repetition_problems(term: PlacementTerm, is_list: bool, description: str) -> Iterator[Problem]:
    """Yield the error if a placement of one tensor is followed by `…`, or that of a list of tensors is not."""
    if term.repeated and not is_list:
        yield (
            f"`…` after {term.name}, but {description} is one tensor; expected one placement: remove `…`",
            term.location,
        )
    elif is_list and not term.repeated:
        yield (
            f"{description} is a list of tensors; expected one placement for all of them, followed by `…`",
            term.location,
        )


def _placement_problems(
    term: PlacementTerm, pattern: Pattern, rule: Rule, names: set[str], factors: set[str]
) -> Iterator[Problem]:
    """Yield the errors in the placement of a tensor with dimensions `pattern`: of its name, its fields and its dim.

    Args:
        names: the parameters of the op.
        factors: the names by which fields may refer to factors.
    """
    if term.is_any_shard:
        fields: Mapping[str, object] = {"dim": int}
    elif term.name == "?":
        yield "a strategy cannot have the open placement `?`; expected R, S, P or a plug-in placement", term.location
        return
    else:
        try:
            placement_class = placement_type(term.name)
            fields = field_types(placement_class)
        except SpmdirError as error:
            yield error.message, term.location
            return
        attributes = [attribute for attribute in attrs.fields(placement_class) if attribute.name in fields]
        have_defaults = all(attribute.default is not attrs.NOTHING for attribute in attributes)
        if not term.fields and have_defaults:
            return
    if len(term.fields) != len(fields):
        listed = f": {', '.join(fields)}" if fields else ""
        yield f"{term.name} has {len(term.fields)} fields; expected {len(fields)}{listed}", term.location
    for (name, field_type), field in zip(fields.items(), term.fields, strict=False):
        if isinstance(field, Name) and rule.parameter(field.name) in rule.tensors:
            yield f"'{field.name}' is a tensor; expected a number, an argument or a factor", term.location
        elif field_type is not str:  # a name is the value itself in a field of text, as in P(sum)
            yield from expression_problems(field, names | factors, factors)
        number = field.value if name == "dim" and isinstance(field, Constant) else None
        is_fixed, rank = all(dim_term.kind in ("factor", "one", "group") for dim_term in pattern), len(pattern)
        if is_fixed and isinstance(number, int) and not -rank <= number < rank:
            yield (
                f"found dimension {number} of a tensor of rank {rank}; expected a dimension that it has",
                term.location,
            )
