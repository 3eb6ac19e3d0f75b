"""The device mesh: ordered named axes. Ranks are row-major over the axes, as in torch's DeviceMesh."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping
from functools import cached_property

import attrs

from spmdir.errors import ShardingError


def _axes(value: Mapping[str, int] | Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    try:
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple((str(axis), operator.index(size)) for axis, size in pairs)
    except (TypeError, ValueError):
        raise ShardingError(
            f'a mesh cannot have the axes {value!r}; expected names and whole sizes, as in Mesh({{"dp": 2, "tp": 4}})'
        ) from None


def _check_name(what: str, name: str) -> None:
    if not (name.isidentifier() and name.isascii()):
        raise ShardingError(f"{what} has a name that text cannot give; expected letters, digits and _, as in dp0")


@attrs.define(frozen=True, slots=False)
class Mesh:
    """Ordered named axes with their sizes, e.g. `Mesh({"dp": 2, "tp": 4})`.

    Attributes:
        axes: (name, size) pairs, the outermost axis first.
        name: the symbol of the mesh in the textual IR.
        intra_node: the axes whose ranks sit inside one node; None when all do.

    Raises:
        ShardingError: an axis name is repeated or cannot be written in a sharding, or a size is below 1.
    """

    axes: tuple[tuple[str, int], ...] = attrs.field(converter=_axes)
    name: str = "mesh"
    intra_node: tuple[str, ...] | None = None

    def __attrs_post_init__(self) -> None:
        _check_name(f"mesh @{self.name}", self.name)
        names = [axis for axis, _ in self.axes]
        if len(set(names)) != len(names):
            raise ShardingError(
                f"mesh @{self.name} names an axis twice: {', '.join(names)}; give each axis its own name"
            )
        for axis, size in self.axes:
            _check_name(f"mesh axis '{axis}'", axis)
            if size < 1:
                raise ShardingError(f"mesh axis '{axis}' has size {size}; expected a size of at least 1")
        for axis in self.intra_node or ():
            if axis not in names:
                raise ShardingError(f"mesh @{self.name} has no axis '{axis}'; its axes are {', '.join(names)}")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis name → size, in mesh order."""
        return dict(self.axes)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(axis for axis, _ in self.axes)

    @cached_property
    def world_size(self) -> int:
        """The number of ranks."""
        return math.prod(size for _, size in self.axes)

    @cached_property
    def _coordinates(self) -> tuple[dict[str, int], ...]:
        ranges = [range(size) for _, size in self.axes]
        return tuple(dict(zip(self.axis_names, point, strict=True)) for point in itertools.product(*ranges))

    def require(self, axis: str) -> None:
        """Raise ShardingError unless the mesh has `axis`."""
        if axis not in self.sizes:
            raise ShardingError(
                f"axis '{axis}' is not in mesh @{self.name} {self}; expected one of {', '.join(self.axis_names)}"
            )

    def coordinate(self, rank: int) -> dict[str, int]:
        """Axis name → index of `rank` along it."""
        return self._coordinates[rank]

    def group_size(self, axes: Iterable[str]) -> int:
        """The number of ranks that differ only along `axes`."""
        return math.prod(self.sizes[axis] for axis in axes)

    def index(self, rank: int, axes: Iterable[str]) -> int:
        """Position of `rank` in its group over `axes`, the first axis major."""
        position, coordinate = 0, self.coordinate(rank)
        for axis in axes:
            position = position * self.sizes[axis] + coordinate[axis]
        return position

    def group(self, rank: int, axes: Iterable[str]) -> tuple[int, ...]:
        """The ranks that differ from `rank` only along `axes`, ordered by `index`."""
        axes = tuple(axes)
        here = self.coordinate(rank)
        same = [r for r, there in enumerate(self._coordinates) if all(a in axes or there[a] == here[a] for a in there)]
        return tuple(sorted(same, key=lambda r: self.index(r, axes)))

    def __str__(self) -> str:
        return "<" + ", ".join(f"{axis} = {size}" for axis, size in self.axes) + ">"
