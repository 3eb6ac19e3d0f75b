"""Lossy placements as plug-ins may declare them: they round to multiples of four, so sums of integers stay exact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs
import torch

from spmdir.core.dtype import DType
from spmdir.core.intervals import Ranges
from spmdir.core.placement.base import Edge, LocalType, Noise, PartialPlacement, Placement
from spmdir.core.placement.error_bound import UNKNOWN, ErrorBound
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Partial, S

ROUNDING = ("Coarse", "CoarseRows", "CoarseSum")
"""The placements with steps that round."""


def coarse(x: Any) -> Any:
    """Return `x` rounded to multiples of four: what a value is once it has had one of these placements."""
    return (x / 4).round() * 4


def _pack(x: Any) -> Any:
    return coarse(x).to(torch.int64)


@attrs.frozen
class Coarse(Placement):
    """Every rank holds all elements, as integers; the loss is on the way in."""

    text: ClassVar[str] = "Coarse"
    error: ClassVar[ErrorBound] = UNKNOWN
    rounds: ClassVar[bool] = True

    def supports(self, dtype: DType) -> bool:
        return dtype.name == "f64"

    def keeps(self, dim: int | None) -> bool:
        return dim is not None

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        return shape, "i64"  # type: ignore[return-value]  # a name is read

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return [_pack(tensor) for _ in range(count)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        return shards[0]

    def edges(self) -> Iterable[Edge]:
        yield Edge(self._gather, source="S(0)", by="all_gather")
        yield Edge(lambda x, group: _pack(x), source="R")
        yield Edge(lambda x, group: x.to(group.dtype), target="R")

    def _gather(self, x: Any, group: Any) -> Any:
        return _gathered(_pack(x), group)


@attrs.frozen
class CoarseRows(Placement):
    """Rows as of `S(0)`, as integers; the loss is on the way in."""

    text: ClassVar[str] = "CoarseRows"
    error: ClassVar[ErrorBound] = UNKNOWN
    rounds: ClassVar[bool] = True

    def supports(self, dtype: DType) -> bool:
        return dtype.name == "f64"

    def keeps(self, dim: int | None) -> bool:
        return dim not in (None, 0)

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        rows = sum(end - start for start, end in S(0).ranges(shape[0], count, index))
        return (rows, *shape[1:]), "i64"  # type: ignore[return-value]  # a name is read

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return [_pack(rows) for rows in S(0).distribute(tensor, count, noise)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        return torch.cat([*shards])

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: _pack(x), source="S(0)")
        yield Edge(lambda x, group: x.to(group.dtype), target="S(0)")
        yield Edge(lambda x, group: _gathered(x, group).to(group.dtype), target="R", by="all_gather")


@attrs.frozen
class CoarseShard(ShardPlacement):
    """Shards as of `S(dim)`, which collectives that name axes move, and which may be off."""

    text: ClassVar[str] = "CoarseShard({dim})"
    error: ClassVar[ErrorBound] = UNKNOWN
    splits: ClassVar[bool] = True
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        return S(0).ranges(size, count, index)


@attrs.frozen
class CoarseSum(PartialPlacement):
    """A partial sum of which each rank sends multiples of four; the loss is on the way out."""

    text: ClassVar[str] = "CoarseSum"
    error: ClassVar[ErrorBound] = UNKNOWN

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        return Partial("sum").passes(clause, reductions)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return Partial("sum").distribute(tensor, count, noise)

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(lambda x, group: group.all_gather(coarse(x)).sum(0), target="R", by="all_gather")
        yield Edge(self._scatter, target="shard", by="all_to_all")

    def _scatter(self, x: Any, group: Any) -> Any:
        return group.keep(group.all_to_all(group.split(coarse(x))).sum(0))


def _gathered(x: Any, group: Any) -> Any:
    rows = group.shape[0]
    padded = x.new_zeros(-(-rows // group.size), *x.shape[1:])
    padded[: len(x)] = x
    return group.all_gather(padded).flatten(0, 1)[:rows]
