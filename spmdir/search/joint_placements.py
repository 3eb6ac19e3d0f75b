"""The joint placements of values, by number.

A *joint placement* is the placement of a value on every axis, and the nesting order of axes that shard one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.search.catalogue import Catalogue

Numbers = np.ndarray


class JointPlacements:
    """The joint placements that occur, by number.

    Attributes:
        all: by number, for each axis the number of its placement in the catalogue.
        order: by number, the axes, by position, those that shard one dimension in nesting order.
    """

    def __init__(self, mesh: Mesh, axes: Sequence[str], catalogue: Catalogue):
        self.mesh, self.axes, self.catalogue = mesh, tuple(axes), catalogue
        self.counts = [mesh.sizes[axis] for axis in axes]
        self.all: list[tuple[int, ...]] = []
        self.order: list[tuple[int, ...]] = []
        self._number: dict[object, int] = {}
        self._shares: dict[tuple[int, ...], bool] = {}
        self._natural = tuple(range(len(self.axes)))
        self._dims = [placement.dim for placement in catalogue.placements]
        self.replicated = self.number((0,) * len(axes))

    def number(self, placed: tuple[int, ...], order: tuple[int, ...] | None = None) -> int:
        """Return the number of a joint placement, a new one if it has none.

        Args:
            order: the axes, those that shard one dimension in nesting order; in the order of the mesh if None.
        """
        if order is None or order == self._natural or not self.shares(placed):
            key, order = placed, self._natural
        else:
            key = placed, order
        found = self._number.get(key)
        if found is None:
            found = self._number[key] = len(self.all)
            self.all.append(placed)
            self.order.append(order)
        return found

    def numbers(self, placed: Numbers) -> Numbers:
        """Return the numbers of joint placements [..., axes], those that share a dimension nested as in the mesh."""
        known, rows = self._number, zip(*placed.reshape(-1, len(self.axes)).T.tolist(), strict=True)
        found = [known[row] if row in known else self.number(row) for row in rows]
        return np.array(found, dtype=np.intp).reshape(placed.shape[:-1])

    def shares(self, placed: tuple[int, ...]) -> bool:
        """Return whether several axes shard one dimension."""
        found = self._shares.get(placed)
        if found is None:
            dims = [dim for dim in [self._dims[at] for at in placed] if dim is not None]
            found = self._shares[placed] = len({*dims}) < len(dims)
        return found
