"""Measured times: their text, what is found in it, and what overrides the model."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

import spmdir
from spmdir.analysis.propagation.build_problem import build_problem
from spmdir.core.dtype import F32
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.reshard.measured_times import Costs, Measured, parse_costs
from spmdir.reshard.plan import plan_reshard
from spmdir.reshard.topology import H100X8
from spmdir.rules.strategies.strategy import UNSHARDED
from spmdir.search.problem import local_seconds

TEXT = """\
# seconds
aten.mm f32[128,256] f32[256,512] = 12.3e-6
  aten.arange = 1e-06    # no operands
all_gather 8 ranks 1000 bytes = 40e-6
all_gather 8 ranks 3000 bytes = 60e-6
all_gather 16 ranks on 2 nodes 1000 bytes = 9e-5
"""


def table() -> Costs:
    return parse_costs(TEXT, "costs.txt")


def test_a_table_prints_as_what_it_was_parsed_from() -> None:
    assert parse_costs(str(table()), "again.txt") == table()


def test_an_op_is_found_by_the_types_of_its_operands() -> None:
    operands = (TensorMeta((128, 256), "f32"), TensorMeta((256, 512), "f32"))
    assert table().op("aten.mm", operands) == Measured(12.3e-6, "costs.txt:2")
    assert table().op("aten.mm", operands[::-1]) is None
    assert table().op("aten.arange", ()) == Measured(1e-6, "costs.txt:3")


def test_a_line_with_arguments_comes_before_one_for_any_arguments() -> None:
    costs = parse_costs(
        'aten.einsum f32[2,2] f32[2,2] {equation = "ab,bc->ac"} = 1\naten.einsum f32[2,2] f32[2,2] = 2', "c"
    )
    operands = (TensorMeta((2, 2), "f32"),) * 2
    assert costs.op("aten.einsum", operands, '{equation = "ab,bc->ac"}') == Measured(1.0, "c:1")
    assert costs.op("aten.einsum", operands, '{equation = "ab,cb->ac"}') == Measured(2.0, "c:2")


def test_the_digest_of_a_table_tells_times_and_not_layout() -> None:
    one = parse_costs("aten.exp f32[2] = 1\naten.exp f32[4] = 2\n", "c")
    assert one.digest == parse_costs("# seconds\naten.exp  f32[4] = 2.0\naten.exp f32[02] = 1\n", "d").digest
    assert one.digest != parse_costs("aten.exp f32[2] = 1\naten.exp f32[4] = 2.0000001\n", "c").digest


@pytest.mark.parametrize(
    ("sent", "seconds", "place"),
    [
        (1000, 40e-6, "costs.txt:4"),
        (1500, 45e-6, "costs.txt:4,5"),
        (3000, 60e-6, "costs.txt:5"),
        (6000, 60e-6 * (10 + 6) / (10 + 3), "costs.txt:5"),
        (0, 40e-6 * 10 / (10 + 1), "costs.txt:4"),
    ],
)
def test_sizes_between_are_interpolated_and_sizes_beyond_are_scaled_by_the_model(
    sent: float, seconds: float, place: str
) -> None:
    found = table().collective("all_gather", 8, 1, sent, lambda size: 10 + size / 1000)
    assert found is not None
    assert (found.seconds, found.place) == (pytest.approx(seconds), place)


def test_groups_of_other_sizes_or_on_more_nodes_are_other_measurements() -> None:
    assert table().collective("all_gather", 16, 1, 1000, float) is None
    assert table().collective("all_gather", 16, 2, 1000, float) == Measured(9e-5, "costs.txt:6")


@pytest.mark.parametrize(
    ("line", "message"),
    {
        "aten.mm f32[2,2]": "found '' for the time of .*; expected seconds, above 0 and at most 1e.06",
        "aten.mm f32[2,2] = 1e308": "found '1e308' for the time of .*; expected seconds, above 0",
        "aten.mm f32[2,2] = 1e-400": "found '1e-400' for the time",
        "aten.mm f32[2,2] = 1_0": "found '1_0' for the time",
        "aten.mm f32[2,2] = \u0661": "found '\u0661' for the time",
        "all_gather \u0664 ranks 1 bytes = 1": "found 'all_gather \u0664 ranks 1 bytes'; expected",
        "aten.mm f32[2,2] = -1": "found '-1' for the time",
        "aten.mm f32[2,2] = inf": "found 'inf' for the time",
        'aten.einsum f32[2] {equation = "a=b" = 1': "found 'aten.einsum .*; expected `aten.mm",
        "aten.einsum f32[2] {equation = a->} = 1": "found 'a', expected a literal; write \"a\" if",
        "aten.sum f32[2] {dim = 0} {dim = 1} = 1": "found 'aten.sum .*; expected `aten.mm",
        'aten.einsum f32[2] {equation = "a->"}': "found '' for the time of",
        'all_gather 8 ranks 1 bytes {dim = 0} = 1': "found 'all_gather 8 ranks 1 bytes {dim = 0}'; expected",
        "aten.mmm f32[2,2] = 1": "'aten.mmm' is not an op of torch .*did you mean 'aten.mm'",
        "aten.sum.dim f32[2,2] = 1": "'aten.sum.dim' is not an op of torch",
        "aten.add_.Tensor f32[2] f32[2] = 1": "'aten.add_.Tensor' writes its operand 'self'",
        "aten.mm f3[2,2] = 1": "unknown element type 'f3'; expected one of .*did you mean 'f32'",
        "all_gathr 8 ranks 1 bytes = 1": "unknown collective 'all_gathr'; .*did you mean 'all_gather'",
        "all_gather 9 ranks on 2 nodes 1 bytes = 1": "found 9 ranks on 2 nodes; expected at least 2 ranks",
        "hello = 1": "found 'hello'; expected `aten.mm",
    }.items(),
)  # fmt: skip
def test_a_malformed_line_is_an_error_at_its_place(line: str, message: str) -> None:
    with pytest.raises(SpmdirError, match=re.escape("costs.txt:2:3: error: ") + message):
        parse_costs(f"\n  {line}\n", "costs.txt")


def test_a_line_that_is_there_twice_is_an_error() -> None:
    with pytest.raises(SpmdirError, match=r"costs.txt:2:1: error: `aten.exp f32\[2\]` already has a time in line 1"):
        parse_costs("aten.exp f32[2] = 1\naten.exp  f32[2] = 2\n", "costs.txt")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("all_gather 4 ranks 8 bytes", "all_gather 04 ranks 08 bytes"),
        ("all_gather 4 ranks 8 bytes", "all_gather 4 ranks on 1 nodes 8 bytes"),
        ("aten.exp f32[20,0]", "aten.exp f32[020,00]"),
        ("aten.sum f32[2] {a = [0], b = 1.0}", "aten.sum f32[2]  { b=1.0,a=[ 0 ] }"),
    ],
)
def test_spellings_of_one_measurement_are_one(one: str, other: str) -> None:
    with pytest.raises(SpmdirError, match=re.escape(f"costs.txt:2:1: error: `{one}` already has a time in line 1")):
        parse_costs(f"{one} = 1\n{other} = 2\n", "costs.txt")


def test_lines_that_price_nothing_of_a_program_are_told() -> None:
    lines = """aten.mm f32[2,4] f32[4,8] = 1
aten.mm f32[2,16] f32[16,8] = 1
aten.mm bf16[2,4] bf16[4,8] = 1
aten.bmm f32[1,2,4] f32[1,4,8] = 1
aten.mm f32[2,4] = 1
all_gather 4 ranks 8 bytes = 1
all_gather 3 ranks 8 bytes = 1
all_gather 4 ranks on 2 nodes 8 bytes = 1
"""
    call = Call("aten.mm", (TensorMeta((8, 8), F32), TensorMeta((8, 8), F32)), (("a", 1),), ())
    lines += "aten.mm f32[2,4] f32[4,8] {a = 1} = 1\naten.mm f32[2,4] f32[4,8] {a = 2} = 1\n"
    assert [line.number for line in parse_costs(lines, "c").unused([call], 8, 1)] == [2, 3, 4, 5, 7, 8, 10]


def test_propagate_remarks_on_lines_that_price_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.txt").write_text("aten.exp f32[2] = 1\n\naten.exp f32[20] = 1\n")
    text = "spmd.mesh @mesh <a = 2>\nfunc.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n"
    text += "  %0 = aten.exp(%x) : tensor<4xf32>\n  return %0 : tensor<4xf32>\n}"
    spmdir.run_passes(spmdir.parse(text), spmdir.Pipeline("propagate", costs=tmp_path / "c.txt"))
    assert (
        f"{tmp_path}/c.txt:3:1: remark: 1 of 2 lines match no op or collective of this program: 3"
        in capsys.readouterr().err
    )


def test_a_plan_takes_the_measured_times() -> None:
    kinds = {}
    for seconds in (1e-9, 1.0):
        machine = attrs.evolve(H100X8, costs=parse_costs(f"all_reduce 4 ranks 96 bytes = {seconds}\n", "c"))
        plan = plan_reshard((16,), "f32", "a: P(sum)", "", Mesh({"a": 4}), machine)
        kinds[seconds] = [step.kind for step in plan.steps], plan.seconds
    assert kinds[1e-9] == (["all_reduce"], 1e-9)
    assert "all_reduce" not in kinds[1.0][0] and kinds[1.0][1] < 1e-3


def test_steps_that_are_faster_than_any_model_are_found() -> None:
    lines = """
        all_reduce 4 ranks 1536 bytes = 10e-6
        reduce_scatter 4 ranks 768 bytes = 1e-6
        all_gather 4 ranks 768 bytes = 1e-6
    """
    machine = attrs.evolve(H100X8, costs=parse_costs(lines, "c"))
    plan = plan_reshard((256,), "f32", "tp: P", "", Mesh({"tp": 4}), machine)
    assert ([step.kind for step in plan.steps], plan.seconds) == (["reduce_scatter", "all_gather"], 2e-6)


def test_the_search_takes_the_measured_time_of_an_op_on_what_a_rank_has() -> None:
    text = """spmd.mesh @mesh <tp = 4>
func.func @f(%x: tensor<8x4xf32>, %y: tensor<4x8xf32>) -> tensor<8x8xf32> {
  %0 = aten.mm(%x, %y) : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}"""
    module = ir.parse(text)
    machine = attrs.evolve(H100X8, costs=parse_costs("aten.mm f32[2,4] f32[4,8] = 3.0\n", "c"))
    problem = build_problem(ir.main_function(module), ir.mesh(module), ir.context().rules, machine)[1]
    source = problem.nodes[2].source
    times = {s.factors: local_seconds(source.work, machine, [s], [4]) for s in source.strategies("tp", 4, UNSHARDED)}
    assert [factors for factors, seconds in times.items() if seconds == 3.0] == [(0,)]


def test_einsums_of_equal_types_have_each_the_time_of_their_equation(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("""aten.einsum f32[4,4] f32[4,4] {equation = "ab,bc->ac"} = 1e-3
aten.einsum f32[4,4] f32[4,4] {equation = "ab,cb->ac"} = 2e-3
aten.cat f32[4,4] f32[4,4] {dim = 0} = 4e-3
""")
    text = """spmd.mesh @mesh <a = 1>
func.func @f(%x: tensor<4x4xf32>) -> tensor<8x4xf32> {
  %0 = aten.einsum([%x, %x]) {equation = "ab,bc->ac"} : tensor<4x4xf32>
  %1 = aten.einsum([%x, %x]) {equation = "ab,cb->ac"} : tensor<4x4xf32>
  %2 = aten.cat([%0, %1]) {dim = 0} : tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}"""
    pipeline = spmdir.Pipeline("propagate", costs=tmp_path / "c.txt")
    report = spmdir.report.comm_report(spmdir.run_passes(spmdir.parse(text), pipeline), pipeline=pipeline)
    assert {kind: share.seconds for kind, share in report.compute.items() if kind != "inputs"} == {
        "aten.cat": 4e-3,
        "aten.einsum": 3e-3,
    }


def test_the_report_says_which_lines_a_time_is_from(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("all_gather 2 ranks 32 bytes = 1e-9\n")
    text = """spmd.mesh @mesh <tp = 2>
func.func @f(%x: tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}) -> (tensor<16xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  return %x : tensor<16xf32>
}"""  # noqa: E501
    pipeline = spmdir.Pipeline("propagate,insert-reshard,lower-reshard", costs=tmp_path / "c.txt")
    report = spmdir.report.comm_report(spmdir.run_passes(spmdir.parse(text), pipeline), pipeline=pipeline)
    assert report.seconds == 1e-9 and report.by_kind["all_gather"].prices == (f"{tmp_path / 'c.txt'}:1",)
    assert f"costs={tmp_path / 'c.txt'}" in str(pipeline)
