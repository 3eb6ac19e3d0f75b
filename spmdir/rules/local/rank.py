"""The rank for which a local form is emitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Local


@attrs.frozen(eq=False)
class Rank:
    """A rank of a mesh.

    Attributes:
        coordinate: axis → index of the rank along the axis.
    """

    mesh: Mesh
    coordinate: Mapping[str, int]

    def value(self, local: Local) -> int:
        """Return the value of `local` on the rank."""
        return local.evaluate(self.mesh, self.coordinate)

    def values(self, local: Local) -> frozenset[int]:
        """Return the values of `local` on all ranks."""
        return local.values(self.mesh)

    def ring_size(self, axes: Iterable[str]) -> int:
        """Return the number of ranks in a ring along `axes`."""
        return self.mesh.group_size(axes)


class SingleRank(Rank):
    """A single rank that has all elements, for any axes."""

    def __init__(self) -> None:
        super().__init__(Mesh({}), {})

    def value(self, local: Local) -> int:
        return local.unsharded

    def values(self, local: Local) -> frozenset[int]:
        return frozenset([local.unsharded])

    def ring_size(self, axes: Iterable[str]) -> int:
        return 1
