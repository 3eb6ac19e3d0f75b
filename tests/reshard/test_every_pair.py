"""Plans between all pairs of shardings keep the value; `make reshards` tries each with every shape."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from spmdir.core.mesh import Mesh
from tests.reshard.every_pair import MESHES, SHAPES, TOPOLOGIES, pairs_but_for_names
from tests.reshard.test_simulation import run

MOST = 400
"""Pairs of a mesh; only three axes have more."""


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_plan_of_every_pair_keeps_the_value(mesh: Mesh) -> None:
    torch.manual_seed(0)
    pairs = [*pairs_but_for_names(mesh)]
    pairs = random.Random(0).sample(pairs, min(len(pairs), MOST))
    # Pairs on one axis are so few that each has every shape.
    cases = itertools.product(pairs, SHAPES) if len(mesh.axes) == 1 else zip(pairs, itertools.cycle(SHAPES))
    kinds: set[str] = set()
    for ((source, target), shape), topology in zip(cases, itertools.cycle(TOPOLOGIES)):
        kinds |= run(shape, source, target, mesh, topology)
    everything = {"slice", "partition", "all_gather", "all_to_all", "all_reduce", "reduce_scatter"}
    assert kinds - {"permute", "two_round_exchange"} == everything | {"exchange", "rearrange"}
    assert ("permute" in kinds) == (len(mesh.axes) > 1)
