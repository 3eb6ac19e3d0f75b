"""Make variants of a sample with zeros, infinities and NaN as its numbers. Strategies must be sound for them too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import torch_op

REPLACEMENTS = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"))
"""The values that replace each number of a call. If all operands are integers, integral values are integers."""

_REAL = ("number", "float", "Optional[number]", "Optional[float]")


def number_variants(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield (`alpha=inf`, `sample` with this value) for each real-valued parameter of the op and each of REPLACEMENTS.

    Tensor parameters for which the sample has a number are included. The op may reject a value.
    """
    parameters = schema_of(torch_op(sample.op)).arguments
    tensors = [parameter.name for parameter in parameters if "Tensor" in str(parameter.type)]
    operand_of = dict(zip(tensors, sample.operands, strict=False))
    for parameter in parameters:
        name, is_operand = parameter.name, _is_number(operand_of.get(parameter.name))
        if not is_operand and str(parameter.type) not in _REAL:
            continue
        for value in REPLACEMENTS:
            if is_operand:
                operands = tuple(value if tensor == name else operand for tensor, operand in operand_of.items())
                yield f"{name}={value}", attrs.evolve(sample, operands=operands)
            else:
                arguments = {**sample.arguments, name: _keep_integer_type(value, sample)}
                yield f"{name}={value}", attrs.evolve(sample, arguments=arguments)


def _keep_integer_type(value: float, sample: Sample) -> float:
    """Return `value` as an integer if it is integral and no operand is floating-point: a float would change types."""
    is_integral = abs(value) < 2  # of REPLACEMENTS, all but infinities and NaN
    return int(value) if is_integral and not any(_is_inexact(operand) for operand in sample.operands) else value


def _is_inexact(operand: Any) -> bool:
    """Return whether an operand is a tensor of floating-point or complex numbers."""
    return isinstance(operand, Tensor) and (operand.is_floating_point() or operand.is_complex())


def _is_number(value: Any) -> bool:
    """Return whether a value is an integer or a float; True and False are not numbers here."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
