"""The device mesh: named axes in order. Ranks are row-major over the axes, as in torch's DeviceMesh."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any

import attrs

from spmdir.core.arguments import Kind
from spmdir.core.axes import axis_part, is_part
from spmdir.core.errors import ShardingError, require_type, shown
from spmdir.core.limits import AXES, RANKS


def _axes(value: Mapping[str, int] | Iterable[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Convert the argument `axes` of a mesh to (name, size) pairs."""
    try:
        pairs = value.items() if isinstance(value, Mapping) else value
        return tuple((str(axis), operator.index(size)) for axis, size in pairs)
    except (TypeError, ValueError):
        raise ShardingError(
            f"a mesh cannot have the axes {shown(value)}; expected names and integer sizes, as in "
            'Mesh({"dp": 2, "tp": 4})'
        ) from None


def _intra_node(value: Any) -> tuple[str, ...] | None:
    """Convert the argument `intra_node` of a mesh to a tuple."""
    if value is not None:
        require_type("intra_node", value, (list, tuple), 'names of axes, as in ("tp",), or None')
        for axis in value:
            require_type("an entry of intra_node", axis, str, "the name of an axis")
    return None if value is None else tuple(value)


def _check_name(subject: str, name: str) -> None:
    """Raise ShardingError unless `name` is an ASCII identifier."""
    if not (name.isidentifier() and name.isascii()):
        raise ShardingError(f"{subject} has an invalid name; expected ASCII letters, digits and _, as in dp0")


class _ByAxis(dict[str, int]):
    """A dict from axes to sizes, or to the coordinate of a rank. It computes the values of sub-axes on lookup."""

    def __init__(self, entries: Iterable[tuple[str, int]], mesh: Mesh, rank: int | None = None):
        super().__init__(entries)
        self._mesh, self._rank = mesh, rank

    def __missing__(self, axis: str) -> int:
        """Return the size of a sub-axis, or the coordinate of the rank along it.

        Rank 5 of an axis `tp` of 8 ranks has the coordinate 5 // 4 % 2 = 1 along `tp(1)2`, and 5 // 1 % 4 = 1 along
        `tp(2)4`.
        """
        name, outer, size = self._mesh._part(axis)
        if self._rank is None:
            return size
        root = self._mesh.root or self._mesh
        inner = root.sizes[name] // (outer * size)
        return root.coordinate(self._rank)[name] // inner % size


@attrs.define(frozen=True, slots=False, cache_hash=True)
class Mesh:
    """Named axes with their sizes, outermost first: `Mesh({"dp": 2, "tp": 4})`.

    Methods that take an axis also take a sub-axis, such as `tp(1)2`: see `spmdir.core.axes`.

    Attributes:
        axes: (name, size) pairs, the outermost axis first.
        name: the symbol of the mesh in the textual IR.
        intra_node: the axes that lie inside one node; None if all do.
        root: if this mesh is the result of `refine`, the mesh that was refined; else None.

    Raises:
        ShardingError: an axis name is repeated or is not an ASCII identifier, or a size is below 1.
        LimitError: the number of axes or ranks exceeds a limit of `spmdir.core.limits`.
    """

    axes: tuple[tuple[str, int], ...] = attrs.field(converter=_axes)
    name: str = "mesh"
    intra_node: tuple[str, ...] | None = attrs.field(default=None, converter=_intra_node)
    root: Mesh | None = None

    def __attrs_post_init__(self) -> None:
        """Raise ShardingError unless names, sizes and `intra_node` are valid. A refined mesh is not checked again."""
        if self.root is not None:
            require_type("root", self.root, Mesh, "a spmdir.Mesh")
            return
        require_type("name", self.name, str, "a text, as in 'mesh'")
        _check_name(f"mesh @{self.name}", self.name)
        names = [axis for axis, _ in self.axes]
        if len(set(names)) != len(names):
            raise ShardingError(
                f"mesh @{self.name} names an axis twice: {', '.join(names)}; expected a different name for "
                "each axis: rename one"
            )
        for axis, size in self.axes:
            _check_name(f"mesh axis '{axis}'", axis)
            if size < 1:
                raise ShardingError(f"mesh axis '{axis}' has size {size}; expected a size of at least 1")
        AXES.check(len(self.axes))
        RANKS.check(self.world_size)
        for axis in self.intra_node or ():
            if axis not in names:
                raise ShardingError(f"mesh @{self.name} has no axis '{axis}'; expected one of {', '.join(names)}")

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Return axis → size, in mesh order. Lookups also accept sub-axes."""
        return _ByAxis(self.axes, self)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(axis for axis, _ in self.axes)

    @cached_property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return math.prod(size for _, size in self.axes)

    @cached_property
    def _strides(self) -> dict[str, int]:
        """Return axis → difference of the ranks of two neighbours along it."""
        products = itertools.accumulate((size for _, size in reversed(self.axes)), operator.mul, initial=1)
        return dict(zip(reversed(self.axis_names), products, strict=False))

    def _part(self, axis: str) -> tuple[str, int, int]:
        """Return (root axis, product of the sizes of the sub-axes outside, size) of an axis or sub-axis.

        Sub-axes of an axis of size 1, as in a mesh of one device, have size 1.

        Raises:
            KeyError: the mesh has no such axis.
        """
        if axis in self.axis_names and self.root is None:
            return axis, 1, self.sizes[axis]
        if self.root is not None:
            return self.root._part(axis)
        name, outer, size = axis_part(axis) or ("", 1, 0)
        if name in self.axis_names and self.sizes[name] == 1:
            return name, 1, 1
        if name not in self.axis_names or size < 2 or self.sizes[name] % (outer * size):
            raise KeyError(axis)
        return name, outer, size

    def require(self, axis: str) -> None:
        """Raise ShardingError unless the mesh has `axis` as an axis or a sub-axis."""
        if axis in self.sizes:
            return
        try:
            is_sub_axis = self._part(axis)[2] >= 2
        except KeyError:
            is_sub_axis = False
        if is_sub_axis:
            return
        root = self.root or self
        name, *_ = axis_part(axis) or ("", 1, 0)
        if name in root.sizes:
            raise ShardingError(
                f"'{axis}' is not a sub-axis of '{name}', which has {root.sizes[name]} ranks; expected "
                f"{name}(outer)size, where size is at least 2 and outer times size divides {root.sizes[name]}"
            )
        raise ShardingError(
            f"axis '{axis}' is not in mesh @{self.name} {root}; expected one of {', '.join(root.axis_names)}"
        )

    def refine(self, axes: Iterable[str]) -> Mesh:
        """Split the axes of which `axes` contains sub-axes; return the mesh itself if it contains none.

        Each of `axes` is then one axis of the result, or several adjacent ones: its `parts`. For example, refining
        tp = 8 for `tp(1)2` gives the axes tp(1)2 = 2 and tp(2)4 = 4.

        Raises:
            ShardingError: `axes` split an axis in ways without a common refinement, or one is not in the mesh.
        """
        sub_axes = set()
        for axis in axes:
            name, *_ = axis_part(axis) or ("", 1, 0)
            if is_part(axis) and self.sizes.get(name) != 1:  # an axis of one rank cannot be split
                sub_axes.add(axis)
        if sub_axes <= self.sizes.keys():
            return self
        if self.root is not None:
            return self.root.refine([*sub_axes, *self.axis_names])
        return _refined(self, tuple(sorted(sub_axes)))

    def root_axis(self, axis: str) -> str:
        """Return the axis that contains a sub-axis; an axis is returned unchanged."""
        return self._part(axis)[0]

    def parts(self, axis: str) -> tuple[str, ...]:
        """Return the axes of this mesh whose product is `axis`, outermost first; () if `axis` has size 1."""
        if axis in self.sizes:
            return (axis,)
        part = self._part(axis)
        return self._parts[part] if part[2] > 1 else ()

    @cached_property
    def _parts(self) -> dict[tuple[str, int, int], tuple[str, ...]]:
        """Return (root axis, product of the sizes outside, size) → the adjacent axes with this product.

        The axes tp(1)2 and tp(2)4 have the products (tp, 1, 2) and (tp, 2, 4), and both axes together (tp, 1, 8).
        """
        parts: dict[tuple[str, int, int], tuple[str, ...]] = {}
        for start, axis in enumerate(self.axis_names):
            name, outer, size = self._part(axis)
            parts[name, outer, size] = adjacent_axes = (axis,)
            for next_axis in self.axis_names[start + 1 :]:
                if self._part(next_axis)[0] != name:
                    break
                adjacent_axes = (*adjacent_axes, next_axis)
                size *= self.sizes[next_axis]
                parts[name, outer, size] = adjacent_axes
        return parts

    def merge(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Replace neighbours in `axes`, outermost first, by their `join`; all sub-axes of an axis become the axis."""
        merged: list[str] = []
        for axis in axes:
            joined = self.join(merged[-1], axis) if merged else None
            if joined is None:
                merged.append(self.join(axis) or axis)
            else:
                merged[-1] = joined
        return tuple(merged)

    def join(self, *axes: str) -> str | None:
        """Return the axis or sub-axis that is the product of `axes`, outermost first; None if there is none.

        `tp(1)2` and `tp(2)2` of an axis `tp` of 8 ranks join to `tp(1)4`.
        """
        root = self.root or self
        try:
            (name, outer, size), *inner_parts = map(root._part, axes)
        except KeyError:
            return None
        for inner_name, inner_outer, inner_size in inner_parts:
            if inner_name != name or inner_outer != outer * size:
                return None
            size *= inner_size
        return name if size == root.sizes[name] else f"{name}({outer}){size}"

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return axis → index of `rank` along it. Lookups also accept sub-axes."""
        return _coordinate(self, rank)

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """Return the rank at a coordinate: the inverse of the method `coordinate`."""
        return sum(index * self._strides[axis] for axis, index in coordinate.items())

    def group_size(self, axes: Iterable[str]) -> int:
        """Return the number of ranks that differ only along `axes`."""
        return math.prod(self.sizes[axis] for axis in axes)

    def index(self, rank: int, axes: Iterable[str]) -> int:
        """Return the position of `rank` in its group over `axes`; the first axis is the major one."""
        position, coordinate = 0, self.coordinate(rank)
        for axis in axes:
            position = position * self.sizes[axis] + coordinate[axis]
        return position

    def group(self, rank: int, axes: Iterable[str]) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` only along `axes`, ordered by `index`.

        On the mesh <dp = 2, tp = 2>, the group of rank 1 along dp is (1, 3).
        """
        axes = tuple(axes)
        refined = self.refine(axes)
        varying_axes = [part for axis in axes for part in refined.parts(axis)]
        coordinate = refined.coordinate(rank)
        # The rank with coordinate 0 along `axes` is first.
        members = [rank - sum(coordinate[part] * refined._strides[part] for part in varying_axes)]
        for part in varying_axes:
            steps = range(0, refined.sizes[part] * refined._strides[part], refined._strides[part])
            members = [member + step for member in members for step in steps]
        return tuple(members)

    def __repr__(self) -> str:
        optional = [("name", self.name, "mesh"), ("intra_node", self.intra_node, None)]
        arguments = [
            repr(dict(self.axes)),
            *(f"{key}={value!r}" for key, value, default in optional if value != default),
        ]
        return f"Mesh({', '.join(arguments)})"

    def __str__(self) -> str:
        return "<" + ", ".join(f"{axis} = {size}" for axis, size in self.axes) + ">"


MESH = Kind(
    lambda value: isinstance(value, Mesh) or getattr(value, "mesh", None) is not None,
    'a spmdir.Mesh, as in Mesh({"dp": 2, "tp": 4}), or a torch DeviceMesh',
)
"""The kind of the argument of `as_mesh`."""


def as_mesh(value: object) -> Mesh:
    """Convert a Mesh, or a torch DeviceMesh with named dimensions, to a Mesh.

    Raises:
        ShardingError: the value is neither, or its dimensions have no names.
    """
    if isinstance(value, Mesh):
        return value
    MESH.check("mesh", value)
    names, ranks = getattr(value, "mesh_dim_names", None), value.mesh  # type: ignore
    if not names:
        raise ShardingError(
            "the dimensions of the DeviceMesh have no names; expected a name for each: pass mesh_dim_names= to "
            "init_device_mesh"
        )
    return Mesh(zip(names, map(int, ranks.shape), strict=True))


@lru_cache(maxsize=65536)
def _coordinate(mesh: Mesh, rank: int) -> dict[str, int]:
    """Return axis → index of `rank` along it. Results are cached, and must not be changed."""
    return _ByAxis(((axis, rank // mesh._strides[axis] % size) for axis, size in mesh.axes), mesh, rank)


@lru_cache(maxsize=1024)
def _refined(mesh: Mesh, parts: tuple[str, ...]) -> Mesh:
    """Return the mesh whose axes are split at the bounds of the sub-axes `parts`.

    Raises:
        ShardingError: a sub-axis is not in the mesh, or the sub-axes of an axis have no common refinement.
    """
    # Axis → numbers of blocks outside each place where it is split: tp = 8 with the sub-axis tp(2)2 has 1, 2, 4 and 8.
    bounds_of_axis: dict[str, set[int]] = {axis: {1, size} for axis, size in mesh.axes}
    for axis in parts:
        mesh.require(axis)
        name, outer, size = mesh._part(axis)
        bounds_of_axis[name] |= {outer, outer * size}
    axes: list[tuple[str, int]] = []
    parts_of_axis: dict[str, list[str]] = {}
    for name, size in mesh.axes:
        bounds = sorted(bounds_of_axis[name])
        for outer, end in itertools.pairwise(bounds):
            if end % outer:
                raise ShardingError(
                    f"sub-axes split axis '{name}' of {size} ranks into {outer} and into {end} blocks, but "
                    f"{outer} does not divide {end}; expected block counts that divide each other: use "
                    "sub-axes of one factorisation of the axis"
                )
        parts_and_sizes = [
            (f"{name}({outer}){end // outer}", end // outer) for outer, end in itertools.pairwise(bounds)
        ]
        if len(parts_and_sizes) <= 1:  # the axis is not split
            parts_and_sizes = [(name, size)]
        axes += parts_and_sizes
        parts_of_axis[name] = [axis for axis, _ in parts_and_sizes]
    intra_node = mesh.intra_node
    if intra_node is not None:
        intra_node = tuple(part for axis in intra_node for part in parts_of_axis[axis])
    return Mesh(axes, mesh.name, intra_node, mesh)
