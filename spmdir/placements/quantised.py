"""`Quantised`: a partial sum that is sent as 8-bit integers.

The ranks have partial values as for `P(sum)`. To reduce them, each rank sends its values as integers of one byte, with
one f32 scale for each receiver. The receivers add them in f32. This sends a quarter of the bytes of an f32 reduction.
The placement is lossy, so the search never chooses it: the user must annotate it.

A partial value x is sent as q = round(x / s) with s = max |x| / 127. So the error of each element is at most s / 2, and
the error of the sum at most the sum of max |x| / 254 over the ranks. `error` is this bound, plus one part in a thousand
for the rounding of s and of the division.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import BF16, F16, F32, F64, DType
from spmdir.core.placement.base import Edge, Noise, PartialPlacement
from spmdir.core.placement.error_bound import ErrorBound
from spmdir.core.placement.standard import Partial


@attrs.frozen
class Quantised(PartialPlacement):
    """A partial sum. Its reductions to `R` and to shards send one byte for each element."""

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
        yield Edge(_all_reduce, target="R", by="all_gather", itemsize=1)
        yield Edge(_reduce_scatter, target="shard", by="all_to_all", itemsize=1)


def _all_reduce(x: Any, group: Any) -> Any:
    """Return the sum of the partial values `x` over the ranks. Each rank gathers all packed values and adds them."""
    return _unpack_sum(group.all_gather(_pack(x[None])[0]), x)


def _reduce_scatter(x: Any, group: Any) -> Any:
    """Return this rank's shard of the sum of the partial values `x` over the ranks.

    Each rank sends its packed part of a shard to the rank that owns it, and the owner adds the parts.
    """
    shards = group.split(x)
    return group.keep(_unpack_sum(group.all_to_all(_pack(shards)), shards[0]))


def _pack(shards: Any) -> Any:
    """Pack shards [n, …] as [n, bytes]: the elements of each shard as 8-bit integers, then its scale as an f32."""
    import torch

    # copy_, not a conversion: a program may run in another precision than the traced one.
    flat = shards.new_empty(shards.shape, dtype=torch.float32).copy_(shards)
    flat = flat.reshape(len(shards), math.prod(shards.shape[1:]))
    # Send a scale even without elements: ranks with elements would wait for it.
    scale = flat.abs().amax(1, keepdim=True) / 127 if flat.numel() else flat.new_zeros(len(flat), 1)
    # A subnormal scale may be rounded down, so the quotient may exceed 127. The clamp prevents a change of sign.
    rounded = (flat / scale.where(scale > 0, 1)).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([rounded, scale.contiguous().view(torch.int8)], 1)


def _unpack_sum(packed: Any, like: Any) -> Any:
    """Return the sum of the n shards in `packed`, [n, bytes], with the shape and dtype of `like`."""
    import torch

    size = math.prod(like.shape)
    scale = packed[:, size:].contiguous().view(torch.float32)
    return like.new_empty(like.shape).copy_((packed[:, :size] * scale).sum(0).reshape(like.shape))
