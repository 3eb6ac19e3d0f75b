"""`Parallel.check` finds a bit that is flipped on one rank, at the op that computes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import value_check_cases


@pytest.mark.gloo
def test_a_flipped_bit_is_found_at_its_op_and_rank(tmp_path: Path):
    rules = tmp_path / "scale.rules"
    rules.write_text(value_check_cases.RULE)
    for texts in on_ranks(4, value_check_cases.run, tmp_path, str(rules)):
        assert int(texts["right"]) > 5
        assert re.search(
            r"= value_check_cases\.scale .*differs from one device by .* on rank 2; expected", texts["fault"]
        )
        assert re.search(
            r"argument %\S*down\S*bias differs from the value of one device by .* on rank 2; expected equal copies",
            texts["state"],
        )
