"""Text of rewrites → Rewrite values. `fuse_collectives.rewrites` says what the notation means."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken
from lark.exceptions import VisitError

from spmdir.core.errors import Location, ParseError, did_you_mean
from spmdir.core.limits import check_nesting
from spmdir.core.text_file import read_text_file
from spmdir.rules.language.grammar import load_grammar

CLAUSES: dict[str, tuple[str, ...]] = {
    "slice": ("on", "dim"),
    "all_gather": ("on", "dim"),
    "all_reduce": ("on", "op"),
    "partition": ("on", "op"),
    "reduce_scatter": ("on", "dim", "op"),
    "all_to_all": ("on", "dim", "to_dim"),
}
"""Kind of collective → what its term must say; `dim` is also written `from`, and `to_dim` `to`."""


FRIENDLY = {
    "NAME": "a name", "VARIABLE": "a small letter other than f and x", "AXES": "a capital letter", "OPTIONAL": "'?'",
    "PROPERTY": "'is cheap' or 'keeps dtype'", "_NEWLINE": "a new line", "COLON": "':'", "COMMA": "','",
    "LPAR": "'('", "RPAR": "')'", "_ARROW": "'=>'", "_DIFFER": "'!='", "_OTHERS": "'...'", "$END": "the end",
}  # fmt: skip
"""Terminal of the grammar → how a message calls it; keywords stand for themselves."""


@attrs.frozen
class Value:
    """`x`: any tensor."""


@attrs.frozen
class Collective:
    """`all_reduce x on A, B? op r`.

    Attributes:
        axes: (variable, whether it may stand for no axes) pairs, joined in order.
        dim, to_dim, op: variables.
    """

    kind: str
    operand: Term
    axes: tuple[tuple[str, bool], ...]
    dim: str | None = None
    to_dim: str | None = None
    op: str | None = None

    @property
    def letters(self) -> tuple[str, ...]:
        """The variables other than axes."""
        return tuple(filter(None, (self.dim, self.to_dim, self.op)))


@attrs.frozen
class Apply:
    """`f(T, ...)`: a local op on operands of the form T and others."""

    operand: Term


Term = Value | Collective | Apply


@attrs.frozen
class Rewrite:
    """`name: left => right when differ…, properties…`.

    Attributes:
        differ: pairs of dimension variables that must not be equal.
        properties: what f must be: names of spmdir.passes.fusion.rewriting.PROPERTIES.
    """

    name: str
    left: Collective | Apply
    right: Term
    differ: tuple[tuple[str, str], ...]
    properties: tuple[str, ...]
    location: Location


def subterms(term: Term) -> Iterator[Term]:
    """`term` and the terms in it, outermost first; each has one operand at the most."""
    yield term
    if not isinstance(term, Value):
        yield from subterms(term.operand)


class _Builder(Transformer[Token, Any]):
    def __init__(self, file: str):
        super().__init__()
        self.file = file

    def at(self, token: Token) -> Location:
        return Location(self.file, token.line or 1, token.column or 1)

    def start(self, items: list[Rewrite]) -> tuple[Rewrite, ...]:
        return tuple(items)

    def rewrite(self, items: list[Any]) -> Rewrite:
        name, left, right, *conditions = items
        conditions = [condition for condition in conditions if condition]
        rewrite = Rewrite(
            str(name),
            left,
            right,
            tuple(value for key, value in conditions if key == "differ"),
            tuple(value for key, value in conditions if key == "property"),
            self.at(name),
        )
        _check(rewrite)
        return rewrite

    def collective(self, items: list[Any]) -> Collective:
        kind, operand, *clauses = items
        if kind not in CLAUSES:
            raise ParseError(
                f"unknown collective '{kind}'; expected one of {', '.join(CLAUSES)}{did_you_mean(kind, CLAUSES)}",
                self.at(kind),
            )
        given = dict(clauses)
        if sorted(given) != sorted(CLAUSES[kind]) or len(given) != len(clauses):
            found, wanted = (", ".join(names) for names in ([key for key, _ in clauses], CLAUSES[kind]))
            raise ParseError(f"{kind} says {found}; expected {wanted} (from is dim, to is to_dim)", self.at(kind))
        return Collective(str(kind), operand, given.pop("on"), **given)

    def apply(self, items: list[Any]) -> Apply:
        return Apply(items[0])

    def value(self, _: list[Any]) -> Value:
        return Value()

    def on(self, items: list[Any]) -> tuple[str, Any]:
        return "on", tuple(items)

    def axes(self, items: list[Any]) -> tuple[str, bool]:
        return str(items[0]), items[1] is not None

    def dim(self, items: list[Token]) -> tuple[str, str]:
        return "dim", str(items[0])

    def to_dim(self, items: list[Token]) -> tuple[str, str]:
        return "to_dim", str(items[0])

    def op(self, items: list[Token]) -> tuple[str, str]:
        return "op", str(items[0])

    def differ(self, items: list[Token]) -> tuple[str, tuple[str, str]]:
        return "differ", (str(items[0]), str(items[1]))

    def property(self, items: list[Token]) -> tuple[str, str]:
        return "property", str(items[0])


def _check(rewrite: Rewrite) -> None:
    """Raise ParseError unless the right side, and the conditions, speak of what the left side binds."""
    left, right = list(subterms(rewrite.left)), list(subterms(rewrite.right))
    applies = [sum(isinstance(term, Apply) for term in side) for side in (left, right)]
    if isinstance(rewrite.left, Value):
        raise ParseError("the left side is any tensor at all; expected a collective or f", rewrite.location)
    if applies not in ([0, 0], [1, 1]):
        raise ParseError(f"f stands {applies[0]} times on the left and {applies[1]} on the right", rewrite.location)
    bound, used = _variables(left), _variables(right)
    free = {term.dim for term in right if isinstance(term, Collective)} if applies[0] else set()
    free |= {term.to_dim for term in right if isinstance(term, Collective)} if applies[0] else set()
    unbound = sorted((used - free | {name for pair in rewrite.differ for name in pair}) - bound)
    if unbound:
        raise ParseError(f"the left side does not bind {', '.join(unbound)}, which is used later", rewrite.location)


def _variables(terms: list[Term]) -> set[str]:
    collectives = [term for term in terms if isinstance(term, Collective)]
    return {name for term in collectives for name in (*(axes for axes, _ in term.axes), *term.letters)}


@functools.cache
def _parser() -> Lark:
    return load_grammar(Path(__file__).with_name("rewrites.lark"))


def parse_rewrites(text: str, file: str = "<text>") -> tuple[Rewrite, ...]:
    """The rewrites that `text` spells, in order.

    Raises:
        ParseError: malformed text, an unknown collective or an unbound variable; located.
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


@functools.cache
def read_rewrites(path: Path) -> tuple[Rewrite, ...]:
    """Return the rewrites in a file, in order; add them to `IRContext.rewrites` for fuse-collectives to use them.

    Raises:
        ParseError: it cannot be read, or does not parse.
    """
    return parse_rewrites(read_text_file(path, f"rewrites from '{path}'"), str(path))
