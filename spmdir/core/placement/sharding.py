"""The sharding of a tensor: its placement along each mesh axis, in nesting order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import attrs

from spmdir.core.axes import axis_order, is_axis, is_part, overlapping
from spmdir.core.brackets import split_entries
from spmdir.core.declared_fields import evaluated
from spmdir.core.dtype import F32, DType
from spmdir.core.errors import ParseError, ShardingError, SpmdirError, require_type, shown
from spmdir.core.html_text import ShownAsText
from spmdir.core.intervals import Ranges, joined, length, select
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import LocalType, PartialPlacement, Placement, own_type, parse_placement
from spmdir.core.placement.shards import ShardPlacement, check_partition, shard_lengths
from spmdir.core.placement.standard import R, plugins
from spmdir.core.placement.tensor import TensorMeta

_REPLICATED = type(R)
"""The class of R. It has one value, so a comparison of classes suffices, and is fast."""


def _convert_entries(entries: Iterable[tuple[str, Placement]]) -> tuple[tuple[str, Placement], ...]:
    """Convert the argument `entries` of a sharding to (axis, placement) pairs in canonical order.

    Raises:
        ShardingError: the argument does not consist of such pairs, an axis has two placements, or sub-axes overlap.
    """
    try:
        return _canonical(entries)
    except (AttributeError, TypeError, ValueError):
        raise ShardingError(
            f"a Sharding cannot have the entries {shown(entries)}; expected pairs of an axis and a Placement, as in "
            '[("dp", parse_placement("S(0)"))]; functions with a sharding argument also accept text, as in "dp: S(0)"'
        ) from None


def _mesh_name(name: str) -> str:
    """Return `name`; raise ShardingError unless it is a text."""
    if type(name) is not str:
        require_type("mesh", name, str, "the name of a mesh")
    return name


def _canonical(entries: Iterable[tuple[str, Placement]]) -> tuple[tuple[str, Placement], ...]:
    """Return the entries in canonical order, without replicated axes.

    Sharded dimensions come ascending with their axes in nesting order, then the other placements by axis name.

    Raises:
        ShardingError: an axis has two placements, or two sub-axes overlap.
    """
    entries = [(axis, placement) for axis, placement in entries if type(placement) is not _REPLICATED]
    axes = [axis for axis, _ in entries]
    if len(set(axes)) != len(axes):
        repeated = next(axis for axis in axes if axes.count(axis) > 1)
        raise ShardingError(f"axis '{repeated}' has two placements; expected one: remove the other")
    if any(map(is_part, axes)) and (pair := overlapping(axes)):
        raise ShardingError(
            f"'{pair[0]}' and '{pair[1]}' overlap; expected sub-axes without common ranks: use different "
            "sub-axes, or only the whole axis"
        )
    sharded = [(axis, placement) for axis, placement in entries if placement.trait == "shard"]
    others = [(axis, placement) for axis, placement in entries if placement.trait != "shard"]
    sharded.sort(key=lambda entry: entry[1].dim or 0)  # stable: axes of one dimension keep their order
    others.sort(key=lambda entry: axis_order(entry[0]))
    return (*sharded, *others)


@attrs.define(frozen=True, slots=False, cache_hash=True)
class Sharding(ShownAsText):
    """Mesh axis → placement. An axis that is not listed is replicated.

    The order of axes on one dimension is their nesting order, major first: `tp: S(0), dp: S(0)` shards by tp, then each
    shard by dp. Entries are in a canonical order, so equal shardings have equal texts. Shardings with sub-axes must be
    `merged` first.

    Attributes:
        entries: (axis, placement) pairs.
        mesh: the name of the mesh.

    Raises:
        ShardingError: an axis has two placements, or two sub-axes overlap.
    """

    entries: tuple[tuple[str, Placement], ...] = attrs.field(default=(), converter=_convert_entries)
    mesh: str = attrs.field(default="mesh", converter=_mesh_name)

    @cached_property
    def _placements(self) -> dict[str, Placement]:
        """Return axis → placement."""
        return dict(self.entries)

    def __getitem__(self, axis: str) -> Placement:
        return self._placements.get(axis, R)

    def dim_axes(self, dim: int) -> tuple[str, ...]:
        """Return the axes that shard `dim`, major first."""
        return self._axes_by_dim.get(dim, ())

    @cached_property
    def _axes_by_dim(self) -> dict[int, tuple[str, ...]]:
        """Return dimension → the axes that shard it, outermost first."""
        axes_by_dim: dict[int, tuple[str, ...]] = {}
        for axis, placement in self.entries:
            if placement.dim is not None:
                axes_by_dim[placement.dim] = (*axes_by_dim.get(placement.dim, ()), axis)
        return axes_by_dim

    def dim_placements(self, dim: int, mesh: Mesh) -> tuple[tuple[Placement, int], ...]:
        """Return (placement, number of ranks) of each axis that shards `dim`, major first."""
        return tuple([(self._placements[axis], mesh.sizes[axis]) for axis in self.dim_axes(dim)])

    @cached_property
    def partial(self) -> tuple[tuple[str, str], ...]:
        """Return (axis, op) of the partial placements."""
        return tuple(
            (axis, placement.op) for axis, placement in self.entries if isinstance(placement, PartialPlacement)
        )

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of the partial placements and of those with trait "other". Equal kinds commute."""
        return frozenset(placement.kind for _, placement in self.entries if placement.kind is not None)

    @cached_property
    def has_lossy(self) -> bool:
        """Return whether a placement is lossy. The search only uses such a placement if the user requests it."""
        return any(placement.error for _, placement in self.entries)

    @cached_property
    def open_axes(self) -> tuple[str, ...]:
        """Return the axes left to the compiler."""
        return tuple(axis for axis, placement in self.entries if placement.trait == "open")

    @cached_property
    def _is_checked(self) -> bool:
        """Return whether a placement is a plug-in's: then `check_shape` must check its `check` and its ranges."""
        return bool(plugins(placement for _, placement in self.entries))

    def replace(self, axis: str, placement: Placement) -> Sharding:
        """Return this sharding with another placement on `axis`. A new axis is the innermost on its dimension."""
        # A dict keeps the position of an existing key.
        return Sharding(tuple({**self._placements, axis: placement}.items()), self.mesh)

    def along(self, axis: str, mesh: Mesh) -> Placement | None:
        """Return the placement along `axis`, also if the entries have its sub-axes, or an axis that contains it.

        Returns None if sub-axes of `axis` have different placements, or if no refined mesh has all these axes.
        """
        if axis in self._placements:
            return self._placements[axis]
        try:
            refined_mesh = mesh.refine([axis, *self._placements])
        except ShardingError:
            return None
        refined = self.refined(refined_mesh)
        placements = {refined[part] for part in refined_mesh.parts(axis)}
        return placements.pop() if len(placements) == 1 else None

    def refined(self, mesh: Mesh) -> Sharding:
        """Return this sharding with its axes split into the axes of a refined mesh, see `Mesh.refine`.

        Raises:
            ShardingError: a placement cannot be split into placements on sub-axes.
        """
        if all(axis in mesh.sizes for axis, _ in self.entries):
            return self
        for axis, placement in self.entries:
            if not placement.splits and len(mesh.parts(axis)) > 1:
                raise ShardingError(
                    f"{placement} on axis '{axis}' cannot be split over sub-axes; expected the whole axis: "
                    f"reshard all of '{axis}' in one step"
                )
        entries = [(part, placement) for axis, placement in self.entries for part in mesh.parts(axis)]
        return Sharding(entries, self.mesh)

    def merged(self, mesh: Mesh) -> Sharding:
        """Return this sharding with adjacent sub-axes of one placement merged.

        `tp(1)2: S(0), tp(2)4: S(0)` on a mesh with 8 ranks along tp becomes `tp: S(0)`. Entries are merged only if the
        placement `splits`.
        """
        if not any(is_part(axis) for axis, _ in self.entries):
            return self
        entries: list[tuple[str, Placement]] = []
        for axis, placement in self.entries:
            is_mergeable = bool(entries) and entries[-1][1] == placement and placement.splits
            joined = mesh.join(entries[-1][0], axis) if is_mergeable else None
            if joined is None:
                entries.append((mesh.join(axis) or axis, placement))
            else:
                entries[-1] = (joined, placement)
        return Sharding(entries, self.mesh)

    def local_ranges(self, dim: int, size: int, mesh: Mesh, coordinate: Mapping[str, int]) -> Ranges:
        """Return the ranges of dimension `dim` with `size` elements on the rank at `coordinate`, in local order."""
        axes = self.dim_axes(dim)
        return shard_ranges(self.dim_placements(dim, mesh), size, tuple([coordinate[axis] for axis in axes]))

    def local_type(self, meta: TensorMeta, mesh: Mesh, coordinate: Mapping[str, int]) -> TensorMeta:
        """Return the local type, on the rank at `coordinate`, of a tensor of global type `meta`."""
        shape, dtype = meta.shape, meta.dtype
        for axes, placement in self.layers:
            count, index = 1, 0
            for axis in axes:
                count, index = count * mesh.sizes[axis], index * mesh.sizes[axis] + coordinate[axis]
            shape, dtype = own_type(placement, shape, dtype, count, index)
        return TensorMeta(shape, dtype)

    def local_types(self, meta: TensorMeta, mesh: Mesh) -> frozenset[TensorMeta]:
        """Return the set of local types on all ranks."""
        types = frozenset([(meta.shape, meta.dtype)])
        for axes, placement in self.layers:
            count = mesh.group_size(axes)
            types = frozenset(itertools.chain.from_iterable(placement.local_types(*local, count) for local in types))
        return frozenset(TensorMeta(*local) for local in types)

    @cached_property
    def layers(self) -> tuple[tuple[tuple[str, ...], Placement], ...]:
        """Return (axes, placement) in the order in which they are applied to a tensor, outermost first.

        Several axes with an equal placement act as one axis, if the placement defines its local type and can be split.
        """
        axes_of_layer: dict[object, tuple[str, ...]] = {}
        placement_of_layer: dict[object, Placement] = {}
        for axis, placement in self.entries:
            key = placement if placement.has_own_type and placement.splits else axis
            axes_of_layer[key] = (*axes_of_layer.get(key, ()), axis)
            placement_of_layer[key] = placement
        return tuple((axes, placement_of_layer[key]) for key, axes in axes_of_layer.items())

    @cached_property
    def has_own_type(self) -> bool:
        """Return whether a placement defines its local type. Then local tensors may be other than shards."""
        return any(placement.has_own_type for _, placement in self.entries)

    @cached_property
    def routed_dims(self) -> frozenset[int]:
        """Return the dimensions whose positions and sizes on a rank depend on data."""
        return frozenset(
            placement.dim for _, placement in self.entries if placement.is_routed and placement.dim is not None
        )

    def local_shape(
        self, shape: Iterable[int], mesh: Mesh, coordinate: Mapping[str, int], dtype: DType = F32
    ) -> tuple[int, ...]:
        """Return the local shape on the rank at `coordinate`. It may depend on `dtype` for plug-in placements."""
        return self.local_type(TensorMeta(tuple(shape), dtype), mesh, coordinate).shape

    def lengths(self, dim: int, size: int, mesh: Mesh) -> frozenset[int]:
        """Return the set of local sizes of dimension `dim` with `size` elements."""
        return shard_lengths(self.dim_placements(dim, mesh), size)

    def is_even(self, dim: int, size: int, mesh: Mesh) -> bool:
        """Return whether dimension `dim` with `size` elements has the same local size on all ranks."""
        return len(self.lengths(dim, size, mesh)) == 1

    def check_shape(self, mesh: Mesh, shape: tuple[int, ...], dtype: DType = F32) -> None:
        """Raise ShardingError unless a tensor of global `shape` and `dtype` can have this sharding on `mesh`.

        Standard placements accept every shape. A plug-in placement must accept each local shape and element type that
        the outer placements lead to.
        """
        self.check(mesh, len(shape))
        if not self._is_checked:
            return
        for axes, placement, (local_shape, local_dtype), count in self.nested(mesh, shape, dtype):
            # The verifier checks the element type of the tensor. Outer placements may change the element type.
            if local_dtype != dtype and not placement.supports(local_dtype):
                raise ShardingError(
                    f"{placement} on axis '{', '.join(axes)}' does not support {local_dtype}, the element "
                    f"type after the outer axes of <{self}>; expected a supported element type: use another "
                    "placement on one of the axes"
                )
            _check_layout(placement, local_shape, count)

    def nested(
        self, mesh: Mesh, shape: tuple[int, ...], dtype: DType
    ) -> Iterator[tuple[tuple[str, ...], Placement, LocalType, int]]:
        """Yield (axes, placement, outer type, number of ranks) for each of `layers`, outermost first.

        The outer type is `shape` and `dtype` for the first layer, and a local type of the previous layer for others. A
        layer with several outer types is repeated.
        """
        types = {(shape, dtype)}
        for axes, placement in self.layers:
            count = mesh.group_size(axes)
            yield from ((axes, placement, outer_type, count) for outer_type in types)
            types = {local_type for outer_type in types for local_type in placement.local_types(*outer_type, count)}

    def check(self, mesh: Mesh, rank: int | None) -> None:
        """Raise ShardingError unless this can be the sharding of a tensor of `rank` dimensions on `mesh`."""
        _check(self, mesh, rank)

    def __str__(self) -> str:
        return ", ".join(f"{axis}: {placement}" for axis, placement in self.entries)


ShardingLike: TypeAlias = str | Sharding | Mapping[str, str | Placement] | Sequence[Any]
"""A sharding in the Python API: `"dp: S(0), tp: ?"`, `{"dp": "S(0)"}`, a Sharding, or DTensor placements."""


@lru_cache(maxsize=65536)
def _check(sharding: Sharding, mesh: Mesh, rank: int | None) -> None:
    """Raise ShardingError unless a tensor of `rank` dimensions on `mesh` can have `sharding`.

    The axes must be in the mesh, sub-axes must be merged, sharded dimensions must exist (unless `rank` is None), and
    partial placements must be of one kind.
    """
    for axis, placement in sharding.entries:
        mesh.require(axis)
        if mesh.root is None and is_part(axis) and sharding.merged(mesh) != sharding:
            raise ShardingError(
                f"<{sharding}> has sub-axes that can be merged; expected the merged form: write "
                f"<{sharding.merged(mesh)}>"
            )
        if placement.dim is not None and rank is not None and placement.dim >= rank:
            raise ShardingError(
                f"{placement} on axis '{axis}' shards dimension {placement.dim} of a tensor of rank {rank}; "
                f"expected a dimension below {rank}"
            )
    if len(sharding.kinds) > 1:
        raise ShardingError(
            f"partial values of different kinds ({', '.join(sorted(sharding.kinds))}) do not commute; "
            "expected partial values of one kind: reduce the others first"
        )


@lru_cache(maxsize=65536)
def shard_ranges(placements: tuple[tuple[Any, int], ...], size: int, indices: tuple[int, ...]) -> Ranges:
    """Return the ranges of `size` elements that a rank has.

    For example, two axes of 2 ranks shard 8 elements by S. The rank at (1, 0) has the elements 4 and 5: ((4, 6),).

    Args:
        placements: the (shard placement, number of ranks) of each axis, outermost first.
        indices: the coordinate of the rank on each of these axes.
    """
    ranges: Ranges = ((0, size),)
    for (placement, count), index in zip(placements, indices, strict=True):
        ranges = select(ranges, placement.ranges(length(ranges), count, index))
    return joined(ranges)


def parse_sharding(text: str, mesh: str = "mesh") -> Sharding:
    """Parse `dp: S(0), tp: P(sum)`; the empty text is replicated.

    Raises:
        ParseError: the text is not a sharding.
        ShardingError: an axis has two placements.
    """
    return Sharding(_parse_entries(text), mesh)


def _parse_entries(text: str) -> list[tuple[str, Placement]]:
    """Parse `dp: S(0), tp: R` into (axis, placement) pairs, replicated ones included.

    Raises:
        ParseError: a part of the text is not `axis: placement`.
    """
    entries = []
    for part in split_entries(text):
        axis, colon, placement = part.partition(":")
        if not colon or not is_axis(axis.strip()):
            entry_text = " ".join(part.split())
            raise ParseError(f"'{entry_text}' is not part of a sharding; expected `axis: placement`, as in `dp: S(0)`")
        entries.append((axis.strip(), parse_placement(placement)))
    return entries


def as_sharding(value: object, mesh: Mesh, rank: int | None = None) -> Sharding:
    """Convert a sharding of the Python API: a Sharding, text, a dict, or DTensor placements in mesh order.

    Args:
        rank: the rank of the tensor, if known. Then DTensor placements may count dimensions from the end.

    Raises:
        ParseError, ShardingError: the value is none of these or does not fit the mesh.
    """
    if isinstance(value, Sharding):
        entries = list(value.entries)
    elif isinstance(value, str):
        entries = _parse_entries(value)
    elif isinstance(value, Mapping):
        entries = [(str(axis), _placement(placement, rank)) for axis, placement in value.items()]
    elif isinstance(value, (list, tuple)):
        if len(value) != len(mesh.axes):
            raise ShardingError(
                f"found {len(value)} DTensor placements; expected one for each axis of mesh @{mesh.name} {mesh}"
            )
        entries = [
            (axis, _from_dtensor(placement, rank)) for axis, placement in zip(mesh.axis_names, value, strict=True)
        ]
    else:
        raise ParseError(
            f"{shown(value)} is not a sharding; expected text, a dict axis → placement, or DTensor placements"
        )
    for axis, _ in entries:
        # Replicated axes have no entries in a Sharding, so it would hide a misspelt axis.
        mesh.require(axis)
    result = Sharding(entries, value.mesh if isinstance(value, Sharding) else mesh.name).merged(mesh)
    result.check(mesh, None)
    return result


def _check_layout(placement: Placement, shape: tuple[int, ...], count: int) -> None:
    """Raise ShardingError unless `count` ranks can have a tensor of this shape with `placement`."""
    try:
        evaluated("check", placement.check, shape, count)
    except SpmdirError as error:
        # `check` of a plug-in may raise any SpmdirError; callers expect a ShardingError.
        raise ShardingError(error.message, error.location) from None
    if isinstance(placement, ShardPlacement):
        check_partition(placement, shape[placement.dim], count)


def _placement(value: object, rank: int | None) -> Placement:
    """Convert a placement, its text, or a DTensor placement of a tensor of `rank` dimensions, to a placement."""
    if isinstance(value, Placement):
        return value
    return parse_placement(value) if isinstance(value, str) else _from_dtensor(value, rank)


_DTENSOR: dict[str, Callable[[Any, int], str]] = {
    "Replicate": lambda placement, dim: "R",
    "Shard": lambda placement, dim: f"S({dim})",
    "Partial": lambda placement, dim: f"P({placement.reduce_op})",
    "_StridedShard": lambda placement, dim: f"Strided({dim}, {placement.split_factor})",
    "_NormPartial": lambda placement, dim: f"Norm({float(placement.norm_type):g})",
    "_MaskPartial": lambda placement, dim: "Masked",
}
"""Class name of a DTensor placement → (placement, dimension) → text of the placement. It avoids an import of torch."""


def _from_dtensor(placement: Any, rank: int | None) -> Placement:
    """Convert a DTensor placement. A negative dimension counts from the end if `rank` is known."""
    kind = type(placement).__name__
    if kind not in _DTENSOR:
        raise ParseError(
            f"DTensor placement {placement!r} has no counterpart in spmdir; expected one of {', '.join(_DTENSOR)}"
        )
    dim = getattr(placement, "dim", 0)
    if rank is not None and -rank <= dim < 0:
        dim += rank
    return parse_placement(_DTENSOR[kind](placement, dim))
