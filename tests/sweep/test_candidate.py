"""Candidates: the meshes of each recipe."""

from __future__ import annotations

import pytest

from spmdir.core.errors import UnsupportedError
from spmdir.sweep.candidate import RECIPE_AXES, candidates, micro_batch_counts, node_mesh


def test_every_mesh_has_all_ranks_and_axes_larger_than_one() -> None:
    for ranks in (8, 24, 64, 96, 4096):
        for candidate in candidates(ranks, 8, list(RECIPE_AXES)):
            assert candidate.mesh.world_size == ranks
            assert all(size > 1 for _, size in candidate.mesh.axes)
            assert ranks % candidate.data_ranks == 0


@pytest.mark.parametrize(
    ("recipe", "ranks", "shapes"),
    [
        ("fsdp", 64, ["dp=64"]),
        ("fsdp*tp*sp", 64, ["dp=32,tp=2", "dp=16,tp=4", "dp=8,tp=8"]),
        ("hsdp", 512, ["dp_replicate=64,dp_shard=8", "dp_replicate=8,dp_shard=64"]),
        ("hsdp*tp*sp", 16, ["dp_replicate=2,dp_shard=4,tp=2", "dp_replicate=2,dp_shard=2,tp=4"]),
        ("hsdp", 8, []),
        ("pp*fsdp", 8, ["pp=2,dp=4", "pp=4,dp=2"]),
        ("pp*fsdp*tp*sp", 16, ["pp=2,dp=4,tp=2", "pp=2,dp=2,tp=4", "pp=4,dp=2,tp=2"]),
    ],
)
def test_meshes_of_a_recipe(recipe: str, ranks: int, shapes: list[str]) -> None:
    assert [candidate.shape for candidate in candidates(ranks, 8, [recipe])] == shapes


def test_innermost_axes_are_inside_a_node() -> None:
    assert node_mesh({"dp": 4, "cp": 2, "tp": 4}, 8).intra_node == ("cp", "tp")
    assert node_mesh({"dp": 16}, 8).intra_node == ()
    assert node_mesh({"dp": 3, "tp": 4}, 8).intra_node == ("tp",)


def test_batch_is_cut_into_whole_samples_of_each_rank() -> None:
    assert micro_batch_counts(48, 8) == [1, 2, 3, 6]
    assert micro_batch_counts(4, 8) == []
    assert micro_batch_counts(64, 8, stages=4) == [4, 8]


def test_unknown_recipe_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match=r"recipe 'fsdq'; expected ddp, .*did you mean 'fsdp'"):
        list(candidates(8, 8, ["fsdq"]))
