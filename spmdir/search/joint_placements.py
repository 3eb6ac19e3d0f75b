"""The joint placements of values, by number.

A *joint placement* is the placement of a value on every axis, and the nesting order of axes that shard one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.search.placement_catalogue import Catalogue

Numbers = np.ndarray
"""An array of indices, numbers of placements, seconds or truth values."""


class JointPlacements:
    """The joint placements that occur, by number. Each gets its number when `number` or `numbers` first meets it.

    Attributes:
        axes: the names of the axes that are placed.
        counts: [axis], its number of ranks.
        all: [number][axis], the number of the axis's placement in the catalogue.
        order: [number], the positions of the axes; axes that shard one dimension are in nesting order.
        replicated: the number of R on all axes.
    """

    def __init__(self, mesh: Mesh, axes: Sequence[str], catalogue: Catalogue):
        self.mesh, self.axes, self.catalogue = mesh, tuple(axes), catalogue
        self.counts = [mesh.sizes[axis] for axis in axes]
        self.all: list[tuple[int, ...]] = []
        self.order: list[tuple[int, ...]] = []
        self._number: dict[object, int] = {}  # placements, with the order if it is not that of the mesh → number
        self._shares_dimension: dict[tuple[int, ...], bool] = {}  # a cache of `shares_dimension`
        self._natural = tuple(range(len(self.axes)))  # the order of the mesh
        self._dims = [placement.dim for placement in catalogue.placements]
        self.replicated = self.number((0,) * len(axes))  # the catalogue has R as number 0

    def number(self, placed: tuple[int, ...], order: tuple[int, ...] | None = None) -> int:
        """Return the number of a joint placement, a new one if it has none.

        The order does not count if no two axes shard one dimension.

        Args:
            placed: [axis], the number of its placement in the catalogue.
            order: the positions of the axes; axes that shard one dimension are in nesting order. None is mesh order.
        """
        if order is None or order == self._natural or not self.shares_dimension(placed):
            key, order = placed, self._natural
        else:
            key = placed, order
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self.all)
            self.all.append(placed)
            self.order.append(order)
        return number

    def numbers(self, placed: Numbers) -> Numbers:
        """Return an array [...] of the numbers of joint placements, in which axes are nested as in the mesh.

        Args:
            placed: [..., axis], the numbers of placements in the catalogue.
        """
        # Zipping the columns returns each row as a tuple, which is a key of `_number`.
        known_numbers, rows = self._number, zip(*placed.reshape(-1, len(self.axes)).T.tolist(), strict=True)
        numbers = [known_numbers[row] if row in known_numbers else self.number(row) for row in rows]
        return np.array(numbers, dtype=np.intp).reshape(placed.shape[:-1])

    def placed(self, number: int) -> tuple[tuple[str, Placement], ...]:
        """Return (axis, placement) of each axis of a joint placement, in nesting order."""
        numbers, placements = self.all[number], self.catalogue.placements
        return tuple([(self.axes[position], placements[numbers[position]]) for position in self.order[number]])

    def shares_dimension(self, placed: tuple[int, ...]) -> bool:
        """Return whether two axes of a joint placement shard one dimension.

        Args:
            placed: [axis], the number of its placement in the catalogue.
        """
        is_shared = self._shares_dimension.get(placed)
        if is_shared is None:
            dims = [dim for dim in [self._dims[number] for number in placed] if dim is not None]
            is_shared = self._shares_dimension[placed] = len({*dims}) < len(dims)
        return is_shared
