"""Parsed rewrites: the terms of both sides, and the rewrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar

import attrs

from spmdir.core.errors import Location, ParseError
from spmdir.reshard.clause import START
from spmdir.rewrites.rewrite_ops import clauses_of, names_axes


@attrs.frozen
class Value:
    """`x`: any tensor.

    Attributes:
        is_open: whether the sharding of the term follows from its users, not from its operand. This is the case for
            terms that contain f or an op that names no axes. Other terms have the attribute too.
    """

    is_open: ClassVar = False


@attrs.frozen(slots=False)
class Collective:
    """`all_reduce T on A, B? op r`, `permute T`, `wait T`: an op of the `spmd` dialect on one operand.

    Attributes:
        kind: the name of the collective or op without `spmd.`. A start has the kind of its collective.
        axes: (variable, whether it may bind no axes) pairs; empty for ops that name no axes. Their lists are
            concatenated.
        variables: (argument of the op, variable) pairs, such as `("dim", "d")`.
        flags: the arguments that are true.
        is_start: whether it only starts the collective. Then its user is a `wait`.
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
    """`f(T, ...)`: a torch op. One or more of its operands have the form T, and the others do not change."""

    operand: Term
    is_open: ClassVar = True


Term = Value | Collective | Function


@attrs.frozen
class Condition:
    """`f is cheap`: a property that `f` must have.

    Attributes:
        name: the words after `f`, a key of the table of conditions.
        location: its location in the text.
    """

    name: str
    location: Location = attrs.field(eq=False)


@attrs.frozen
class Rewrite:
    """`name: left => right when differ…, conditions…, exact`.

    Attributes:
        left: the pattern to match.
        right: the replacement.
        differ: pairs of variables of dimensions that must not be equal.
        conditions: the conditions on `f`.
        is_exact: whether no matched step may be lossy. Without it, the replacement contains the lossy steps of the
            match, on the same operands.
    """

    name: str
    left: Collective | Function
    right: Term
    differ: tuple[tuple[str, str], ...]
    conditions: tuple[Condition, ...]
    is_exact: bool
    location: Location


def subterms(term: Term) -> Iterator[Term]:
    """Yield `term` and its subterms, outermost first. Each term has at most one operand."""
    yield term
    if not isinstance(term, Value):
        yield from subterms(term.operand)


def variables(term: Term) -> set[str]:
    """Return all variables in `term`."""
    names: set[str] = set()
    for inner in subterms(term):
        if isinstance(inner, Collective):
            names.update(name for name, _ in inner.axes)
            names.update(name for _, name in inner.variables)
    return names


def duplicates(rewrites: Sequence[Rewrite]) -> list[ParseError]:
    """Return a located error for each rewrite with the name of an earlier one."""
    first_of_name: dict[str, Rewrite] = {}
    errors: list[ParseError] = []
    for rewrite in rewrites:
        first_rewrite = first_of_name.setdefault(rewrite.name, rewrite)
        if first_rewrite is not rewrite:
            message = f"duplicate rewrite '{rewrite.name}', first declared at {first_rewrite.location}; rename it"
            errors.append(ParseError(message, rewrite.location))
    return errors
