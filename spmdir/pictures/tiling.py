"""A tensor cut into rectangles, each with the ranks that hold it.

What a rank holds is what its placements say (spmdir/core/placement/holding.py), so every placement can be drawn, those
of plug-ins too. Of a dimension only the positions count at which some rank begins or ends to hold it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.intervals import Range
from spmdir.core.limits import SIMULATED
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.holding import Holding, holding
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta

_MEANINGS = {
    "partial": "* {axes}: {placement}: the value is the reduction of what the ranks along {axes} hold",
    "open": "* {axes}: not decided",
}
_OTHER = "* {axes}: {placement}: what the ranks along {axes} hold are not elements of the tensor"


@attrs.frozen
class Tile:
    """A rectangle of a tensor.

    Attributes:
        rows, columns: (first, end) among the pieces of the picture.
        holder: the number of those that hold it, in `Tiling.holders`.
    """

    rows: Range
    columns: Range
    holder: int


@attrs.frozen
class Tiling:
    """A tensor with the ranks that hold each part.

    Attributes:
        meta: global shape and element type.
        sharding: of the tensor.
        mesh: of its ranks.
        dims: the dimensions that are drawn, downwards and to the right; none of a tensor without, one to the right.
        at: position of each other dimension.
        rows, columns: the (start, end) positions of the pieces that both are cut into.
        tiles: the rectangles, which do not overlap.
        holders: for each number in `tiles`, the ranks; nobody has what is between.
        mixed: (axes, placement) of those along which ranks hold something else than the elements.
        cropped: what is left out, as text.
    """

    meta: TensorMeta
    sharding: Sharding
    mesh: Mesh
    dims: tuple[int, ...]
    at: Mapping[int, int]
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    tiles: tuple[Tile, ...]
    holders: tuple[tuple[int, ...], ...]
    mixed: tuple[tuple[tuple[str, ...], Placement], ...]
    cropped: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the rectangles do not tell, a line each."""
        meanings = [
            _MEANINGS.get(placement.trait, _OTHER).format(axes=", ".join(axes), placement=placement)
            for axes, placement in self.mixed
        ]
        return (*meanings, *self.cropped)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return for each of `holders` its ranks, `*` where they hold something else than the elements."""
        mark = "*" if self.mixed else ""
        return tuple(f"{ranks_text(ranks)}{mark}" for ranks in self.holders)

    @property
    def title(self) -> str:
        """Return type, sharding and mesh in one line."""
        shown = ", ".join(":" if dim in self.dims else str(self.at[dim]) for dim in range(self.meta.rank))
        part = f"[{shown}] of " if self.at else ""
        return f"{part}{self.meta} <{self.sharding}> on {self.mesh}"


def tiling(meta: TensorMeta, sharding: Sharding, mesh: Mesh, slices: Mapping[int, int], most: int) -> Tiling:
    """Return who holds what of a tensor.

    Args:
        slices: dimension → the position at which the tensor is cut, until two dimensions are left. Of the others those
            are left that are sharded, or else the last; the rest is cut at 0.
        most: how many pieces of a dimension are drawn: of more, the first.

    Raises:
        ShardingError: the tensor cannot have this sharding, or has no such position.
        LimitError: there are more than SIMULATED ranks.
    """
    SIMULATED.check(mesh.world_size)
    sharding.check_shape(mesh, meta.shape, meta.dtype)
    dims, at = _drawn(meta.shape, sharding, slices)
    held = _held(sharding, meta.shape, mesh, at)
    rows = _pieces(held.values(), dims[0], meta.shape[dims[0]]) if len(dims) == 2 else ((0, 1),)
    columns = _pieces(held.values(), dims[-1], meta.shape[dims[-1]]) if dims else ((0, 1),)
    ranks: dict[tuple[int, int], list[int]] = {}
    for rank, one in held.items():
        down = _places(rows[:most], one, dims[0]) if len(dims) == 2 else (0,)
        right = _places(columns[:most], one, dims[-1]) if dims else (0,)
        for cell in itertools.product(down, right):
            ranks.setdefault(cell, []).append(rank)
    shown = rows[:most], columns[:most]
    holders: dict[tuple[int, ...], int] = {}
    grid = [
        [
            holders.setdefault(tuple(ranks[row, column]), len(holders)) if (row, column) in ranks else None
            for column in range(len(shown[1]))
        ]
        for row in range(len(shown[0]))
    ]
    mixed = tuple(dict.fromkeys(mixed for one in held.values() for mixed in one.mixed))
    cropped = tuple(_cropped(dims, (rows, columns)[2 - len(dims) :], most))
    return Tiling(meta, sharding, mesh, dims, at, *shown, tuple(_tiles(grid)), tuple(holders), mixed, cropped)


def _drawn(
    shape: tuple[int, ...], sharding: Sharding, slices: Mapping[int, int]
) -> tuple[tuple[int, ...], dict[int, int]]:
    """Return the dimensions to draw, and the positions of the others."""
    for dim, position in slices.items():
        if not 0 <= dim < len(shape):
            raise ShardingError(f"slices has dimension {dim} of a tensor of rank {len(shape)}; expected one below it")
        if not 0 <= position < shape[dim]:
            raise ShardingError(f"slices has position {position} of dimension {dim}; expected one below {shape[dim]}")
    free = [dim for dim in range(len(shape)) if dim not in slices]
    wanted = sorted(free, key=lambda dim: (not sharding.dim_axes(dim), -dim))[:2]
    return tuple(sorted(wanted)), {dim: slices.get(dim, 0) for dim in range(len(shape)) if dim not in wanted}


def _held(sharding: Sharding, shape: tuple[int, ...], mesh: Mesh, at: Mapping[int, int]) -> dict[int, Holding]:
    """Return what each rank holds that has something of the slice; ranks that differ on other axes hold the same."""
    fine = mesh.refine([axis for axis, _ in sharding.entries])
    found: dict[tuple[int, ...], Holding] = {}
    held = {}
    for rank in range(mesh.world_size):
        key = tuple(fine.index(rank, axes) for axes, _ in sharding.layers)
        if key not in found:
            found[key] = holding(sharding, shape, mesh, rank)
        if all(any(first <= at[dim] < end for first, end in found[key].ranges[dim]) for dim in at):
            held[rank] = found[key]
    return held


def _pieces(held: Iterable[Holding], dim: int, size: int) -> tuple[Range, ...]:
    """Return the pieces of a dimension that each rank holds wholly or not at all."""
    ends = {0, size}
    for ranges in {one.ranges[dim] for one in held}:
        ends.update(itertools.chain.from_iterable(ranges))
    return tuple(itertools.pairwise(sorted(ends))) if size else ((0, 0),)


def _places(pieces: Sequence[Range], held: Holding, dim: int) -> list[int]:
    """Return which of the drawn pieces a rank holds."""
    return [
        place
        for place, (start, end) in enumerate(pieces)
        if any(first <= start < end <= last for first, last in held.ranges[dim])
    ]


def _tiles(grid: Sequence[Sequence[int | None]]) -> list[Tile]:
    """Return rectangles of equal holders: each as wide as it can be, then as high."""
    taken: set[tuple[int, int]] = set()
    found = []
    for row, line in enumerate(grid):
        for column, holder in enumerate(line):
            if holder is None or (row, column) in taken:
                continue
            right = column
            while right < len(line) and line[right] == holder and (row, right) not in taken:
                right += 1
            below = row
            while below < len(grid) and all(
                grid[below][at] == holder and (below, at) not in taken for at in range(column, right)
            ):
                below += 1
            taken.update(itertools.product(range(row, below), range(column, right)))
            found.append(Tile((row, below), (column, right), holder))
    return found


def _cropped(dims: Sequence[int], pieces: Sequence[Sequence[Range]], most: int) -> list[str]:
    return [
        f"of dimension {dim} the first {most} of {len(cut)} pieces, up to position {cut[most - 1][1]}"
        for dim, cut in zip(dims, pieces, strict=True)
        if len(cut) > most
    ]


def ranks_text(ranks: Sequence[int], most: int = 3) -> str:
    """Return ranks as ranges, `0-3, 8`; of more than `most` ranges the first ones and how many ranks there are."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [
        str(first) if first == last else f"{first}{'-' if last > first + 1 else ', '}{last}" for first, last in runs
    ]
    return ", ".join(texts) if len(runs) <= most else f"{', '.join(texts[:2])}, … ({len(ranks)})"
