"""What the ops that exchange borders give, worked out on the whole dimension instead of by sending."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from spmdir.core.mesh import Mesh

FILLS: dict[str, float] = {"zero": 0.0, "lowest": float("-inf")}


def _lines(mesh: Mesh, axes: Sequence[str]) -> list[list[int]]:
    """Ranks that hold one dimension together, in the order of their blocks: the axes nest major first."""
    lines: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for rank in range(mesh.world_size):
        at = mesh.coordinate(rank)
        rest = tuple(at[axis] for axis, _ in mesh.axes if axis not in axes)
        lines.setdefault(rest, []).append((tuple(at[axis] for axis in axes), rank))
    return [[rank for _, rank in sorted(line)] for line in lines.values()]


def halo(
    pieces: Sequence[Any], mesh: Mesh, axes: Sequence[str], dim: int, before: int, after: int, fill: str = "zero"
) -> list[Any]:
    results: list[Any] = [None] * len(pieces)
    for line in _lines(mesh, axes):
        shape = list(pieces[line[0]].shape)

        def border(size: int, shape: list[int] = shape, line: list[int] = line) -> torch.Tensor:
            return pieces[line[0]].new_full([*shape[:dim], size, *shape[dim + 1 :]], FILLS[fill])

        whole, at = torch.cat([border(before), *(pieces[rank] for rank in line), border(after)], dim), 0
        for rank in line:
            size = pieces[rank].shape[dim]
            results[rank] = whole.narrow(dim, at, before + size + after)
            at += size
    return results


def fold(pieces: Sequence[Any], mesh: Mesh, axes: Sequence[str], dim: int, before: int, after: int) -> list[Any]:
    results: list[Any] = [None] * len(pieces)
    for line in _lines(mesh, axes):
        sizes = [pieces[rank].shape[dim] - before - after for rank in line]
        shape = list(pieces[line[0]].shape)
        whole = pieces[line[0]].new_zeros([*shape[:dim], before + sum(sizes) + after, *shape[dim + 1 :]])
        for index, rank in enumerate(line):
            whole.narrow(dim, sum(sizes[:index]), pieces[rank].shape[dim]).add_(pieces[rank])
        for index, rank in enumerate(line):
            results[rank] = whole.narrow(dim, before + sum(sizes[:index]), sizes[index])
    return results


EXCHANGES: dict[str, Callable[..., list[Any]]] = {"spmd.halo": halo, "spmd.fold": fold}
"""Op → (what each rank holds, mesh, arguments) → what each rank gets."""
