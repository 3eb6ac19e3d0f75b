"""What reshards cost in the search: a table of joint placements, the sum over axes of what each axis moves.

A gather moves what the other axes leave of the value for its user; a reduction or an exchange, which comes first, is
smaller if another axis shards the value before or after it. Axes that move together start one collective.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import attrs
import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.collective_spec import Sizes
from spmdir.reshard.cost import NEIGHBOURS, cost, node_count
from spmdir.reshard.topology import Topology
from spmdir.search.catalogue import LARGE
from spmdir.search.joint_cost import value_seconds
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.repeats import Quotient

NEVER = 1e6
"""Seconds that stand for a reshard that there is not: sums with it stay finite."""


@lru_cache(maxsize=256)
def permute_price(count: int, nodes: int, topology: Topology) -> tuple[float, float]:
    """Return the seconds to start to send all that a rank has to another rank, and those a byte."""
    start, large = (cost(NEIGHBOURS, Sizes(count, 0, 0, size), nodes, topology).seconds for size in (0.0, LARGE))
    return start, (large - start) / LARGE


class Prices:
    """The price of resharding any value of a program from one joint placement to another, in seconds."""

    def __init__(self, mesh: Mesh, shared: Quotient, placements: JointPlacements):
        self.mesh, self.placements, self.shared = mesh, placements, shared
        self.counts, catalogue = placements.counts, placements.catalogue
        self._nodes = [node_count((axis,), mesh) for axis in placements.axes]
        self._tables = [
            catalogue.prices(count, nodes, shared.collectives, shared.topology)
            for count, nodes in zip(self.counts, self._nodes, strict=True)
        ]
        self._gathers, self._shards = np.array(catalogue.gathers), np.array(catalogue.shards)
        rows = np.array(placements.all)
        partial = np.array([p.trait == "partial" for p in catalogue.placements])[rows]
        self._start, self._each = np.zeros((len(rows), len(rows))), np.zeros((len(rows), len(rows)))
        shards = self._shards[rows]
        for axis, (start, each) in enumerate(self._tables):
            before, after = rows[:, axis][:, None], rows[:, axis][None, :]
            gathers = self._gathers[before, after]
            parts = np.ones_like(self._start)
            for other, count in enumerate(self.counts):
                if other == axis:
                    continue
                after_shards, before_shards = shards[:, other][None, :], shards[:, other][:, None]
                # Reductions come first; of two axes that both are scattered, the inner one does.
                later = partial[:, other][:, None] & partial[:, axis][:, None] & (other < axis)
                joins = after_shards & ~later
                parts *= np.where(joins | (~gathers & before_shards), count, 1)
            self._start = np.maximum(self._start, np.minimum(start[before, after], NEVER))
            self._each += each[before, after] / parts
        self._add_permutes(rows, shards, partial)
        self.shares = np.prod(np.where(shards, 1 / np.array(self.counts, dtype=float), 1.0), axis=1)
        self.shaped = any(map(any, catalogue.shaped))

    def _add_permutes(self, rows: Numbers, shards: Numbers, partial: Numbers) -> None:
        """Add what it costs to change the nesting order of a dimension, and find what one exchange costs.

        Axes leave and join a dimension innermost: one that is outside another that stays changes places with it. In an
        exchange each rank receives what it needs and has not, where nothing is to be reduced.
        """
        orders, catalogue, shared = np.array(self.placements.order), self.placements.catalogue, self.shared
        place = np.argsort(orders, axis=1)
        dims = np.array([-1 if p.dim is None else p.dim for p in catalogue.placements])[rows]
        count = math.prod(self.counts)
        start, each = permute_price(count, max(self._nodes), shared.topology)
        permutes = np.zeros(self._start.shape, dtype=bool)
        for outer, inner in itertools.permutations(range(len(self.counts)), 2):
            nested: Numbers = (
                (dims[:, outer] == dims[:, inner]) & (dims[:, outer] >= 0) & (place[:, outer] < place[:, inner])
            )
            inner_stays = rows[:, inner][:, None] == rows[:, inner][None, :]
            outer_stays = rows[:, outer][:, None] == rows[:, outer][None, :]
            both = nested[:, None] & nested[None, :]
            permutes |= inner_stays & (nested[:, None] | nested[None, :]) & ~(outer_stays & both)
        held = np.prod(np.where(shards, 1 / np.array(self.counts, dtype=float), 1.0), axis=1)
        least = np.minimum(held[:, None], held[None, :])
        self._start += np.where(permutes, start, 0.0)
        self._each += np.where(permutes, each * least, 0.0)
        has = np.ones_like(self._start)
        for axis, size in enumerate(self.counts):
            leaves = shards[:, axis][:, None] & (rows[:, axis][:, None] != rows[:, axis][None, :])
            has *= np.where(leaves, 1 / size, 1.0)
        reduces: Numbers = np.any(partial, axis=1)
        exchanged = reduces[:, None] | reduces[None, :]
        self._exchange_start = np.where(exchanged, NEVER, start)
        self._exchange_each = each * held[None, :] * (1 - np.where(permutes, 0.0, has))

    def table(self, numbers: Numbers, value: int) -> Numbers:
        """Return what it costs to reshard all copies of a merged value between joint placements, [before, after]."""
        meta, weight = self.shared.values[value], self.shared.value_weight[value]
        at = np.ix_(numbers, numbers)
        by_axis = self._start[at] + self._each[at] * meta.bytes
        exchanged = self._exchange_start[at] + self._exchange_each[at] * meta.bytes
        price = weight * np.minimum(by_axis, exchanged)
        if self.shaped:
            self._add_shaped(price, numbers, meta, weight)
        if self.shared.copy_holding:
            copies = self.shared.copy_holding[value] * self.held(numbers, value)
            price += np.where(np.eye(len(numbers), dtype=bool), 0.0, copies[None, :])
        return price

    def exact(self, before: int, after: int, value: int) -> float:
        """Return what the planner says that it costs to reshard all copies of a merged value, holding the result."""
        meta, shared, every = self.shared.values[value], self.shared, self.placements
        made, wanted = (
            tuple([(every.axes[at], every.catalogue.placements[every.all[n][at]]) for at in every.order[n]])
            for n in (before, after)
        )
        seconds = value_seconds(meta, made, (wanted,), self.mesh, shared)
        if shared.copy_holding and before != after:
            seconds += shared.copy_holding[value] * meta.bytes * float(self.shares[after])
        return shared.value_weight[value] * min(seconds, NEVER)

    def held(self, numbers: Numbers, value: int) -> Numbers:
        """Return the bytes that a rank has of all copies of a merged value in joint placements."""
        return self.shared.value_weight[value] * self.shared.values[value].bytes * self.shares[numbers]

    def _add_shaped(self, price: Numbers, numbers: Numbers, meta: TensorMeta, weight: float) -> None:
        """Replace the prices that depend on the shape."""
        every, shaped = self.placements.all, self.placements.catalogue.shaped
        for row, source in enumerate(numbers):
            for column, target in enumerate(numbers):
                before, after = every[source], every[target]
                if any(b in shaped[a] for a, b in zip(before, after, strict=True)):
                    price[row, column] = weight * self._one_by_one(before, after, meta)

    def _one_by_one(self, before: tuple[int, ...], after: tuple[int, ...], meta: TensorMeta) -> float:
        """Return what it costs to move each axis by itself, the others sharding the value as before."""
        catalogue, total = self.placements.catalogue, 0.0
        for axis, (a, b) in enumerate(zip(before, after, strict=True)):
            shape = list(meta.shape)
            for other, placed in enumerate(before):
                dim = catalogue.placements[placed].dim
                if other != axis and dim is not None and dim < len(shape):
                    shape[dim] = -(-shape[dim] // self.counts[other])
            local = attrs.evolve(meta, shape=tuple(shape))
            source, target = catalogue.placements[a], catalogue.placements[b]
            machine = (self.shared.topology, self._nodes[axis])
            found = axis_price(
                source, target, local.bytes, self.counts[axis], self.shared.collectives, local, *machine
            ).seconds
            total += min(found, NEVER) if not math.isnan(found) else NEVER
        return total
