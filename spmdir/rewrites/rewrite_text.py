"""Text of rewrites → Rewrite values. `fuse_collectives.rewrites` says what the notation means."""

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
from spmdir.rewrites.clauses import clauses_of, kinds, names_axes, spec_of
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
"""Terminal of the grammar → how a message calls it; keywords stand for themselves."""


EXACT = "exact"
"""The condition that no matched step is lossy."""


class _Builder(Transformer[Token, Any]):
    def __init__(self, file: str):
        super().__init__()
        self.file = file

    def at(self, token: Token) -> Location:
        return Location(self.file, token.line or 1, token.column or 1)

    def start(self, items: list[Rewrite | ParseError]) -> tuple[Rewrite, ...]:
        rewrites = [item for item in items if isinstance(item, Rewrite)]
        raise_all([*(item for item in items if isinstance(item, ParseError)), *duplicates(rewrites)])
        return tuple(rewrites)

    def rewrite(self, items: list[Any]) -> Rewrite | ParseError:
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
            if problem := check(rewrite):
                return ParseError(problem, rewrite.location)
        return rewrite

    def collective(self, items: list[Any]) -> Collective:
        kind, operand, *given = items
        if kind not in kinds():
            raise ParseError(
                f"unknown collective '{kind}'; expected one of {', '.join(kinds())}{did_you_mean(kind, kinds())}",
                self.at(kind),
            )
        clauses, found = clauses_of(kind), dict(given)
        needed = {keyword for keyword, clause in clauses.items() if clause.kind != "flag"}
        for (keyword, value), (word, _) in itertools.pairwise(given):
            if keyword in needed and value is None and word not in clauses:
                raise ParseError(
                    f"'{keyword} {word}' names no variable; expected a small letter, which stands for whatever is "
                    f"there, as in '{keyword} {keyword[0]}'",
                    self.at(kind),
                )
        fits = needed <= found.keys() <= clauses.keys() and len(found) == len(given)
        if not fits or any((value is None) == (keyword in needed) for keyword, value in given):
            said = ", ".join(keyword for keyword, _ in given) or "none"
            known = ", ".join(keyword if keyword in needed else f"{keyword} or not" for keyword in clauses) or "none"
            raise ParseError(f"{kind} has the clauses {said}; expected {known}", self.at(kind))
        spec = spec_of(kind)
        return Collective(
            str(kind) if spec is None else spec.name,
            operand,
            found.pop("on", ()),
            tuple((clauses[keyword].argument, value) for keyword, value in found.items() if value is not None),
            frozenset(clauses[keyword].argument for keyword, value in found.items() if value is None),
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
    sides = [list(subterms(side)) for side in (rewrite.left, rewrite.right)]
    functions, made = (sum(isinstance(term, Function) for term in side) for side in sides)
    if isinstance(rewrite.left, Value):
        return "the left side is any tensor at all; expected a collective or f"
    if (functions, made) not in ((0, 0), (1, 1)):
        return f"f stands {functions} times on the left and {made} on the right"
    if rewrite.conditions and not functions:
        return f"'f {rewrite.conditions[0].name}' is a condition on f, which does not occur"
    return None


def _check_variables(rewrite: Rewrite) -> str | None:
    right = list(subterms(rewrite.right))
    free: set[str] = set()
    if any(isinstance(term, Function) for term in right):
        free = {name for term in right if isinstance(term, Collective) for name in term.dims}
    used = variables(rewrite.right) - free | {name for pair in rewrite.differ for name in pair}
    unbound = sorted(used - variables(rewrite.left))
    return f"the left side does not bind {', '.join(unbound)}, which is used later" if unbound else None


def _check_pending(rewrite: Rewrite) -> str | None:
    """Return what is wrong with the use of what a start gives: only wait may take it, or it is the root; None if
    nothing."""
    outermost = [getattr(side, "is_start", False) for side in (rewrite.left, rewrite.right)]
    if outermost[0] != outermost[1]:
        return "one side starts a collective and the other does not; only wait takes what a start gives"
    for term in (*subterms(rewrite.left), *subterms(rewrite.right)):
        operand = None if isinstance(term, Value) else term.operand
        waits = isinstance(term, Collective) and term.kind == "wait"
        if waits != getattr(operand, "is_start", False):
            return "wait takes what a start gives, and nothing else does: wait (all_reduce_start x …)"
    return None


def _check_targets(rewrite: Rewrite) -> str | None:
    """Return what is wrong with ops that name no axes; None if at most one takes its sharding from the result."""
    found = [
        term.kind for term in subterms(rewrite.right) if isinstance(term, Collective) and not names_axes(term.kind)
    ]
    if len(found) > 1:
        return f"nothing says in which sharding the result of {found[-1]} is; expected one such op"
    return None


def lossy_fault(rewrite: Rewrite) -> str | None:
    """Return what is wrong with a rewrite that moves, adds or drops a step that may be lossy without saying `exact`."""
    if rewrite.is_exact:
        return None
    left, right = (_unnamed_steps(_at_once(side)) for side in (rewrite.left, rewrite.right))
    changed = next(iter((left - right) + (right - left)), None)
    if changed is None:
        return None
    return (
        f"{changed[0].kind} may be lossy, and the two sides do not have it in the same place; expected `when exact`, "
        "by which the rewrite applies to exact steps alone"
    )


def _unnamed_steps(side: Term) -> Counter[tuple[Collective, bool]]:
    """Return the steps of `side` that name no axes, and so may be those of any placement; and which is the outermost.

    Two of them are the same step if their operands are the same and both or neither are outermost: the sharding of the
    result follows from that.
    """
    terms = (term for term in subterms(side) if isinstance(term, Collective) and not names_axes(term.kind))
    return Counter((term, term is side) for term in terms)


def _at_once(term: Term) -> Term:
    """Return `term` with collectives done at once in place of being started and waited for."""
    if isinstance(term, Value):
        return term
    operand = _at_once(term.operand)
    if isinstance(term, Function):
        return Function(operand)
    return operand if term.kind == "wait" else attrs.evolve(term, operand=operand, is_start=False)


_CHECKS = (_check_form, _check_variables, _check_pending, _check_targets, lossy_fault)
"""Each returns what is wrong with a rewrite, or None."""


@functools.cache
def _parser() -> Lark:
    return load_grammar(Path(__file__).with_name("rewrites.lark"))


def parse_rewrites(text: str, file: str = "<text>") -> tuple[Rewrite, ...]:
    """Return the rewrites that `text` spells, in order.

    Raises:
        ParseError: malformed text, an unknown collective or an unbound variable; located. SpmdirErrors: several are.
    """
    check_nesting(text, file)
    try:
        return _Builder(file).transform(_parser().parse(text + "\n"))
    except VisitError as error:
        raise error.orig_exc from None
    except (UnexpectedToken, UnexpectedCharacters) as error:
        names = error.accepts or error.expected if isinstance(error, UnexpectedToken) else error.allowed
        found = error.token if isinstance(error, UnexpectedToken) else error.char
        expected = ", ".join(sorted(FRIENDLY.get(name, f"'{name.lower()}'") for name in names or ()))
        raise ParseError(
            f"found '{str(found).strip() or 'the end of the line'}', expected {expected}",
            Location(file, error.line, error.column),
        ) from None
