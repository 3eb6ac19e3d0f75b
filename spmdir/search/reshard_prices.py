"""Prices of reshards in the search: tables of estimates between joint placements, and exact prices of the planner."""

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
from spmdir.search.merged_nodes import Quotient
from spmdir.search.problem import AVOIDED
from spmdir.search.step_times import StepTimes

IMPOSSIBLE = 1e6
"""Price in seconds of an impossible reshard. It is finite, so sums and differences stay finite."""


class Prices:
    """The price of resharding any value of a program from one joint placement to another, in seconds.

    All values are merged values. A price counts for all values merged in one, and `AVOIDED` or `IMPOSSIBLE` seconds are
    part of it.

    Args:
        placements: the joint placements. Those that get a number later have no price.
        is_bound: as of `StepTimes`.

    Attributes:
        counts: [axis], its number of ranks.
        shares: [joint placement], the fraction of a value that a rank holds.
        has_shaped: whether the time of some reshard depends on the shape of the value.
    """

    def __init__(self, mesh: Mesh, shared: Quotient, placements: JointPlacements, is_bound: bool = False):
        self.mesh, self.placements, self.shared = mesh, placements, shared
        self.counts, catalogue = placements.counts, placements.catalogue
        self._nodes = [node_count((axis,), mesh) for axis in placements.axes]
        self._steps = StepTimes(mesh, placements, shared.collectives, shared.topology, is_bound)
        self.shares = self._steps.shares
        self.has_shaped = any(map(any, catalogue.shaped))
        # the positions of the axes along which ranks have different sizes
        apart_axes = {part for axis in shared.apart for part in mesh.parts(axis)}
        self._apart = [position for position, axis in enumerate(placements.axes) if axis in apart_axes]

    def table(self, numbers: Numbers, value: int) -> Numbers:
        """Return an array [before, after]: the estimated seconds to reshard all values merged in `value`.

        Args:
            numbers: the joint placements of the rows and columns.
        """
        meta, weight = self.shared.values[value], self.shared.value_weight[value]
        if value in self.shared.ties:
            return np.where(np.eye(len(numbers), dtype=bool), 0.0, weight * IMPOSSIBLE)
        price = weight * np.minimum(self._steps.table(meta, numbers), IMPOSSIBLE)
        if self.has_shaped:
            self._replace_shaped(price, numbers, meta, weight)
        price *= self._exposed_fraction(value)
        if self._apart:
            price += weight * AVOIDED * self._is_avoided(numbers, value)
        if self.shared.copy_holding:
            holding_seconds = self.shared.copy_holding[value] * self.bytes_held(numbers, value)  # of a copy, [after]
            price += np.where(np.eye(len(numbers), dtype=bool), 0.0, holding_seconds[None, :])
        return price

    def exact(self, before: int, after: int, value: int) -> float:
        """Return the planner's price to reshard all values merged in `value`, including the price of holding copies.

        Args:
            before, after: numbers of joint placements.
        """
        meta, shared = self.shared.values[value], self.shared
        if value in shared.ties:
            return shared.value_weight[value] * IMPOSSIBLE * (before != after)
        # Plans that are not quick also move axes that neither side has. Undecided axes may not be moved.
        has_undecided_axes = len(self.placements.axes) < len(self.mesh.axes)
        produced, needed = self.placements.placed(before), self.placements.placed(after)
        seconds = value_seconds(meta, produced, (needed,), self.mesh, shared, is_quick=has_undecided_axes)
        seconds *= self._exposed_fraction(value)
        if self._apart:
            seconds += AVOIDED * float(self._is_avoided(np.array([before, after]), value)[0, 1])
        if shared.copy_holding and before != after:
            seconds += shared.copy_holding[value] * meta.bytes * float(self.shares[after])
        return shared.value_weight[value] * min(seconds, IMPOSSIBLE)

    def _is_avoided(self, numbers: Numbers, value: int) -> Numbers:
        """Return an array [before, after]: whether a reshard along `apart` sends or slices the value.

        Only reshards that `Quotient.avoids` excludes count.

        Args:
            numbers: the joint placements of the rows and columns.
        """
        placed = np.array([self.placements.all[number] for number in numbers]).reshape(len(numbers), -1)[:, self._apart]
        is_moved, is_whole = placed[:, None] != placed[None, :], (placed == 0)[:, None]  # the first placement is R
        avoids_slices, avoids_sends = (self.shared.avoids(value, is_whole=whole) for whole in (True, False))
        return (is_moved & np.where(is_whole, avoids_slices, avoids_sends)).any(axis=-1)

    def _exposed_fraction(self, value: int) -> float:
        """Return the fraction of the time of the value's reshards that counts."""
        return self.shared.exposed[value] if self.shared.exposed else 1.0

    def bytes_held(self, numbers: Numbers, value: int) -> Numbers:
        """Return for each of the joint placements the bytes that a rank holds of all values merged in `value`.

        Args:
            numbers: numbers of joint placements.
        """
        return self.shared.value_weight[value] * self.shared.values[value].bytes * self.shares[numbers]

    def _replace_shaped(self, price: Numbers, numbers: Numbers, meta: TensorMeta, weight: float) -> None:
        """Replace, in place, the prices of reshards with a step whose time depends on the shape.

        Args:
            price: [before, after], with a row and a column for each of the joint placements `numbers`.
            weight: the factor on the seconds.
        """
        all_placements, shaped = self.placements.all, self.placements.catalogue.shaped
        for row, source in enumerate(numbers):
            for column, target in enumerate(numbers):
                before, after = all_placements[source], all_placements[target]
                placements_by_axis = zip(before, after, strict=True)
                if any(axis_after in shaped[axis_before] for axis_before, axis_after in placements_by_axis):
                    price[row, column] = weight * self._shaped_price(before, after, meta)

    def _shaped_price(self, before: tuple[int, ...], after: tuple[int, ...], meta: TensorMeta) -> float:
        """Return the sum of the seconds to reshard one axis at a time, with the other axes as before the reshard.

        An axis whose time is unknown or infinite counts `IMPOSSIBLE` seconds.

        Args:
            before, after: [axis], the number of its placement in the catalogue.
            meta: the type of the value on one device.
        """
        catalogue, total = self.placements.catalogue, 0.0
        for axis, (axis_before, axis_after) in enumerate(zip(before, after, strict=True)):
            shape = list(meta.shape)
            for other_axis, number in enumerate(before):
                dim = catalogue.placements[number].dim
                if other_axis != axis and dim is not None and dim < len(shape):
                    shape[dim] = -(-shape[dim] // self.counts[other_axis])
            local = attrs.evolve(meta, shape=tuple(shape))
            seconds = axis_price(
                catalogue.placements[axis_before],
                catalogue.placements[axis_after],
                local.bytes,
                self.counts[axis],
                self.shared.collectives,
                local,
                self.shared.topology,
                self._nodes[axis],
            ).seconds
            total += min(seconds, IMPOSSIBLE) if not math.isnan(seconds) else IMPOSSIBLE
        return total
