"""`Masked`: a partial sum in which every element is nonzero on one rank at most.

A lookup in a table whose rows are sharded results in it: each rank has the rows that it found and zeros elsewhere.
DTensor calls it `_MaskPartial`. It is a partial sum and becomes one without communication, but it passes more ops than
a sum
does: where f(0) = 0, the sum of f over the ranks is f of the sum, so a reduction can wait until after the activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.placement.base import Edge, Noise, PartialPlacement, Placement
from spmdir.core.placement.standard import Partial

SUM = Partial("sum")

LOOKUPS = ("aten.embedding",)
"""Ops that leave zeros where a rank does not hold the row; their sums over ranks are masked."""

KEEPS_ZERO = (
    "relu", "gelu", "silu", "tanh", "sin", "sinh", "asin", "asinh", "atan", "atanh", "tan", "erf", "erfinv", "expm1",
    "log1p", "abs", "neg", "sqrt", "sign", "floor", "ceil", "trunc", "round", "frac", "deg2rad", "leaky_relu", "elu",
    "hardswish", "mish", "softshrink",
)  # fmt: skip
"""Pointwise ops of one tensor that make 0 of 0, whatever their other arguments."""


def _positive_exponent(rule: Any) -> bool:
    return isinstance(rule.argument("exponent"), (int, float)) and rule.argument("exponent") > 0


SCALES = ("aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor", "aten.div.Scalar")
"""Pointwise ops that pass a partial sum in one of their operands, element by element."""

KEEPS_ZERO_IF: dict[str, Callable[[Any], bool]] = {"aten.pow.Tensor_Scalar": _positive_exponent}
"""Pointwise ops of one tensor that make 0 of 0 for some of their arguments."""


@attrs.frozen
class Masked(PartialPlacement):
    """The value is the sum of the ranks' partial values, and each element comes from one of them."""

    text: ClassVar[str] = "Masked"

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        partials, rest = [], tensor
        for _ in range(count - 1):
            here = noise(tensor).real > 0
            partials.append(rest.where(here, 0))
            rest = rest.where(~here, 0)
        return [*partials, rest.clone()]

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        return clause in ("moves", "carries")

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: x, target="P(sum)")

    def lift(self, rule: Any, strategies: Sequence[Any]) -> Iterable[Any]:
        if rule.name in LOOKUPS:
            yield from rule.combining(self)
        if rule.name.removeprefix("aten.") in KEEPS_ZERO or KEEPS_ZERO_IF.get(rule.name, lambda _: False)(rule):
            yield rule.pointwise(self)
        if rule.name in SCALES:
            summed = (strategy for strategy in strategies if SUM in strategy.operands)
            yield from (
                attrs.evolve(one, operands=self._of(one.operands), results=self._of(one.results)) for one in summed
            )

    def _of(self, placements: Sequence[Placement]) -> tuple[Placement, ...]:
        return tuple(self if placement == SUM else placement for placement in placements)
