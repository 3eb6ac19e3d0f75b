"""What reshards cost in the search: a table of joint placements for each value, and the planner's price of one."""

from __future__ import annotations

import math

import attrs
import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.cost import node_count
from spmdir.search.joint_cost import value_seconds
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.problem import AVOIDED
from spmdir.search.repeats import Quotient
from spmdir.search.step_times import StepTimes

NEVER = 1e6
"""Seconds that stand for a reshard that there is not: sums with it stay finite."""


class Prices:
    """The price of resharding any value of a program from one joint placement to another, in seconds."""

    def __init__(self, mesh: Mesh, shared: Quotient, placements: JointPlacements):
        self.mesh, self.placements, self.shared = mesh, placements, shared
        self.counts, catalogue = placements.counts, placements.catalogue
        self._nodes = [node_count((axis,), mesh) for axis in placements.axes]
        self._steps = StepTimes(mesh, placements, shared.collectives, shared.topology)
        self.shares = self._steps.shares
        self.shaped = any(map(any, catalogue.shaped))
        apart = {part for axis in shared.apart for part in mesh.parts(axis)}
        self._apart = [at for at, axis in enumerate(placements.axes) if axis in apart]

    def table(self, numbers: Numbers, value: int) -> Numbers:
        """Return what it costs to reshard all copies of a merged value between joint placements, [before, after]."""
        meta, weight = self.shared.values[value], self.shared.value_weight[value]
        if value in self.shared.ties:
            return np.where(np.eye(len(numbers), dtype=bool), 0.0, weight * NEVER)
        price = weight * np.minimum(self._steps.table(meta, numbers), NEVER)
        if self.shaped:
            self._add_shaped(price, numbers, meta, weight)
        price *= self._exposed(value)
        if self._apart:
            price += weight * AVOIDED * self._avoided(numbers, value)
        if self.shared.copy_holding:
            copies = self.shared.copy_holding[value] * self.held(numbers, value)
            price += np.where(np.eye(len(numbers), dtype=bool), 0.0, copies[None, :])
        return price

    def exact(self, before: int, after: int, value: int) -> float:
        """Return what the planner says that it costs to reshard all copies of a merged value, holding the result."""
        meta, shared, every = self.shared.values[value], self.shared, self.placements
        if value in shared.ties:
            return shared.value_weight[value] * NEVER * (before != after)
        made, wanted = (
            tuple([(every.axes[at], every.catalogue.placements[every.all[n][at]]) for at in every.order[n]])
            for n in (before, after)
        )
        # Axes that are not decided yet are no spare ones.
        is_prefix = len(every.axes) < len(self.mesh.axes)
        seconds = value_seconds(meta, made, (wanted,), self.mesh, shared, is_quick=is_prefix)
        seconds *= self._exposed(value)
        if self._apart:
            seconds += AVOIDED * float(self._avoided(np.array([before, after]), value)[0, 1])
        if shared.copy_holding and before != after:
            seconds += shared.copy_holding[value] * meta.bytes * float(self.shares[after])
        return shared.value_weight[value] * min(seconds, NEVER)

    def _avoided(self, numbers: Numbers, value: int) -> Numbers:
        """Return whether reshards of a merged value between joint placements are to be avoided, [before, after]."""
        placed = np.array([self.placements.all[number] for number in numbers]).reshape(len(numbers), -1)[:, self._apart]
        differ, whole = placed[:, None] != placed[None, :], (placed == 0)[:, None]  # the first placement is R
        avoids = [self.shared.avoids(value, is_whole=is_whole) for is_whole in (True, False)]
        return (differ & np.where(whole, *avoids)).any(axis=-1)

    def _exposed(self, value: int) -> float:
        """Return the part of the time of reshards of a merged value that counts."""
        return self.shared.exposed[value] if self.shared.exposed else 1.0

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
