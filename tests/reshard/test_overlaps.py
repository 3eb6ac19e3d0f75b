"""What shards have in common is counted by runs and digits; these tests count it rank by rank."""

import itertools
import math
import random

import pytest

from spmdir.core.intervals import common, length
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.reshard.overlaps import Overlaps, count_overlaps


def _rank_by_rank(shape, source, target, mesh, moving, left) -> Overlaps:
    holding = [axis for axis in moving if source[axis].trait != "replicated"]
    needing = [axis for axis in moving if axis not in left]
    own, need, staying, held, total = {}, {}, {}, {}, 0
    for point in itertools.product(*(range(mesh.sizes[axis]) for axis in moving)):
        at = dict.fromkeys(mesh.axis_names, 0) | dict(zip(moving, point, strict=True))
        sides = [[side.local_ranges(d, n, mesh, at) for d, n in enumerate(shape)] for side in (source, target)]
        both = math.prod(length(common(a, b)) for a, b in zip(*sides, strict=True))
        holder, needer = (tuple(at[axis] for axis in axes) for axes in (holding, needing))
        own[holder], need[needer] = (math.prod(map(length, side)) for side in sides)
        staying[holder] = staying.get(holder, own[holder]) - both
        held[needer] = held.get(needer, need[needer]) - both
        total += both
    return Overlaps(total, max(held.values()), max(need.values()), max(own.values()), max(staying.values()))


MESHES = (
    {"a": 2, "b": 2, "c": 2},
    {"a": 4, "b": 2},
    {"a": 2, "b": 3, "c": 4},
    {"a": 6, "b": 2, "c": 3},
    {"a": 8, "b": 4},
)
PLACEMENTS = ("R", "S(0)", "S(0)", "S(1)", "S(1)", "P(sum)", "Cyclic(0, 2)", "Strided(1, 2)")


def _sharding(draw: random.Random, mesh: Mesh, plain: bool) -> Sharding:
    axes = draw.sample(mesh.axis_names, len(mesh.axis_names))
    return Sharding([(axis, parse_placement(draw.choice(PLACEMENTS[: 6 if plain else 8]))) for axis in axes])


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_counting_by_runs_and_digits_is_counting_rank_by_rank(axes: dict[str, int]) -> None:
    mesh, draw = Mesh(axes), random.Random(str(axes))
    for _ in range(150):
        source, target = (_sharding(draw, mesh, draw.random() < 0.8) for _ in range(2))
        shape = tuple(draw.choice((0, 1, 5, 12, 24, 48, mesh.world_size, 2 * mesh.world_size)) for _ in range(2))
        divided = [axis for side in (source, target) for axis, placement in side.entries if placement.trait == "shard"]
        moving, left = list(dict.fromkeys(divided)), [axis for axis, _ in target.partial]
        expected = _rank_by_rank(shape, source, target, mesh, moving, left)
        assert count_overlaps(shape, source, target, mesh, moving, left) == expected, (shape, str(source), str(target))
