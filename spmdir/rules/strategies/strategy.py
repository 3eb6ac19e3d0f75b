"""Strategies of an op on one mesh axis, and the shard counts of its factors on the other axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from spmdir.core.html_text import ShownAsText
from spmdir.core.placement.shards import ShardPlacement
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.language.syntax_tree import TextStrategy

_S = Shard(0)


EXCHANGES = ("spmd.exchange_counts", "spmd.exchange_rows", "spmd.exchange_slots")
"""Ops of local forms that send parts of a tensor to the ranks along all axes with the strategy together."""


@attrs.frozen
class SentTensor:
    """A tensor that a rank sends inside an op.

    Attributes:
        op: the op of the local form that sends it, such as `spmd.rotate`.
        bytes: its size, if only the axis of the strategy shards it.
        factors: the factors by which further axes may shard it.
    """

    op: str
    bytes: int
    factors: tuple[int, ...]

    def sent_bytes(self, sharded: ShardCounts, ranks: int) -> float:
        """Return the bytes that a rank sends in a group of `ranks`, where further axes shard factors as in `sharded`.

        A rank keeps its own part of an exchange.
        """
        local_bytes = self.bytes / math.prod(map(sharded.of, self.factors))
        return local_bytes * (ranks - 1) / ranks if self.op in EXCHANGES else local_bytes


@attrs.frozen(cache_hash=True)
class Strategy(ShownAsText):
    """One way to run an op on the ranks of one mesh axis.

    Attributes:
        operands: the placement of each tensor operand; lists of tensors are flattened.
        results: the placement of each result; R for an absent result.
        factors: the sharded factors. A strategy that is derived from a rule has at most one.
        rewrite: "expand" or "local" if the op must be replaced by that clause of its rule, "split" if a matrix product
            is split into the steps of a ring, else None. See OpRule.
        factor_placements: for each of `factors`, the placement that shards it, such as S(0) or Cyclic(0). Its `dim` is
            0 for any dimension. If this tuple is empty, S shards all factors.
        text: the strategy as text, if it was declared as text.
        inner_bytes: for the search, one pair (bytes, factors) for each value that is all-reduced inside the op: its
            size if only the axis of the strategy is sharded, and the factors by which further axes may shard it.
            Halos of windows count as such values.
        sent: for the search, the tensors that a rank sends inside the op, one collective each.
        partition: for the search, the placement and the size of the first sharded factor; None if no factor is sharded.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factors: tuple[int, ...] = ()
    rewrite: str | None = None
    factor_placements: tuple[Placement, ...] = ()
    text: TextStrategy | None = None
    inner_bytes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    sent: tuple[SentTensor, ...] = ()
    partition: tuple[ShardPlacement, int] | None = None

    @cached_property
    def kinds(self) -> tuple[str | None, ...]:
        """The kind of each partial operand and result, None for the others; () if there are no partial values."""
        kinds = tuple([placement.kind for placement in (*self.operands, *self.results)])
        return kinds if any(kinds) else ()

    def placement_of(self, factor: int) -> Placement:
        """Return the placement, with `dim` 0, by which this strategy shards `factor`, one of its factors."""
        return self.factor_placements[self.factors.index(factor)] if self.factor_placements else _S

    def replaced(self, old: Placement, new: Placement) -> Strategy:
        """Return a copy of this strategy in which results with placement `old` have placement `new`."""
        return attrs.evolve(self, results=tuple(new if placement == old else placement for placement in self.results))

    def __str__(self) -> str:
        text = f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"
        return f"{text} {self.rewrite}" if self.rewrite else text


@attrs.frozen(eq=False)
class ShardCounts:
    """The number of shards of each factor of a call over the other mesh axes.

    Attributes:
        all_axes: factor → the number of its shards; only sharded factors are listed.
        by_plugins: factor → (placement, number of ranks) of each axis that shards it by a plug-in placement.
        by_texts: factor → the text strategy that shards it.
    """

    all_axes: Mapping[int, int] = {}
    by_plugins: Mapping[int, tuple[tuple[Placement, int], ...]] = {}
    by_texts: Mapping[int, TextStrategy] = {}

    def of(self, factor: int) -> int:
        """Return the number of shards of `factor`; 1 if it is not sharded."""
        return self.all_axes.get(factor, 1)

    def by_s(self, factor: int) -> int:
        """Return the number of shards of `factor` over the axes that shard it by S."""
        return self.of(factor) // math.prod(count for _, count in self.by_plugins.get(factor, ()))

    def with_fallback(self, fallback: ShardCounts) -> ShardCounts:
        """Return these counts, completed by those of `fallback` for factors that are not sharded here."""
        return ShardCounts(
            {**fallback.all_axes, **self.all_axes},
            {**fallback.by_plugins, **self.by_plugins},
            {**fallback.by_texts, **self.by_texts},
        )

    def without_plugins_of(self, factors: Iterable[int]) -> ShardCounts:
        """Return these counts as if all axes sharded `factors` by S."""
        plugins = {factor: shards for factor, shards in self.by_plugins.items() if factor not in factors}
        return ShardCounts(self.all_axes, plugins, self.by_texts)

    def for_inner_op(self, outer: Mapping[int, int]) -> ShardCounts:
        """Return the counts for an op inside an expansion. Text strategies are left out: they do not expand an op.

        Args:
            outer: factor of that op → factor of the expanded op.
        """
        return ShardCounts(
            {inner: self.all_axes[factor] for inner, factor in outer.items() if factor in self.all_axes},
            {inner: self.by_plugins[factor] for inner, factor in outer.items() if factor in self.by_plugins},
        )

    @property
    def key(self) -> object:
        """A hashable key; equal counts have equal keys."""
        if not self.by_plugins and not self.by_texts:
            return tuple(sorted(self.all_axes.items()))
        by_texts = frozenset(self.by_texts.items()) if self.by_texts else ()
        return tuple(sorted(self.all_axes.items())), frozenset(self.by_plugins.items()), by_texts


UNSHARDED = ShardCounts()
"""The counts if the other axes shard no factor."""


def shard_counts(strategies: Iterable[tuple[Strategy, int]]) -> ShardCounts:
    """Return the counts for mesh axes, each with its strategy and number of ranks."""
    all_axes: dict[int, int] = {}
    by_plugins: dict[int, tuple[tuple[Placement, int], ...]] = {}
    by_texts: dict[int, TextStrategy] = {}
    for strategy, count in strategies:
        if count == 1:  # one rank shards nothing
            continue
        for index, factor in enumerate(strategy.factors):
            all_axes[factor] = all_axes.get(factor, 1) * count
            if strategy.factor_placements:
                by_plugins[factor] = (*by_plugins.get(factor, ()), (strategy.factor_placements[index], count))
            if strategy.text is not None:
                by_texts[factor] = strategy.text
    return ShardCounts(all_axes, by_plugins, by_texts) if all_axes else UNSHARDED
