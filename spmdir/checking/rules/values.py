"""Draw random local tensors, compare tensors with NaN and infinities, and insert such values into samples."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import attrs
import torch
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.standard import Placement

TOLERANCES = {torch.float32: 1e-4, torch.complex64: 1e-4}
"""Element type → the allowed relative and absolute error; 1e-6 for other types."""

NEUTRAL_VALUES = {"max": float("-inf"), "min": float("inf")}
"""Reduction → the partial value of a rank that contributes nothing, such as one with an empty shard."""

DOMINANT_VALUES = {"max": (float("nan"), float("inf")), "min": (float("nan"), float("-inf"))}
"""Reduction → the values that are the result if one rank has them."""

SPECIAL_VALUES = {"NaN": (float("nan"),), "infinities": (float("inf"), float("-inf"), -0.0)}
"""Name of a variant of a sample → the values that it inserts into floating-point operands."""

HARD_VARIANTS = 4
"""The number of variants with infinities and zeros for which a missing strategy must be sound."""


def seed(*words: object) -> None:
    """Seed torch's generator by `words`, equally in every process."""
    # torch.manual_seed takes milliseconds, because it keeps a stack trace for each kind of missing device.
    torch.default_generator.manual_seed(zlib.crc32(" ".join(map(str, words)).encode()))


def noise(tensor: Tensor) -> Tensor:
    """Return random noise for building partial values: small integers for types in which other sums would round."""
    if tensor.dtype == torch.bool:
        return torch.randn(tensor.shape, dtype=torch.float64)
    if tensor.dtype not in (torch.float32, torch.float64) and not tensor.is_complex():
        return torch.randint(0 if tensor.dtype == torch.uint8 else -3, 4, tensor.shape).to(tensor.dtype)
    return torch.randn(tensor.shape, dtype=tensor.dtype)


def local_values(tensor: Tensor, placement: Placement, count: int) -> list[Tensor]:
    """Return the local tensors of `count` ranks, as `Placement.distribute` does, with harder partial values.

    The partial values of each element are shuffled among the ranks. For a maximum or minimum, some become neutral, and
    where one value alone determines the element, the others are noise.
    """
    local = placement.distribute(tensor, count, noise)
    if not isinstance(placement, PartialPlacement) or count == 1:
        return local
    # All parts but the last become noise or neutral, where the last part alone determines the element.
    parts = torch.stack(local)
    if tensor.is_floating_point():
        for value in DOMINANT_VALUES.get(placement.op or "", ()):
            is_dominant = tensor.isnan() if math.isnan(value) else tensor == value
            parts[:-1] = torch.where(is_dominant, noise(parts[:-1]), parts[:-1])
        if placement.op in NEUTRAL_VALUES:
            is_neutral = torch.rand(parts[:-1].shape) < 0.2
            parts[:-1] = parts[:-1].masked_fill(is_neutral, NEUTRAL_VALUES[placement.op])
    order = torch.rand(parts.shape).argsort(0)
    return list(parts.gather(0, order))


def is_sum_or_product(placement: Placement) -> bool:
    """Return whether a placement reduces by sum or product, so its values may be rounded or infinite."""
    return isinstance(placement, PartialPlacement) and placement.reduce in ("sum", "product")


def difference(actual: Tensor, expected: Tensor, through_sums: bool) -> str | None:
    """Return a difference of `actual` from `expected` that exceeds rounding, else None.

    Args:
        through_sums: whether the value was reduced from partial sums or products. Then an expected infinity may be NaN,
            because the partial values may be infinities of both signs.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"is {list(actual.shape)} of {actual.dtype}, not {list(expected.shape)} of {expected.dtype}"
    if through_sums and (expected.is_floating_point() or expected.is_complex()):
        finite = expected.isfinite()
        if not torch.equal(finite, actual.isfinite()):
            return "has finite elements where infinities or NaN are expected, or the reverse"
        actual, expected = actual[finite], expected[finite]
    tolerance = TOLERANCES.get(expected.dtype, 1e-6)
    if torch.allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    # Multiplication by 1.0 converts Booleans and unsigned integers, for which differences are not defined or wrap.
    error = (actual * 1.0 - expected * 1.0).abs()
    return f"differs by {error.max():.3g}" if error.isfinite().all() else "differs in NaN or infinities"


def special_variants(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield (name, the sample with NaN or infinities among its f64 elements), if it has f64 operands."""
    for name, values in SPECIAL_VALUES.items():
        seed(sample.op, name)
        yield from ((name, variant) for variant in _with_special_values(sample, values, 0.2))


def hard_variants(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with infinities and zeros as about half of its f64 elements, so any two of these may meet."""
    for draw in range(HARD_VARIANTS):
        seed(sample.op, "hard", draw)
        yield from _with_special_values(sample, (float("inf"), float("-inf"), 0.0, -0.0), 0.5)


def _with_special_values(sample: Sample, values: tuple[float, ...], share: float) -> Iterator[Sample]:
    """Yield the sample with some elements replaced, if it has operands of float64."""
    operands = tuple(_insert_values(operand, values, share) for operand in sample.operands)
    if any(new is not old for new, old in zip(operands, sample.operands, strict=True)):
        yield attrs.evolve(sample, operands=operands)


def _insert_values(operand: object, values: tuple[float, ...], share: float) -> object:
    """Return an operand with about `share` of its elements, and at least one, replaced at random by `values`.

    A tensor with one element may be unchanged. Operands of other types than f64, and empty ones, are returned
    unchanged.
    """
    if isinstance(operand, list):
        tensors = [_insert_values(tensor, values, share) for tensor in operand]
        return tensors if any(new is not old for new, old in zip(tensors, operand, strict=True)) else operand
    if not isinstance(operand, Tensor) or operand.dtype != torch.float64 or not operand.numel():
        return operand
    inserted = torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), operand.shape)]
    is_replaced = torch.rand(operand.shape) < share
    chosen = torch.randint(operand.numel(), ())
    if operand.numel() > 1:  # at least one
        is_replaced.view(-1)[chosen] = True
    return torch.where(is_replaced, inserted, operand)
