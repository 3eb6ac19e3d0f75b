"""Meshes and shardings as values, where axes are products of sub-axes."""

from __future__ import annotations

import pickle

import pytest

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import as_sharding, parse_sharding

MESH = Mesh({"dp": 2, "tp": 12}, intra_node=("tp",))


def test_the_coordinates_on_sub_axes_make_up_that_on_their_axis() -> None:
    for rank in range(MESH.world_size):
        at = MESH.coordinate(rank)
        assert at["tp"] == (at["tp(1)2"] * 3 + at["tp(2)3"]) * 2 + at["tp(6)2"]
        assert at["tp"] == at["tp(1)4"] * 3 + at["tp(4)3"]
        assert dict(at) == {"dp": at["dp"], "tp": at["tp"]}


def test_a_group_over_a_sub_axis_has_the_ranks_that_differ_along_it_alone() -> None:
    assert MESH.sizes["tp(2)3"] == MESH.group_size(["tp(2)3"]) == 3
    assert MESH.group(13, ["tp(2)3"]) == (13, 15, 17)
    assert MESH.group(13, ["dp", "tp(1)2"]) == (1, 7, 13, 19)
    assert MESH.group(13, ["tp(6)2", "tp(1)2"]) == (12, 18, 13, 19)
    assert [MESH.index(rank, ["tp(6)2", "tp(1)2"]) for rank in (12, 18, 13, 19)] == [0, 1, 2, 3]


def test_a_refined_mesh_has_the_common_parts_as_axes() -> None:
    fine = MESH.refine(["tp(1)6", "dp", "tp(2)6"])
    assert fine.axes == (("dp", 2), ("tp(1)2", 2), ("tp(2)3", 3), ("tp(6)2", 2))
    assert fine.intra_node == ("tp(1)2", "tp(2)3", "tp(6)2")
    assert fine.parts("tp") == ("tp(1)2", "tp(2)3", "tp(6)2")
    assert fine.parts("tp(2)6") == ("tp(2)3", "tp(6)2")
    assert fine.sizes["tp"] == 12
    assert [dict(fine.coordinate(rank)) for rank in (0, 23)] == [
        dict.fromkeys(fine.axis_names, 0),
        {"dp": 1, "tp(1)2": 1, "tp(2)3": 2, "tp(6)2": 1},
    ]
    assert MESH.refine(["dp", "tp"]) is MESH
    assert pickle.loads(pickle.dumps(fine)) == fine


def test_parts_that_do_not_go_together_have_no_common_refinement() -> None:
    with pytest.raises(ShardingError, match="split axis 'tp' of 12 ranks into 2 and into 3 blocks"):
        MESH.refine(["tp(1)2", "tp(1)3"])


@pytest.mark.parametrize(
    ("axes", "merged"),
    [
        (("tp(1)2", "tp(2)3", "tp(6)2"), ("tp",)),
        (("tp(1)2", "tp(2)3"), ("tp(1)6",)),
        (("tp(2)3", "tp(1)2"), ("tp(2)3", "tp(1)2")),
        (("tp(1)2", "dp", "tp(2)6"), ("tp(1)2", "dp", "tp(2)6")),
        (("tp(1)12",), ("tp",)),
    ],
)
def test_adjacent_parts_are_named_as_one(axes: tuple[str, ...], merged: tuple[str, ...]) -> None:
    assert MESH.merge(axes) == merged


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("tp(1)2: S(0), tp(2)6: S(0)", "tp: S(0)"),
        ("tp(2)6: S(0), tp(1)2: S(0)", "tp(2)6: S(0), tp(1)2: S(0)"),
        ("tp(6)2: P(sum), tp(1)6: P(sum), dp: S(1)", "dp: S(1), tp: P(sum)"),
        ("tp(6)2: P(sum), tp(1)2: P(sum)", "tp(1)2: P(sum), tp(6)2: P(sum)"),
        ("tp(1)6: P(avg), tp(6)2: P(sum)", "tp(1)6: P(avg), tp(6)2: P(sum)"),
        ("tp(1)2: R, tp(2)6: S(1)", "tp(2)6: S(1)"),
    ],
)
def test_equal_shardings_by_sub_axes_are_equal_values(given: str, text: str) -> None:
    assert as_sharding(given, MESH) == parse_sharding(text)
    assert str(as_sharding(given, MESH)) == text
    fine = MESH.refine(["tp(1)2", "tp(2)3"])
    assert parse_sharding(text).refined(fine).merged(fine) == parse_sharding(text)


def test_the_placement_along_an_axis_is_that_of_all_its_parts() -> None:
    sharding = parse_sharding("tp(1)6: S(0), tp(6)2: S(1)")
    assert str(sharding.along("tp(1)2", MESH)) == str(sharding.along("tp(2)3", MESH)) == "S(0)"
    assert str(sharding.along("tp(6)2", MESH)) == "S(1)"
    assert sharding.along("tp", MESH) is None
    assert str(sharding.along("dp", MESH)) == "R"


def test_shards_by_sub_axes_are_shards_of_shards() -> None:
    sharding = parse_sharding("tp(4)3: S(0), dp: S(0), tp(1)4: S(1)")
    shapes = {sharding.local_shape((7, 8), MESH, MESH.coordinate(rank)) for rank in range(24)}
    assert shapes == {(2, 2), (1, 2), (0, 2)}
