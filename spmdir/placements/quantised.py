"""`Quantised`: a partial sum that is sent as 8-bit integers.

Ranks hold partial values as for `P(sum)`. Where they are summed, each rank sends its own as integers of one byte,
with one f32 scale for what it sends to a rank, and adds up what it gets in f32: a quarter of the bytes of that. It is
lossy, so it occurs only where it is asked for.

A partial value x is sent as q = round(x / s) with s = max |x| / 127, so each of its elements is off by at most s / 2,
and the sum over ranks by at most the sum of their max |x| / 254. `error` says that, with one part in a thousand for the
rounding of s and of the division.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import BF16, F16, F32, F64, DType
from spmdir.core.placement.base import Edge, Noise, PartialPlacement
from spmdir.core.placement.error import ErrorBound
from spmdir.core.placement.standard import Partial


@attrs.frozen
class Quantised(PartialPlacement):
    """A partial sum; gathers and scatters of it send one byte an element."""

    text: ClassVar[str] = "Quantised"
    error: ClassVar[ErrorBound] = ErrorBound(1.001 / 254)

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
    """Return the sum of the partial values `x` over the ranks, of the same shape."""
    return _summed(group.all_gather(_packed(x[None])[0]), x)


def _scatter(x: Any, group: Any) -> Any:
    """Return this rank's shard of the sum of the partial values `x` over the ranks."""
    shards = group.split(x)
    return group.keep(_summed(group.all_to_all(_packed(shards)), shards[0]))


def _packed(shards: Any) -> Any:
    """Return [n, …] as [n, bytes]: for each shard its elements as integers of one byte, then its scale, an f32."""
    import torch

    # Copied, not converted: a program may run in another precision than the one that it was traced in.
    flat = shards.new_empty(shards.shape, dtype=torch.float32).copy_(shards)
    flat = flat.reshape(len(shards), math.prod(shards.shape[1:]))
    # All groups send something, or ranks that hold elements would wait for those that hold none.
    scale = flat.abs().amax(1, keepdim=True) / 127 if flat.numel() else flat.new_zeros(len(flat), 1)
    # A scale near the least number is too small by its rounding; the clamp keeps the sign then.
    rounded = (flat / scale.where(scale > 0, 1)).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([rounded, scale.contiguous().view(torch.int8)], 1)


def _summed(packed: Any, like: Any) -> Any:
    """Return the sum of the n shards in `packed`, [n, bytes], of the shape and type of `like`."""
    import torch

    size = math.prod(like.shape)
    scale = packed[:, size:].contiguous().view(torch.float32)
    return like.new_empty(like.shape).copy_((packed[:, :size] * scale).sum(0).reshape(like.shape))
