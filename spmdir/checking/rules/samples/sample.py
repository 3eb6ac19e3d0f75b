"""Define `Sample`, a call on which a rule is checked, and short names for its tensors."""

from __future__ import annotations

from typing import Any

import attrs
import torch


@attrs.frozen
class Sample:
    """One call of an op.

    Attributes:
        operands: a tensor, a list of tensors, None or a number for each tensor parameter of the schema, in order.
        arguments: name → value of the other parameters.
        compare: whether results are compared with one device. If not, only shapes and element types are.
    """

    op: str
    operands: tuple[Any, ...]
    arguments: dict[str, Any] = attrs.field(factory=dict)
    compare: bool = True


def f(*shape: int) -> torch.Tensor:
    """Return random float64 numbers."""
    return torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> torch.Tensor:
    """Return random float64 numbers from 0.1 to 1.1."""
    return torch.rand(shape, dtype=torch.float64) + 0.1


def i(high: int, *shape: int) -> torch.Tensor:
    """Return random int64 numbers from 0 to below `high`."""
    return torch.randint(0, high, shape)


def c(*shape: int) -> torch.Tensor:
    """Return random complex numbers."""
    return torch.randn(shape, dtype=torch.complex128)


def b(*shape: int) -> torch.Tensor:
    """Return random Booleans."""
    return torch.rand(shape) > 0.5


def h(*shape: int) -> torch.Tensor:
    """Return random bfloat16 integers from -4 to 4, which bfloat16 adds and multiplies exactly."""
    return torch.randint(-4, 5, shape).bfloat16()


def sample(op: str, *operands: Any, compare: bool = True, **arguments: Any) -> Sample:
    """Return a call of an aten op: `sample("add.Tensor", f(5, 4), f(4), alpha=2)`."""
    return Sample(f"aten.{op}", operands, arguments, compare)
