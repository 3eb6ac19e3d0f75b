"""The torch ops of caches on one device."""

from __future__ import annotations

import torch

import spmdir.torch_interop.cache_ops  # noqa: F401  # registers torch.ops.cache


def test_an_entry_of_a_table_outside_of_the_cache_is_no_page():
    keys, values, query = torch.rand(2, 4, 1, 2), torch.rand(2, 4, 1, 3), torch.rand(3, 1, 1, 2)
    table, positions = torch.tensor([[1, 0], [2, 1], [0, -1]]), torch.tensor([[5], [1], [3]])
    rows = torch.rand(3, 1, 1, 2)
    written = torch.ops.cache.write(keys, rows, positions, table)
    expected = keys.clone()
    expected[0, 1], expected[0, 3] = rows[0, 0], rows[2, 0]
    assert torch.equal(written, expected)
    result = torch.ops.cache.attend(query, keys, values, positions, table)
    assert torch.equal(result[1], torch.zeros(1, 1, 3))
    absent = torch.where(table < 2, table, -1)
    assert torch.equal(result, torch.ops.cache.attend(query, keys, values, positions, absent))
    assert torch.equal(
        torch.ops.cache.attend(query, keys, values, positions, table[:, :1]),
        torch.ops.cache.attend(query, keys, values, positions, absent[:, :1]),
    )
