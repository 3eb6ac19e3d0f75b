"""Implement the ops that occur only in local forms, on the tensors of all ranks at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spmdir.core.intervals import Ranges
from spmdir.core.mesh import Mesh
from spmdir.core.placement.packed import find_packed_placement

FILLS: dict[str, float] = {"zero": 0.0, "lowest": float("-inf")}
"""Argument `fill` of `spmd.halo` → the value beyond the ends of a dimension."""


def _groups(mesh: Mesh, axes: Sequence[str]) -> list[list[int]]:
    """Return the groups of ranks along `axes`, each in the order of its blocks.

    On the mesh (a=2, b=2), the groups along b are [[0, 1], [2, 3]].
    """
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for rank in range(mesh.world_size):
        coordinate = mesh.coordinate(rank)
        position_of_group = tuple(coordinate[axis] for axis, _ in mesh.axes if axis not in axes)
        position_in_group = tuple(coordinate[axis] for axis in axes)
        groups.setdefault(position_of_group, []).append((position_in_group, rank))
    return [[rank for _, rank in sorted(group)] for group in groups.values()]


def halo(
    blocks: Sequence[Any], mesh: Mesh, axes: Sequence[str], dim: int, before: int, after: int, fill: str = "zero"
) -> list[Any]:
    """Return each block with `before` and `after` elements of its neighbours, or `fill` beyond the ends.

    The blocks [1, 2] and [3, 4] with before=1 and after=1 become [0, 1, 2, 3] and [2, 3, 4, 0].
    """
    results: list[Any] = [None] * len(blocks)
    for group in _groups(mesh, axes):
        first_block = blocks[group[0]]
        shape_before, shape_after = list(first_block.shape), list(first_block.shape)
        shape_before[dim], shape_after[dim] = before, after
        fill_before = first_block.new_full(shape_before, FILLS[fill])
        fill_after = first_block.new_full(shape_after, FILLS[fill])
        joined = torch.cat([fill_before, *(blocks[rank] for rank in group), fill_after], dim)
        start = 0
        for rank in group:
            size = blocks[rank].shape[dim]
            results[rank] = joined.narrow(dim, start, before + size + after)
            start += size
    return results


def halo_reduce(blocks: Sequence[Any], mesh: Mesh, axes: Sequence[str], dim: int, before: int, after: int) -> list[Any]:
    """Return each block without its halos, which are added to the neighbours' blocks. It is the transpose of `halo`.

    The blocks [0, 1, 2, 3] and [2, 3, 4, 0] with before=1 and after=1 become [1, 2 + 2] and [3 + 3, 4].
    """
    results: list[Any] = [None] * len(blocks)
    for group in _groups(mesh, axes):
        sizes = [blocks[rank].shape[dim] - before - after for rank in group]
        shape = list(blocks[group[0]].shape)
        joined = blocks[group[0]].new_zeros([*shape[:dim], before + sum(sizes) + after, *shape[dim + 1 :]])
        for index, rank in enumerate(group):
            joined.narrow(dim, sum(sizes[:index]), blocks[rank].shape[dim]).add_(blocks[rank])
        for index, rank in enumerate(group):
            results[rank] = joined.narrow(dim, before + sum(sizes[:index]), sizes[index])
    return results


def rotate(tensors: Sequence[Any], mesh: Mesh, axes: Sequence[str], steps: int = 1) -> list[Any]:
    """Return, for each rank, the tensor of the rank that is `steps` positions earlier in its ring."""
    results: list[Any] = [None] * len(tensors)
    for group in _groups(mesh, axes):
        for index, rank in enumerate(group):
            # A negative index counts from the end of the group, so it wraps around the ring.
            results[rank] = tensors[group[index - steps % len(group)]]
    return results


def wait(tensors: Sequence[Any], mesh: Mesh) -> list[Any]:
    """Return the tensors. The simulated start has already computed them."""
    return list(tensors)


def assemble(*blocks: Sequence[Any], mesh: Mesh, axes: Sequence[str], dim: int) -> list[Any]:
    """Concatenate blocks in the order of the ranks of the ring, on every rank.

    Args:
        blocks: `blocks[n][rank]` is the block of the rank n positions earlier in the ring. With n = 0 it is its own.
    """
    results: list[Any] = [None] * mesh.world_size
    for group in _groups(mesh, axes):
        for index, rank in enumerate(group):
            results[rank] = torch.cat(
                [blocks[(index - distance) % len(group)][rank] for distance in range(len(group))], dim
            )
    return results


EXCHANGES: dict[str, Callable[..., list[Any]]] = {
    "spmd.halo": halo,
    "spmd.halo_reduce": halo_reduce,
    "spmd.rotate": rotate,
    "spmd.rotate_start": rotate,
    "spmd.wait": wait,
    "spmd.assemble": assemble,
}
"""Op → function from (blocks of all ranks, mesh, arguments) to the result of each rank."""


def positions(ranges: Sequence[Ranges]) -> list[torch.Tensor]:
    """Return the positions in the ranges of each rank: [(0, 2), (4, 5)] → [0, 1, 4]."""
    results = []
    for rank_ranges in ranges:
        positions_of_rank = [position for start, end in rank_ranges for position in range(start, end)]
        results.append(torch.tensor(positions_of_rank, dtype=torch.int64))
    return results


def local_index(ranges: Sequence[Ranges], index: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return for each rank the local index of each position in its `index`; -1 if the rank does not have it."""
    results = []
    for global_index, positions_of_rank in zip(index, positions(ranges), strict=True):
        local_of_global = {position: local for local, position in enumerate(positions_of_rank.tolist())}
        locals_or_missing = [local_of_global.get(position, -1) for position in global_index.flatten().tolist()]
        results.append(torch.tensor(locals_or_missing, dtype=torch.int64).reshape(global_index.shape))
    return results


INDICES: dict[str, Callable[..., list[torch.Tensor]]] = {"spmd.positions": positions, "spmd.local_index": local_index}
"""Op → function from (ranges of all ranks, operands of all ranks) to the result of each rank."""


def _combine(*parts: torch.Tensor, by: str) -> Sequence[torch.Tensor]:
    """Combine two states, the parts of the left one first, by the packed placement `by`."""
    half = len(parts) // 2
    return find_packed_placement(by).combine(parts[:half], parts[half:])


RING_OPS: dict[str, Callable[..., Sequence[torch.Tensor]]] = {
    "spmd.choose": lambda new, old, when: [new if when else old],
    "spmd.identity": lambda *like, by: find_packed_placement(by).identity(*like),
    "spmd.combine": _combine,
    "spmd.pack": lambda *state, by: [find_packed_placement(by).pack(*state)],
    "spmd.finish": lambda *state, by: find_packed_placement(by).finish(state),
}
"""Op → function from (operands of a rank, arguments) to the results of the rank."""
