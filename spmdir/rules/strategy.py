"""One way to run an op on the ranks of one mesh axis."""

from __future__ import annotations

import attrs

from spmdir.placement import Placement


@attrs.frozen
class Strategy:
    """One way to run an op on the ranks of one mesh axis.

    Attributes:
        operands: the placement of each tensor operand, flat.
        results: the placement of each result that this gives; R for an absent one.
        factor: the factor that is divided, if one is.
        rewrite: "expand" or "local" when the op must be replaced as its rule says, see OpRule.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int | None = None
    rewrite: str | None = None

    def __str__(self) -> str:
        text = f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"
        return f"{text} {self.rewrite}" if self.rewrite else text
