"""`Norm(p)`: a partial p-norm. The value is (Σ |x_r|^p)^(1/p) of the partial values x_r, or their maximum if p is inf.

The norm of a sharded tensor is the norm of the ranks' norms. With this placement, the reduction can run later. For
example, to clip gradients, the partial norms of all gradients are stacked, and only the norm of the stack is reduced.
DTensor calls this placement `_NormPartial`.

A tensor with negative elements cannot have this placement. The same holds if p-th powers of elements overflow or
underflow, such as the squares of 1e30 and 1e-30 in f32.
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
    identity: ClassVar[float | None] = None  # of a negative value, one rank alone would return the absolute value
    p: float = attrs.field(converter=float, validator=attrs.validators.gt(0))

    @property
    def reduce(self) -> str:  # type: ignore[override]
        return "max" if math.isinf(self.p) else "sum"

    def before(self, partial: Any) -> Any:
        return partial if math.isinf(self.p) else partial**self.p

    def after(self, reduced: Any, count: int) -> Any:
        return reduced if math.isinf(self.p) else reduced ** (1 / self.p)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        """Return the tensor times random weights of the ranks; for each element, the p-norm of the weights is 1.

        Raises:
            UnsupportedError: an element is negative, or its p-th power overflows or underflows.
        """
        if tensor.numel() and (tensor < 0).any():
            raise UnsupportedError(
                f"a value with the placement {self} has negative elements; expected none, since a norm is not "
                "negative: use another placement for this value"
            )
        powers = self.before(tensor)
        if (powers.isinf() & ~tensor.isinf() | (powers == 0) & (tensor != 0)).any():
            raise UnsupportedError(
                f"a value with the placement {self} has elements whose powers overflow or underflow; "
                "expected an element type with a larger range: convert the value, as to f64"
            )
        weights = [abs(noise(tensor.new_ones(tensor.shape))) + 0.25 for _ in range(count)]
        total = self.collect(weights, tensor.shape)
        return [tensor * (weight / total) for weight in weights]

    def supports(self, dtype: DType) -> bool:
        # Squares of f16 overflow at 256.
        return dtype in (F64, F32, BF16)

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        # Some of these ops fill in zeros. Zeros on all ranks are a norm of zero.
        return clause in ("moves", "carries")

    def lift(self, rule: Any, strategies: Sequence[Any]) -> Iterable[Any]:
        if rule.name == "aten.linalg_vector_norm" and rule.argument("ord") == self.p:
            yield from rule.combining(self)
            yield rule.pointwise(self)
