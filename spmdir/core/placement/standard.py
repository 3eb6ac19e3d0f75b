"""The standard placements: replicated, shard, partial, and open.

They are declared as any other placement is, see `spmdir.core.placement.base`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import DType
from spmdir.core.errors import ShardingError, wrong_argument
from spmdir.core.intervals import Ranges, Run, chunk, chunk_runs
from spmdir.core.placement.base import Edge, Noise, PartialPlacement, Placement, parse_placement
from spmdir.core.placement.reductions import REDUCTIONS, average_divisors, reductions_of
from spmdir.core.placement.shards import ShardPlacement

__all__ = [
    "OPEN",
    "Open",
    "P",
    "Partial",
    "Placement",
    "R",
    "Replicate",
    "S",
    "Shard",
    "chunk",
    "parse_placement",
    "plugins",
]


@attrs.frozen(cache_hash=True)
class Replicate(Placement):
    """`R`: every rank has the complete value."""

    text: ClassVar[str] = "R"
    trait: ClassVar[str] = "replicated"
    splits: ClassVar[bool] = True

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return [tensor.clone() for _ in range(count)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        return shards[0]


@attrs.frozen(cache_hash=True)
class Shard(ShardPlacement):
    """`S(d)`: rank i has chunk i of dimension d, as `torch.chunk` makes them.

    Attributes:
        dim: the dimension, from 0 on.
    """

    text: ClassVar[str] = "S({dim})"
    splits: ClassVar[bool] = True
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        offset, length = chunk(size, count, index)
        return ((offset, offset + length),)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        return chunk_runs(size, count)

    def scaled(self, inner: int) -> Placement | None:
        return self

    def unscaled(self, inner: int) -> Placement | None:
        return self


def _check_reduction_name(_: Any, __: Any, value: str) -> None:
    """Raise an error unless `value` is the name of a reduction: a validator of attrs."""
    if not isinstance(value, str):
        raise wrong_argument("op", value, f"one of {', '.join(REDUCTIONS)}")
    if value not in REDUCTIONS:
        raise ShardingError(f"unknown reduction '{value}' in P({value}); expected one of {', '.join(REDUCTIONS)}")


@attrs.frozen(cache_hash=True)
class Partial(PartialPlacement):
    """`P(op)`: the value is the reduction `op` of the ranks' partial values.

    Attributes:
        op: sum, avg, max, min, product, any or all.
    """

    text: ClassVar[str] = "P({op})"
    op: str = attrs.field(default="sum", validator=_check_reduction_name)

    @property
    def reduce(self) -> str:  # type: ignore[override]
        return "sum" if self.op == "avg" else self.op

    @property
    def kind(self) -> str:
        return self.reduce

    @property
    def identity(self) -> float | None:  # type: ignore[override]
        return REDUCTIONS[self.op].identity

    @property
    def copies(self) -> bool:  # type: ignore[override]
        return REDUCTIONS[self.op].is_idempotent

    def after(self, reduced: Any, count: int) -> Any:
        return reduced / count if self.op == "avg" else reduced

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        if self.op != "avg":
            return super().collect(shards, shape)
        before, after = average_divisors(len(shards))
        return Partial("sum").collect([partial / before for partial in shards], shape) / after

    def passes(self, clause: str, reductions: tuple[str, ...]) -> bool:
        if clause in ("linear", "multilinear"):
            return REDUCTIONS[self.op].is_linear
        return clause in ("moves", "carries") or self.op in reductions

    def edges(self) -> Iterable[Edge]:
        if self.op == "avg":
            yield Edge(lambda x, group: x / group.size, target="P(sum)")
            yield Edge(lambda x, group: x * group.size, source="P(sum)")

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        """Return random partial values that reduce to `tensor`; the value of the last rank corrects the others.

        A maximum or minimum of booleans is distributed as `any` or `all`.
        """
        reduction = REDUCTIONS[self.op]
        if str(tensor.dtype) == "torch.bool" and reduction.of_bool is not None:
            reduction = REDUCTIONS[reduction.of_bool]
        partials, remaining = [], tensor
        for _ in range(count - 1):
            random = noise(tensor)
            if self.op == "avg":
                # Each rank has about the value, because `count` times the value may be infinite.
                partial, remaining = tensor - random, remaining + random
            else:
                partial, remaining = reduction.scatter(remaining, random)
            partials.append(partial)
        return [*partials, remaining]

    def supports(self, dtype: DType) -> bool:
        # The maximum and minimum of booleans are their `any` and `all`.
        return self.op in reductions_of(dtype) or (dtype.is_bool and REDUCTIONS[self.op].of_bool is not None)


@attrs.frozen(cache_hash=True)
class Open(Placement):
    """`?`: left to the compiler; only on inputs and constraints, before propagation."""

    text: ClassVar[str] = "?"
    trait: ClassVar[str] = "open"
    splits: ClassVar[bool] = True


STANDARD = (Replicate, Shard, Partial, Open)
"""The placements that rules are written with; strategies with other placements are derived from these."""


def plugins(placements: Iterable[Placement]) -> tuple[Placement, ...]:
    """Return those of `placements` that are not standard, each once, in order."""
    return tuple(dict.fromkeys(placement for placement in placements if not isinstance(placement, STANDARD)))


R = Replicate()
S = Shard
P = Partial
OPEN = Open()
