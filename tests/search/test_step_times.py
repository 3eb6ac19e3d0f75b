"""The tables of the search against the planner, pair by pair."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest

from spmdir.core.dtype import F32
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Partial
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.plan_tree import Planner, plan_tree
from spmdir.reshard.topology import FLAT, H100X8, Topology
from spmdir.search.certificate.dual_bound import number_all
from spmdir.search.joint_placements import JointPlacements
from spmdir.search.placement_catalogue import catalogue
from spmdir.search.step_times import StepTimes

META = TensorMeta((64, 32, 16), F32)


EMPTY = TensorMeta((0, 32, 16), F32)


def compared(meta: TensorMeta, topology: Topology) -> Iterator[tuple[float, float]]:
    """Yield what the table and the planner say of each pair of placements on two axes."""
    mesh = Mesh({"a": 2, "b": 4})
    placements = JointPlacements(mesh, mesh.axis_names, catalogue(meta.rank, ()))
    names = ["R", "S(0)", "S(1)", "S(2)", "P(sum)"]
    index = {str(placement): at for placement, at in placements.catalogue.index.items()}
    for pair in itertools.product(names, repeat=2):
        for order in ((0, 1), (1, 0)):
            placements.number((index[pair[0]], index[pair[1]]), order)
    table = StepTimes(mesh, placements, PLANNED, topology).table(meta, np.arange(len(placements.all)))
    planner = Planner(mesh, topology, PLANNED)
    for before, after in itertools.permutations(range(len(placements.all)), 2):
        source, target = (sharding(placements, number) for number in (before, after))
        yield float(table[before, after]), plan_tree(meta, source, (target,), planner).seconds


@pytest.mark.parametrize(("topology", "equal"), [(FLAT, 0.97), (H100X8, 0.79)], ids=str)
def test_tables_say_what_the_planner_says(topology: Topology, equal: float) -> None:
    pairs = list(compared(META, topology))
    assert all((seconds > 0) == (planned > 0) for seconds, planned in pairs)
    found = np.array([seconds / planned if planned else 1.0 for seconds, planned in pairs])
    assert (abs(found - 1) < 1e-6).mean() >= equal
    assert found.min() > 0.5 and found.max() < 3


def test_tables_say_as_the_planner_does_that_moving_an_empty_value_costs_nothing() -> None:
    assert {*compared(EMPTY, H100X8)} == {(0.0, 0.0)}


@pytest.mark.parametrize("shape", [(64, 32, 16), (7, 130, 64)], ids=str)
def test_lower_bounds_on_three_axes_are_below_plans_but_not_far(shape: tuple[int, ...]) -> None:
    mesh, meta = Mesh({"a": 2, "b": 4, "c": 8}), TensorMeta(shape, F32)
    every = catalogue(meta.rank, ())
    placements = JointPlacements(mesh, mesh.axis_names, every)
    placements.number((every.index[Partial("sum")],) * 3)
    number_all(placements, meta.rank)
    numbers = np.arange(len(placements.all))
    table = StepTimes(mesh, placements, PLANNED, H100X8, is_bound=True).table(meta, numbers)
    planner = Planner(mesh, H100X8, PLANNED)
    ratios = []
    for before, after in random.Random(0).sample(list(itertools.permutations(numbers, 2)), 60):
        source, target = (sharding(placements, number) for number in (before, after))
        ratios.append(table[before, after] / plan_tree(meta, source, (target,), planner).seconds)
    assert max(ratios) < 1 + 1e-6
    assert np.mean(ratios) > 0.85


def sharding(placements: JointPlacements, number: int) -> Sharding:
    placed, order = placements.all[number], placements.order[number]
    names = [(placements.axes[at], placements.catalogue.placements[placed[at]]) for at in order]
    return Sharding(names, placements.mesh.name)
