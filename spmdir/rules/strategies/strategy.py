"""One way to run an op on the ranks of one mesh axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import attrs

from spmdir.core.placement.standard import Placement


@attrs.frozen
class Strategy:
    """One way to run an op on the ranks of one mesh axis.

    Attributes:
        operands: the placement of each tensor operand, flat.
        results: the placement of each result that this gives; R for an absent one.
        factor: the factor that is divided, if one is.
        rewrite: "expand" or "local" when the op must be replaced as its rule says, see OpRule.
        cut: how the ranks hold the factor, if the row is lifted: not one that the rule gives with S. Its `dim` is 0.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int | None = None
    rewrite: str | None = None
    cut: Placement | None = None

    def replaced(self, old: Placement, new: Placement) -> Strategy:
        """This row with `new` for results placed by `old`."""
        return attrs.evolve(self, results=tuple(new if p == old else p for p in self.results))

    def __str__(self) -> str:
        text = f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"
        return f"{text} {self.rewrite}" if self.rewrite else text


class Dividing(Protocol):
    """A row, of a rule or of the search: the factor that it divides, and how if it is lifted."""

    @property
    def factor(self) -> int | None: ...

    @property
    def cut(self) -> Placement | None: ...


def divided_by(rows: Iterable[tuple[Dividing, int]]) -> dict[int, int]:
    """(row, its number of ranks) per mesh axis → what `OpRule.strategies` is to know of these axes.

    Factor → the number of pieces that they cut it into; ~factor → the number that those with a lifted row do.
    """
    divided: dict[int, int] = {}
    for row, count in rows:
        if row.factor is not None:
            divided[row.factor] = divided.get(row.factor, 1) * count
            if row.cut is not None:
                divided[~row.factor] = divided.get(~row.factor, 1) * count
    return divided


def lifted_factors(divided: Mapping[int, int]) -> tuple[int, ...]:
    """The factors that other axes divide by lifted rows."""
    return tuple(~key for key in divided if key < 0)
