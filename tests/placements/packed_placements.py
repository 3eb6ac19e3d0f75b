"""Packed placements as a plug-in may declare them: stable sums of exponentials, moments, top-k, attention."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import torch

from spmdir import SpmdirError
from spmdir.placement import PackedPlacement

INFINITY = float("inf")


def _floats(dtype: Any) -> bool:
    return dtype.name in ("f64", "f32")


def _finite(x: Any) -> Any:
    return x.where(x.isfinite(), 0)


@attrs.frozen
class MaxSum(PackedPlacement):
    """The logarithm of a sum of exponentials, by the largest exponent and the sum of those relative to it."""

    text: ClassVar[str] = "MaxSum"
    parts: ClassVar[tuple[str, ...]] = ("top", "total")
    results: ClassVar[tuple[str, ...]] = ("logsumexp",)
    rules: ClassVar[str] = """
aten.logsumexp: (S(dim)) -> (MaxSum)    when keepdim == false
    local
    top = aten.amax(self, dim, true)
    safe = aten.where.ScalarOther(aten.isfinite(top), top, 0.0)
    total = aten.sum.dim_IntList(aten.exp(aten.sub.Tensor(self, safe)), dim)
    state = (aten.squeeze.dims(top, dim), total)
    return MaxSum.pack(state)
"""

    def supports(self, dtype: Any) -> bool:
        return _floats(dtype)

    def identity(self, *like: Any) -> Any:
        top, total = like
        return top.new_full(top.shape, -INFINITY), total.new_zeros(total.shape)

    def combine(self, left: Any, right: Any) -> Any:
        top = left[0].maximum(right[0])
        return top, sum(total * (own - _finite(top)).exp() for own, total in (left, right))

    def finish(self, state: Any) -> Any:
        top, total = state
        return _finite(top) + total.log()

    def start(self, value: Any) -> Any:
        return value, (value - _finite(value)).exp()


@attrs.frozen
class Moments(PackedPlacement):
    """Variance and mean, by the mean, the sum of squared deviations from it, and the number of elements."""

    text: ClassVar[str] = "Moments({part}, {correction})"
    examples: ClassVar[tuple[str, ...]] = ("Moments(0, 1)", "Moments(1, 0)")
    parts: ClassVar[tuple[str, ...]] = ("mean", "deviations", "count")
    results: ClassVar[tuple[str, ...]] = ("var", "mean")
    rules: ClassVar[str] = """
aten.var_mean.correction: (S(dim)) -> (Moments(0, correction), Moments(1, correction))    when keepdim == false
    local
    mean = aten.mean.dim(self, dim, true)
    deviations = aten.sum.dim_IntList(aten.square(aten.sub.Tensor(self, mean)), dim)
    count = aten.add.Scalar(aten.mul.Scalar(deviations, 0.0), size(dim))
    state = (aten.squeeze.dims(mean, dim), deviations, count)
    return Moments.pack(state), Moments.pack(state)
"""
    part: int
    correction: int = 1

    def supports(self, dtype: Any) -> bool:
        return _floats(dtype)

    def identity(self, *like: Any) -> Any:
        return tuple(part.new_zeros(part.shape) for part in like)

    def combine(self, left: Any, right: Any) -> Any:
        count = left[2] + right[2]
        share = right[2] / count.clamp(min=1)
        apart = right[0] - left[0]
        return left[0] + apart * share, left[1] + right[1] + apart * apart * left[2] * share, count

    def finish(self, state: Any) -> Any:
        mean, deviations, count = state
        return deviations / (count - self.correction), mean

    def start(self, value: Any) -> Any:
        count = value.new_full(value.shape, 2.0 + self.correction)
        zero = value.new_zeros(value.shape)
        return (zero, value * 2, count) if self.part == 0 else (value, zero, count)


@attrs.frozen
class TopK(PackedPlacement):
    """The largest f32 values of each row of a matrix, and their columns."""

    text: ClassVar[str] = "TopK({part})"
    parts: ClassVar[tuple[str, ...]] = ("values", "indices")
    rules: ClassVar[str] = """
aten.topk: (S(dim)) -> (TopK(0), TopK(1))    when dtype(self) == f32 and largest and dim == -1
    local
    values, own = aten.topk(self, k, dim, largest, sorted)
    state = (values, aten.add.Scalar(own, offset(dim)))
    return TopK.pack(state), TopK.pack(state)
"""
    part: int

    def supports(self, dtype: Any) -> bool:
        return dtype.name == ("i64" if self.part else "f32")

    def slices(self, dim: int) -> bool:
        return dim == 0

    def types(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return [(shape, "f32"), (shape, "i64")]

    def identity(self, *like: Any) -> Any:
        values, indices = like
        return values.new_full(values.shape, -INFINITY), indices.new_zeros(indices.shape)

    def combine(self, left: Any, right: Any) -> Any:
        both, columns = torch.cat([left[0], right[0]], -1), torch.cat([left[1], right[1]], -1)
        values, at = both.topk(left[0].shape[-1], -1)
        return values, columns.gather(-1, at)


@attrs.frozen
class Decoded(PackedPlacement):
    """What queries find among some of the keys, and the logarithm of the sum of the weights there."""

    text: ClassVar[str] = "Decoded({part}, {width})"
    examples: ClassVar[tuple[str, ...]] = ("Decoded(1, 8)",)
    parts: ClassVar[tuple[str, ...]] = ("out", "lse")
    rules: ClassVar[str] = """
aten._scaled_dot_product_flash_attention_for_cpu: (R, S(s), S(s)) -> (Decoded(0, count(e)), Decoded(1, count(e)))    when is_causal == false and given(attn_mask) == false and dropout_p == 0
    local
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, false, scale=scale)
    state = (out, lse)
    return Decoded.pack(state), Decoded.pack(state)
"""  # noqa: E501
    part: int
    width: int = 1

    def supports(self, dtype: Any) -> bool:
        return _floats(dtype)

    def check(self, shape: tuple[int, ...], count: int) -> None:
        if len(shape) != 4 - self.part:
            raise SpmdirError(f"{self} is of a tensor of {4 - self.part} dimensions, found {list(shape)}")

    def slices(self, dim: int) -> bool:
        return dim < 3

    def types(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return [((*shape[:3], self.width), dtype), (shape[:3], dtype)]

    def identity(self, *like: Any) -> Any:
        out, lse = like
        return out.new_zeros(out.shape), lse.new_full(lse.shape, -INFINITY)

    def combine(self, left: Any, right: Any) -> Any:
        top = _finite(left[1].maximum(right[1]))
        weights = [(lse - top).exp() for _, lse in (left, right)]
        total = weights[0] + weights[1]
        out = sum(weight.unsqueeze(-1) * own for weight, (own, _) in zip(weights, (left, right), strict=True))
        return out / total.where(total > 0, 1).unsqueeze(-1), top + total.log()


@attrs.frozen
class AttendedAlong(Decoded):
    """The same, of which states go apart along the first `lead` dimensions."""

    text: ClassVar[str] = "AttendedAlong({part}, {width}, {lead})"
    examples: ClassVar[tuple[str, ...]] = ("AttendedAlong(1, 8, 2)",)
    rules: ClassVar[str] = Decoded.rules.replace("Decoded", "AttendedAlong").replace("count(e))", "count(e), 2)")
    lead: int = 0

    def slices(self, dim: int) -> bool:
        return dim < self.lead


@attrs.frozen
class Chosen(PackedPlacement):
    """Two sums, of which the second op result has another state on the ranks that have keys."""

    text: ClassVar[str] = "Chosen({part})"
    parts: ClassVar[tuple[str, ...]] = ("out", "lse")
    rules: ClassVar[str] = """
aten._scaled_dot_product_flash_attention_for_cpu: (R, S(2), S(2)) -> (Chosen(0), Chosen(1))    when count(l) == 4 and count(s) == 5
    local
    out = aten.add.Tensor(query, aten.sum.dim_IntList(key, [2], true))
    lse = aten.select.int(out, 3, 0)
    other = lse
    ring s: value
        unused = aten.neg(value)
    other = aten.neg(lse) if size(s)
    one = (out, lse)
    two = (out, other)
    return Chosen.pack(one), Chosen.pack(two)
"""  # noqa: E501
    part: int

    def supports(self, dtype: Any) -> bool:
        return _floats(dtype)

    def slices(self, dim: int) -> bool:
        return dim < 3

    def types(self, shape: tuple[int, ...], dtype: Any) -> Any:
        out = shape if self.part == 0 else (*shape, 16)
        return [(out, dtype), (out[:-1], dtype)]

    def identity(self, *like: Any) -> Any:
        return tuple(part.new_zeros(part.shape) for part in like)

    def combine(self, left: Any, right: Any) -> Any:
        return left[0] + right[0], left[1] + right[1]
