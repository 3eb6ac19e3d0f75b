"""`Norm(p)`: a partial p-norm. The value is (Σ |x_r|^p)^(1/p) of the partial values, their maximum where p is infinite.

The norm of a tensor whose elements are sharded is the norm of the ranks' norms. With this placement it need not be
reduced at once: the norms of many gradients can be stacked, the norm of those be taken, and one number be reduced, as
clipping by the norm of all gradients wants. DTensor calls it `_NormPartial`.

Norms are never negative; a tensor that has negative elements cannot have this placement, nor one whose p-th powers
its element type cannot hold, as the squares of 1e30 and 1e-30 in f32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import BF16, F32, F64, DType
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.base import Noise, PartialPlacement


@attrs.frozen
class Norm(PartialPlacement):
    """A partial p-norm; `p` is greater than 0, or `inf`."""

    text: ClassVar[str] = "Norm({p})"
    examples: ClassVar[tuple[str, ...]] = ("Norm(2)", "Norm(1)", "Norm(3.5)", "Norm(inf)")
    identity: ClassVar[float | None] = None  # a rank that holds a value alone would give its absolute value
    p: float = attrs.field(converter=float, validator=attrs.validators.gt(0))

    @property
    def reduce(self) -> str:  # type: ignore[override]
        return "max" if math.isinf(self.p) else "sum"

    def before(self, partial: Any) -> Any:
        return partial if math.isinf(self.p) else partial**self.p

    def after(self, reduced: Any, count: int) -> Any:
        return reduced if math.isinf(self.p) else reduced ** (1 / self.p)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        if tensor.numel() and (tensor < 0).any():
            raise UnsupportedError(f"a value with the placement {self} has negative elements; norms have none")
        powers = self.before(tensor)
        if (powers.isinf() & ~tensor.isinf() | (powers == 0) & (tensor != 0)).any():
            raise UnsupportedError(f"a value with the placement {self} has elements whose powers the type cannot hold")
        weights = [abs(noise(tensor.new_ones(tensor.shape))) + 0.25 for _ in range(count)]
        total = self.collect(weights, tensor.shape)
        return [tensor * (weight / total) for weight in weights]

    def supports(self, dtype: DType) -> bool:
        # Squares of f16 overflow at 256.
        return dtype in (F64, F32, BF16)

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        # Zeros on all ranks, which some of these ops fill in, are a norm of zero.
        return clause in ("moves", "carries")

    def lift(self, rule: Any, strategies: Sequence[Any]) -> Iterable[Any]:
        if rule.name == "aten.linalg_vector_norm" and rule.argument("ord") == self.p:
            yield from rule.combining(self)
            yield rule.pointwise(self)
