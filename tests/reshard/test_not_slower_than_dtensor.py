"""No plan takes more modelled time than DTensor's; `benchmarks/reshard_bound.py` tries more meshes and shapes."""

from __future__ import annotations

import itertools
import random

import pytest

from spmdir.core.mesh import Mesh
from spmdir.reshard.topology import TOPOLOGIES
from tests.lowering.collective_programs import shardings
from tests.reshard.dtensor_comparison import compare

MATRICES = ((4096, 4096), (64, 64), (10, 6), (3, 2))
CASES = [
    ({"a": 4}, MATRICES, 12),
    ({"a": 2, "b": 3}, MATRICES, 40),
    ({"a": 4, "b": 2}, MATRICES, 40),
    ({"a": 2, "b": 2, "c": 2}, MATRICES, 12),
    ({"a": 2, "b": 4}, ((64, 512, 1024), (7, 512, 1023)), 60),
]
"""Mesh, shapes, and how many pairs of shardings are tried."""


@pytest.mark.parametrize(("sizes", "shapes", "count"), CASES)
def test_no_plan_takes_more_modelled_time_than_that_of_dtensor(
    sizes: dict[str, int], shapes: tuple[tuple[int, ...], ...], count: int
) -> None:
    pairs = list(itertools.permutations(shardings(Mesh(sizes), len(shapes[0])), 2))
    chosen = random.Random(0).sample(pairs, count)
    compared = list(compare(sizes, chosen, shapes, list(TOPOLOGIES.values())))
    assert sum(len(one.theirs) for one in compared) > len(compared)
    assert [str(one) for one in compared if one.slower] == []
