"""A pipelined step on four gloo ranks computes what one device computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lowering.gloo_ranks import on_ranks
from tests.runtime import pipelined_ranks_cases

ROWS = {"*.up.weight": "tp: S(0)", "*.down.weight": "tp: S(1)"}
GPT2 = "at=transformer.h.1,transformer.h.2,transformer.h.3"
CASES: list[pipelined_ranks_cases.Case] = [
    ("blocks", "at=2", "1f1b", ROWS, ("pp", "tp"), (2, 2)),
    ("blocks", "at=2", "gpipe", ROWS, ("tp", "pp"), (2, 2)),
    ("blocks", "ranks=2 at=1,2,3", "1f1b", ROWS, ("pp", "tp"), (2, 2)),
    ("blocks", "at=1,2,3", "1f1b", None, ("pp", "dp"), (4, 1)),
    ("SkipConnections", "at=layers.1,layers.3,layers.5", "gpipe", None, ("pp", "dp"), (4, 1)),
    (
        "SkipConnections",
        "ranks=2 at=layers.1,layers.3,layers.5",
        "search",
        {"input:*": "dp: S(0)"},
        ("pp", "dp"),
        (2, 2),
    ),
    ("SkipConnections", "at=layers.1,layers.3,layers.5", "zb", None, ("pp", "dp"), (4, 1)),
    ("batch_norms", "ranks=2 at=1,2,3", "zbv", None, ("pp", "tp"), (2, 2)),
    ("gpt2", GPT2, "1f1b", None, ("pp", "tp"), (4, 1)),
    ("gpt2", f"ranks=2 {GPT2}", "1f1b", None, ("pp", "tp"), (2, 2)),
]


@pytest.mark.gloo
def test_five_updates_equal_those_of_one_device(tmp_path: Path) -> None:
    for errors in on_ranks(4, pipelined_ranks_cases.run, tmp_path, CASES, 5):
        assert dict(enumerate(errors)) == {number: pytest.approx(0, abs=1e-12) for number in range(len(CASES))}
