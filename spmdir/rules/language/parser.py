"""Parse the text of rules and strategies; errors are located in the file."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import attrs
from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from spmdir.core.errors import Location, ParseError, SpmdirError
from spmdir.core.limits import NESTING, OPERATORS, check_nesting
from spmdir.rules.language.grammar import load_grammar
from spmdir.rules.language.syntax_tree import (
    Binary,
    Condition,
    Constant,
    Expression,
    Function,
    Name,
    OpCall,
    Parameter,
    Pattern,
    PlacementTerm,
    Result,
    Rule,
    RuleClause,
    Sequence,
    StateCall,
    Statement,
    Term,
    TextStrategy,
    nested,
)

FRIENDLY = {
    "OP": "an op name such as aten.mm", "NAME": "a name", "FUNCTION": "a function", "VARIADIC": "dimensions such as *b",
    "METHOD": "a method such as Attended.combine", "SEPARATE": "~argument",
    "REDUCTION": "sum, max, min, product, any or all", "OPTIONAL": "'?'", "ONE": "'1'",
    "NUMBER": "a number", "STRING": "a string", "COMPARE": "a comparison", "PLUS": "'+'", "MINUS": "'-'", "STAR": "'*'",
    "SLASH": "'/'", "PERCENT": "'%'", "REPEATED": "'…'",
    "LPAR": "'('", "RPAR": "')'", "LSQB": "'['", "RSQB": "']'", "COMMA": "','", "COLON": "':'",
    "SEMICOLON": "';'", "EQUAL": "'='", "ARROW": "'->'", "_NEWLINE": "a new line", "$END": "the end of the rule",
}  # fmt: skip
"""Terminal of the grammar → its name in messages. Keywords are not listed."""

CONSTANTS = {"true": True, "false": False, "none": None, "inf": math.inf}


class _Builder(Transformer[Token, "Rule | TextStrategy"]):
    """Transforms a parse tree into a Rule or TextStrategy, inner nodes first.

    Each method builds the node of the grammar's rule of the same name, see `rules.lark`, from its transformed children.
    The token of a map, function, placement or method includes the opening bracket, and that of a string its quotes.
    """

    def __init__(self, text: str, file: str, first_line: int, indent: int):
        super().__init__()
        self.text, self.file, self.offset, self.indent = text, file, first_line - 1, indent
        self.operators = 0

    def location_of(self, token: Token) -> Location:
        """Return the location of a token in its file. Lark counts lines and columns in `text`, from 1."""
        return Location(self.file, (token.line or 1) + self.offset, (token.column or 1) + self.indent)

    def count_operators(self, operators: int) -> None:
        """Count operators; raise LimitError if there are so many that expressions nest too deeply to be evaluated."""
        self.operators += operators
        OPERATORS.check(self.operators, Location(self.file, self.offset + 1, 1))

    def factor(self, items: list[Token]) -> Term:
        return Term("factor", (str(items[0]),), self.location_of(items[0]))

    def one(self, items: list[Token]) -> Term:
        return Term("one", ("1",), self.location_of(items[0]))

    def group(self, items: list[Token]) -> Term:
        return Term("group", tuple(map(str, items)), self.location_of(items[0]))

    def variadic(self, items: list[Token]) -> Term:
        name, modifier, argument = re.fullmatch(r"\*(\w*)([-~]?)(\w*)", items[0]).groups()  # type: ignore[union-attr]
        return Term("variadic", (name,), self.location_of(items[0]), modifier, argument)

    def map(self, items: list[Token | None]) -> Term:
        """Build the term of a dimension map, such as `reshape(self, size)`."""
        head = items[0]
        assert head is not None
        names = (str(name) for name in items[1:] if name)
        return Term("map", (str(head).removesuffix("("), *names), self.location_of(head))

    def pattern(self, items: list[Term | Token]) -> Pattern:
        return tuple(item for item in items if isinstance(item, Term))

    def tensor_list(self, items: list[Pattern]) -> list[Pattern]:
        return items

    def parameter(self, items: list[Any]) -> Parameter:
        """Build a parameter. `tensor_list` returns a list, so a list means the pattern of a list of tensors."""
        name, optional, pattern, default = items
        is_list = isinstance(pattern, list)
        return Parameter(
            str(name), pattern[0] if is_list else pattern, is_list, bool(optional), default, self.location_of(name)
        )

    def result(self, items: list[Any]) -> tuple[Pattern, str | None]:
        pattern, dtype = items
        return pattern, None if dtype is None else str(dtype)

    def results(self, items: list[Any]) -> tuple[list[Any], bool]:
        return items, False

    def result_list(self, items: list[Any]) -> tuple[list[Any], bool]:
        return items, True

    def condition(self, items: list[Any]) -> Condition:
        return Condition(items[1], negated=items[0].type == "UNLESS")

    def factor_clause(self, items: list[Any]) -> RuleClause:
        """Build a clause that names factors, such as `sum k`, `unsharded k` or `aligned k`."""
        keyword, *names, condition = items
        reductions = (str(keyword),) if keyword.type == "REDUCTION" else ()
        kind = "reduce" if reductions else str(keyword)
        return RuleClause(kind, tuple(map(str, names)), self.location_of(keyword), reductions, condition)

    def operand_clause(self, items: list[Any]) -> RuleClause:
        keyword, *names, condition = items
        return RuleClause(str(keyword), tuple(map(str, names)), self.location_of(keyword), condition=condition)

    def monotone_clause(self, items: list[Any]) -> RuleClause:
        """Build a clause of reductions and operands, such as `commutes max in self`."""
        keyword, *words, condition = items
        reductions = tuple(str(word) for word in words if word is not None and word.type == "REDUCTION")
        names = tuple(str(word) for word in words if word is not None and word.type == "NAME")
        return RuleClause(str(keyword), names, self.location_of(keyword), reductions, condition)

    def slid(self, items: list[Token]) -> tuple[str, ...]:
        return tuple(map(str, items))

    def slide_clause(self, items: list[Any]) -> RuleClause:
        """Build a clause such as `slides *k over *s to *out`, with three groups of names."""
        keyword, kernel, _, over, _, to, condition = items
        return RuleClause(
            "slides", (*kernel, *over, *to), self.location_of(keyword), condition=condition, groups=(kernel, over, to)
        )

    def flops_clause(self, items: list[Any]) -> RuleClause:
        """Build a clause such as `flops 2 m k n`: a number, and the factors whose sizes it multiplies."""
        keyword, times, *names, condition = items
        return RuleClause(
            "flops", tuple(map(str, names)), self.location_of(keyword), condition=condition, value=_number(times)
        )

    def extent_clause(self, items: list[Any]) -> RuleClause:
        keyword, name, value = items
        return RuleClause("extent", (str(name),), self.location_of(keyword), value=value)

    def lists_clause(self, items: list[Any]) -> RuleClause:
        return RuleClause("lists", (), self.location_of(items[0]), value=items[1])

    def when_clause(self, items: list[Any]) -> RuleClause:
        return RuleClause("when", (), self.location_of(items[0]), value=items[1])

    def requirement(self, items: list[Any]) -> RuleClause:
        return self.when_clause(items)

    def placement(self, items: list[Any]) -> PlacementTerm:
        head, *fields = items
        name = str(head).removesuffix("(")
        return PlacementTerm(name, tuple(field for field in fields if field is not None), False, self.location_of(head))

    def placed(self, items: list[Any]) -> PlacementTerm:
        return attrs.evolve(items[0], repeated=items[1] is not None)

    def placements(self, items: list[Any]) -> tuple[PlacementTerm, ...]:
        return tuple(item for item in items if item is not None)

    def strategy(self, items: list[Any]) -> TextStrategy:
        """Build a strategy: the op, its operands and results, then conditions and the statements of a local form.

        Raises:
            ParseError: a statement precedes the keyword `local`, or a local form has no `return`.
        """
        op, operands, _, results, *lines = items
        conditions = tuple(line.value for line in lines if isinstance(line, RuleClause) and line.value is not None)
        body = tuple(line for line in lines if isinstance(line, Statement))
        local = next((line for line in lines if isinstance(line, Token)), None)  # the keyword `local`
        if body and (local is None or lines.index(body[0]) < lines.index(local)):
            raise ParseError("a statement outside of a local form; expected `local` before it", body[0].location)
        has_return = any(not statement.targets for statement in body)
        if local is not None and not has_return:
            raise ParseError(
                "`local` has no `return`; expected one at its end: add a `return …` line", self.location_of(local)
            )
        return TextStrategy(str(op), self.text, self.location_of(op), operands, results, conditions, nested(body))

    def replicated_clause(self, items: list[Any]) -> RuleClause:
        return RuleClause("replicated", (), self.location_of(items[0]), value=Constant(str(items[1])[1:-1]))

    def clause(self, items: list[RuleClause]) -> RuleClause:
        return items[0]

    def block(self, items: list[Statement]) -> tuple[Statement, ...]:
        return tuple(items)

    def lone_expression(self, items: list[Expression]) -> Expression:
        return items[0]

    def assign(self, items: list[Any]) -> Statement:
        """Build an assignment such as `a, b = op(…)`, located at the call, or else at the first target."""
        *targets, value, condition = items
        location = value.location if isinstance(value, OpCall) else self.location_of(targets[0])
        target_names = tuple(str(target) for target in targets if target)
        return Statement(target_names, (value,), condition, location, self.location_of(targets[0]).column)

    def give(self, items: list[Any]) -> Statement:
        """Build a `return` statement, which has values and no targets."""
        location = self.location_of(items[0])
        return Statement((), tuple(item for item in items[1:] if item is not None), None, location, location.column)

    def ring(self, items: list[Token]) -> Statement:
        """Build the head of a ring; `nested` adds its body later."""
        keyword, factor, *names = items
        location = self.location_of(keyword)
        return Statement(tuple(map(str, names)), (), None, location, location.column, str(factor))

    def call(self, items: list[Any]) -> OpCall:
        return OpCall(str(items[0]), tuple(item for item in items[1:] if item), self.location_of(items[0]))

    def argument(self, items: list[Any]) -> tuple[str | None, Expression]:
        name, value = items
        return (None if name is None else str(name)), value

    def number(self, items: list[Token]) -> Constant:
        return _number(items[0])

    def negation(self, items: list[Any]) -> Expression:
        """Build `-x`: a negative constant if x is a number, else `0 - x`."""
        self.count_operators(1)
        if isinstance(items[1], Constant) and isinstance(items[1].value, (int, float)):
            return Constant(-items[1].value)
        return Binary("-", Constant(0), items[1], self.location_of(items[0]))

    def string(self, items: list[Token]) -> Constant:
        return Constant(str(items[0])[1:-1])

    def name(self, items: list[Token]) -> Expression:
        text = str(items[0])
        return Constant(CONSTANTS[text]) if text in CONSTANTS else Name(text, self.location_of(items[0]))

    def function(self, items: list[Any]) -> Function:
        return Function(str(items[0])[:-1], tuple(str(item) for item in items[1:] if item), self.location_of(items[0]))

    def list(self, items: list[Any]) -> Sequence:
        return Sequence(tuple(item for item in items if item is not None))

    def parenthesis(self, items: list[Any]) -> Expression:
        values = tuple(item for item in items if item is not None)
        return values[0] if len(values) == 1 else Sequence(values)

    def state_call(self, items: list[Any]) -> StateCall:
        """Build a call of a method of a packed placement, such as `Attended.combine(a, b)`."""
        placement, _, method = str(items[0])[:-1].partition(".")
        return StateCall(
            placement, method, tuple(item for item in items[1:] if item is not None), self.location_of(items[0])
        )

    def conjunction(self, items: list[Expression]) -> Expression:
        self.count_operators(len(items) - 1)
        return functools.reduce(lambda left, right: Binary("and", left, right, None), items)

    def _left_to_right(self, items: list[Any]) -> Expression:
        """Build a chain of operators of equal precedence: `a - b + c` is `(a - b) + c`."""
        left, operations = items[0], items[1:]
        self.count_operators(len(operations) // 2)
        for operator, right in zip(operations[::2], operations[1::2], strict=True):
            if operator is not None:
                left = Binary(str(operator), left, right, self.location_of(operator))
        return left

    comparison = sum = product = _left_to_right

    def rule(self, items: list[Any]) -> Rule:
        """Build a rule. Each line is a clause, or a statement that belongs to the `expand` or `local` before it.

        Raises:
            ParseError: a statement does not follow an `expand` or `local` clause.
        """
        op = items[0]
        parameters = tuple(item for item in items[1:] if isinstance(item, Parameter))
        # After the parameters come the arrow, the results, then clauses and statements. The arrow is a Token.
        children: list[Any] = [
            item for item in items[1:] if item is not None and not isinstance(item, (Parameter, Token))
        ]
        (results, is_list), *lines = children
        clauses: list[RuleClause] = []
        for line in lines:
            if isinstance(line, RuleClause):
                clauses.append(line)
            elif clauses and clauses[-1].kind in ("expand", "local"):
                clauses[-1] = attrs.evolve(clauses[-1], body=(*clauses[-1].body, line))
            else:
                raise ParseError(
                    "a statement outside of a rewrite; expected `expand …` or `local …` before it", line.location
                )
        clauses = [attrs.evolve(clause, body=nested(clause.body)) for clause in clauses]
        location = self.location_of(op)
        rule_results = tuple(
            Result(pattern, dtype, pattern[0].location if pattern else location) for pattern, dtype in results
        )
        return Rule(str(op), parameters, rule_results, is_list, tuple(clauses), location)


def _number(token: Token) -> Constant:
    """Return the number of a token: a float if it has a point or an exponent, else an integer."""
    return Constant(float(token) if re.search(r"[.e]", token) else int(token))


@functools.cache
def _grammar(start: str = "record") -> Lark:
    """Return the parser of `rules.lark` for texts of the symbol `start`."""
    return load_grammar(Path(__file__).with_name("rules.lark"), start)


def _friendly(terminals: set[str]) -> str:
    """Return the expected `terminals` as text for a message, such as "one of ')', ','". At most 8 are listed."""
    names = sorted({FRIENDLY.get(terminal, f"'{terminal.lower()}'") for terminal in terminals})
    if len(names) == 1:
        return names[0]
    return "one of " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def parse_rule(text: str, file: str, first_line: int) -> Rule:
    """Parse one record of a .rules file as a rule.

    Args:
        first_line: the line of the file where the record begins, from 1.

    Raises:
        ParseError: the text is not a rule; located.
    """
    rule = _parse(text, file, first_line)
    assert isinstance(rule, Rule)  # the caller has checked the head of the record
    return rule


def parse_strategy(text: str, file: str, first_line: int, indent: int = 0) -> TextStrategy:
    """Parse one record, indented by `indent` columns in its file, as a strategy; see `parse_rule`."""
    strategy = _parse(text, file, first_line, indent)
    assert isinstance(strategy, TextStrategy)
    return strategy


def parse_statements(text: str, file: str, first_line: int) -> tuple[Statement, ...]:
    """Parse the lines of one side of a rewrite of ops; see `parse_rule`."""
    return _parse(text, file, first_line, start="block")


def parse_condition(text: str, file: str, first_line: int, indent: int = 0) -> Expression:
    """Parse an expression, indented by `indent` columns in its file; see `parse_rule`."""
    return _parse(text, file, first_line, indent, "lone_expression")


def _parse(text: str, file: str, first_line: int, indent: int = 0, start: str = "record") -> Any:
    """Parse a text from the symbol `start` of the grammar, and build its syntax tree.

    Args:
        first_line: the line of `file` where the text begins.
        indent: the number of columns by which the text is indented in the file.

    Raises:
        ParseError: the text is malformed; located in the file.
        LimitError: brackets or expressions are nested too deeply.
    """
    check_nesting(text, file, first_line)
    try:
        tree = _grammar(start).parse(text)
    except UnexpectedToken as error:
        token = "the end of the rule" if error.token.type == "$END" else f"'{str(error.token).strip() or 'a new line'}'"
        expected = error.accepts or error.expected
        lines = text.rstrip().splitlines()
        line, column = (error.line, error.column) if error.token.type != "$END" else (len(lines), len(lines[-1]) + 1)
        location = Location(file, line + first_line - 1, column + indent)
        raise ParseError(f"found {token}, expected {_friendly(set(expected))}", location) from None
    except UnexpectedCharacters as error:
        location = Location(file, error.line + first_line - 1, error.column + indent)
        raise ParseError(f"found '{error.char}', expected {_friendly(set(error.allowed or ()))}", location) from None
    except UnexpectedInput as error:
        raise ParseError(
            f"malformed rule: {error}; expected a rule as in docs/rules.md", Location(file, first_line, 1)
        ) from None
    from lark.exceptions import VisitError

    try:
        return _Builder(text, file, first_line, indent).transform(tree)
    except VisitError as error:
        if isinstance(error.orig_exc, SpmdirError):
            raise error.orig_exc from None
        raise
    except RecursionError:
        raise NESTING.error("more than can be read", Location(file, first_line, 1)) from None
