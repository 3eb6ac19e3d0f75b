"""Whatever text `spmd-opt` is given, it answers with IR that it reads back, or with a located error."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.tools.command import run_in_process
from tests.conftest import GOLDEN
from tests.fuzz.batch import limit

TEXTS = [
    path.read_text()
    for path in [GOLDEN.parents[1] / "examples" / "mlp.mlir", *sorted((GOLDEN / "dialects").glob("*.mlir"))]
]
FRAGMENTS = [
    *"<>(){}[]@%#:,=\"?!^\n\0é", "0", "-1", "1e400", "dp", "S(0)", "P(sum)", "tensor<4xf32>", "none", "f32",
    "aten.relu", "spmd.all_gather", "->", "loc(unknown)", "needs", "of", "on", "dim", "//", "true", "size(4, dp)",
    "!spmd.pending<tensor<2xf32>>", "module",
]  # fmt: skip

cuts = st.tuples(st.floats(0, 1), st.sampled_from([0, 1, 2, 5, 20]), st.sampled_from(["", *FRAGMENTS]))


@settings(max_examples=150)
@given(st.sampled_from(TEXTS), st.lists(cuts, min_size=1, max_size=3))
def test_cut_and_patched_text_is_read_or_rejected_at_its_place(
    text: str, patches: list[tuple[float, int, str]]
) -> None:
    for where, length, added in patches:
        start = int(where * len(text))
        text = text[:start] + added + text[start + length :]
    status, out, err = run_in_process(["spmd-opt", "-"], text)
    if status == 0:
        assert run_in_process(["spmd-opt", "-"], out) == (0, out, "")
    else:
        assert (status, out) == (1, "")
        assert err.startswith("<stdin>:")


@pytest.mark.parametrize("gap", [" ", "\t", "\n", "x", "[", '"', "//"])
def test_long_runs_of_one_character_are_read_in_no_time(gap: str) -> None:
    run = gap * 60_000
    text = f"func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {{\n  %0 = aten.relu(%x){run} : tensor<4xf32>\n}}\n"
    with limit(5):
        assert run_in_process(["spmd-opt", "-"], text)[0] == 1
