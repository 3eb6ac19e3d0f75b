"""`Masked`: a partial sum in which each element is nonzero on at most one rank.

A lookup in a table with sharded rows has this result: each rank has the rows that it found, and zeros elsewhere.
DTensor calls it `_MaskPartial`. It converts to `P(sum)` without communication, but more ops pass it on. If f(0) = 0,
the sum of f over the ranks is f of the sum. So the reduction can run after the activation function f.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.placement.base import Edge, Noise, PartialPlacement, Placement
from spmdir.core.placement.standard import Partial

SUM = Partial("sum")

LOOKUPS = ("aten.embedding",)
"""Ops whose local result is zero for rows of other ranks. Their partial sums are masked."""

KEEPS_ZERO = (
    "relu", "gelu", "silu", "tanh", "sin", "sinh", "asin", "asinh", "atan", "atanh", "tan", "erf", "erfinv", "expm1",
    "log1p", "abs", "neg", "sqrt", "sign", "floor", "ceil", "trunc", "round", "frac", "deg2rad", "leaky_relu", "elu",
    "hardswish", "mish", "softshrink",
)  # fmt: skip
"""Pointwise ops of one tensor with f(0) = 0 for all other arguments."""


def _has_positive_exponent(rule: Any) -> bool:
    """Return whether the exponent of a power is a number greater than 0."""
    return isinstance(rule.argument("exponent"), (int, float)) and rule.argument("exponent") > 0


SCALES = ("aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar")
"""Pointwise ops that pass a partial sum in one operand on."""

KEEPS_ZERO_IF: dict[str, Callable[[Any], bool]] = {"aten.pow.Tensor_Scalar": _has_positive_exponent}
"""Pointwise op of one tensor → (rule of a call) → whether f(0) = 0 for the arguments of the call."""


@attrs.frozen
class Masked(PartialPlacement):
    """The value is the sum over the ranks. Each element is nonzero on at most one of them."""

    text: ClassVar[str] = "Masked"

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        """Assign each element to a random rank, which has its value; the other ranks have 0."""
        partials, remaining = [], tensor
        for _ in range(count - 1):
            is_on_rank = noise(tensor).real > 0
            partials.append(remaining.where(is_on_rank, 0))
            remaining = remaining.where(~is_on_rank, 0)
        return [*partials, remaining.clone()]

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        return clause in ("moves", "carries")

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: x, target="P(sum)")

    def lift(self, rule: Any, strategies: Sequence[Any]) -> Iterable[Any]:
        """Yield the strategies of an op with this placement.

        - A lookup: it returns `Masked` if the rows of its table are sharded.
        - A pointwise op with f(0) = 0: it passes `Masked` on.
        - A multiplication or division: each strategy with `P(sum)` also exists with `Masked` instead.
        """
        if rule.name in LOOKUPS:
            yield from rule.combining(self)
        keeps_zero = rule.name.removeprefix("aten.") in KEEPS_ZERO
        if rule.name in KEEPS_ZERO_IF:
            keeps_zero = KEEPS_ZERO_IF[rule.name](rule)
        if keeps_zero:
            yield rule.pointwise(self)
        if rule.name in SCALES:
            for strategy in strategies:
                if SUM in strategy.operands:
                    operands, results = self._replace_sums(strategy.operands), self._replace_sums(strategy.results)
                    yield attrs.evolve(strategy, operands=operands, results=results)

    def _replace_sums(self, placements: Sequence[Placement]) -> tuple[Placement, ...]:
        """Return placements with `Masked` in place of `P(sum)`."""
        return tuple(self if placement == SUM else placement for placement in placements)
