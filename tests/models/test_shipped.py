"""Models with any shipped placements of inputs, parameters and outputs; `make placements` tries many more."""

from __future__ import annotations

import pytest

from tests.models import cases

UNEVEN = (3, 7)

CASES = [
    ("odd_llama", "shipped0", "4", UNEVEN),
    ("odd_llama", "decided1", "3", UNEVEN),
    ("odd_gpt2", "shipped1", "2x3", UNEVEN),
    ("odd_gpt2", "decided1", "4", UNEVEN),
    ("odd_mlp", "shipped2", "2x2x2", UNEVEN),
    ("odd_vit", "shipped2", "2x3", UNEVEN),
    ("odd_vit", "decided2", "3", UNEVEN),
    ("odd_t5", "decided3", "3", UNEVEN),
    ("odd_gpt2:sgd", "decided4", "3", UNEVEN),
    ("odd_vit:sgd", "shipped5", "3", UNEVEN),
    ("mlp:adamw", "decided7", "2x2x2", UNEVEN),
]


@pytest.mark.parametrize(
    ("name", "plan", "mesh", "sizes"),
    [
        pytest.param(*row, id=" ".join(row[:3]), marks=pytest.mark.xdist_group(row[0].partition(":")[0]))
        for row in CASES
    ],
)
def test_any_shipped_placements_give_what_one_device_gives(name, plan, mesh, sizes):
    assert cases.worst_error(name, plan, mesh, sizes=sizes) < cases.EXACT
