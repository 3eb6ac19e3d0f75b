"""`Padded(d)`: shards of equal length. Shorter shards are padded.

Dimension d is sharded as by `S(d)`. Shards that are shorter than the first one, ⌈size / ranks⌉, have padding at the
end. FSDP and kernels of fixed sizes require such shards. Two ranks have these of seven rows:

    rank 0: 0 1 2 3     rank 1: 4 5 6 ·

The contents of the padding are undefined: it starts as zeros, and ops change it. So only pointwise ops, and
contractions and views that keep the dimension, accept a padded operand. A sum over the dimension would include the
padding. Integer tensors are not padded: an index or a divisor in the padding could be invalid.

Several axes may pad one dimension: the inner axis shards the padded shard of the outer one. A conversion between `S(d)`
and `Padded(d)` sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import DType
from spmdir.core.errors import ShardingError
from spmdir.core.intervals import Ranges, chunk
from spmdir.core.placement.base import Edge, LocalType, Noise, Placement, parse_placement
from spmdir.core.placement.standard import R, Shard


@attrs.frozen
class Padded(Placement):
    """Rank i has chunk i of dimension `along`, as of `torch.chunk`, padded to the length of the first chunk."""

    text: ClassVar[str] = "Padded({along})"
    along: int = attrs.field(validator=attrs.validators.ge(0))

    @property
    def kind(self) -> None:
        return None

    def check(self, shape: tuple[int, ...], count: int) -> None:
        if self.along >= len(shape):
            raise ShardingError(
                f"{self} pads dimension {self.along} of a tensor of {len(shape)} dimensions; "
                f"expected a dimension below {len(shape)}"
            )

    def supports(self, dtype: DType) -> bool:
        return dtype.is_inexact

    def keeps(self, dim: int | None) -> bool:
        return dim != self.along

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        return (*shape[: self.along], -(-shape[self.along] // count), *shape[self.along + 1 :]), dtype

    def held_ranges(self, shape: tuple[int, ...], count: int, index: int) -> Mapping[int, Ranges]:
        start, length = chunk(shape[self.along], count, index)
        return {self.along: ((start, start + length),)}

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        chunks = (chunk(tensor.shape[self.along], count, index) for index in range(count))
        shape = self.local_type(tuple(tensor.shape), None, count, 0)[0]  # type: ignore[arg-type]
        return [self._pad(tensor.narrow(self.along, start, length), shape) for start, length in chunks]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        tensor = shards[0].new_empty(shape)
        for index, shard in enumerate(shards):
            start, length = chunk(shape[self.along], len(shards), index)
            tensor.narrow(self.along, start, length).copy_(shard.narrow(self.along, 0, length))
        return tensor

    def edges(self) -> Iterable[Edge]:
        yield Edge(lambda x, group: x.narrow(self.along, 0, group.shape[self.along]), target=f"S({self.along})")
        yield Edge(lambda x, group: self._pad(x, group.shape), source=f"S({self.along})")
        yield Edge(self._gather, target="R", by="all_gather")
        yield Edge(self._slice, source="R")

    def lift(self, rule: Any, strategies: Sequence[Any]) -> Iterable[Any]:
        for strategy in strategies:
            padded = self._pad_strategy(strategy)
            if self in (*padded.operands, *padded.results) and _ignores_padding(rule, strategy):
                yield padded

    def _gather(self, x: Any, group: Any) -> Any:
        """Gather the padded shards `x`, and drop the padding at the end."""
        together = group.all_gather(x).movedim(0, self.along).flatten(self.along, self.along + 1)
        return together.narrow(self.along, 0, group.shape[self.along])

    def _slice(self, x: Any, group: Any) -> Any:
        """Return the padded shard of this rank of the replicated tensor `x`."""
        start, length = chunk(x.shape[self.along], group.size, group.index)
        return self._pad(x.narrow(self.along, start, length), group.shape)

    def _pad(self, x: Any, shape: Sequence[int]) -> Any:
        """Return `x`, padded with zeros to `shape` along the sharded dimension."""
        padded = x.new_zeros(shape)
        padded.narrow(self.along, 0, x.shape[self.along]).copy_(x)
        return padded

    def _pad_strategy(self, strategy: Any) -> Any:
        """Return `strategy` with `Padded(d)` in place of each `S(d)`."""

        def pad_all(placements: Sequence[Placement]) -> tuple[Placement, ...]:
            return tuple(
                parse_placement(f"Padded({placement.dim})") if isinstance(placement, Shard) else placement
                for placement in placements
            )

        return attrs.evolve(strategy, operands=pad_all(strategy.operands), results=pad_all(strategy.results))


def _ignores_padding(rule: Any, strategy: Any) -> bool:
    """Return whether padding along the sharded factor of `strategy` does not change the other elements of the results.

    The op must compute each position along the factor from the same position of its operands, for any values there.
    Ops with unsharded dimensions, such as factorisations, are excluded: they may fail for the values in the padding.
    """
    if strategy.rewrite or len(strategy.factors) != 1:
        return False
    placements = (*strategy.operands, *strategy.results)
    if not all(isinstance(placement, Shard) or placement == R for placement in placements):
        return False
    (factor,) = strategy.factors
    if rule.neighbours(factor) or rule.layout.windows.get(factor) or rule.factors[factor].least_elements > 1:
        return False
    factors_of_operands = set().union(*(factors for dims in rule.operand_dims for factors in dims))
    factors_of_results = []
    for dims in rule.result_dims:
        if dims is not None:
            factors_of_results.append(set().union(*dims))
    is_elementwise = all(factors_of_operands <= factors for factors in factors_of_results) and not any(
        rule.active("unsharded")
    )
    is_kept = all(factor in factors for factors in factors_of_results)
    return is_kept and (is_elementwise or rule.is_view or rule.contracts)
