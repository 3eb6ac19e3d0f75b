"""Boxes say what a rank holds, whatever the placement."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.distributed.tensor import _utils

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.runtime.local_state import dtensor_placements
from spmdir.runtime.shard_blocks import find_shard_blocks
from spmdir.simulator.distribution import local_tensor

MESH = Mesh({"a": 2, "b": 3, "c": 2})
SHAPES = [(7, 5), (12, 4), (1, 13), (0, 3), (2, 3, 5)]
LAYOUTS = [
    "", "a: S(0)", "a: S(0), b: S(0), c: S(0)", "c: S(0), a: S(0)", "b: S(1), a: S(1), c: S(0)", "b: Cyclic(0, 2)",
    "a: S(0), b: Cyclic(0, 1)", "a: Strided(0, 2), b: S(0)", "b: Strided(1, 2), c: ZigZag(0)", "a: Padded(0)",
    "b: Padded(0), a: Padded(0)", "c: S(0), b: Padded(0)", "a: Padded(1), b: Padded(0)", "b: ZigZag(1), a: S(1)",
]  # fmt: skip


@pytest.mark.parametrize("text", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_boxes_of_a_rank_are_what_it_holds_and_those_of_all_ranks_are_the_tensor(text, shape):
    sharding = parse_sharding(text)
    whole = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).view(shape)
    seen = torch.zeros(shape, dtype=torch.bool)
    for rank in range(MESH.world_size):
        shard = local_tensor(whole, sharding, MESH, rank)
        covered = torch.zeros(shard.shape, dtype=torch.int64)
        for block in find_shard_blocks(sharding, shape, MESH, rank):
            assert torch.equal(block.view_local(shard), block.view_global(whole))
            block.view_local(covered).add_(1)
            block.view_global(seen).fill_(True)
        assert torch.equal(covered, (shard != 0).long()), "an element is in no block or in two, or padding is in one"
    assert seen.all()


def test_what_is_no_element_is_in_no_box():
    for text in ("a: P(sum)", "b: Masked", "a: S(0), b: P(max)", "a: Shadow(bf16)"):
        with pytest.raises(UnsupportedError, match=r"do not contain elements of the tensor, so ranks cannot save them"):
            find_shard_blocks(parse_sharding(text), (4, 4), MESH, 0)


def test_what_dtensor_says_of_its_placements_is_what_ranks_hold():
    nests = [order for count in range(4) for order in itertools.permutations("abc", count)]
    said = 0
    for shape in ((7, 5), (12, 13), (24, 1)):
        for order, dims in itertools.product(nests, ((0, 0, 0), (0, 1, 0), (1, 0, 0))):
            sharding = parse_sharding(", ".join(f"{axis}: S({dim})" for axis, dim in zip(order, dims, strict=False)))
            placements = dtensor_placements(sharding, shape, MESH)
            for rank in range(MESH.world_size) if placements is not None else ():
                where = list(MESH.coordinate(rank).values())
                sizes, offsets = _utils._compute_local_shape_and_global_offset(
                    shape, list(MESH.sizes.values()), where, placements
                )
                blocks = find_shard_blocks(sharding, shape, MESH, rank)
                assert [(block.offsets, block.sizes) for block in blocks] == (
                    [(offsets, sizes)] if math.prod(sizes) else []
                )
                said += 1
    assert said > 500


def test_sub_axes_hold_blocks():
    mesh, sharding = Mesh({"dp": 4}), parse_sharding("dp(1)2: S(1), dp(2)2: S(0)")
    assert isinstance(sharding, Sharding)
    found = [find_shard_blocks(sharding, (3, 4), mesh, rank)[0] for rank in range(4)]
    assert [(block.offsets, block.sizes) for block in found] == [
        ((0, 0), (2, 2)),
        ((2, 0), (1, 2)),
        ((0, 2), (2, 2)),
        ((2, 2), (1, 2)),
    ]
