"""A lookup in a table with sharded rows, as ranks write it, becomes a lookup in the whole table."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import spmdir
from spmdir.core.errors import ShardingError
from tests.read_back.rank_graphs import MESH, all_reduce, assert_equals_one_device, import_function, random_inputs

INPUTS = {**random_inputs({"table": (10, 8)}), "ids": torch.arange(24).reshape(4, 6) % 10}
SHARDINGS = {"table": "tp: S(0)", "ids": "dp: S(0)"}


def by_assignment(table, ids, start):
    """Megatron's vocabulary-parallel embedding."""
    mask = (ids < start) | (ids >= start + 5)
    masked = ids.clone() - start
    masked[mask] = 0
    rows = F.embedding(masked, table)
    rows[mask, :] = 0.0
    return rows


def by_fill(table, ids, start):
    """DTensor's masked lookup."""
    mask = (ids < start) | (ids >= start + 5)
    rows = F.embedding((ids - start).masked_fill(mask, 0), table)
    return rows.masked_fill(mask.unsqueeze(-1), 0.0)


def by_product(table, ids, start):
    own = (ids - start).clamp(0, 4)
    return F.embedding(own, table) * (own == ids - start).unsqueeze(-1)


@pytest.mark.parametrize("lookup", [by_assignment, by_fill, by_product])
@pytest.mark.parametrize("rank", range(4))
def test_a_masked_lookup_is_a_partial_sum(lookup, rank):
    start = 5 * MESH.coordinate(rank)["tp"]
    module = import_function(lambda t, i: all_reduce(lookup(t, i, start)), INPUTS, SHARDINGS, rank=rank)
    assert_equals_one_device(module, lambda table, ids: F.embedding(ids, table), INPUTS)
    assert "aten.embedding(%" in spmdir.print_ir(module)
    assert "tensor<4x6x8xf64> <dp: S(0), tp: P(sum)>" in spmdir.print_ir(module)


@pytest.mark.parametrize(
    "local",
    [
        lambda t, i: all_reduce(by_fill(t, i, 4)),
        lambda t, i: all_reduce(F.embedding(i.clamp(0, 4), t)),
        lambda t, i: all_reduce(F.embedding((i - 5).clamp(0, 4), t)),
    ],
    ids=["wrong start", "no offset", "no mask"],
)
def test_a_wrong_mask_is_an_error_at_the_lookup(local):
    with pytest.raises(ShardingError, match=r"'aten\.embedding' gets a shard of dimension 0 over tp as operand 0"):
        import_function(local, INPUTS, SHARDINGS, rank=1)
