"""The sharding of one tensor: the placement along each mesh axis, in nesting order."""

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
from spmdir.core.placement.base import (
    LocalType,
    PartialPlacement,
    Placement,
    ShardPlacement,
    check_partition,
    own_type,
    parse_placement,
    shard_lengths,
)
from spmdir.core.placement.standard import R, plugins
from spmdir.core.placement.tensor import TensorMeta

_REPLICATED = type(R)
"""Has one value, so asking for the class will do, and is quick."""


def _entries_of(entries: Iterable[tuple[str, Placement]]) -> tuple[tuple[str, Placement], ...]:
    try:
        return _canonical(entries)
    except (AttributeError, TypeError, ValueError):
        raise ShardingError(
            f"a Sharding cannot have the entries {shown(entries)}; expected pairs of an axis and a Placement, as of "
            'parse_placement("S(0)"); functions that take shardings take texts too, as "dp: S(0)"'
        ) from None


def _mesh_name(name: str) -> str:
    if type(name) is not str:
        require_type("mesh", name, str, "the name of a mesh")
    return name


def _canonical(entries: Iterable[tuple[str, Placement]]) -> tuple[tuple[str, Placement], ...]:
    """Return the entries in canonical order.

    Sharded dimensions come ascending with their axes in nesting order, then the other placements by axis name.
    """
    entries = [(axis, placement) for axis, placement in entries if type(placement) is not _REPLICATED]
    axes = [axis for axis, _ in entries]
    if len(set(axes)) != len(axes):
        repeated = next(axis for axis in axes if axes.count(axis) > 1)
        raise ShardingError(f"axis '{repeated}' is placed twice; an axis has one placement")
    if any(map(is_part, axes)) and (pair := overlapping(axes)):
        raise ShardingError(f"'{pair[0]}' and '{pair[1]}' overlap; sub-axes of one axis have no ranks in common")
    sharded = sorted((e for e in entries if e[1].trait == "shard"), key=lambda e: e[1].dim or 0)
    return (*sharded, *sorted((e for e in entries if e[1].trait != "shard"), key=lambda e: axis_order(e[0])))


@attrs.define(frozen=True, slots=False, cache_hash=True)
class Sharding(ShownAsText):
    """Mesh axis → placement; an axis that is not listed is replicated.

    The order of axes on one dimension is nesting order, major first: `tp: S(0), dp: S(0)` shards by tp, then
    each shard by dp. Entries are canonical, so equal shardings are equal values with one text; where sub-axes
    occur, once they are `merged`.

    Attributes:
        entries: (axis, placement) pairs.
        mesh: the name of the mesh.

    Raises:
        ShardingError: an axis, or a part of it, is placed twice.
    """

    entries: tuple[tuple[str, Placement], ...] = attrs.field(default=(), converter=_entries_of)
    mesh: str = attrs.field(default="mesh", converter=_mesh_name)

    @cached_property
    def _placements(self) -> dict[str, Placement]:
        return dict(self.entries)

    def __getitem__(self, axis: str) -> Placement:
        return self._placements.get(axis, R)

    def dim_axes(self, dim: int) -> tuple[str, ...]:
        """Return the axes that shard `dim`, major first."""
        return self._axes_by_dim.get(dim, ())

    @cached_property
    def _axes_by_dim(self) -> dict[int, tuple[str, ...]]:
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
        return tuple((axis, p.op) for axis, p in self.entries if isinstance(p, PartialPlacement))

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of the partial placements, and of the trait "other"; those of one kind commute."""
        return frozenset(p.kind for _, p in self.entries if p.kind is not None)

    @cached_property
    def has_lossy(self) -> bool:
        """Return whether a placement loses precision, so that only who asks for it gets it; see `Step.is_lossy`."""
        return any(placement.error for _, placement in self.entries)

    @cached_property
    def open_axes(self) -> tuple[str, ...]:
        """Return the axes left to the compiler."""
        return tuple(axis for axis, p in self.entries if p.trait == "open")

    @cached_property
    def _is_checked(self) -> bool:
        """Return whether shapes are to be looked at: plug-ins may ask for certain ones, and their ranges must
        partition.
        """
        return bool(plugins(placement for _, placement in self.entries))

    def replace(self, axis: str, placement: Placement) -> Sharding:
        """Return this sharding with `axis` placed by `placement`, innermost on its dimension if it was not there."""
        if axis in self._placements:
            entries = [(a, placement if a == axis else p) for a, p in self.entries]
        else:
            entries = [*self.entries, (axis, placement)]
        return Sharding(entries, self.mesh)

    def along(self, axis: str, mesh: Mesh) -> Placement | None:
        """Return the placement along `axis`, which sub-axes of it or an axis that it is part of may have.

        None if several.
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
        """Return this sharding over the axes of a mesh that splits some of its own, see `Mesh.refine`.

        Raises:
            ShardingError: a placement is another one on sub-axes.
        """
        if all(axis in mesh.sizes for axis, _ in self.entries):
            return self
        for axis, placement in self.entries:
            if not placement.splits and len(mesh.parts(axis)) > 1:
                raise ShardingError(
                    f"{placement} on axis '{axis}' is not the same on sub-axes of it; reshard the axis itself"
                )
        return Sharding([(part, p) for axis, p in self.entries for part in mesh.parts(axis)], self.mesh)

    def merged(self, mesh: Mesh) -> Sharding:
        """Return this sharding with adjacent sub-axes of one placement merged."""
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
        """Return the shape and element type of what the rank at `coordinate` holds of a tensor of type `meta`."""
        shape, dtype = meta.shape, meta.dtype
        for axes, placement in self.layers:
            count, index = 1, 0
            for axis in axes:
                count, index = count * mesh.sizes[axis], index * mesh.sizes[axis] + coordinate[axis]
            shape, dtype = own_type(placement, shape, dtype, count, index)
        return TensorMeta(shape, dtype)

    def local_types(self, meta: TensorMeta, mesh: Mesh) -> frozenset[TensorMeta]:
        """Return what `local_type` gives on all ranks, each once."""
        types = frozenset([(meta.shape, meta.dtype)])
        for axes, placement in self.layers:
            count = mesh.group_size(axes)
            types = frozenset(itertools.chain.from_iterable(placement.local_types(*local, count) for local in types))
        return frozenset(TensorMeta(*local) for local in types)

    @cached_property
    def layers(self) -> tuple[tuple[tuple[str, ...], Placement], ...]:
        """Return (axes, placement) in the order in which they lay a tensor out.

        Several axes of one placement that says itself what ranks hold, and that splits, do so as one axis.
        """
        layers: dict[object, tuple[tuple[str, ...], Placement]] = {}
        for axis, placement in self.entries:
            key = placement if placement.has_own_type and placement.splits else axis
            layers[key] = (*layers.get(key, ((),))[0], axis), placement
        return tuple(layers.values())

    @cached_property
    def has_own_type(self) -> bool:
        """Return whether what ranks hold is more than shards of the tensor: some placement says what."""
        return any(placement.has_own_type for _, placement in self.entries)

    def local_shape(
        self, shape: Iterable[int], mesh: Mesh, coordinate: Mapping[str, int], dtype: DType = F32
    ) -> tuple[int, ...]:
        """Return the shape that `local_type` gives; `dtype` matters where it depends on the element type alone."""
        return self.local_type(TensorMeta(tuple(shape), dtype), mesh, coordinate).shape

    def lengths(self, dim: int, size: int, mesh: Mesh) -> frozenset[int]:
        """Return the local sizes of dimension `dim` with `size` elements, each once."""
        return shard_lengths(self.dim_placements(dim, mesh), size)

    def is_even(self, dim: int, size: int, mesh: Mesh) -> bool:
        """Return whether dimension `dim` with `size` elements has the same local size on all ranks."""
        return len(self.lengths(dim, size, mesh)) == 1

    def check_shape(self, mesh: Mesh, shape: tuple[int, ...], dtype: DType = F32) -> None:
        """Raise ShardingError unless a tensor of global `shape` and `dtype` can have this sharding on `mesh`."""
        self.check(mesh, len(shape))
        if not self._is_checked:
            return
        for axes, placement, (local_shape, local_dtype), count in self.nested(mesh, shape, dtype):
            # The verifier checks the element type of the tensor. This is the one that an outer axis leaves.
            if local_dtype != dtype and not placement.supports(local_dtype):
                raise ShardingError(
                    f"{placement} on axis '{', '.join(axes)}' cannot hold {local_dtype}, the element type that the "
                    f"axes outside it leave in <{self}>; give one of the axes another placement"
                )
            _check_layout(placement, local_shape, count)

    def nested(
        self, mesh: Mesh, shape: tuple[int, ...], dtype: DType
    ) -> Iterator[tuple[tuple[str, ...], Placement, LocalType, int]]:
        """Yield (axes, placement, what it lays out, number of ranks) of each of `layers`, outermost first.

        What a placement lays out is the tensor of `shape` and `dtype`, or what ranks hold of it by the axes outside.
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
"""What the Python API takes for a sharding: `"dp: S(0), tp: ?"`, `{"dp": "S(0)"}`, a Sharding or DTensor placements."""


@lru_cache(maxsize=65536)
def _check(sharding: Sharding, mesh: Mesh, rank: int | None) -> None:
    for axis, placement in sharding.entries:
        mesh.require(axis)
        if mesh.root is None and is_part(axis) and sharding.merged(mesh) != sharding:
            raise ShardingError(f"<{sharding}> is to be written <{sharding.merged(mesh)}>")
        if placement.dim is not None and rank is not None and placement.dim >= rank:
            raise ShardingError(
                f"{placement} on axis '{axis}' shards dimension {placement.dim} of a tensor of rank {rank}; "
                f"expected a dimension below {rank}"
            )
    if len(sharding.kinds) > 1:
        raise ShardingError(
            f"partial values of different kinds ({', '.join(sorted(sharding.kinds))}) do not commute; "
            "reduce one before the other is made"
        )


@lru_cache(maxsize=65536)
def shard_ranges(placements: tuple[tuple[Any, int], ...], size: int, indices: tuple[int, ...]) -> Ranges:
    """Return the ranges of `size` elements that the rank at `indices` along the axes of `placements` has."""
    ranges: Ranges = ((0, size),)
    for (placement, count), index in zip(placements, indices, strict=True):
        ranges = select(ranges, placement.ranges(length(ranges), count, index))
    return joined(ranges)


def parse_sharding(text: str, mesh: str = "mesh") -> Sharding:
    """Parse `dp: S(0), tp: P(sum)`; the empty text is replicated.

    Raises:
        ParseError: the text is not a sharding.
        ShardingError: an axis is placed twice.
    """
    return Sharding(_entries(text), mesh)


def _entries(text: str) -> list[tuple[str, Placement]]:
    entries = []
    for part in split_entries(text):
        axis, colon, placement = part.partition(":")
        if not colon or not is_axis(axis.strip()):
            entry_text = " ".join(part.split())
            raise ParseError(f"'{entry_text}' is not part of a sharding; expected `axis: placement`, as in `dp: S(0)`")
        entries.append((axis.strip(), parse_placement(placement)))
    return entries


def as_sharding(value: object, mesh: Mesh, rank: int | None = None) -> Sharding:
    """Return a sharding from what the Python API accepts: a Sharding, text, a dict, or DTensor placements in mesh
    order.

    Args:
        rank: of the tensor, if known; DTensor placements may then count dimensions from the end.

    Raises:
        ParseError, ShardingError: the value is none of these or does not fit the mesh.
    """
    if isinstance(value, Sharding):
        entries = list(value.entries)
    elif isinstance(value, str):
        entries = _entries(value)
    elif isinstance(value, Mapping):
        entries = [(str(a), _placement(p, rank)) for a, p in value.items()]
    elif isinstance(value, (list, tuple)):
        if len(value) != len(mesh.axes):
            raise ShardingError(
                f"found {len(value)} DTensor placements; expected one for each axis of mesh @{mesh.name} {mesh}"
            )
        entries = [(axis, _from_dtensor(p, rank)) for axis, p in zip(mesh.axis_names, value, strict=True)]
    else:
        raise ParseError(
            f"{shown(value)} is not a sharding; expected text, a dict axis → placement, or DTensor placements"
        )
    for axis, _ in entries:
        # A replicated axis leaves no entry behind, so a misspelt one must be found here.
        mesh.require(axis)
    result = Sharding(entries, value.mesh if isinstance(value, Sharding) else mesh.name).merged(mesh)
    result.check(mesh, None)
    return result


def _check_layout(placement: Placement, shape: tuple[int, ...], count: int) -> None:
    try:
        evaluated("check", placement.check, shape, count)
    except SpmdirError as error:
        # Declarations may raise any SpmdirError; callers that try shardings expect a ShardingError.
        raise ShardingError(error.message, error.location) from None
    if isinstance(placement, ShardPlacement):
        check_partition(placement, shape[placement.dim], count)


def _placement(value: object, rank: int | None) -> Placement:
    if isinstance(value, Placement):
        return value
    return parse_placement(value) if isinstance(value, str) else _from_dtensor(value, rank)


_DTENSOR: dict[str, Callable[[Any, int], str]] = {
    "Replicate": lambda p, dim: "R",
    "Shard": lambda p, dim: f"S({dim})",
    "Partial": lambda p, dim: f"P({p.reduce_op})",
    "_StridedShard": lambda p, dim: f"Strided({dim}, {p.split_factor})",
    "_NormPartial": lambda p, dim: f"Norm({float(p.norm_type):g})",
    "_MaskPartial": lambda p, dim: "Masked",
}
"""Name of a DTensor placement's class, with torch unimported → (placement, dimension) → the text of what it is here."""


def _from_dtensor(placement: Any, rank: int | None) -> Placement:
    kind = type(placement).__name__
    if kind not in _DTENSOR:
        raise ParseError(f"DTensor placement {placement!r} has no counterpart; expected one of {', '.join(_DTENSOR)}")
    dim = getattr(placement, "dim", 0)
    if rank is not None and -rank <= dim < 0:
        dim += rank
    return parse_placement(_DTENSOR[kind](placement, dim))
