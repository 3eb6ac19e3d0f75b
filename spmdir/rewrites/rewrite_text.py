"""Parse the text of rewrites into Rewrite values. `fuse_collectives.rewrites` describes the notation."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import attrs
from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken
from lark.exceptions import VisitError

from spmdir.core.errors import Location, ParseError, did_you_mean, raise_all
from spmdir.core.limits import check_nesting
from spmdir.reshard.clause import START
from spmdir.rewrites.rewrite_ops import clauses_of, kinds, names_axes, spec_of
from spmdir.rewrites.terms import (
    Collective,
    Condition,
    Function,
    Rewrite,
    Term,
    Value,
    duplicates,
    subterms,
    variables,
)
from spmdir.rules.language.grammar import load_grammar

FRIENDLY = {
    "NAME": "a name of two letters or more", "VARIABLE": "a small letter other than f and x",
    "AXES": "a capital letter", "OPTIONAL": "'?'",
    "_NEWLINE": "a new line", "COLON": "':'", "COMMA": "','",
    "LPAR": "'('", "RPAR": "')'", "_ARROW": "'=>'", "_DIFFER": "'!='", "_OTHERS": "', ...'", "$END": "the end",
}  # fmt: skip
"""Terminal of the grammar → its name in error messages. Keywords are their own names."""


EXACT = "exact"
"""The condition that no matched step is lossy."""


class _Builder(Transformer[Token, Any]):
    """Converts a parse tree to rewrites. Each method converts one rule of the grammar, from the values of its parts."""

    def __init__(self, file: str):
        super().__init__()
        self.file = file

    def at(self, token: Token) -> Location:
        return Location(self.file, token.line or 1, token.column or 1)

    def start(self, items: list[Rewrite | ParseError]) -> tuple[Rewrite, ...]:
        """Return the rewrites of the file; raise the errors of all rewrites and of duplicate names together."""
        rewrites = [item for item in items if isinstance(item, Rewrite)]
        raise_all([*(item for item in items if isinstance(item, ParseError)), *duplicates(rewrites)])
        return tuple(rewrites)

    def rewrite(self, items: list[Any]) -> Rewrite | ParseError:
        """Build a rewrite, or return the first error of `_CHECKS`, so that later rewrites are checked too."""
        # A condition is a pair of variables that must differ, a Condition on f, or EXACT.
        name, left, right, *conditions = items
        rewrite = Rewrite(
            str(name),
            left,
            right,
            tuple(condition for condition in conditions if isinstance(condition, tuple)),
            tuple(condition for condition in conditions if isinstance(condition, Condition)),
            EXACT in conditions,
            self.at(name),
        )
        for check in _CHECKS:
            problem = check(rewrite)
            if problem is not None:
                return ParseError(problem, rewrite.location)
        return rewrite

    def collective(self, items: list[Any]) -> Collective:
        """Build a term of a collective, from its name, its operand and (keyword, variable or None) for each clause.

        For example, `all_gather x on A dim d` has the name all_gather, the operand x, and the clauses (on, A) and (dim,
        d). A flag has no variable: its clause is (keyword, None).

        Raises:
            ParseError: the collective is unknown, a required clause is missing, a clause is unknown or occurs twice, a
                required clause has no variable, or a flag has one; located.
        """
        kind, operand, *items_of_clauses = items
        if kind not in kinds():
            raise ParseError(
                f"unknown collective '{kind}'; expected one of {', '.join(kinds())}{did_you_mean(kind, kinds())}",
                self.at(kind),
            )
        clauses, values = clauses_of(kind), dict(items_of_clauses)  # keyword → clause, keyword → variable
        required = {keyword for keyword, clause in clauses.items() if clause.kind != "flag"}
        # A variable is one letter, so `dim rows` is parsed as two clauses: (dim, None) and (rows, None).
        for (keyword, value), (word, _) in itertools.pairwise(items_of_clauses):
            if keyword in required and value is None and word not in clauses:
                raise ParseError(
                    f"'{keyword} {word}' has no variable; expected a small letter that binds the value, as "
                    f"in '{keyword} {keyword[0]}'",
                    self.at(kind),
                )
        is_complete = required <= values.keys() <= clauses.keys() and len(values) == len(items_of_clauses)
        # A required clause must have a variable, and a flag must not.
        has_wrong_value = any((value is None) == (keyword in required) for keyword, value in items_of_clauses)
        if not is_complete or has_wrong_value:
            present = ", ".join(keyword for keyword, _ in items_of_clauses) or "none"
            expected_clauses = (
                ", ".join(keyword if keyword in required else f"{keyword} or not" for keyword in clauses) or "none"
            )
            raise ParseError(f"{kind} has the clauses {present}; expected {expected_clauses}", self.at(kind))
        spec = spec_of(kind)
        return Collective(
            str(kind) if spec is None else spec.name,
            operand,
            values.pop("on", ()),
            tuple((clauses[keyword].argument, value) for keyword, value in values.items() if value is not None),
            frozenset(clauses[keyword].argument for keyword, value in values.items() if value is None),
            kind.endswith(START),
        )

    def function(self, items: list[Any]) -> Function:
        return Function(items[0])

    def value(self, _: list[Any]) -> Value:
        return Value()

    def on(self, items: list[Any]) -> tuple[str, Any]:
        return "on", tuple(items)

    def axes(self, items: list[Any]) -> tuple[str, bool]:
        return str(items[0]), items[1] is not None

    def argument(self, items: list[Any]) -> tuple[str, str | None]:
        keyword, variable = items
        return str(keyword), variable and str(variable)

    def differ(self, items: list[Token]) -> tuple[str, str]:
        return str(items[0]), str(items[1])

    def property(self, items: list[Token]) -> Condition:
        return Condition(" ".join(items), self.at(items[0]))

    def exact(self, _: list[Any]) -> str:
        return EXACT


def _check_form(rewrite: Rewrite) -> str | None:
    """Return an error if the left side is only x, one side has f and the other has not, or f occurs twice; else None.

    A condition on f without f is an error, too.
    """
    sides = [list(subterms(side)) for side in (rewrite.left, rewrite.right)]
    left_functions, right_functions = (sum(isinstance(term, Function) for term in side) for side in sides)
    if isinstance(rewrite.left, Value):
        return "the left side matches every tensor; expected a collective or f"
    if (left_functions, right_functions) not in ((0, 0), (1, 1)):
        return (
            f"f occurs {left_functions} times on the left and {right_functions} on the right; "
            "expected one f on each side, or none"
        )
    if rewrite.conditions and not left_functions:
        return (
            f"'f {rewrite.conditions[0].name}' is a condition on f, but f does not occur; expected a condition "
            "on a variable of the pattern: remove this one"
        )
    return None


def _check_variables(rewrite: Rewrite) -> str | None:
    """Return an error if a variable of the right side or of a condition is not in the left side; else None.

    Dimensions around f are exempt: they follow from the strategies of f.
    """
    right = list(subterms(rewrite.right))
    dims: set[str] = set()
    if any(isinstance(term, Function) for term in right):
        dims = {name for term in right if isinstance(term, Collective) for name in term.dims}
    used = variables(rewrite.right) - dims | {name for pair in rewrite.differ for name in pair}
    unbound = sorted(used - variables(rewrite.left))
    if not unbound:
        return None
    return f"{', '.join(unbound)} is not bound; expected each variable of the right side on the left side too"


def _check_pending(rewrite: Rewrite) -> str | None:
    """Return an error unless the result of each start is the result of its side or the operand of a wait; else None."""
    outermost = [getattr(side, "is_start", False) for side in (rewrite.left, rewrite.right)]
    if outermost[0] != outermost[1]:
        return (
            "the outermost op of only one side is a start, whose result is pending; expected starts on both sides "
            "or on none"
        )
    for term in (*subterms(rewrite.left), *subterms(rewrite.right)):
        operand = None if isinstance(term, Value) else term.operand
        waits = isinstance(term, Collective) and term.kind == "wait"
        if waits != getattr(operand, "is_start", False):
            return (
                "the operand of wait is not a start, or the user of a start is not wait; expected both together, as in "
                "`wait (all_reduce_start x …)`"
            )
    return None


def _check_targets(rewrite: Rewrite) -> str | None:
    """Return an error if several ops of the right side name no axes; else None.

    One such op gets the sharding of the replaced result. The sharding between two of them would be undefined.
    """
    ops_without_axes = [
        term.kind for term in subterms(rewrite.right) if isinstance(term, Collective) and not names_axes(term.kind)
    ]
    if len(ops_without_axes) > 1:
        return (
            f"the sharding of the result of {ops_without_axes[-1]} is undefined; expected at most one op without axes"
        )
    return None


def find_lossy_fault(rewrite: Rewrite) -> str | None:
    """Return an error if a rewrite without `exact` moves, adds or drops a step that may be lossy; else None."""
    if rewrite.is_exact:
        return None
    left, right = (_steps_without_axes(_without_starts(side)) for side in (rewrite.left, rewrite.right))
    changed = next(iter((left - right) + (right - left)), None)
    if changed is None:
        return None
    return (
        f"{changed[0].kind} may be lossy, and is not at the same place on both sides; add `when exact`, "
        "which restricts the rewrite to exact steps"
    )


def _steps_without_axes(side: Term) -> Counter[tuple[Collective, bool]]:
    """Return the steps of `side` that name no axes, each with whether it is the outermost term.

    Such a step may enter or leave any placement. Two of them are equal if their operands are equal and both or neither
    are outermost, because that determines the sharding of the result.
    """
    terms = (term for term in subterms(side) if isinstance(term, Collective) and not names_axes(term.kind))
    return Counter((term, term is side) for term in terms)


def _without_starts(term: Term) -> Term:
    """Return `term` with each start and wait replaced by the collective."""
    if isinstance(term, Value):
        return term
    operand = _without_starts(term.operand)
    if isinstance(term, Function):
        return Function(operand)
    return operand if term.kind == "wait" else attrs.evolve(term, operand=operand, is_start=False)


_CHECKS = (_check_form, _check_variables, _check_pending, _check_targets, find_lossy_fault)
"""Each returns an error message for a rewrite, or None."""


@functools.cache
def _parser() -> Lark:
    return load_grammar(Path(__file__).with_name("rewrites.lark"))


def parse_rewrites(text: str, file: str = "<text>") -> tuple[Rewrite, ...]:
    """Parse rewrites, in order.

    Raises:
        ParseError: malformed text, an unknown collective or an unbound variable; located.
        SpmdirErrors: several such errors.
    """
    check_nesting(text, file)
    try:
        return _Builder(file).transform(_parser().parse(text + "\n"))
    except VisitError as error:
        raise error.orig_exc from None
    except (UnexpectedToken, UnexpectedCharacters) as error:
        if isinstance(error, UnexpectedToken):
            names, unexpected = error.accepts or error.expected, error.token
        else:
            names, unexpected = error.allowed, error.char
        expected = ", ".join(sorted(FRIENDLY.get(name, f"'{name.lower()}'") for name in names or ()))
        raise ParseError(
            f"found '{str(unexpected).strip() or 'the end of the line'}', expected {expected}",
            Location(file, error.line, error.column),
        ) from None
