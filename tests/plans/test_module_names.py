"""Names and globs of a plan."""

from __future__ import annotations

import pytest

from spmdir.core.errors import ShardingError
from spmdir.plans.module_names import values_by_module, with_globs

NAMES = ["", "model", "model.layers.0", "model.layers.0.up", "model.layers.1", "model.layers.1.up", "head"]


def test_an_exact_name_beats_a_glob_and_a_later_glob_an_earlier_one() -> None:
    given = {"model.layers.0.up": 1, "*.up": 2, "model.layers.1*": 3}
    assert values_by_module(given, NAMES) == {"model.layers.0.up": 1, "model.layers.1.up": 3, "model.layers.1": 3}


def test_names_within_the_base_model_count_where_no_others_fit() -> None:
    assert values_by_module({"layers.*.up": 1}, NAMES, "model") == {"model.layers.0.up": 1, "model.layers.1.up": 1}
    with pytest.raises(ShardingError, match=r"names 'layers.\*.up', which matches no module"):
        values_by_module({"layers.*.up": 1}, NAMES)


def test_layers_are_one_glob_where_nothing_else_fits_it() -> None:
    values = {"a.0": 1, "a.1": 1, "a.0.w": 1, "a.1.w": 1, "b.0.w": 1, "b.1.w": 2, "0.w": 1, "1.w": 1}
    found = with_globs(values, values)
    assert found == {"a.?": 1, "a.*.w": 1, "b.0.w": 1, "b.1.w": 2, "0.w": 1, "1.w": 1}
