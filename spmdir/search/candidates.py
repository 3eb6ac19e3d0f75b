"""The strategies among which the search of one axis chooses: those compatible with the axes decided before."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, shard_counts
from spmdir.search.edge_costs import EdgeCosts
from spmdir.search.problem import Node, NodeStrategy, local_seconds
from spmdir.search.repeats import Quotient


@attrs.frozen
class Candidate:
    """A strategy with placements as indices and its price, compute included, in seconds."""

    strategy: NodeStrategy
    operands: tuple[int, ...]
    results: tuple[int, ...]
    cost: float


class Unsolvable(Exception):
    """A node has no strategy on an axis.

    Attributes:
        node: its index in the problem.
        axis: the mesh axis.
    """

    def __init__(self, node: int, axis: str):
        super().__init__(f"node {node} has no strategy on axis {axis}")
        self.node, self.axis = node, axis


def candidates_of(
    mesh: Mesh,
    shared: Quotient,
    axis: str,
    others: Mapping[str, Sequence[NodeStrategy]],
    fixed: Collection[str],
    edges: EdgeCosts,
) -> list[list[Candidate]]:
    """Return the candidates of each distinct node on `axis`; the arguments are those of `AxisSearch`.

    Raises:
        Unsolvable: a node has none.
    """
    finder = _Finder(mesh, shared, axis, others, fixed, edges)
    return _without_idle(shared, [finder.of(index, node) for index, node in enumerate(shared.nodes)], finder.kind)


def _without_idle(
    shared: Quotient, candidates: list[list[Candidate]], kind: Sequence[str | None]
) -> list[list[Candidate]]:
    """Return `candidates` without those that only pass on partial values, where no node makes any of these."""
    partial: list[set[int]] = [set() for _ in shared.values]

    def is_idle(index: int, candidate: Candidate) -> bool:
        if candidate.strategy.factors or all(kind[placement] is None for placement in candidate.operands):
            return False
        return not any(candidate.operands[slot] in partial[value] for slot, value in shared.uses[index])

    changed = True
    while changed:
        changed = False
        for index, node in enumerate(shared.nodes):
            for candidate in candidates[index]:
                if len(candidates[index]) > 1 and is_idle(index, candidate):
                    continue
                for value, placement in zip(node.results, candidate.results, strict=True):
                    if kind[placement] is not None and placement not in partial[value]:
                        partial[value].add(placement)
                        changed = True
    return [[c for c in found if not is_idle(index, c)] or found for index, found in enumerate(candidates)]


class _Finder:
    def __init__(
        self,
        mesh: Mesh,
        shared: Quotient,
        axis: str,
        others: Mapping[str, Sequence[NodeStrategy]],
        fixed: Collection[str],
        edges: EdgeCosts,
    ):
        self.mesh, self.shared, self.axis, self.others, self.edges = mesh, shared, axis, others, edges
        self.count = mesh.sizes[axis]
        self.kind, self.index = edges.catalogue.kind, edges.catalogue.index
        self.fixed = {other: strategies for other, strategies in others.items() if other in fixed}
        self.plugin_sharded = [
            other
            for other, strategies in self.fixed.items()
            if any(strategy.factor_placements for strategy in strategies)
        ]

    def of(self, index: int, node: Node) -> list[Candidate]:
        """Return the strategies compatible with those of the fixed axes; if there are none, all of them."""
        sharded = shard_counts((strategies[index], self.mesh.sizes[axis]) for axis, strategies in self.fixed.items())
        return self._strategies(index, node, sharded, True) or self._strategies(index, node, UNSHARDED, False)

    def _strategies(self, index: int, node: Node, sharded: ShardCounts, strict: bool) -> list[Candidate]:
        beside = [strategies[index] for strategies in self.others.values()]
        found = []
        for strategy in node.source.strategies(self.axis, self.count, sharded):
            operands = tuple([self.index.get(p, -1) for p in strategy.operands])
            results = tuple([self.index.get(p, -1) for p in strategy.results])
            if -1 in operands or -1 in results:
                continue
            if strict and (
                self._mixes(index, operands, results) or not self._keeps_plugin_strategies(index, node, strategy)
            ):
                continue
            inner = 0.0
            for size, factors in strategy.inner_bytes:
                shards = math.prod(sharded.of(f) for f in factors)
                inner += self.edges.all_reduce(size / shards)
            for size, factors in strategy.sent_bytes:
                inner += self.edges.send(size / math.prod(sharded.of(f) for f in factors))
            work = local_seconds(node.source.work, self.shared.topology, [strategy, *beside])
            cost = (work + inner + self._held(node, [strategy, *beside])) * self.shared.weight[index]
            found.append(Candidate(strategy, operands, results, cost))
        if not found and not strict:
            raise Unsolvable(self.shared.first[index], self.axis)
        return found

    def _held(self, node: Node, strategies: Sequence[NodeStrategy]) -> float:
        """Return what holding the results of a node is worth, by its strategy on this axis and the others."""
        if not self.shared.holding:
            return 0.0
        counts = [self.count, *(self.mesh.sizes[axis] for axis in self.others)]
        return sum(
            self.shared.holding[value]
            * self.shared.values[value].bytes
            / math.prod(n for s, n in zip(strategies, counts, strict=True) if s.results[position].dim is not None)
            for position, value in enumerate(node.results)
        )

    def _keeps_plugin_strategies(self, index: int, node: Node, strategy: NodeStrategy) -> bool:
        """Return whether the fixed strategies of plug-in placements, which depend on the other axes, remain legal."""
        for axis in self.plugin_sharded:
            fixed = self.fixed[axis][index]
            if not fixed.factor_placements:
                continue
            beside = [
                (strategies[index], self.mesh.sizes[other]) for other, strategies in self.fixed.items() if other != axis
            ]
            sharded = shard_counts([(strategy, self.count), *beside])
            if fixed not in node.source.strategies(axis, self.mesh.sizes[axis], sharded):
                return False
        return True

    def _mixes(self, index: int, operands: tuple[int, ...], results: tuple[int, ...]) -> bool:
        """Return whether a strategy would mix kinds of partial values on one value."""
        for which, placed in (("operands", operands), ("results", results)):
            for position, placement in enumerate(placed):
                kind = self.kind[placement]
                if kind is None:
                    continue
                for strategies in self.fixed.values():
                    other = self.kind[self.index[getattr(strategies[index], which)[position]]]
                    if other is not None and other != kind:
                        return True
        return False
