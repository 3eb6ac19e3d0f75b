"""What ranks hold by the placements that come with spmdir."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from spmdir import Mesh, SpmdirError
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.sharding import as_sharding, parse_sharding
from spmdir.simulator.distribution import distribute, random_like


def held(text: str, x: torch.Tensor, count: int) -> list[torch.Tensor]:
    return parse_placement(text).distribute(x, count, random_like(torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    ("text", "count", "rows"),
    [
        ("Cyclic(0, 2)", 3, [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]]),
        ("Cyclic(0, 4)", 3, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        ("Strided(0, 2)", 2, [[0, 1, 2, 5, 6, 7], [3, 4, 8, 9]]),
        ("Ragged(0, [1, 6, 3])", 3, [[0], [1, 2, 3, 4, 5, 6], [7, 8, 9]]),
        ("Ragged(0, [0, 10])", 2, [[], [*range(10)]]),
    ],
)
def test_ranks_hold_these_of_ten_rows(text: str, count: int, rows: list[list[int]]) -> None:
    assert [shard.tolist() for shard in held(text, torch.arange(10), count)] == rows


@pytest.mark.parametrize("size", [24, 8, 7, 5, 3, 1])
@pytest.mark.parametrize(("split", "count"), [(2, 2), (2, 3), (3, 2), (4, 4)])
def test_strided_is_the_strided_shard_of_dtensor(size: int, split: int, count: int) -> None:
    x = torch.arange(size)
    shard = _StridedShard(0, split_factor=split)
    shards, _ = shard._split_tensor(x, count, with_padding=False) if size >= split * count else (None, None)
    found = held(f"Strided(0, {split})", x, count)
    if shards is None:
        # There, empty chunks are left out, and its chunks are not the shards of all ranks any more.
        assert torch.equal(torch.cat(found).sort().values, x)
        return
    assert [shard.tolist() for shard in found] == [shard.tolist() for shard in shards]


def test_placements_of_sharding_weights_twice_say_the_same_as_nesting() -> None:
    mesh = Mesh({"dp": 2, "tp": 2})
    given = as_sharding([_StridedShard(0, split_factor=2), Shard(0)], mesh)
    assert str(given) == "dp: Strided(0, 2), tp: S(0)"
    x = torch.arange(8)
    nested = distribute(x, parse_sharding("tp: S(0), dp: S(0)"), mesh, torch.zeros_like)
    assert [p.tolist() for p in distribute(x, given, mesh, torch.zeros_like)] == [p.tolist() for p in nested]
    assert [p.tolist() for p in nested] == [[0, 1], [4, 5], [2, 3], [6, 7]]
    assert str(as_sharding([_StridedShard(1, split_factor=4), Replicate()], mesh)) == "dp: Strided(1, 4)"


def test_a_masked_element_is_on_one_rank() -> None:
    x = torch.rand(40, dtype=torch.float64) + 1
    shards = torch.stack(held("Masked", x, 3))
    assert torch.equal((shards != 0).sum(0), torch.ones(40, dtype=torch.int64))
    assert (shards != 0).any(1).all(), "every rank has some"


def test_norms_of_any_order_are_spread_and_put_together() -> None:
    x = torch.rand(30, dtype=torch.float64)
    for order in ("1", "2", "3.5", "inf"):
        shards = held(f"Norm({order})", x, 3)
        torch.testing.assert_close(torch.linalg.vector_norm(torch.stack(shards), float(order), 0), x)
        assert not torch.allclose(shards[0], x)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Cyclic(0, 0)", "'block' must be >= 1"),
        ("Cyclic(-1, 2)", r"invalid dimension in Cyclic\(-1, 2\)"),
        ("Cyclic(0)", r"is not a Cyclic; expected Cyclic\(dim, block\)"),
        ("Strided(0, 0)", "'split' must be >= 1"),
        ("Ragged(0, [])", "invalid sizes"),
        ("Norm(0)", "'p' must be > 0"),
        ("Norm(nan)", "is not a Norm"),
        ("Masked(1)", "is not a Masked"),
    ],
)
def test_what_is_not_a_placement_is_rejected(text: str, message: str) -> None:
    with pytest.raises(SpmdirError, match=message):
        parse_placement(text)


@pytest.mark.parametrize(
    ("count", "shape", "message"),
    [
        (2, (10,), "has 3 sizes, but the axis has 2 ranks"),
        (3, (9,), "add up to 10; expected 9, the size of dimension 0"),
    ],
)
def test_ragged_sizes_fit_ranks_and_tensor(count: int, shape: tuple[int, ...], message: str) -> None:
    placement: Placement = parse_placement("Ragged(0, [1, 6, 3])")
    with pytest.raises(SpmdirError, match=message):
        placement.check(shape, count)


def test_negative_values_are_no_norms() -> None:
    with pytest.raises(SpmdirError, match="has negative elements"):
        held("Norm(2)", torch.tensor([1.0, -1.0]), 2)
