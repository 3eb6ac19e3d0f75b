"""Tables by place: all rows together are the step, the peak and the bytes of the other reports."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdir
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.input_parts import parts_of
from spmdir.pipeline.remaining_passes import localize
from spmdir.report.cost_rows import KEYS, SORTS, CostRow, cost_rows
from spmdir.report.op_costs import OpCost
from spmdir.report.op_sums import Share

GOLDEN = Path(__file__).parents[1] / "golden"
PASSES = ("bucket", "fit-memory", "localize", "reorder", "schedule", "split-async", "split-matmul")
SHARDED = "{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}"
ACTIVATIONS = "".join(
    f'  %x{at + 1} = aten.relu(%x{at}) : tensor<64x64xf32> <tp: S(0)> loc("layers.{at}.act"("model.py":7:1))\n'
    for at in range(6)
)
LAYERS = f"""spmd.mesh @mesh <tp = 4>
func.func @f(%x0: tensor<64x64xf32> {SHARDED}) -> tensor<64x64xf32> {{
{ACTIVATIONS}  %y = aten.mm(%x6, %x6) : tensor<64x64xf32> loc("head"("model.py":9:1))
  return %y : tensor<64x64xf32>
}}
"""


@pytest.fixture(scope="module")
def module():
    return spmdir.parse(LAYERS, "in.mlir")


def _reported(folder: str):
    for path in sorted((GOLDEN / folder).rglob("*.mlir")):
        for first, text in parts_of(path.read_text()):
            try:
                module = spmdir.parse(text, str(path), first)
                yield module, spmdir.report.cost_table(module, by="op")
            except SpmdirError:
                continue


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", PASSES)
def test_all_rows_together_are_the_step_and_the_peak_of_the_other_reports(folder: str) -> None:
    found = list(_reported(folder))
    assert found
    for module, table in found:
        step, total = spmdir.report.schedule_report(module), table.total
        assert total.seconds == pytest.approx(step.seconds)
        assert total.total("exposed") == pytest.approx(step.exposed_seconds)
        assert total.total("transfer") == pytest.approx(sum(one.seconds for one in step.collectives))
        assert total.share.wire_bytes == pytest.approx(sum(one.wire_bytes for one in step.collectives))
        assert total.total("held_bytes") == spmdir.report.memory_report(module).peak_bytes
        sent = spmdir.report.comm_report(localize(module, spmdir.Pipeline())).wire_bytes
        hosts = sum(one.wire_bytes for one in step.collectives if not one.axes)
        assert total.share.wire_bytes - hosts == pytest.approx(sent)


@settings(max_examples=25)
@given(by=st.lists(st.sampled_from(tuple(KEYS)), min_size=1, unique=True), sort=st.sampled_from(tuple(SORTS)))
def test_rows_of_any_keys_in_any_order_add_up_to_all_ops(by: list[str], sort: str) -> None:
    ops = _mixed()
    rows = cost_rows(ops, by, sort)
    assert sorted(op.name for row in rows for op in row.ops) == sorted(op.name for op in ops)
    numbers = [SORTS[sort](row) for row in rows]
    assert numbers == sorted(numbers, reverse=True)
    total = CostRow((), tuple(ops)).numbers
    for name, number in total.items():
        assert sum(row.numbers[name] for row in rows) == pytest.approx(number)


def _mixed() -> list[OpCost]:
    return [
        OpCost(f"%{at}", kind, None, Share(1, 8.0 * at, at + 1e-3), at, 2.0 * at, "memory", ("tp",) * (at % 2),
               f"layers.{at % 3}.mlp", phase, at / 2, at / 3, at / 4, 5.0 * at, "activations")
        for at, (kind, phase) in enumerate(itertools.product(("aten.mm", "all_gather"), ("forward", "backward", "")))
    ]  # fmt: skip


def test_equal_layers_are_one_row_and_those_that_differ_are_named(module) -> None:
    by_module = spmdir.report.cost_table(module, by="module", sort="count")
    rows = {row.labels[0]: row for row in by_module.rows}
    assert {"layers.{1-4}.act", "layers.5.act", "layers.0.act", "head"} <= set(rows)  # the ends hold memory at the peak
    assert rows["layers.{1-4}.act"].layers == 4 == len(rows["layers.{1-4}.act"].ops)
    every = spmdir.report.cost_table(module, by="module", fold=False)
    assert len(every.rows) == len(by_module.rows) + 3
    assert every.total.numbers == by_module.total.numbers


def test_each_op_knows_its_module_its_line_and_its_phase(module) -> None:
    found = {op.name: op for op in spmdir.report.cost_table(module).ops}
    assert (found["%x3"].module, found["%x3"].layer, found["%x3"].line) == ("layers.2.act", "layers.2", "model.py:7")
    assert {op.phase for op in found.values()} == {"forward", ""}
    assert found["%x0"].memory_class == "inputs" and found["%x0"].held_bytes == 64 * 64


def test_json_and_csv_have_the_same_rows_with_units_in_their_names(module) -> None:
    table = spmdir.report.cost_table(module, by=("module", "phase"), rows=1)
    read = json.loads(table.json())
    lines = list(csv.DictReader(io.StringIO(table.csv())))
    assert [row["module"] for row in read["rows"]] == [line["module"] for line in lines]
    assert list(lines[0]) == [
        "module", "phase", "layers", "count", "seconds", "exposed_seconds", "transfer_seconds", "bound_seconds",
        "sent_bytes", "held_bytes", "flops", "traffic_bytes", "bound",
    ]  # fmt: skip
    assert read["total"]["seconds"] == pytest.approx(spmdir.report.schedule_report(module).seconds)
    assert len(str(table).splitlines()) == 4  # head, a row, the others, the totals


def test_names_are_neither_formulas_of_a_spreadsheet_nor_escapes_of_a_terminal() -> None:
    text = """spmd.mesh @mesh <dp = 2>
func.func @f(%x: tensor<8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<8xf32> {
  %a = aten.relu(%x) : tensor<8xf32> loc("=HYPERLINK(1)"("m.py":1:1))
  %b = aten.relu(%a) : tensor<8xf32> loc("a\\1B[31m"("m.py":1:1))
  return %b : tensor<8xf32>
}
"""
    lines = csv.DictReader(io.StringIO(spmdir.report.cost_table(spmdir.parse(text)).csv()))
    assert {"'=HYPERLINK(1)", "a\\x1b[31m"} <= {line["module"] for line in lines}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"by": "modul"}, "unknown key 'modul' of a cost table; expected one of op, line, "),
        ({"by": ("op", "op")}, "expected at least one key, each once"),
        ({"sort": "exposd"}, "unknown sort order 'exposd' of a cost table; expected one of time, "),
        ({"rows": 0}, "invalid number of rows 0; expected"),
    ],
)
def test_tables_that_there_are_not_are_errors(module, arguments, error: str) -> None:
    with pytest.raises(UnsupportedError) as raised:
        spmdir.report.cost_table(module, **arguments)
    assert error in raised.value.message


def test_ops_and_collectives_that_name_no_module_are_of_that_of_the_parameter_that_they_are_computed_from() -> None:
    text = """spmd.mesh @mesh <tp = 4>
func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
             %parameters.up.weight: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %t = aten.t(%x) : tensor<64x64xf32> <tp: S(0)>
  %g = aten.mm(%x, %t) : tensor<64x64xf32> <tp: P(sum)> loc("up"("model.py":7:1))
  %r = spmd.reshard %g : tensor<64x64xf32> <>
  %new = aten.sub.Tensor(%parameters.up.weight, %r) : tensor<64x64xf32> <>
  return %new : tensor<64x64xf32>
}
"""
    ops = {op.kind: op.module for op in spmdir.report.cost_table(spmdir.parse(text), by="op").ops}
    assert ops["all_reduce"] == ops["aten.sub.Tensor"] == "up"
