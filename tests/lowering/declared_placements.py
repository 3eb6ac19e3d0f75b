"""Placements as plug-ins declare them, for tests of what is lowered for any of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs
import torch

from spmdir.core.dtype import F32, F64, DType
from spmdir.core.errors import ShardingError
from spmdir.core.intervals import Ranges, chunk, joined
from spmdir.core.placement.base import Edge, LocalType, Noise, PartialPlacement, Placement
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.shards import ShardPlacement


@attrs.frozen
class Dealt(ShardPlacement):
    """Blocks dealt to the ranks in turn."""

    text: ClassVar[str] = "Dealt({dim}, {block})"
    dim: int
    block: int = attrs.field(validator=attrs.validators.ge(1))

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        starts = range(index * self.block, size, count * self.block)
        return joined((start, min(start + self.block, size)) for start in starts)


@attrs.frozen
class Backwards(ShardPlacement):
    """The last rank holds the first elements, and each holds its own from the last to the first: one rank alone too."""

    text: ClassVar[str] = "Backwards({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        offset, length = chunk(size, count, count - 1 - index)
        return joined((at, at + 1) for at in reversed(range(offset, offset + length)))


@attrs.frozen
class Steep(ShardPlacement):
    """Each rank holds half of what is left, the last one all of it."""

    text: ClassVar[str] = "Steep({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        start = 0
        for _ in range(index):
            start += (size - start) // 2
        return ((start, size if index == count - 1 else start + (size - start) // 2),)


@attrs.frozen
class Root(PartialPlacement):
    """The value is the root of the sum of squares."""

    text: ClassVar[str] = "Root({scale})"
    scale: float

    def before(self, piece: Any) -> Any:
        return (piece * self.scale) ** 2

    def after(self, reduced: Any, count: int) -> Any:
        return reduced.sqrt() / self.scale

    def supports(self, dtype: DType) -> bool:
        return dtype in (F32, F64)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return [tensor / count**0.5 for _ in range(count)]


@attrs.frozen
class First(Placement):
    """The first rank holds the value, the others none of it."""

    text: ClassVar[str] = "First"

    def check(self, shape: tuple[int, ...], count: int) -> None:
        if not shape:
            raise ShardingError("First leaves ranks without rows; expected a tensor of at least one dimension")

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        return (shape if index == 0 else (0, *shape[1:])), dtype

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return [tensor.clone(), *(tensor[:0].clone() for _ in range(count - 1))]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        return shards[0]

    def edges(self) -> Iterable[Edge]:
        yield Edge(_spread, target="R", by="all_gather")
        yield Edge(lambda x, group: x[: None if group.index == 0 else 0].clone(), source="R")


def _spread(x: Any, group: Any) -> Any:
    return group.broadcast(x if group.index == 0 else x.new_empty(group.shape), 0)


@attrs.frozen
class Thirds(PartialPlacement):
    """A pending sum of thirds of the value, in steps of its own to whatever divides a dimension."""

    text: ClassVar[str] = "Thirds"
    identity = None
    splits: ClassVar[bool] = False

    def before(self, piece: Any) -> Any:
        return piece.mul_(3)

    def supports(self, dtype: DType) -> bool:
        return dtype in (F32, F64)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return [tensor / 3, *(tensor.new_zeros(tensor.shape) for _ in range(count - 1))]

    def edges(self) -> Iterable[Edge]:
        yield Edge(_scattered, target="shard", by="all_to_all")
        yield Edge(lambda x, group: x * 3, target="P(sum)")
        yield Edge(lambda x, group: x / (3 * group.size), source="R")


def _scattered(x: Any, group: Any) -> Any:
    rows = group.all_to_all(group.split(x))
    weights = torch.tensor([3] * group.size) + torch.arange(group.size) * 0
    return group.keep((rows * weights.reshape(-1, *(1 for _ in x.shape))).sum(0))


@attrs.frozen
class GatheredSum(PartialPlacement):
    """A partial sum that is gathered instead of reduced."""

    text: ClassVar[str] = "GatheredSum"

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(lambda x, group: group.all_gather(x).sum(0), target="R", by="all_gather")


@attrs.frozen
class Linear(PartialPlacement):
    """A partial sum whose sub-axes are not said to be one axis."""

    text: ClassVar[str] = "Linear"
    splits: ClassVar[bool] = False


@attrs.frozen
class Stable(PackedPlacement):
    """A logarithm of a sum of exponentials, as the largest exponent and the sum of what remains."""

    text: ClassVar[str] = "Stable"
    parts: ClassVar[tuple[str, ...]] = ("most", "sum")
    results: ClassVar[tuple[str, ...]] = ("value",)

    def supports(self, dtype: DType) -> bool:
        return dtype in (F32, F64)

    def start(self, value: Any) -> Sequence[Any]:
        return value, torch.ones_like(value)

    def identity(self, *like: Any) -> Sequence[Any]:
        return torch.full_like(like[0], -1e300), torch.zeros_like(like[1])

    def combine(self, left: Sequence[Any], right: Sequence[Any]) -> Sequence[Any]:
        most = left[0].maximum(right[0])
        return most, left[1] * (left[0] - most).exp() + right[1] * (right[0] - most).exp()

    def finish(self, state: Sequence[Any]) -> Sequence[Any]:
        return (state[0] + state[1].log(),)
