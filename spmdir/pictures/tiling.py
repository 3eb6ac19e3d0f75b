"""A tensor cut into rectangles, each with the ranks that hold it.

The placements define the elements of each rank (spmdir/core/placement/rank_elements.py), so plug-in placements can be
drawn too. A dimension is cut at each position where the elements of a rank begin or end.

For example, 8 elements as S(0) over 2 ranks are cut at 0, 4 and 8: rank 0 holds [0, 4), and rank 1 holds [4, 8).
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
from spmdir.core.placement.rank_elements import RankElements, rank_elements
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta

_MEANINGS = {
    "partial": "* {axes}: {placement}: the value is the reduction of the tensors of the ranks along {axes}",
    "open": "* {axes}: not decided",
}
_OTHER = "* {axes}: {placement}: the local tensors along {axes} do not contain elements of the tensor"


@attrs.frozen
class Tile:
    """A rectangle of a tensor.

    Attributes:
        rows, columns: (first, end) indices of the pieces of the picture.
        holder: the index of its ranks in `Tiling.holders`.
    """

    rows: Range
    columns: Range
    holder: int


@attrs.frozen
class Tiling:
    """A tensor with the ranks that hold each part.

    Attributes:
        meta: the global shape and element type.
        sharding: the sharding of the tensor.
        mesh: the mesh of its ranks.
        dims: the drawn dimensions: the first downwards, the second to the right. A single one is drawn to the right.
        position: dimension → the position of the slice, for all other dimensions.
        rows, columns: the (start, end) positions of the pieces of the two dimensions.
        tiles: the rectangles, without overlaps. No rank holds the positions outside of them.
        holders: for each `Tile.holder`, its ranks.
        mixed: (axes, placement) of the placements whose local tensors do not contain elements of the tensor.
        cropped: descriptions of the pieces that are left out.
    """

    meta: TensorMeta
    sharding: Sharding
    mesh: Mesh
    dims: tuple[int, ...]
    position: Mapping[int, int]
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    tiles: tuple[Tile, ...]
    holders: tuple[tuple[int, ...], ...]
    mixed: tuple[tuple[tuple[str, ...], Placement], ...]
    cropped: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The lines below the picture: partial values, and pieces that are left out."""
        meanings = [
            _MEANINGS.get(placement.trait, _OTHER).format(axes=", ".join(axes), placement=placement)
            for axes, placement in self.mixed
        ]
        return (*meanings, *self.cropped)

    @property
    def labels(self) -> tuple[str, ...]:
        """For each entry of `holders`, its ranks as text, with `*` if `mixed` is not empty."""
        mark = "*" if self.mixed else ""
        return tuple(f"{ranks_text(ranks)}{mark}" for ranks in self.holders)

    @property
    def title(self) -> str:
        """The type, sharding and mesh in one line."""
        shown = ", ".join(":" if dim in self.dims else str(self.position[dim]) for dim in range(self.meta.rank))
        part = f"[{shown}] of " if self.position else ""
        return f"{part}{self.meta} <{self.sharding}> on {self.mesh}"


def tiling(meta: TensorMeta, sharding: Sharding, mesh: Mesh, slices: Mapping[int, int], max_pieces: int) -> Tiling:
    """Cut a tensor into rectangles with equal ranks.

    At most two dimensions are drawn: sharded ones first, then the last ones. The other dimensions are sliced.

    Args:
        slices: dimension → the position of the slice. Other dimensions that are not drawn are sliced at 0.
        max_pieces: the number of pieces of a dimension that are drawn.

    Raises:
        ShardingError: the tensor cannot have this sharding, or a slice is out of range.
        LimitError: the mesh has more than SIMULATED ranks.
    """
    SIMULATED.check(mesh.world_size)
    sharding.check_shape(mesh, meta.shape, meta.dtype)
    dims, position = _drawn_dims(meta.shape, sharding, slices)
    held_by_rank = _elements_by_rank(sharding, meta.shape, mesh, position)
    rows = _pieces(held_by_rank.values(), dims[0], meta.shape[dims[0]]) if len(dims) == 2 else ((0, 1),)
    columns = _pieces(held_by_rank.values(), dims[-1], meta.shape[dims[-1]]) if dims else ((0, 1),)
    drawn_rows, drawn_columns = rows[:max_pieces], columns[:max_pieces]
    ranks_of_cell: dict[tuple[int, int], list[int]] = {}
    for rank, elements in held_by_rank.items():
        held_rows = _held_pieces(drawn_rows, elements, dims[0]) if len(dims) == 2 else (0,)
        held_columns = _held_pieces(drawn_columns, elements, dims[-1]) if dims else (0,)
        for cell in itertools.product(held_rows, held_columns):
            ranks_of_cell.setdefault(cell, []).append(rank)
    holders: dict[tuple[int, ...], int] = {}  # ranks of a cell → their index
    grid: list[list[int | None]] = []  # for each row and column, the index of the ranks; None if no rank holds the cell
    for row in range(len(drawn_rows)):
        grid.append([])
        for column in range(len(drawn_columns)):
            ranks = tuple(ranks_of_cell.get((row, column), ()))
            grid[-1].append(holders.setdefault(ranks, len(holders)) if ranks else None)
    mixed: dict[tuple[tuple[str, ...], Placement], None] = {}
    for elements in held_by_rank.values():
        mixed |= dict.fromkeys(elements.other_placements)
    return Tiling(
        meta=meta,
        sharding=sharding,
        mesh=mesh,
        dims=dims,
        position=position,
        rows=drawn_rows,
        columns=drawn_columns,
        tiles=tuple(_merge_cells(grid)),
        holders=tuple(holders),
        mixed=tuple(mixed),
        # A tensor with one drawn dimension has columns only, and a scalar has neither.
        cropped=tuple(_cropped(dims, (rows, columns)[2 - len(dims) :], max_pieces)),
    )


def _drawn_dims(
    shape: tuple[int, ...], sharding: Sharding, slices: Mapping[int, int]
) -> tuple[tuple[int, ...], dict[int, int]]:
    """Return the drawn dimensions, and dimension → position of the slice for all others.

    Raises:
        ShardingError: a slice is out of range.
    """
    for dim, position in slices.items():
        if not 0 <= dim < len(shape):
            raise ShardingError(
                f"slices has dimension {dim} for a tensor of rank {len(shape)}; expected a dimension from 0 to "
                f"{len(shape) - 1}"
            )
        if not 0 <= position < shape[dim]:
            raise ShardingError(
                f"slices has position {position} for dimension {dim}; expected a position below {shape[dim]}"
            )
    candidates = [dim for dim in range(len(shape)) if dim not in slices]
    drawn = sorted(candidates, key=lambda dim: (not sharding.dim_axes(dim), -dim))[:2]
    return tuple(sorted(drawn)), {dim: slices.get(dim, 0) for dim in range(len(shape)) if dim not in drawn}


def _elements_by_rank(
    sharding: Sharding, shape: tuple[int, ...], mesh: Mesh, slice_positions: Mapping[int, int]
) -> dict[int, RankElements]:
    """Return rank → its elements, for the ranks that have elements of the slice.

    The elements of a rank depend only on its coordinates along the axes of `sharding`, so they are computed once for
    each coordinate.

    Args:
        slice_positions: sliced dimension → the position of the slice.
    """
    refined_mesh = mesh.refine([axis for axis, _ in sharding.entries])
    elements_by_coordinates: dict[tuple[int, ...], RankElements] = {}
    elements_by_rank = {}
    for rank in range(mesh.world_size):
        coordinates = tuple(refined_mesh.index(rank, axes) for axes, _ in sharding.layers)
        if coordinates not in elements_by_coordinates:
            elements_by_coordinates[coordinates] = rank_elements(sharding, shape, mesh, rank)
        elements = elements_by_coordinates[coordinates]
        if all(_contains(elements.ranges[dim], position) for dim, position in slice_positions.items()):
            elements_by_rank[rank] = elements
    return elements_by_rank


def _contains(ranges: Iterable[Range], position: int) -> bool:
    """Return whether a position is in one of the ranges."""
    return any(start <= position < end for start, end in ranges)


def _pieces(elements_of_ranks: Iterable[RankElements], dim: int, size: int) -> tuple[Range, ...]:
    """Return the pieces of a dimension, cut such that each rank holds all elements of a piece, or none."""
    ends = {0, size}
    for ranges in {elements.ranges[dim] for elements in elements_of_ranks}:
        ends.update(itertools.chain.from_iterable(ranges))
    return tuple(itertools.pairwise(sorted(ends))) if size else ((0, 0),)


def _held_pieces(pieces: Sequence[Range], elements: RankElements, dim: int) -> list[int]:
    """Return the indices of those `pieces` of dimension `dim` that are inside the elements of a rank."""
    return [
        index
        for index, (start, end) in enumerate(pieces)
        if any(range_start <= start < end <= range_end for range_start, range_end in elements.ranges[dim])
    ]


def _merge_cells(grid: Sequence[Sequence[int | None]]) -> list[Tile]:
    """Merge cells of equal holders into rectangles: first as wide as possible, then as high as possible.

    For example, [[0, 0], [0, 1]] becomes three rectangles: the first row, and each cell of the second row.
    """
    covered: set[tuple[int, int]] = set()
    tiles = []
    for row, row_holders in enumerate(grid):
        for column, holder in enumerate(row_holders):
            if holder is None or (row, column) in covered:
                continue
            end_column = column
            while (
                end_column < len(row_holders) and row_holders[end_column] == holder and (row, end_column) not in covered
            ):
                end_column += 1
            end_row = row
            while end_row < len(grid) and all(
                grid[end_row][index] == holder and (end_row, index) not in covered
                for index in range(column, end_column)
            ):
                end_row += 1
            covered.update(itertools.product(range(row, end_row), range(column, end_column)))
            tiles.append(Tile((row, end_row), (column, end_column), holder))
    return tiles


def _cropped(dims: Sequence[int], pieces: Sequence[Sequence[Range]], max_pieces: int) -> list[str]:
    """Return a note for each dimension of which the picture omits pieces."""
    return [
        f"dimension {dim}: only the first {max_pieces} of {len(cut)} pieces, up to position {cut[max_pieces - 1][1]}"
        for dim, cut in zip(dims, pieces, strict=True)
        if len(cut) > max_pieces
    ]


def ranks_text(ranks: Sequence[int], max_ranges: int = 3) -> str:
    """Return ranks as ranges; of more than `max_ranges` ranges, the first two and the number of ranks.

    Example:
        >>> ranks_text([0, 1, 2, 3, 8, 9]), ranks_text([0, 2, 4, 6])
        ('0-3, 8, 9', '0, 2, … (4)')
    """
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = []
    for first, last in runs:
        separator = ", " if last == first + 1 else "-"
        texts.append(str(first) if first == last else f"{first}{separator}{last}")
    return ", ".join(texts) if len(runs) <= max_ranges else f"{', '.join(texts[:2])}, … ({len(ranks)})"
