"""The exchange, a generalised all-to-all: missing elements come directly from their owners, in one round.

The grid of elements of a target shard is split into *cells*: its intersections with the source shards. Where the source
is partial and the target is not, a rank receives every partial value of a cell and reduces them itself. Where the
target is partial and the source is not, each cell becomes part of one or some of the target's partial values, and the
others have the reduction's identity there; the choice is the same for all ranks along other axes, which must stay
replicas. Partial values whose ranks have a cell already are chosen first, but others get a part of it if that balances
the load.

The ranks that have the same cell share the sending evenly, so that a cell may arrive in several parts. Then the busiest
rank moves no more than the lower bound where shards are even and nothing is partial.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from spmdir.core.intervals import Ranges, common
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.conditions import refinement
from spmdir.reshard.moved_axes import exchanged_axes
from spmdir.reshard.parts import Chunk, Grid, Loads, Part, Share, in_order, moved, shared, split
from spmdir.reshard.runs import representatives


def reduced_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """Return the axes whose partial values an exchange reduces."""
    return tuple(axis for axis, op in source.partial if (axis, op) not in target.partial)


def partial_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """Return the axes on which an exchange makes partial values."""
    return tuple(axis for axis, op in target.partial if (axis, op) not in source.partial)


@functools.lru_cache(maxsize=4096)
def exchange(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> tuple[Part, ...]:
    """Return the parts that the ranks of the group of `rank` send and keep, by receiver, partial and position."""
    fine = refinement(mesh, source, target)
    return in_order(_shares(source.refined(fine), target.refined(fine), fine, shape, rank))


@functools.lru_cache(maxsize=256)
def _shares(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> list[Share]:
    group = mesh.group(rank, exchanged_axes(source, target, mesh))
    made = partial_axes(source, target)
    cells = cells_of(source, target, mesh, shape, group, reduced_axes(source, target), made)
    nearest = _shares_of(cells, 0, {})
    if not made:
        return nearest
    before = moved(nearest, group)
    received = dict(zip(group, before[1], strict=True))
    after = moved(_shares_of(cells, _TWELFTHS, received), group)
    loads = {pair for sides in zip(before, after, strict=True) for pair in zip(*sides, strict=True)}
    best = min(range(_TWELFTHS), key=lambda n: max((_TWELFTHS - n) * a + n * b for a, b in loads))
    return _shares_of(cells, best, received) if best else nearest


@attrs.frozen
class Cell:
    """The intersection of a source shard and a target shard.

    Attributes:
        chunk: its elements.
        senders: for each partial value of the source, the ranks that have it.
        receivers: for each partial value of the target, the ranks that will have it.
    """

    chunk: Chunk
    senders: list[list[int]]
    receivers: list[list[int]]


def cells_of(
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
    group: Sequence[int],
    source_partial: Sequence[str],
    target_partial: Sequence[str],
) -> list[Cell]:
    """Return the cells of the shards of a `group` of ranks.

    Args:
        source_partial, target_partial: the axes along which ranks have different partial values before and after.
    """
    grids = {member: grid_of(source, shape, mesh, member) for member in group}
    shards = [sorted({grid[dim] for grid in grids.values()}) for dim in range(len(shape))]
    senders: dict[Grid, list[list[int]]] = {}
    receivers: dict[Grid, list[list[int]]] = {}
    for member in group:
        for by_grid, axes, grid in (
            (senders, source_partial, grids[member]),
            (receivers, target_partial, grid_of(target, shape, mesh, member)),
        ):
            found = by_grid.setdefault(grid, [[] for _ in range(mesh.group_size(axes))])
            found[mesh.index(member, axes)].append(member)
    return [
        Cell(Chunk.of(cell), senders[owner], of)
        for grid, of in receivers.items()
        for cell, owner in _cells(grid, shards)
    ]


_TWELFTHS = 12
"""A cell is divided between the ranks that have it and others in steps of one twelfth."""


def _shares_of(cells: Sequence[Cell], aside: int, received: Mapping[int, int]) -> list[Share]:
    """Return all shares of the cells.

    Each goes to the partial values of the target whose ranks lack least of it.

    Args:
        aside: twelfths of a cell that go to other partial values instead, where some rank of each lacks it.
        received: rank → elements that it receives if `aside` is 0; among the others, the least loaded get these shares.
    """
    shares: list[Share] = []
    for cell in cells:
        for partial, own in enumerate(cell.senders):
            having = set(own)
            lacking = [sum(member not in having for member in members) for members in cell.receivers]
            fewest = min(lacking)
            near = [members for members, lacks in zip(cell.receivers, lacking, strict=True) if lacks == fewest]
            others = [members for members, lacks in zip(cell.receivers, lacking, strict=True) if lacks > fewest]
            far = _idlest(others, received) if aside and fewest and others else []
            chosen = [(members, (_TWELFTHS - aside) * len(far) if far else 1) for members in near]
            chosen += [(members, aside * len(near)) for members in far]
            for chunk, members in split(cell.chunk, chosen):
                shares += [Share(member, member, partial, chunk) for member in members if member in having]
                shares += shared(partial, [(member, chunk) for member in members if member not in having], own)
    return shares


def _idlest(candidates: Sequence[list[int]], received: Mapping[int, int]) -> list[list[int]]:
    most = [max(received[member] for member in members) for members in candidates]
    return [members for members, load in zip(candidates, most, strict=True) if load == min(most)]


@functools.lru_cache(maxsize=4096)
def exchange_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> list[Loads]:
    """Return (sender, receiver) → elements, for the one round of an exchange."""
    return [loads_of(_shares, exchanged_axes(source, target, mesh), source, target, mesh, shape)]


def least_received(source: Sharding, target: Sharding, mesh: Mesh, shape: Sequence[int]) -> float:
    """Return a lower bound on the elements that some rank receives: all partials of its target shard but its own."""
    fine = refinement(mesh, source, target)
    source, target = source.refined(fine), target.refined(fine)
    made = partial_axes(source, target)
    partials = fine.group_size(axis for axis in reduced_axes(source, target) if axis not in made)
    needed = math.prod(max(target.lengths(dim, size, fine)) for dim, size in enumerate(shape))
    return (partials - 1) * needed / fine.group_size(made)


def loads_of(
    shares_of: Callable[[Sharding, Sharding, Mesh, tuple[int, ...], int], Iterable[Share]],
    axes: Sequence[str],
    source: Sharding,
    target: Sharding,
    mesh: Mesh,
    shape: tuple[int, ...],
) -> Loads:
    """Return (sender, receiver) → elements, over groups that represent all groups of the mesh.

    Args:
        shares_of: (source, target, mesh, shape, rank) → the shares of the group of the rank along `axes`.
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
    """Return the grid of the shard of `rank` of a tensor of global `shape`, each dimension in its local order."""
    coordinate = mesh.coordinate(rank)
    return tuple(sharding.local_ranges(dim, size, mesh, coordinate) for dim, size in enumerate(shape))


def _cells(grid: Grid, shards: Sequence[Sequence[Ranges]]) -> Iterator[tuple[Grid, Grid]]:
    """Yield each cell of `grid` that is not empty, with the grid of its source shard; `shards` are by dimension."""
    if not grid:
        yield (), ()
        return
    for owner in shards[0]:
        if owner and grid[0] and (both := common(grid[0], owner)):
            for cell, owners in _cells(grid[1:], shards[1:]):
                yield (both, *cell), (owner, *owners)
