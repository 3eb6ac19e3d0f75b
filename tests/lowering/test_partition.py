"""How the ranks of a group partition a dimension, and the ops on its chunks, run on tensors in place of graph nodes."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

from typing import Any

import pytest
import torch

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.lowering.partition import (
    DimPartition,
    drop_padding,
    flat_chunks,
    from_chunk_order,
    from_flat_chunks,
    pad_chunks,
    partition_of,
    to_chunk_order,
)

MESH = Mesh({"dp": 2, "tp": 3})
CUTS = {  # sharding of the dimension, its size: lengths in nesting order, shard of each rank, stretches kept by padding
    ("tp: S(0)", 6): ([2, 2, 2], (0, 1, 2), [(0, 0, 6)]),
    ("tp: S(0)", 7): ([3, 3, 1], (0, 1, 2), [(0, 0, 7)]),
    ("tp: S(0)", 2): ([1, 1, 0], (0, 1, 2), [(0, 0, 2)]),
    ("dp: S(0)", 0): ([0, 0], (0, 1), [(0, 0, 0)]),
    ("dp: S(0), tp: S(0)", 12): ([2] * 6, (0, 1, 2, 3, 4, 5), [(0, 0, 12)]),
    ("tp: S(0), dp: S(0)", 12): ([2] * 6, (0, 2, 4, 1, 3, 5), [(0, 0, 12)]),
    ("dp: S(0), tp: S(0)", 7): ([2, 2, 0, 1, 1, 1], (0, 1, 2, 3, 4, 5), [(0, 0, 4), (3, 4, 1), (4, 5, 1), (5, 6, 1)]),
    ("dp: Cyclic(0, 2)", 10): ([6, 4], (0, 1), [(0, 0, 10)]),
    ("tp: S(0), dp: Cyclic(0, 1)", 8): (
        [2, 1, 2, 1, 1, 1], (0, 2, 4, 1, 3, 5), [(0, 0, 3), (2, 3, 3), (4, 6, 1), (5, 7, 1)],
    ),
}  # fmt: skip


def partition(text: str, size: int, dim: int = 0) -> DimPartition:
    sharding = parse_sharding(text.replace("(0", f"({dim}"))
    return partition_of(sharding, dim, [axis for axis, _ in sharding.entries], size, MESH, 0)


@pytest.mark.parametrize(("text", "size"), CUTS)
def test_a_dimension_is_cut_into_these_lengths(text: str, size: int) -> None:
    lengths, by_rank, runs = CUTS[text, size]
    found = partition(text, size)
    assert [length for _, length in found.chunks] == lengths
    assert found.by_rank == by_rank
    assert list(found.runs) == runs
    assert found.step == max(lengths)
    assert found.is_even == (len(set(lengths)) == 1)


@pytest.mark.parametrize(("rank", "extent", "lengths"), [(0, 4, [2, 2, 0]), (3, 3, [1, 1, 1])])
def test_inner_axes_cut_the_block_that_outer_axes_leave(rank: int, extent: int, lengths: list[int]) -> None:
    found = partition_of(parse_sharding("dp: S(0), tp: S(0)"), 0, ("tp",), 7, MESH, rank)
    assert (found.extent, [length for _, length in found.chunks]) == (extent, lengths)


def emit(target: Any, *arguments: Any) -> Any:
    """Run what a graph would have as a node."""
    return target(*arguments)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("text", "size"), [key for key in CUTS if key[1]])
def test_what_is_in_order_out_padded_or_flattened_along_a_cut_comes_back(text: str, size: int, dim: int) -> None:
    found = partition(text, size, dim)
    x = torch.arange(size * 2.0).reshape((size, 2) if dim == 0 else (2, size))
    assert torch.equal(from_chunk_order(emit, to_chunk_order(emit, x, found), found), x)
    in_order = to_chunk_order(emit, x, found)
    padded = pad_chunks(emit, in_order, found, 2)
    assert padded.shape[dim] == found.count * found.step
    assert torch.equal(drop_padding(emit, padded, found), in_order)
    shards = [in_order.narrow(dim, *found.chunks[number]) for number in found.by_rank]
    flat = flat_chunks(emit, in_order, found, tuple(x.shape))
    assert torch.equal(flat, torch.cat([shard.flatten() for shard in shards]))
    assert torch.equal(from_flat_chunks(emit, flat, found, tuple(x.shape)).reshape(x.shape), in_order)
