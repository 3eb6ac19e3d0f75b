"""The exchange, a generalised all-to-all: missing elements come directly from their owners, in one round.

The grid of elements that a rank holds afterwards is cut into *cells*, one for each source chunk that it meets in each
dimension. Where the source is partial and the target is not, each partial value is fetched and the rank reduces them
itself. Where the target is partial and the source is not, each cell goes to some of the *places* along its axes, the
others holding the reduction's identity; equally for all ranks along other axes, for what these replicate must be the
same. Places that have a cell come first, but get less of it than others if they had most to do.

A cell that some ranks lack is held by others alike, who share the sending evenly, so that a cell may come in several
parts. Then the busiest rank moves no more than the lower bound asks where division is even and no reduction pends.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from spmdir.core.intervals import Ranges, common
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.reshard.conditions import refinement
from spmdir.reshard.moved_axes import exchanged_axes
from spmdir.reshard.parts import Chunk, Grid, Loads, Part, Share, in_order, moved, shared, split
from spmdir.reshard.runs import representatives

__all__ = [
    "Cell",
    "Grid",
    "Loads",
    "Part",
    "cells_of",
    "exchange",
    "exchange_loads",
    "grid_of",
    "least_received",
    "loads_of",
    "partial_axes",
    "reduced_axes",
]


def reduced_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """The axes whose pending reduction an exchange does."""
    return tuple(axis for axis, op in source.partial if (axis, op) not in target.partial)


def partial_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """The axes whose reduction an exchange leaves pending."""
    return tuple(axis for axis, op in target.partial if (axis, op) not in source.partial)


@functools.lru_cache(maxsize=4096)
def exchange(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> tuple[Part, ...]:
    """All parts that the ranks of the group of `rank` give each other and keep, by receiver, partial and position."""
    fine = refinement(mesh, source, target)
    return in_order(_shares(source.refined(fine), target.refined(fine), fine, shape, rank))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> list[Share]:
    group = mesh.group(rank, exchanged_axes(source, target, mesh))
    pending = partial_axes(source, target)
    cells = cells_of(source, target, mesh, shape, group, reduced_axes(source, target), pending)
    straight = _shared_out(cells, 0, {})
    if not pending:
        return straight
    before = moved(straight, group)
    received = dict(zip(group, before[1], strict=True))
    after = moved(_shared_out(cells, _SHARES, received), group)
    loads = {pair for sides in zip(before, after, strict=True) for pair in zip(*sides, strict=True)}
    best = min(range(_SHARES), key=lambda n: max((_SHARES - n) * a + n * b for a, b in loads))
    return _shared_out(cells, best, received) if best else straight


@attrs.frozen
class Cell:
    """Where source and target chunks meet.

    Attributes:
        chunk: its elements.
        holders: for each partial, the ranks that hold it.
        places: for each position along the axes that are left pending, the ranks that may hold the partial there.
    """

    chunk: Chunk
    holders: list[list[int]]
    places: list[list[int]]


def cells_of(
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    group: Sequence[int],
    partials: Sequence[str],
    places: Sequence[str],
) -> list[Cell]:
    """The cells of what a `group` of ranks holds, `partials` and `places` being told apart along these axes."""
    held = {member: grid_of(source, shape, mesh, member) for member in group}
    cuts = [sorted({grid[dim] for grid in held.values()}) for dim in range(len(shape))]
    holders: dict[Grid, list[list[int]]] = {}
    needers: dict[Grid, list[list[int]]] = {}
    for member in group:
        for by_grid, axes, grid in (
            (holders, partials, held[member]),
            (needers, places, grid_of(target, shape, mesh, member)),
        ):
            found = by_grid.setdefault(grid, [[] for _ in range(mesh.group_size(axes))])
            found[mesh.index(member, axes)].append(member)
    return [
        Cell(Chunk.of(cell), holders[owner], of) for grid, of in needers.items() for cell, owner in _cells(grid, cuts)
    ]


_SHARES = 12
"""Into as many shares a cell may go that is divided between the places that have it and the others."""


def _shared_out(cells: Sequence[Cell], aside: int, received: Mapping[int, int]) -> list[Share]:
    """All shares, where `aside` of _SHARES of each cell that all places lack go to those that lack more of it.

    Of these they go to the ones whose ranks have `received` least.
    """
    shares: list[Share] = []
    for cell in cells:
        for partial, own in enumerate(cell.holders):
            having = set(own)
            lacking = [sum(member not in having for member in members) for members in cell.places]
            fewest = min(lacking)
            near = [members for members, lacks in zip(cell.places, lacking, strict=True) if lacks == fewest]
            others = [members for members, lacks in zip(cell.places, lacking, strict=True) if lacks > fewest]
            far = _idlest(others, received) if aside and fewest and others else []
            chosen = [(members, (_SHARES - aside) * len(far) if far else 1) for members in near]
            chosen += [(members, aside * len(near)) for members in far]
            for chunk, members in split(cell.chunk, chosen):
                shares += [Share(member, member, partial, chunk) for member in members if member in having]
                shares += shared(partial, [(member, chunk) for member in members if member not in having], own)
    return shares


def _idlest(places: Sequence[list[int]], received: Mapping[int, int]) -> list[list[int]]:
    most = [max(received[member] for member in members) for members in places]
    return [members for members, load in zip(places, most, strict=True) if load == min(most)]


@functools.lru_cache(maxsize=4096)
def exchange_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """(sender, receiver) → elements, in the one round of an exchange."""
    return [loads_of(_shares, exchanged_axes(source, target, mesh), source, target, mesh, shape)]


def least_received(source: Sharding, target: Sharding, mesh: Mesh, shape: Sequence[int]) -> float:
    """Elements that some rank receives at the least: all partials of what it needs but its own."""
    fine = refinement(mesh, source, target)
    source, target = source.refined(fine), target.refined(fine)
    pending = partial_axes(source, target)
    partials = fine.group_size(axis for axis in reduced_axes(source, target) if axis not in pending)
    needed = math.prod(max(target.lengths(dim, size, fine)) for dim, size in enumerate(shape))
    return (partials - 1) * needed / fine.group_size(pending)


def loads_of(
    shares_of: Callable[[Sharding, Sharding, Mesh, tuple[int, ...], int], Iterable[Share]],
    axes: Sequence[str],
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
) -> Loads:
    """(sender, receiver) → elements, over groups that stand for all of the mesh.

    `shares_of` gives the shares of the group of a rank along `axes`.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        parts = [part for axis in axes for part in fine.parts(axis)]
        return loads_of(shares_of, parts, source.refined(fine), target.refined(fine), fine, shape)
    loads: Loads = {}
    for rank in representatives(axes, mesh, shape, source, target):
        for one in shares_of(source, target, mesh, shape, rank):
            if one.sender != one.receiver and one.chunk.numel:
                pair = one.sender, one.receiver
                loads[pair] = loads.get(pair, 0) + one.chunk.numel
    return loads


def grid_of(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> Grid:
    """What `rank` holds of a tensor of global `shape`, each dimension in its local order."""
    coordinate = mesh.coordinate(rank)
    return tuple(sharding.local_ranges(dim, size, mesh, coordinate) for dim, size in enumerate(shape))


def _cells(grid: Grid, cuts: Sequence[Sequence[Ranges]]) -> Iterator[tuple[Grid, Grid]]:
    """Each cell of `grid` that is not empty, with the source grid that it is of."""
    if not grid:
        yield (), ()
        return
    for owner in cuts[0]:
        if owner and grid[0] and (both := common(grid[0], owner)):
            for cell, owners in _cells(grid[1:], cuts[1:]):
                yield (both, *cell), (owner, *owners)
