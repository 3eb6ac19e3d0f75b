"""The syntax tree of rules: the values that the text of a rule parses to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal as OneOf

import attrs

from spmdir.core.errors import Location

Number = int | float | bool | str | None


@attrs.frozen
class Term:
    """One term of a dimension pattern.

    Attributes:
        kind: "factor" (`m`), "one" (`1`), "group" (`(h g)`), "variadic" (`*b`) or "map" (`reshape(size)`).
        names: the factors of a group; the factor or the variadic name; or the function of a map and its arguments.
        modifier: the character after `*b`: "-" (without these dimensions), "~" (these are separate factors) or "".
        argument: the literal argument that names the dimensions of the modifier.
    """

    kind: OneOf["factor", "one", "group", "variadic", "map"]
    names: tuple[str, ...]
    location: Location
    modifier: str = ""
    argument: str = ""

    def __str__(self) -> str:
        if self.kind == "variadic":
            return f"*{self.names[0]}{self.modifier}{self.argument}"
        if self.kind == "group":
            return f"({' '.join(self.names)})"
        if self.kind == "map":
            return f"{self.names[0]}({', '.join(self.names[1:])})"
        return self.names[0]


Pattern = tuple[Term, ...]
"""The dimensions of a tensor: `m k` has two terms."""


@attrs.frozen
class Constant:
    """A number, string, truth value or `none`."""

    value: Number


@attrs.frozen
class Name:
    """A literal argument, a tensor operand, or a value named by an earlier statement."""

    name: str
    location: Location


@attrs.frozen
class Function:
    """A call of one of `spmdir.rules.language.functions.FUNCTIONS`, such as `count(dim)`."""

    name: str
    arguments: tuple[str, ...]
    location: Location


@attrs.frozen
class Binary:
    """Arithmetic, a comparison or `and`."""

    operator: str
    left: Expression
    right: Expression
    location: Location | None


@attrs.frozen
class Sequence:
    """`[a, b]`."""

    items: tuple[Expression, ...]


@attrs.frozen
class OpCall:
    """A call of an op inside a rewrite. Its arguments are (name or None, expression), in order."""

    op: str
    arguments: tuple[tuple[str | None, Expression], ...]
    location: Location


@attrs.frozen
class StateCall:
    """A call of a method of a packed placement, `Attended.combine(state, (out, lse))`. A state is a tuple of tensors.

    Attributes:
        placement: the name of the placement.
        method: a key of STATE_METHODS.
    """

    placement: str
    method: str
    arguments: tuple[Expression, ...]
    location: Location


STATE_METHODS = {
    "identity": "tensors with the shapes of the parts",
    "combine": "two states",
    "finish": "one state",
    "pack": "one state",
}
"""Method of a packed placement → its arguments."""


Expression = Constant | Name | Function | Binary | Sequence | OpCall | StateCall


def parts(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions directly inside `expression`."""
    if isinstance(expression, Binary):
        return (expression.left, expression.right)
    if isinstance(expression, Sequence):
        return expression.items
    if isinstance(expression, OpCall):
        return tuple(value for _, value in expression.arguments)
    if isinstance(expression, StateCall):
        return expression.arguments
    return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield `expression` and all expressions inside it."""
    yield expression
    for part in parts(expression):
        yield from walk(part)


@attrs.frozen
class Condition:
    """`if expression`, or `unless expression` if negated."""

    expression: Expression
    negated: bool


@attrs.frozen
class Statement:
    """`a, b = op(…)`; `return x, y` (without targets); or `ring k: a b` with a body. The targets of a ring rotate.

    Attributes:
        column: the column in which it begins.
        ring: the factor of a ring; None for other statements.
        body: the statements of one step of the ring.
    """

    targets: tuple[str, ...]
    values: tuple[Expression, ...]
    condition: Condition | None
    location: Location
    column: int = attrs.field(default=1, eq=False)
    ring: str | None = None
    body: tuple[Statement, ...] = ()


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Yield the statements of `body` and those inside its rings, in order."""
    for statement in body:
        yield statement
        yield from statements(statement.body)


def nested(flat: Iterable[Statement]) -> tuple[Statement, ...]:
    """Return the statements as a tree: those after a ring, with a deeper indentation, become the body of the ring.

    The first statement with the indentation of the ring, or a smaller one, ends the body.
    """
    result: list[Statement] = []
    for statement in flat:
        previous = result[-1] if result else None
        if previous is not None and previous.ring is not None and statement.column > previous.column:
            result[-1] = attrs.evolve(previous, body=(*previous.body, statement))
        else:
            result.append(statement)
    return tuple(
        attrs.evolve(statement, body=nested(statement.body)) if statement.body else statement for statement in result
    )


@attrs.frozen
class PlacementTerm:
    """One placement in a strategy written as text.

    Attributes:
        name: the name of the placement, or "shard" for any placement that shards.
        fields: its fields, or the dimension of `shard`: a number, a factor or an argument.
        repeated: whether it applies to all tensors of a list.
    """

    name: str
    fields: tuple[Expression, ...]
    repeated: bool
    location: Location

    @property
    def is_any_shard(self) -> bool:
        return self.name == ANY_SHARD


ANY_SHARD = "shard"
"""The name that means S or any plug-in placement of the program that shards, the same in the whole strategy."""


@attrs.frozen(cache_hash=True)
class TextStrategy:
    """A strategy of one op, written as text: `aten.chunk: (Strided(dim, chunks)) -> (S(dim)…)`.

    Attributes:
        op: the name of the op, as in Call.name.
        text: its whole text. Strategies with equal text and location are equal.
        operands, results: the placements of the op's tensor parameters, in order, and of its results.
        conditions: its `when` clauses; all must hold for a call.
        body: the statements of its local form. Without one, ranks run the op on their local tensors.
        whole: the names of factors that no other axis may shard.
    """

    op: str
    text: str
    location: Location
    operands: tuple[PlacementTerm, ...] = attrs.field(eq=False)
    results: tuple[PlacementTerm, ...] = attrs.field(eq=False)
    conditions: tuple[Expression, ...] = attrs.field(eq=False)
    body: tuple[Statement, ...] = attrs.field(eq=False)
    whole: tuple[str, ...] = attrs.field(default=(), eq=False)

    def __str__(self) -> str:
        return self.text.partition("\n")[0].partition(" when ")[0].partition(":")[2].strip()


PASSING = ("linear", "multilinear", "carries", "moves", "commutes", "swaps", "ignores")
"""The kinds of clauses that pass partial values."""

LINEAR = ("linear", "multilinear")
"""The kinds of clauses that pass partial sums through multiplications."""


@attrs.frozen
class RuleClause:
    """One clause.

    Attributes:
        kind: its keyword; "reduce" for `sum k`, `max dim` and the like.
        names: the factors, variadic names, arguments or operands that it names.
        reductions: the reductions of a reduce or commutes clause.
        condition: its `if` or `unless`; None if it always applies.
        value: of an extent clause, the size; of a flops clause, the number that multiplies the sizes; of a lists
            clause, the parts of the list; of a when clause, the condition; of a replicated clause, the reason.
        body: the statements of an expand or local clause.
        groups: of a slides clause, the names of the window's sizes, of its inputs, and of its outputs.
    """

    kind: str
    names: tuple[str, ...]
    location: Location
    reductions: tuple[str, ...] = ()
    condition: Condition | None = None
    value: Expression | None = None
    body: tuple[Statement, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()


@attrs.frozen
class Parameter:
    """A parameter of the op's schema.

    Attributes:
        pattern: the dimensions of a tensor parameter; None for a literal parameter.
        is_list: whether it is a list of tensors, each with this pattern.
        optional: whether the tensor may be absent.
        default: the schema's default of a literal parameter, if the rule depends on it.
    """

    name: str
    pattern: Pattern | None
    is_list: bool
    optional: bool
    default: Expression | None
    location: Location

    @property
    def is_tensor(self) -> bool:
        return self.pattern is not None


@attrs.frozen
class Result:
    """A result: its dimensions, and its declared element type, if any."""

    pattern: Pattern
    dtype: str | None
    location: Location


@attrs.define(frozen=True, slots=False, eq=False)
class Rule:
    """The rule of one line of a .rules file.

    Attributes:
        op: the name of the op, as in Call.name.
        parameters: all parameters of the op's schema, in order.
        results: its results; only one if result_list.
        result_list: whether the op returns a list, whose entries all have the pattern of this result.
        clauses: its clauses, in order.
    """

    op: str
    parameters: tuple[Parameter, ...]
    results: tuple[Result, ...]
    result_list: bool
    clauses: tuple[RuleClause, ...]
    location: Location

    @cached_property
    def tensors(self) -> tuple[Parameter, ...]:
        """Return the tensor parameters, in order."""
        return tuple(parameter for parameter in self.parameters if parameter.is_tensor)

    @cached_property
    def defaults(self) -> Mapping[str, Number]:
        """Literal parameter → the default that the rule depends on."""
        return {
            parameter.name: parameter.default.value
            for parameter in self.parameters
            if isinstance(parameter.default, Constant)
        }

    @cached_property
    def _by_name(self) -> Mapping[str, Parameter]:
        """Return name → the first parameter with this name."""
        return {parameter.name: parameter for parameter in reversed(self.parameters)}

    @cached_property
    def _by_kind(self) -> Mapping[str, tuple[RuleClause, ...]]:
        """Return kind → its clauses, in the order of the text."""
        kinds = dict.fromkeys(clause.kind for clause in self.clauses)
        return {kind: tuple(clause for clause in self.clauses if clause.kind == kind) for kind in kinds}

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter `name`; None if the op does not have it."""
        return self._by_name.get(name)

    def of_kind(self, *kinds: str) -> tuple[RuleClause, ...]:
        """Return the clauses of these kinds, in the order of the text."""
        if len(kinds) == 1:
            return self._by_kind.get(kinds[0], ())
        return tuple(clause for clause in self.clauses if clause.kind in kinds)

    @cached_property
    def replicated(self) -> str | None:
        """The reason why the op can only run replicated; None if it can be sharded."""
        values = (clause.value for clause in self.of_kind("replicated"))
        return next((str(value.value) for value in values if isinstance(value, Constant)), None)
