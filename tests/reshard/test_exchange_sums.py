"""Counts of exchanges without a list of parts are those of the list."""

from __future__ import annotations

import random

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.reshard.collectives import PLANNED
from spmdir.reshard.exchange import exchange_loads
from spmdir.reshard.exchange_sums import sums_of_sole_senders
from spmdir.reshard.plan_edges import find_exchanges

MESHES = (
    Mesh({"a": 4}),
    Mesh({"a": 2, "b": 3}),
    Mesh({"a": 2, "b": 2, "c": 3}),
)
PLACEMENTS = ("R", "S(0)", "S(1)", "P(sum)")


def random_sharding(mesh: Mesh, draws: random.Random) -> Sharding:
    axes = draws.sample(mesh.axis_names, len(mesh.axis_names))
    return parse_sharding(", ".join(f"{axis}: {draws.choice(PLACEMENTS)}" for axis in axes))


def busiest(pairs: dict[tuple[int, int], int]) -> int:
    moved: dict[tuple[str, int], int] = {}
    for (sender, receiver), elements in pairs.items():
        for key in (("sent", sender), ("received", receiver)):
            moved[key] = moved.get(key, 0) + elements
    return max(moved.values(), default=0)


def test_sums_are_those_of_the_listed_parts() -> None:
    draws, counted = random.Random(0), 0
    for _ in range(1500):
        mesh = draws.choice(MESHES)
        source, target = random_sharding(mesh, draws), random_sharding(mesh, draws)
        shape = (draws.randint(1, 30), draws.choice((1, 2, 7, 12, 36)))
        node_axes = mesh.axis_names[: draws.randint(0, len(mesh.axes))]
        for step in find_exchanges(source, target, mesh, PLANNED):
            if step.kind != "exchange":
                continue
            sums = sums_of_sole_senders(step, shape, mesh, node_axes)
            if sums is None:
                continue
            counted += 1
            (loads,) = exchange_loads(step.source, step.target, mesh, shape)
            crossing = {
                (sender, receiver): elements
                for (sender, receiver), elements in loads.items()
                if mesh.index(sender, node_axes) != mesh.index(receiver, node_axes)
            }
            assert sums == (busiest(loads), busiest(crossing)), (mesh, str(step), shape, node_axes)
    assert counted > 500
