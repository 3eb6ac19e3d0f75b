"""The report of the rows of experts, by router."""

from __future__ import annotations

import pytest

import spmdir
from spmdir.report import RouterLoad, expert_report
from tests.placements.test_routed_rows import LAYER, layer

CASES = {
    "rows move to 2 ranks": ("ep = 2", "ep: S(0)", "ep: Grouped(0)", RouterLoad("%order", 1, ("ep",), 2, 8, 4, 2, 1.0)),
    "groups of 2 of 4 ranks": (
        "dp = 2, ep = 2",
        "dp: S(0), ep: S(0)",
        "dp: Home(0), ep: Grouped(0)",
        RouterLoad("%order", 1, ("ep",), 2, 4, 4, 2, 1.0),
    ),
    "rows stay": ("ep = 2", "ep: S(0)", "ep: Home(0)", RouterLoad("%order", 1, (), 1, 4, 4, 2, 1.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_router_has_the_tokens_of_the_ranks_that_dispatch_together(name: str) -> None:
    mesh, x, hidden, expected = CASES[name]
    assert expert_report(layer(mesh, x=x, hidden=hidden)).routers == (expected,)


def test_a_token_sends_at_most_one_row_to_an_expert() -> None:
    load = RouterLoad("%order", 1, ("ep",), 4, 100, 8, 6, 1.5)
    assert (load.balanced_rows, load.assumed_rows, load.most_rows) == (150.0, 200.0, 200.0)


def test_the_assumed_rows_are_those_of_the_option_imbalance() -> None:
    text = LAYER.format(mesh="ep = 2", x="ep: S(0)", up="ep: S(0)", tokens=8, rows=16, hidden=" <ep: Grouped(0)>")
    module = spmdir.run_passes(spmdir.parse(text), "propagate{topology=flat imbalance=1.5}")
    (load,) = expert_report(module).routers
    assert (load.balanced_rows, load.assumed_rows, load.most_rows) == (8.0, 12.0, 16.0)


def test_a_program_without_experts_has_an_empty_report() -> None:
    text = (
        "spmd.mesh @mesh <dp = 2>\nfunc.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  return %x : tensor<4xf32>\n}\n"
    )
    assert str(expert_report(spmdir.parse(text))) == "the program has no experts that are recognised"
