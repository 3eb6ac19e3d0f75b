"""Reshards between all pairs of shardings, lowered and run on all ranks: the same value comes out."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from spmdir.mesh import Mesh
from tests.lowering.programs import shardings
from tests.lowering.reshards import Reshard, assert_kept, simulated

SHAPES = [(8, 24), (7, 5), (1, 9), (0, 4), (3, 2)]
"""Even, uneven, of one element, of none, and with fewer elements than ranks."""

MESHES = {
    "2": (12, 5),
    "3": (12, 5),
    "4": (12, 5),
    "2x2": (306, 1),
    "2x3": (306, 1),
    "2x4": (306, 1),
    "2x2x2": (400, 1),
}
"""Sizes of a mesh → how many pairs are tried on it, all there are but for the last one, and how many shapes each."""


@pytest.mark.parametrize("sizes", MESHES)
def test_reshards_between_all_pairs_of_shardings_keep_the_value(sizes: str) -> None:
    torch.manual_seed(0)
    mesh, (count, shapes) = Mesh(zip("abc", map(int, sizes.split("x")), strict=False)), MESHES[sizes]
    pairs = random.Random(0).sample(list(itertools.permutations(shardings(mesh, 2), 2)), count)
    turns = itertools.product(range(shapes), enumerate(pairs))
    reshards = [Reshard(*pair, SHAPES[(number + turn) % len(SHAPES)]) for turn, (number, pair) in turns]
    for start in range(0, len(reshards), 40):
        some = reshards[start : start + 40]
        values = [torch.randint(-9, 9, reshard.shape).double() for reshard in some]
        for reshard, value, found in zip(some, values, simulated(mesh, some, values), strict=True):
            assert_kept(mesh, reshard, value, found)
