"""Local values of ranks at random, and when two values are the same, NaN and infinities included."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import attrs
import torch
from torch import Tensor

from spmdir.checking.rules.samples.sample import Sample
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.standard import Placement

TOLERANCES = {torch.float32: 1e-4, torch.complex64: 1e-4}
"""Element type → relative and absolute error that passes; 1e-6 for all others."""

NEUTRAL = {"max": float("-inf"), "min": float("inf")}
"""Reduction → the partial value of a rank that contributes nothing, as one with an empty shard has."""

MADE_BY_ONE = {"max": (float("nan"), float("inf")), "min": (float("nan"), float("-inf"))}
"""Reduction → the values that one rank alone suffices to make, whatever the others have."""

SPECIAL = {"NaN": (float("nan"),), "infinities": (float("inf"), float("-inf"), -0.0)}
"""What variants of a sample put into its floating operands."""

HARD_DRAWS = 4
"""The sets of special values on which a strategy that nobody has listed must be right, too."""


def seed(*words: object) -> None:
    """Make what is random from here on a function of `words`, in every process alike."""
    # Not torch.manual_seed: it keeps a stack trace for each sort of device that is not there, in milliseconds.
    torch.default_generator.manual_seed(zlib.crc32(" ".join(map(str, words)).encode()))


def noise(tensor: Tensor) -> Tensor:
    """Return random values to hide those of `tensor` behind; small integers where sums of others would round."""
    if tensor.dtype == torch.bool:
        return torch.randn(tensor.shape, dtype=torch.float64)
    if tensor.dtype not in (torch.float32, torch.float64) and not tensor.is_complex():
        return torch.randint(0 if tensor.dtype == torch.uint8 else -3, 4, tensor.shape).to(tensor.dtype)
    return torch.randn(tensor.shape, dtype=tensor.dtype)


def local_values(tensor: Tensor, placement: Placement, count: int) -> list[Tensor]:
    """Return the local tensors of `count` ranks; partial values are mixed among ranks at random, element by element."""
    local = placement.distribute(tensor, count, noise)
    if not isinstance(placement, PartialPlacement) or count == 1:
        return local
    stacked = torch.stack(local)
    for value in MADE_BY_ONE.get(placement.op or "", ()) if tensor.is_floating_point() else ():
        special = tensor.isnan() if value != value else tensor == value
        stacked[:-1] = torch.where(special, noise(stacked[:-1]), stacked[:-1])
    if placement.op in NEUTRAL and tensor.is_floating_point():
        stacked[:-1] = stacked[:-1].masked_fill(torch.rand(stacked[:-1].shape) < 0.2, NEUTRAL[placement.op])
    order = torch.rand(stacked.shape).argsort(0)
    return list(stacked.gather(0, order))


def adds(placement: Placement) -> bool:
    """Return whether it is a partial sum or product, or made of one, so that its values are rounded or not finite."""
    return isinstance(placement, PartialPlacement) and placement.reduce in ("sum", "product")


def difference(found: Tensor, right: Tensor, through_sums: bool) -> str | None:
    """Return how `found` differs from `right`, beyond rounding; None if it does not.

    A value that went through partial sums or products must be right where it is finite. Where it is not, it must not be
    finite either, but an infinity may have become NaN, since partial sums are of either sign.
    """
    if found.dtype != right.dtype or found.shape != right.shape:
        return f"is {list(found.shape)} of {found.dtype}, not {list(right.shape)} of {right.dtype}"
    if through_sums and (right.is_floating_point() or right.is_complex()):
        finite = right.isfinite()
        if not torch.equal(finite, found.isfinite()):
            return "is finite where it must not be, or the reverse"
        found, right = found[finite], right[finite]
    tolerance = TOLERANCES.get(right.dtype, 1e-6)
    if torch.allclose(found, right, rtol=tolerance, atol=tolerance, equal_nan=True):
        return None
    error = (found * 1.0 - right * 1.0).abs()
    return f"differs by {error.max():.3g}" if error.isfinite().all() else "differs in NaN or infinities"


def special_variants(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield (name, the sample with NaN or infinities here and there in its f64 operands), if it has such operands."""
    for name, values in SPECIAL.items():
        seed(sample.op, name)
        yield from ((name, variant) for variant in _with(sample, values, 0.2))


def hard_variants(sample: Sample) -> Iterator[Sample]:
    """Yield the sample with infinities and zeros in half of its f64 operands, so that any two of them meet."""
    for again in range(HARD_DRAWS):
        seed(sample.op, "hard", again)
        yield from _with(sample, (float("inf"), float("-inf"), 0.0, -0.0), 0.5)


def _with(sample: Sample, values: tuple[float, ...], share: float) -> Iterator[Sample]:
    operands = tuple(_sprinkled(operand, values, share) for operand in sample.operands)
    if any(new is not old for new, old in zip(operands, sample.operands, strict=True)):
        yield attrs.evolve(sample, operands=operands)


def _sprinkled(operand: object, values: tuple[float, ...], share: float) -> object:
    if isinstance(operand, list):
        made = [_sprinkled(one, values, share) for one in operand]
        return made if any(new is not old for new, old in zip(made, operand, strict=True)) else operand
    if not isinstance(operand, Tensor) or operand.dtype != torch.float64 or not operand.numel():
        return operand
    chosen = torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), operand.shape)]
    places = torch.rand(operand.shape) < share
    places.view(-1)[torch.randint(operand.numel(), ())] |= operand.numel() > 1
    return torch.where(places, chosen, operand)
