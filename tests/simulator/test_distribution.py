"""Global tensors laid out over ranks and put together again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import parse_sharding
from spmdir.simulator.distribution import collect, distribute, local_tensor, random_like
from tests.lowering.collective_programs import shardings

MESH = Mesh({"a": 2, "b": 3})


def noise():
    return random_like(torch.Generator().manual_seed(0))


def values(dtype, shape):
    x = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(1))
    return (x % 2).bool() if dtype == torch.bool else x.to(dtype)


@given(
    sharding=st.sampled_from([s for op in ("sum", "avg", "max", "min", "product") for s in shardings(MESH, 2, (op,))]),
    shape=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8]),
)
@settings(max_examples=150)
def test_collect_undoes_distribute(sharding, shape, dtype):
    if any(op == "avg" for _, op in sharding.partial) and not dtype.is_floating_point:
        return
    x = values(dtype, shape)
    shards = distribute(x, sharding, MESH, noise())
    y = collect(shards, sharding, MESH, x.shape)
    rounding = 64 * torch.finfo(dtype).eps if dtype.is_floating_point else 0
    assert y.dtype == dtype
    assert torch.allclose(x.double(), y.double(), rtol=rounding, atol=100 * rounding)
    for rank, shard in enumerate(shards):
        assert shard.shape == sharding.local_shape(shape, MESH, MESH.coordinate(rank))


@pytest.mark.parametrize("op", ["sum", "avg", "max", "min", "product"])
def test_a_rank_alone_finds_a_shard_that_fits_those_of_the_others(op):
    x = values(torch.float64, (5, 4))
    for sharding in shardings(MESH, 2, (op,)):
        shards = [local_tensor(x, sharding, MESH, rank) for rank in range(MESH.world_size)]
        torch.testing.assert_close(collect(shards, sharding, MESH, x.shape), x)
        if not sharding.partial:
            for shard, expected in zip(shards, distribute(x, sharding, MESH, noise()), strict=True):
                assert torch.equal(shard, expected)


@pytest.mark.parametrize("op", ["any", "all"])
def test_truth_values_are_hidden_by_noise_and_found_again(op):
    x = values(torch.bool, (40,))
    shards = distribute(x, parse_sharding(f"a: P({op}), b: P({op})"), MESH, noise())
    assert any(not torch.equal(shard, x) for shard in shards)
    assert torch.equal(collect(shards, parse_sharding(f"a: P({op}), b: P({op})"), MESH, x.shape), x)


def test_a_partial_sum_of_truth_values_is_rejected():
    with pytest.raises(UnsupportedError, match=r"i1 cannot be laid out as P\(sum\) on axis 'a'; expected"):
        distribute(values(torch.bool, (4,)), parse_sharding("a: P(sum)"), MESH, noise())


def test_the_value_of_a_partial_sum_is_on_no_rank():
    x = torch.ones(50)
    for shard in distribute(x, parse_sharding("a: P(sum)"), MESH, noise()):
        assert not torch.allclose(shard, x)


@pytest.mark.parametrize("placement", ["P(sum)", "P(avg)", "Masked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_partial_values_are_finite_and_lose_no_element_beside_a_large_one(placement, dtype):
    big = torch.finfo(dtype).max
    x = torch.tensor([0.9 * big, -big, 1.0, -1e-3, 0.0]).to(dtype)
    sharding = parse_sharding(f"a: {placement}, b: {placement}")
    shards = distribute(x, sharding, MESH, noise())
    assert all(shard.isfinite().all() for shard in shards)
    torch.testing.assert_close(collect(shards, sharding, MESH, x.shape), x, rtol=8 * torch.finfo(dtype).eps, atol=1e-5)


def test_nesting_order_decides_who_holds_what():
    x = torch.arange(6)
    outer_a = distribute(x, parse_sharding("a: S(0), b: S(0)"), MESH, noise())
    outer_b = distribute(x, parse_sharding("b: S(0), a: S(0)"), MESH, noise())
    assert [int(shard) for shard in outer_a] == [0, 1, 2, 3, 4, 5]
    assert [int(shard) for shard in outer_b] == [0, 2, 4, 1, 3, 5]


def test_infinite_values_survive_partial_sums():
    x = torch.tensor([float("inf"), 1.0, float("-inf")])
    y = collect(distribute(x, parse_sharding("a: P(sum)"), MESH, noise()), parse_sharding("a: P(sum)"), MESH, x.shape)
    torch.testing.assert_close(y, x)


def test_copies_that_differ_are_an_error():
    shards = distribute(torch.ones(3), parse_sharding(""), MESH, noise())
    shards[4] = shards[4] + 0.1
    with pytest.raises(SpmdirError, match=r"ranks disagree along axis 'b' .* \[1.0, 1.0, 1.0\] against .*1.1"):
        collect(shards, parse_sharding(""), MESH, (3,))


def test_copies_may_differ_by_rounding_and_by_which_nan():
    shards = distribute(torch.tensor([1.0, float("nan")]), parse_sharding(""), MESH, noise())
    shards[4] = shards[4] * (1 + 1e-7)
    assert collect(shards, parse_sharding(""), MESH, (2,))[0] == 1


def test_integer_copies_may_not_differ():
    shards = distribute(torch.ones(3, dtype=torch.int64), parse_sharding("a: S(0)"), MESH, noise())
    shards[1] = shards[1] + 1
    with pytest.raises(SpmdirError, match="ranks disagree along axis 'b'"):
        collect(shards, parse_sharding("a: S(0)"), MESH, (3,))
