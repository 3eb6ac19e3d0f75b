"""What lines cost."""

from __future__ import annotations

from pathlib import Path

import spmdir
from spmdir.language_server.line_costs import line_costs
from tests.language_server.texts import MLP, decided, document


def shown(text: str) -> dict[str, str]:
    found = document(text)
    return {found.text[one.span.start : one.span.end]: one.text for one in line_costs(found)}


def test_lines_of_a_decided_program_cost_what_the_report_says() -> None:
    text = decided("--propagate", "--insert-reshard", "--lower-reshard")
    report = spmdir.report.comm_report(spmdir.parse(text))
    costs = shown(text)
    assert set(costs) == {op.name for op in report.ops if op.kind != "inputs"}
    assert costs["%_2.reshard"].startswith("reduce_scatter on [tp] ") and costs["%_2.reshard"].endswith(" sent")


def test_a_reshard_to_come_is_of_the_value_that_it_is_made_of() -> None:
    assert "; reduce_scatter on [tp]" in shown(decided("--propagate"))["%2"]


def test_what_is_not_decided_or_broken_has_no_costs() -> None:
    assert shown(MLP) == shown(decided("--propagate").replace("%w1)", "%w1")) == shown("") == {}


def test_lines_of_functions_of_equal_layers_have_costs_of_their_own() -> None:
    path = Path(__file__).parents[1] / "golden/outline-layers/equal_layers_become_calls_of_a_function.mlir"
    module = spmdir.run_passes(spmdir.parse(path.read_text(encoding="utf-8")), "outline-layers")
    found = document(spmdir.print_ir(module))
    costs = line_costs(found)
    assert {found.scan.scope_at(one.span.start).function for one in costs} == {0}  # the others call it
    assert len({one.span for one in costs}) == len(costs)
    assert any(one.text.endswith(", x 3") for one in costs)  # the calls of a function
