"""Reshards between all pairs of shardings, lowered and run on all ranks: the same value comes out."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from tests.lowering.collective_programs import shardings
from tests.lowering.random_reshards import Case, case, fault
from tests.lowering.reshard_programs import Reshard, assert_kept, simulated

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


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_every_reshard_that_is_planned_is_emitted_and_keeps_the_value(first: int) -> None:
    for number in range(first, first + 20):
        assert (wrong := fault(one := case(number))) is None, f"{one}: {wrong}"


FOUND = [
    ("a: Masked, b: S(0)", "a: Masked, b: P(sum)", (8, 4)),
    ("a: Quantised, b: Strided(0, 2)", "a: Quantised, b: S(0)", (8, 4)),
    ("a: Cyclic(0, 1), b: Norm(2)", "a: S(0), b: Norm(2)", (8, 4)),
    ("a: P(avg), b: S(0)", "a: P(avg), b: P(sum)", (8, 4)),
    ("a: Quantised", "", ()),
    ("a: Thirds, b: Thirds", "a: P(avg)", (2, 8)),
    ("a: S(1), b: Norm(2)", "a: Strided(0, 3), b: Thirds", (1, 8)),
]
"""Reshards that were planned and could not be emitted."""


@pytest.mark.parametrize(("source", "target", "shape"), FOUND)
def test_reshards_that_could_not_be_emitted_keep_the_value(source: str, target: str, shape: tuple[int, ...]) -> None:
    mesh = Mesh({"a": 2, "b": 2})
    reshard = Reshard(parse_sharding(source, "mesh"), parse_sharding(target, "mesh"), shape)
    assert fault(Case(0, mesh, reshard)) is None
