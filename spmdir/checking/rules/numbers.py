"""Calls with zeros, infinities and NaN in place of their numbers: what a rule says must hold for these too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.schemas import torch_op

TRIED = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"))
"""What stands in for each number of a call; integers beside integer operands are tried as integers."""

_REAL = ("number", "float", "Optional[number]", "Optional[float]")


def number_variants(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield (`alpha=inf`, `sample` with that number there) for each real number that the op takes and each of `TRIED`.

    A number is also tried where the sample gives one in place of a tensor. The op need not accept it.
    """
    parameters = schema_of(torch_op(sample.op)).arguments
    tensors = [parameter.name for parameter in parameters if "Tensor" in str(parameter.type)]
    given = dict(zip(tensors, sample.operands, strict=False))
    for parameter in parameters:
        name, instead = parameter.name, _is_number(given.get(parameter.name))
        if not instead and str(parameter.type) not in _REAL:
            continue
        for value in TRIED:
            if instead:
                operands = tuple(value if tensor == name else o for tensor, o in given.items())
                yield f"{name}={value}", attrs.evolve(sample, operands=operands)
            else:
                yield (
                    f"{name}={value}",
                    attrs.evolve(sample, arguments={**sample.arguments, name: _like(value, sample)}),
                )


def _like(value: float, sample: Sample) -> float:
    """Return `value`, an integer where it is one and no operand is floating: a float would change the result's type."""
    whole = value == value and abs(value) < 2
    return int(value) if whole and not any(_is_inexact(operand) for operand in sample.operands) else value


def _is_inexact(operand: Any) -> bool:
    return isinstance(operand, Tensor) and (operand.is_floating_point() or operand.is_complex())


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
