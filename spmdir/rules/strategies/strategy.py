"""One way to run an op on the ranks of one mesh axis, and what it must know of the other axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from spmdir.core.html_text import ShownAsText
from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.standard import Placement, Shard
from spmdir.rules.language.syntax_tree import TextStrategy

_S = Shard(0)


@attrs.frozen(cache_hash=True)
class Strategy(ShownAsText):
    """One way to run an op on the ranks of one mesh axis.

    Attributes:
        operands: the placement of each tensor operand, flat.
        results: the placement of each result that this gives; R for an absent one.
        factors: the factors that are sharded; those of a strategy that follows from a rule are one or none.
        rewrite: "expand" or "local" when the op must be replaced as its rule says, see OpRule.
        factor_placements: how each of the factors is sharded where that is not by S, as where a plug-in takes its
            place; each has `dim` 0.
        text: the text that declares it, if it is none that follows from the rule.
        inner_bytes: (bytes, factors) of the values that it all-reduces inside the op, in the search.
        sent_bytes: (bytes, factors) of what a rank sends inside the op, one collective each, in the search.
        partition: by which placement the first of the factors is sharded, and its elements, in the search; None if
            none is.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factors: tuple[int, ...] = ()
    rewrite: str | None = None
    factor_placements: tuple[Placement, ...] = ()
    text: TextStrategy | None = None
    inner_bytes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    sent_bytes: tuple[tuple[int, tuple[int, ...]], ...] = ()
    partition: tuple[ShardPlacement, int] | None = None

    @cached_property
    def kinds(self) -> tuple[str | None, ...]:
        """Return the kind of the partial value that each operand and result is, None if it is not; () if none is."""
        kinds = tuple([placement.kind for placement in (*self.operands, *self.results)])
        return kinds if any(kinds) else ()

    def placement_of(self, factor: int) -> Placement:
        """Return by which placement, of dimension 0, this strategy shards `factor`, one of its factors."""
        return self.factor_placements[self.factors.index(factor)] if self.factor_placements else _S

    def replaced(self, old: Placement, new: Placement) -> Strategy:
        """Return this strategy with `new` for results placed by `old`."""
        return attrs.evolve(self, results=tuple(new if p == old else p for p in self.results))

    def __str__(self) -> str:
        text = f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"
        return f"{text} {self.rewrite}" if self.rewrite else text


@attrs.frozen(eq=False)
class ShardCounts:
    """The number of shards of each factor of a call over the other mesh axes.

    Attributes:
        all_axes: factor → the number of its shards, for factors that are sharded at all.
        by_plugins: factor → (placement, number of ranks) of those of the axes that shard it by a plug-in.
        by_texts: factor → the strategy, written as text, that shards it.
    """

    all_axes: Mapping[int, int] = {}
    by_plugins: Mapping[int, tuple[tuple[Placement, int], ...]] = {}
    by_texts: Mapping[int, TextStrategy] = {}

    def of(self, factor: int) -> int:
        """Return the number of shards of `factor`; 1 where it is not sharded."""
        return self.all_axes.get(factor, 1)

    def by_s(self, factor: int) -> int:
        """Return the number of shards of `factor` by those of the axes that shard it by S."""
        return self.of(factor) // math.prod(count for _, count in self.by_plugins.get(factor, ()))

    def over(self, other: ShardCounts) -> ShardCounts:
        """Return these counts, with those of `other` for factors that these do not shard."""
        return ShardCounts(
            {**other.all_axes, **self.all_axes},
            {**other.by_plugins, **self.by_plugins},
            {**other.by_texts, **self.by_texts},
        )

    def without_plugins_of(self, factors: Iterable[int]) -> ShardCounts:
        """Return these counts with `factors` sharded as if by S alone."""
        plugins = {factor: n for factor, n in self.by_plugins.items() if factor not in factors}
        return ShardCounts(self.all_axes, plugins, self.by_texts)

    def seen_from(self, outer: Mapping[int, int]) -> ShardCounts:
        """Return the counts for an op whose factors are those of this one by `outer`."""
        return ShardCounts(
            {inner: self.all_axes[f] for inner, f in outer.items() if f in self.all_axes},
            {inner: self.by_plugins[f] for inner, f in outer.items() if f in self.by_plugins},
        )

    @property
    def key(self) -> object:
        """Equal for equal counts."""
        if not self.by_plugins and not self.by_texts:
            return tuple(sorted(self.all_axes.items()))
        by_texts = frozenset(self.by_texts.items()) if self.by_texts else ()
        return tuple(sorted(self.all_axes.items())), frozenset(self.by_plugins.items()), by_texts


UNSHARDED = ShardCounts()
"""No other axis shards anything."""


def shard_counts(strategies: Iterable[tuple[Strategy, int]]) -> ShardCounts:
    """Return the counts for (strategy, number of ranks) of each mesh axis."""
    every: dict[int, int] = {}
    plugins: dict[int, tuple[tuple[Placement, int], ...]] = {}
    texts: dict[int, TextStrategy] = {}
    for strategy, count in strategies:
        for at, factor in enumerate(strategy.factors) if count > 1 else ():
            every[factor] = every.get(factor, 1) * count
            if strategy.factor_placements:
                plugins[factor] = (*plugins.get(factor, ()), (strategy.factor_placements[at], count))
            if strategy.text is not None:
                texts[factor] = strategy.text
    return ShardCounts(every, plugins, texts) if every else UNSHARDED
