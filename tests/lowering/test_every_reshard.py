"""Reshards between all pairs of shardings, lowered and run on all ranks: the same value comes out."""

from __future__ import annotations

import contextlib
import itertools
import random

import pytest
import torch

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import parse_sharding
from spmdir.simulator.distribution import collect
from tests.lowering.collective_programs import shardings
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


OWN = (
    *("R", "S(0)", "S(1)", "P(sum)", "P(avg)", "P(max)", "Cyclic(0, 1)", "Strided(0, 2)", "Ragged(0, [3, 5])"),
    *("Masked", "Norm(2)", "Quantised"),
)
"""The placements that come along, on dimensions of 8 and 4 elements."""

KEPT = [
    ("a: Masked, b: S(0)", "a: Masked, b: P(sum)"),
    ("a: Quantised, b: Strided(0, 2)", "a: Quantised, b: S(0)"),
    ("a: Cyclic(0, 1), b: Norm(2)", "a: S(0), b: Norm(2)"),
    ("a: P(avg), b: S(0)", "a: P(avg), b: P(sum)"),
]
"""Exchanges along one axis that leave the reduction of the other one pending, whatever that is."""


def test_reshards_between_all_placements_that_come_along_keep_the_value() -> None:
    torch.manual_seed(0)
    mesh, random_ = Mesh({"a": 2, "b": 2}), random.Random(0)
    pairs = [tuple(parse_sharding(text, "mesh") for text in pair) for pair in KEPT]
    while len(pairs) < 36:
        with contextlib.suppress(ShardingError):  # reductions that do not commute, rows that are no longer 8
            pair = [parse_sharding(f"a: {random_.choice(OWN)}, b: {random_.choice(OWN)}", "mesh") for _ in "st"]
            for sharding in pair:
                sharding.check_shape(mesh, (8, 4))
            pairs.append(tuple(pair))
    reshards = [Reshard(source, target, (8, 4)) for source, target in pairs]
    values = [torch.randint(0, 9, (8, 4)).double() for _ in reshards]
    for reshard, value, found in zip(reshards, values, simulated(mesh, reshards, values), strict=True):
        inexact = "Quantised" in f"{reshard.source} {reshard.target}"
        error = (collect(found, reshard.target, mesh, value.shape) - value).abs().max()
        assert error <= (1 if inexact else 1e-9), reshard
