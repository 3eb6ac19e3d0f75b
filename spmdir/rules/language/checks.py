"""Check a rule without a call: its names, patterns, clauses and rewrites."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import Location, ParseError, RuleError, SpmdirError, did_you_mean, raise_all
from spmdir.rules.language.functions import FUNCTIONS
from spmdir.rules.language.promotion import DERIVED
from spmdir.rules.language.syntax_tree import (
    STATE_METHODS,
    Expression,
    Function,
    Name,
    OpCall,
    Pattern,
    Rule,
    RuleClause,
    StateCall,
    Statement,
    Term,
    parts,
    statements,
    walk,
)

KEYWORDS = (
    "adds", "aligned", "all", "any", "carries", "commutes", "expand", "extent", "flops", "ignores", "linear", "lists",
    "local", "max", "min", "moves", "multilinear", "nonempty", "product", "replicated", "same", "sizes", "slides",
    "sum", "swaps", "unsharded", "views", "when",
)  # fmt: skip
"""The words that begin a clause. A misspelt word parses as a factor of the result, so messages suggest these."""

LISTED = 10
"""The most allowed names that a message lists."""

OF_OPERANDS = ("linear", "multilinear", "adds", "carries", "moves", "views", "ignores", "commutes", "swaps")
"""The kinds of clauses that name operands."""

COMBINING = ("reduce", "same", "unsharded", "expand", "slides")
"""The kinds of clauses that define how the shards of a factor combine in a result that lacks it."""


class MapProtocol(Protocol):
    """A dimension map: the function that builds dimensions, and the parameters for which it separates dimensions."""

    @property
    def build(self) -> Callable[..., object]: ...

    @property
    def separates(self) -> tuple[str, ...]: ...


Maps = Mapping[str, MapProtocol]
"""Name in rules → dimension map, such as `MAPS` of `spmdir.rules.shapes.dimension_maps`."""


def check(rule: Rule, maps: Maps) -> None:
    """Raise if a rule uses an unknown name, or does not define how a factor combines.

    Raises:
        ParseError: there is one error.
        SpmdirErrors: there are several.
    """
    errors: list[SpmdirError] = sorted(
        (ParseError(message, where) for message, where in _problems(rule, maps)),
        key=position_of_error,
    )
    raise_all(errors)


def position_of_error(error: SpmdirError) -> tuple[int, int]:
    """Return (line, column) of an error, to sort errors by it; (0, 0) without a location."""
    return (error.location.line, error.location.column) if error.location else (0, 0)


class Signatures(Protocol):
    """A source of the parameters of ops."""

    def parameters(self, name: str) -> tuple[tuple[str, bool], ...]:
        """Return (name, whether it is a tensor) of the parameters of op `name`; RuleError if it has no rule."""
        ...


def check_calls(rule: Rule, signatures: Signatures) -> None:
    """Raise if a rewrite calls an op without a rule, or with unknown parameters.

    Raises:
        ParseError: there is one such call.
        SpmdirErrors: there are several.
    """
    values = [value for clause in rule.clauses for statement in statements(clause.body) for value in statement.values]
    raise_all(call_errors(values, signatures))


def call_errors(values: Iterable[Expression], signatures: Signatures) -> list[SpmdirError]:
    """Return an error for each call in `values` of an op without a rule, with too many arguments, or unknown ones."""
    errors: list[SpmdirError] = []
    calls = [call for value in values for call in _calls(value)]
    for call in calls:
        try:
            parameters = [name for name, _ in signatures.parameters(call.op)]
        except RuleError as error:
            errors.append(ParseError(error.message, call.location))
            continue
        if len(call.arguments) > len(parameters):
            message = f"{call.op} takes {len(parameters)} arguments, found {len(call.arguments)}"
            errors.append(ParseError(message, call.location))
        unknown = [name for name, _ in call.arguments if name is not None and name not in parameters]
        errors += [ParseError(_unknown_name("parameter", name, parameters), call.location) for name in unknown]
    return errors


def _calls(expression: Expression) -> Iterator[OpCall]:
    """Yield the calls of ops in an expression, nested ones included."""
    return (part for part in walk(expression) if isinstance(part, OpCall))


Problem = tuple[str, Location]
"""The message and the location of an error."""


def _problems(rule: Rule, maps: Maps) -> Iterator[Problem]:
    """Yield the errors in a rule: in its parameters, patterns, clauses, and declared element types.

    A rule with `replicated` may have no other clauses than `when`, and how factors combine is not checked.
    """
    yield from _parameter_problems(rule)
    for pattern in patterns_of(rule):
        yield from _pattern_problems(rule, pattern, maps)
    for clause in rule.clauses:
        yield from _clause_problems(rule, clause, maps)
    if rule.replicated is None:
        yield from _combination_problems(rule, maps)
    else:
        yield from (
            (f"`{clause.kind}` together with `replicated`; expected only `when` clauses", clause.location)
            for clause in rule.clauses
            if clause.kind not in ("replicated", "when")
        )
    for result in rule.results:
        if result.dtype and result.dtype not in (*DTYPES, *DERIVED) and rule.parameter(result.dtype) is None:
            allowed = [*DTYPES, *DERIVED, *(parameter.name for parameter in rule.parameters)]
            hint = did_you_mean(result.dtype, allowed)
            yield (
                f"'{result.dtype}' is neither an element type such as f32 nor a parameter{hint}",
                result.location,
            )


def patterns_of(rule: Rule) -> list[Pattern]:
    """Return the patterns of the tensor parameters and results of `rule`, in order."""
    return [*(parameter.pattern or () for parameter in rule.tensors), *(result.pattern for result in rule.results)]


def _parameter_problems(rule: Rule) -> Iterator[Problem]:
    """Yield an error for each parameter whose name an earlier parameter has."""
    names: set[str] = set()
    for parameter in rule.parameters:
        if parameter.name in names:
            yield (
                f"parameter '{parameter.name}' is named twice; expected a different name for each: rename one",
                parameter.location,
            )
        names.add(parameter.name)


def _pattern_problems(rule: Rule, pattern: Pattern, maps: Maps) -> Iterator[Problem]:
    """Yield the errors in a pattern.

    They are: several variadic terms, an argument in `*b-dim` that is not a parameter, an unknown dimension map, and a
    map with unknown or too few or too many arguments.
    """
    parameter_names = [parameter.name for parameter in rule.parameters]
    variadic_terms = [term for term in pattern if term.kind == "variadic"]
    for term in variadic_terms[1:]:
        yield (
            f"a second variadic term `{term}` in one pattern; expected at most one",
            term.location,
        )
    for term in pattern:
        if term.argument and rule.parameter(term.argument) is None:
            yield _unknown_name("argument", term.argument, parameter_names), term.location
        if term.kind == "map" and term.names[0] not in maps:
            yield _unknown_name("dimension map", term.names[0], maps), term.location
        elif term.kind == "map":
            for name in term.names[1:]:
                if rule.parameter(name) is None:
                    yield _unknown_name("parameter", name, parameter_names), term.location
            if not _accepts(maps[term.names[0]].build, len(term.names) - 1):
                yield (
                    f"wrong number of arguments in `{term}`; expected the arguments of "
                    f"`{_call_form(term.names[0], maps[term.names[0]].build)}`",
                    term.location,
                )


def _unknown_name(kind: str, name: str, allowed: object) -> str:
    """Return the message for an unknown name of `kind`, such as "parameter", with the `allowed` names."""
    names = list(allowed)  # type: ignore[call-overload]
    listed = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
    return f"unknown {kind} '{name}'; expected one of {listed}{did_you_mean(name, names)}"


def factor_names(pattern: Pattern | None, maps: Maps) -> dict[str, Term]:
    """Return name by which a clause may refer to factors of `pattern` → the term with these factors.

    The pattern `m (h g) *b~dim` has the names `m`, `h`, `g`, `*b` and `~dim`. A literal parameter has no pattern and no
    names.
    """
    term_of_name: dict[str, Term] = {}
    for term in pattern or ():
        if term.kind in ("factor", "group"):
            term_of_name.update(dict.fromkeys(term.names, term))
        elif term.kind == "variadic":
            term_of_name[f"*{term.names[0]}"] = term
            if term.modifier == "~":
                term_of_name[f"~{term.argument}"] = term
        elif term.kind == "map" and term.names[0] in maps:
            term_of_name.update({f"~{name}": term for name in term.names[1:] if name in maps[term.names[0]].separates})
    return term_of_name


def _clause_problems(rule: Rule, clause: RuleClause, maps: Maps) -> Iterator[Problem]:
    """Yield the errors in one clause: unknown names in it and in its rewrite, and a rewrite without `return`."""
    tensors = [parameter.name for parameter in rule.tensors]
    literals = [parameter.name for parameter in rule.parameters if not parameter.is_tensor]
    factors = list(dict.fromkeys(name for pattern in patterns_of(rule) for name in factor_names(pattern, maps)))
    for name in clause.names:
        if clause.kind in OF_OPERANDS:
            if name not in tensors:
                yield _unknown_name("operand", name, tensors), clause.location
        elif clause.kind == "sizes":
            if name not in literals:
                yield _unknown_name("argument", name, literals), clause.location
        elif name not in factors and name.lstrip("^~") not in literals:  # `~dim`: the factors that argument dim names
            yield _unknown_name("factor", name, factors + literals), clause.location
    has_return = any(not statement.targets for statement in clause.body)
    if clause.kind in ("expand", "local") and not has_return:
        yield (
            f"`{clause.kind} {' '.join(clause.names)}` has no `return`; expected one at its end: add a `return …` line",
            clause.location,
        )
    names = {parameter.name for parameter in rule.parameters}
    if clause.value:
        yield from expression_problems(clause.value, names, set(factors))
    if clause.condition:
        yield from expression_problems(clause.condition.expression, names, set(factors))
    yield from body_problems(clause.body, names, set(factors), clause.kind == "local")


def body_problems(body: tuple[Statement, ...], names: set[str], factors: set[str], is_local: bool) -> Iterator[Problem]:
    """Yield the errors in the statements of a rewrite, and add their targets to `names`.

    Args:
        names: the parameters, and the names that earlier statements assign.
        factors: the names by which expressions may refer to factors.
        is_local: whether this is the body of a local form, which may contain rings.
    """
    for statement in body:
        for value in statement.values:
            yield from expression_problems(value, names, factors)
        if statement.condition:
            yield from expression_problems(statement.condition.expression, names, factors)
        if statement.ring is not None:
            yield from _ring_problems(statement, names, factors, is_local)
        names |= set(statement.targets)


def _ring_problems(ring: Statement, names: set[str], factors: set[str], is_local: bool) -> Iterator[Problem]:
    """Yield the errors in a ring: outside of a local form, over an unknown factor, or with wrong targets or body.

    The targets must have values before the ring. Its body must not be empty, return, or contain another ring.
    """
    if not is_local:
        yield "a ring in an `expand` clause; expected it in a `local` form", ring.location
    if ring.ring not in factors | names:
        yield _unknown_name("factor", str(ring.ring), sorted(factors | names)), ring.location
    for name in ring.targets:
        if name not in names:
            yield _unknown_name("name", name, sorted(names)), ring.location
    if not ring.body:
        yield f"`ring {ring.ring}` has no body; expected statements that are indented further", ring.location
    for inner in statements(ring.body):
        if not inner.targets:
            yield "`return` inside a ring; expected it after the ring, with the indentation of the ring", inner.location
        if inner.ring is not None:
            yield "a ring inside a ring; expected one after the other", inner.location
    yield from body_problems(ring.body, names, factors, is_local)


def _accepts(function: Callable[..., object], count: int) -> bool:
    """Return whether `function` takes `count` arguments after its first."""
    try:
        inspect.signature(function).bind(None, *range(count))
    except TypeError:
        return False
    return True


def _call_form(name: str, function: Callable[..., object]) -> str:
    """Return a call of `function` with the names of its parameters after the first, as in `reshape(operand, sizes)`."""
    return f"{name}({', '.join([*inspect.signature(function).parameters][1:])})"


def expression_problems(expression: Expression, names: set[str], factors: set[str]) -> Iterator[Problem]:
    """Yield the unknown names, functions and methods in an expression, and calls with wrong numbers of arguments.

    Args:
        names: the parameters, and the names that earlier statements assign.
        factors: the names by which arguments of functions may refer to factors.
    """
    if isinstance(expression, Name) and expression.name not in names and expression.name not in DTYPES:
        yield _unknown_name("name", expression.name, sorted(names)), expression.location
    if isinstance(expression, Function):
        if expression.name not in FUNCTIONS:
            yield _unknown_name("function", expression.name, FUNCTIONS), expression.location
        elif not _accepts(FUNCTIONS[expression.name], len(expression.arguments)):
            yield (
                f"wrong number of arguments of function '{expression.name}'; expected the arguments of "
                f"`{_call_form(expression.name, FUNCTIONS[expression.name])}`",
                expression.location,
            )
        for name in expression.arguments:
            if name.lstrip("^") not in names | factors | {"result"}:
                yield _unknown_name("name", name, sorted(names | factors)), expression.location
    if isinstance(expression, StateCall) and expression.method not in STATE_METHODS:
        yield _unknown_name("method", expression.method, STATE_METHODS), expression.location
    for part in parts(expression):
        yield from expression_problems(part, names, factors)


def _combination_problems(rule: Rule, maps: Maps) -> Iterator[Problem]:
    """Yield the factors for which the rule does not define how their shards combine into the results.

    1. A factor of an operand that a result lacks requires a clause: `sum k` for k in `aten.mm(self: m k, mat2: k n) ->
       m n`.
    2. A factor of every result must not be reduced.
    3. Dimensions that an argument removes or separates, as in `*b-dim`, require a clause.
    4. A factor of a result must be in an operand, or a clause must define its size or the local form.

    Rules with dimension maps in a result are not checked.
    """
    if any(term.kind == "map" for result in rule.results for term in result.pattern):
        return
    # 1. Factors that a result lacks.
    combined_factors = {name for clause in rule.of_kind(*COMBINING) for name in clause.names}
    ignored_operands = {name for clause in rule.of_kind("ignores") for name in clause.names}
    operand_factors: dict[str, Term] = {}
    for parameter in rule.tensors:
        if parameter.name in ignored_operands:
            continue
        for name, term in factor_names(parameter.pattern, maps).items():
            operand_factors.setdefault(name, term)
    names_of_results = [factor_names(result.pattern, maps) for result in rule.results]
    factors_of_all_results = {name for name in operand_factors if all(name in names for names in names_of_results)}
    for name, term in operand_factors.items():
        is_separated = name.startswith("~")  # by an argument: see the third check
        if name not in factors_of_all_results and name not in combined_factors and not is_separated:
            yield (
                f"factor '{name}' is missing from a result; "
                f"expected a clause for how its shards combine, as in `sum {name}`, or `unsharded {name}`",
                term.location,
            )
    # 2. Factors of every result.
    reduced_factors: dict[str, RuleClause] = {}
    for clause in rule.of_kind("reduce"):
        for name in clause.names:
            reduced_factors.setdefault(name, clause)
    for name, clause in sorted(reduced_factors.items(), key=lambda item: item[0]):
        # Variadic dimensions may be reduced in part: `*b` of an operand and `*b-dim` of a result have the name `*b`.
        if name in factors_of_all_results and not name.startswith("*"):
            yield (
                f"factor '{name}' is in every result, so it cannot be reduced; expected a factor that a result "
                "lacks: remove it from the clause",
                clause.location,
            )
    # 3. Dimensions that an argument removes or separates.
    combined_factors |= {name for clause in rule.of_kind("local") for name in clause.names}
    changed_terms = [term for parameter in rule.tensors for term in parameter.pattern or () if term.modifier == "~"]
    changed_terms += [term for result in rule.results for term in result.pattern if term.argument]
    for argument, term in {term.argument: term for term in changed_terms}.items():
        if not {argument, f"~{argument}", f"*{term.names[0]}"} & combined_factors:
            yield (
                f"the dimensions `{argument}` are removed or changed; expected a clause for how their shards combine, "
                f"as in `sum {argument}`, or `unsharded {argument}`",
                term.location,
            )
    # 4. Factors of results.
    defining_clauses = rule.of_kind("local", "unsharded", "extent", "slides")
    defined_factors = {name for clause in defining_clauses for name in clause.names}
    for names in names_of_results:
        for name, term in names.items():
            is_variadic = name[0] in "~*"
            if name not in operand_factors and name not in defined_factors and not is_variadic:
                hint = did_you_mean(name, [*operand_factors, *KEYWORDS])
                yield (
                    f"factor '{name}' of the result is in no operand; expected a factor of an operand, or a clause "
                    f"that defines its size{hint}",
                    term.location,
                )
