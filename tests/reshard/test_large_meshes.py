"""Meshes of a million ranks: what is told of them at once is what going through the ranks of small ones tells."""

import itertools
import random
from collections import Counter

import pytest

import spmdir
from spmdir.core.errors import LimitError, ShardingError
from spmdir.core.intervals import length
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import parse_placement
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.shards import ShardPlacement
from spmdir.reshard.collectives import collective
from spmdir.reshard.multi_axis_steps import check_permute, permuted_axes
from spmdir.reshard.plan_edges import find_moves

LARGE = ({"a": 1024, "b": 1024}, {"a": 64, "b": 64, "c": 256}, {"a": 1 << 20})


@pytest.mark.parametrize("text", ["S(0)", "Cyclic(0, 1)", "Cyclic(0, 3)", "Strided(0, 2)", "Strided(0, 5)"])
def test_runs_say_what_ranges_say(text: str) -> None:
    placement = parse_placement(text)
    assert isinstance(placement, ShardPlacement)
    for size, count in itertools.product(range(40), range(1, 9)):
        assert placement.runs(size, count) == ShardPlacement.runs(placement, size, count), (size, count)


def test_a_group_is_the_ranks_that_differ_along_its_axes_alone() -> None:
    mesh = Mesh({"a": 2, "b": 6, "c": 2})
    for axes in (("a",), ("b", "a"), ("b(2)3", "c"), ("b(1)2", "b(2)3"), ()):
        fine = mesh.refine(axes)
        free = {part for axis in axes for part in fine.parts(axis)}
        for rank in range(mesh.world_size):
            here = fine.coordinate(rank)
            alike = [
                r
                for r in range(mesh.world_size)
                if all(a in free or i == here[a] for a, i in fine.coordinate(r).items())
            ]
            assert mesh.group(rank, axes) == tuple(sorted(alike, key=lambda r: mesh.index(r, axes)))


def _permutes(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Whether every rank keeps its lengths, and groups hold each block as often before as after, rank by rank."""
    fixed = [axis for axis in mesh.axis_names if axis not in permuted_axes(source, target, mesh)]
    sides = []
    for side in (source, target):
        ranks = [mesh.coordinate(rank) for rank in range(mesh.world_size)]
        held = [tuple(side.local_ranges(d, size, mesh, at) for d, size in enumerate(shape)) for at in ranks]
        sides.append([own if all(own) else tuple(map(length, own)) for own in held])
        sides.append([side.local_shape(shape, mesh, at) for at in ranks])
    before, lengths, after, later = sides
    blocks = [Counter((mesh.index(r, fixed), own) for r, own in enumerate(side)) for side in (before, after)]
    return lengths == later and blocks[0] == blocks[1]


@pytest.mark.parametrize(
    "axes", [{"a": 2, "b": 2, "c": 2}, {"a": 2, "b": 3, "c": 4}, {"a": 6, "b": 2, "c": 3}], ids=str
)
def test_a_permute_is_legal_where_going_through_the_ranks_says_so(axes: dict[str, int]) -> None:
    mesh, draw, found = Mesh(axes), random.Random(str(axes)), []
    for _ in range(250):
        source, target = (
            Sharding(
                [(axis, parse_placement(draw.choice(("R", "S(0)", "S(0)", "S(1)")))) for axis in draw.sample("abc", 3)]
            )
            for _ in range(2)
        )
        shape = tuple(draw.choice((1, 2, 3, 5, 6, 8, 9, 11, 12, 24)) for _ in range(2))
        try:
            check_permute(collective("permute"), source, target, mesh, shape)
            found.append(True)
        except ShardingError:
            found.append(False)
        assert found[-1] == _permutes(source, target, mesh, shape), (str(source), str(target), shape)
    assert set(found) == {True, False}


@pytest.mark.parametrize("shape", [(1 << 24, 1 << 24), (70_001, 5_000), (16, 1001)], ids=str)
@pytest.mark.parametrize("axes", LARGE, ids=str)
def test_reshards_are_planned_on_meshes_of_a_million_ranks(axes: dict[str, int], shape: tuple[int, int]) -> None:
    mesh = Mesh(axes)
    for source, target in (("a: S(0)", "a: S(1)"), ("a: P(sum)", "a: S(0)"), ("a: S(0)", "")):
        plan = spmdir.plan_reshard(shape, "f32", source, target, mesh)
        assert plan.steps
        assert plan.lower_bound is not None
        assert plan.wire_bytes >= plan.lower_bound * (1 - 1e-9)


def test_a_plug_in_that_is_asked_rank_by_rank_says_of_how_many_ranks_it_may_be() -> None:
    sizes = "[" + ", ".join(["1"] * 4) + "]"
    sharding = parse_sharding(f"a: Ragged(0, {sizes})")
    with pytest.raises(ShardingError, match="4 sizes, but the axis has 1048576 ranks"):
        spmdir.plan_reshard((4,), "f32", sharding, "", Mesh({"a": 1 << 20}))


def test_simulation_says_how_many_ranks_it_takes_and_one_rank_is_lowered() -> None:
    with open("examples/mlp.mlir") as file:
        text = file.read().replace("<dp = 2, tp = 4>", "<dp = 1024, tp = 1024>")
    module = spmdir.run_passes(spmdir.parse(text), "propagate,insert-reshard,lower-reshard,fuse-collectives")
    with pytest.raises(LimitError, match="found 1048576, expected at most 4096"):
        spmdir.simulate(module, [])
    assert len(spmdir.lower_to_fx(module, 1_048_575).graph.nodes) > 3


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("data(1)8: S(0), data(32)32: S(0)", "data(8)128: S(0), model(8)4: S(2)"),
        ("model(32)32: S(0), model(1)8: S(1)", "data(8)4: S(0), model(32)32: S(0)"),
    ],
)
def test_plans_over_many_sub_axes_look_at_few_shardings(source: str, target: str) -> None:
    find_moves.cache_clear()
    plan = spmdir.plan_reshard((4096, 8, 128), "f32", source, target, Mesh({"data": 1024, "model": 1024}))
    assert plan.lower_bound is not None
    assert plan.wire_bytes <= 2 * plan.lower_bound
    assert find_moves.cache_info().misses < 60
