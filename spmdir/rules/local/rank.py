"""The rank whose local form is made, as far as the statements of the form ask about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Local


@attrs.frozen(eq=False)
class Rank:
    """A rank of a mesh.

    Attributes:
        coordinate: axis → its index along that.
    """

    mesh: Mesh
    coordinate: Mapping[str, int]

    def value(self, local: Local) -> int:
        """Return the value of `local` on the rank."""
        return local.evaluate(self.mesh, self.coordinate)

    def values(self, local: Local) -> frozenset[int]:
        """Return the values of `local` on all ranks."""
        return local.values(self.mesh)

    def ring(self, axes: Iterable[str]) -> int:
        """Return how many ranks are in a ring along `axes`."""
        return self.mesh.group_size(axes)


class Alone(Rank):
    """The one rank that has everything, whatever axes are named."""

    def __init__(self) -> None:
        super().__init__(Mesh({}), {})

    def value(self, local: Local) -> int:
        return local.unsharded

    def values(self, local: Local) -> frozenset[int]:
        return frozenset([local.unsharded])

    def ring(self, axes: Iterable[str]) -> int:
        return 1
