"""`Quantised`: a pending sum that is sent as 8-bit integers.

Ranks hold addends as for `P(sum)`, in full. Where the sum is done, each rank sends its addend as integers of one byte,
with one f32 scale for what it sends to a rank, and adds up what it gets in f32: a quarter of the bytes of that. It is
declared inexact, so it occurs only where it is asked for.

An addend x is sent as q = round(x / s) with s = max |x| / 127, so each of its elements is off by at most s / 2, and the
sum over n ranks by at most n · m / 254, where m is the largest absolute value that a rank holds. `error` is that for
one rank, with one part in a thousand for the rounding of s and of the division.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import BF16, F16, F32, F64, DType
from spmdir.core.placement.base import Edge, Noise, PartialPlacement
from spmdir.core.placement.standard import Partial


@attrs.frozen
class Quantised(PartialPlacement):
    """A pending sum; gathers and scatters of it send one byte an element."""

    text: ClassVar[str] = "Quantised"
    error: ClassVar[float] = 1.001 / 254

    @property
    def kind(self) -> str:
        return "sum"

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        return Partial("sum").passes(clause, reductions)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return Partial("sum").distribute(tensor, count, noise)

    def supports(self, dtype: DType) -> bool:
        return dtype in (F64, F32, F16, BF16)

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(_gather, target="R", by="all_gather", itemsize=1)
        yield Edge(_scatter, target="shard", by="all_to_all", itemsize=1)


def _gather(x: Any, group: Any) -> Any:
    """[…] → the sum over the ranks, […]."""
    return _summed(group.all_gather(_packed(x[None])[0]), x)


def _scatter(x: Any, group: Any) -> Any:
    """[…] → this rank's piece of the sum over the ranks."""
    pieces = group.split(x)
    return group.keep(_summed(group.all_to_all(_packed(pieces)), pieces[0]))


def _packed(pieces: Any) -> Any:
    """[n, …] → [n, bytes]: of each piece, its elements as integers of one byte and then its scale, an f32."""
    import torch

    # Copied, not converted: a program may run in another precision than the one that it was traced in.
    flat = pieces.new_empty(pieces.shape, dtype=torch.float32).copy_(pieces).flatten(1)
    # All groups send something, or ranks that hold elements would wait for those that hold none.
    scale = flat.abs().amax(1, keepdim=True) / 127 if flat.numel() else flat.new_zeros(len(flat), 1)
    # A scale near the least number is too small by its rounding; the clamp keeps the sign then.
    whole = (flat / scale.where(scale > 0, 1)).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([whole, scale.contiguous().view(torch.int8)], 1)


def _summed(packed: Any, like: Any) -> Any:
    """[n, bytes] → the sum of the n pieces, of the shape and type of `like`."""
    import torch

    size = math.prod(like.shape)
    scale = packed[:, size:].contiguous().view(torch.float32)
    return like.new_empty(like.shape).copy_((packed[:, :size] * scale).sum(0).reshape(like.shape))
