"""What a text of rewrites is read into: terms, of which both sides of a rewrite are made, and rewrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import attrs

from spmdir.core.errors import Location, ParseError
from spmdir.reshard.clause import START
from spmdir.rewrites.clauses import clauses_of, names_axes


@attrs.frozen
class Value:
    """`x`: any tensor.

    Attributes:
        is_open: whether the sharding of a term, here and in other terms, is that which its result has to have: with f
            and ops that name no axes in it nothing else says it.
    """

    is_open: ClassVar = False


@attrs.frozen(slots=False)
class Collective:
    """`all_reduce T on A, B? op r`, `permute T`, `wait T`: an op of the `spmd` dialect on one operand.

    Attributes:
        kind: the name of the op without `spmd.`; that of the collective if it starts one.
        axes: (variable, whether it may stand for no axes) pairs, joined in order; empty for ops that name no axes.
        variables: (argument of the op, variable) pairs, such as `("dim", "d")`.
        flags: the arguments that are true.
        is_start: whether it only starts the collective, so that its result goes to `wait`.
    """

    kind: str
    operand: Term
    axes: tuple[tuple[str, bool], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    flags: frozenset[str] = frozenset()
    is_start: bool = False

    @property
    def op_name(self) -> str:
        """Return the name of the op."""
        return f"spmd.{self.kind}{START * self.is_start}"

    @property
    def dims(self) -> set[str]:
        """Return the variables of dimensions."""
        dims = {clause.argument for clause in clauses_of(self.kind).values() if clause.kind == "dim"}
        return {variable for argument, variable in self.variables if argument in dims}

    @cached_property
    def is_open(self) -> bool:
        return self.operand.is_open or not names_axes(self.kind)


@attrs.frozen
class Function:
    """`f(T, ...)`: a torch op; one or more of its operands have the form T, the others stay as they are."""

    operand: Term
    is_open: ClassVar = True


Term = Value | Collective | Function


@attrs.frozen
class Condition:
    """`f is cheap`: a property that `f` must have.

    Attributes:
        name: the words after `f`, a key of the table of conditions.
        location: where it stands in the text.
    """

    name: str
    location: Location = attrs.field(eq=False)


@attrs.frozen
class Rewrite:
    """`name: left => right when differ…, conditions…, exact`.

    Attributes:
        left: the pattern that is matched.
        right: what replaces it.
        differ: pairs of variables of dimensions that must not be equal.
        conditions: what `f` must satisfy.
        is_exact: whether it applies only where no matched step is lossy. Without it, the replacement does the lossy
            steps of the match, on the same operands.
    """

    name: str
    left: Collective | Function
    right: Term
    differ: tuple[tuple[str, str], ...]
    conditions: tuple[Condition, ...]
    is_exact: bool
    location: Location


def subterms(term: Term) -> Iterator[Term]:
    """Return `term` and the terms in it, outermost first; each has one operand at most."""
    yield term
    if not isinstance(term, Value):
        yield from subterms(term.operand)


def variables(term: Term) -> set[str]:
    """Return all variables in `term`."""
    found: set[str] = set()
    for inner in subterms(term):
        if isinstance(inner, Collective):
            found.update(name for name, _ in inner.axes)
            found.update(name for _, name in inner.variables)
    return found


def duplicates(rewrites: Sequence[Rewrite]) -> list[ParseError]:
    """Return an error, located, for each rewrite whose name one before it has."""
    first: dict[str, Rewrite] = {}
    return [
        ParseError(f"there is a rewrite '{rewrite.name}' at {before.location}; expected another name", rewrite.location)
        for rewrite in rewrites
        if (before := first.setdefault(rewrite.name, rewrite)) is not rewrite
    ]
