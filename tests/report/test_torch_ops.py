"""What an op costs before and after it is expanded: the same, by the one model of propagate and of the report."""

from __future__ import annotations

import pytest

from spmdir.core.errors import ShardingError
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import run_passes
from spmdir.report.communication import CommReport, comm_report

ROWS = "%x: tensor<64x512xf32> {X1}"
KEYS = "%x: tensor<2x4x64x32xf32> {X}, %k: tensor<2x4x512x32xf32> {X2}, %v: tensor<2x4x512x32xf32> {X2}"
ATTENTION = "aten.scaled_dot_product_attention"
EXPANDED = {
    "aten.softmax.int": (ROWS, "(%x) {dim = -1}", "64x512"),
    "aten.log_softmax.int": (ROWS, "(%x) {dim = -1}", "64x512"),
    "aten.layer_norm": (ROWS, "(%x) {normalized_shape = [512]}", "64x512"),
    "aten.cross_entropy_loss": (ROWS + ", %t: tensor<64xi64> {X}", "(%x, %t)", ""),
    ATTENTION: (KEYS, "(%x, %k, %v)", "2x4x64x32"),
}
MESHES = {"<a = 4>": "a", "<a = 2, b = 4>": "ab", "<a = 2, b = 4> intra [b]": "ab"}


def program(op: str, mesh: str) -> str:
    """Return a program of one op whose operands are sharded along what it reduces inside, over all axes."""
    arguments, rest, shape = EXPANDED[op]
    for dim in ("", "1", "2"):
        sharded = "".join(f", {axis}: S({dim})" for axis in MESHES[mesh]) if dim else ""
        arguments = arguments.replace(f"{{X{dim}}}", f"{{spmd.sharding = #spmd.sharding<@mesh{sharded}>}}")
    result = f"tensor<{shape}{'x' if shape else ''}f32>"
    return (
        f"spmd.mesh @mesh {mesh}\nfunc.func @f({arguments}) -> {result} {{\n"
        f"  %0 = {op}{rest} : {result}\n  return %0 : {result}\n}}"
    )


def total(report: CommReport) -> float:
    return report.seconds + sum(share.seconds for share in report.compute.values())


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("op", EXPANDED)
def test_an_op_costs_what_propagate_minimised_at_every_stage_also_in_its_text(op: str, mesh: str) -> None:
    module = ir.parse(program(op, mesh))
    # Where bytes alone count, each op is sharded inside.
    reports = [comm_report(run_passes(module, stage)) for stage in ("propagate{topology=flat}", "expand")]
    reports.append(comm_report(run_passes(module, "insert-reshard,lower-reshard")))
    objective = reports[0].objective
    reports.append(comm_report(ir.parse(ir.print_ir(module))))
    assert [total(report) for report in reports] == pytest.approx([objective] * len(reports))
    assert all(report.compute.keys() == {"inputs", op} and report.count > 1 for report in reports)


def expanded(name: str, **changed: str) -> CommReport:
    """Return the report of an expanded op in whose text some things are `changed`."""
    module = run_passes(ir.parse(program(name, "<a = 4>")), "propagate{topology=flat},expand")
    text = ir.print_ir(module)
    for old, new in changed.items():
        assert old in text
        text = text.replace(old, new)
    return comm_report(ir.parse(text))


def test_ops_of_which_one_is_not_of_the_expansion_cost_what_they_do_by_themselves() -> None:
    assert "aten.amax" in expanded("aten.softmax.int", **{"ops = 5": "ops = 6"}).compute
    twice = program("aten.softmax.int", "<a = 4>").replace(
        "  return %0", "  %1 = aten.exp(%0) : tensor<64x512xf32>\n  return %1"
    )
    text = ir.print_ir(run_passes(ir.parse(twice), "propagate{topology=flat},expand"))
    assert comm_report(ir.parse(text)).compute.keys() == {"inputs", "aten.softmax.int", "aten.exp"}
    assert "aten.amax" in comm_report(ir.parse(text.replace("ops = 5", "ops = 6"))).compute


def test_ops_whose_results_are_sharded_otherwise_than_the_expansion_cost_what_they_do_by_themselves() -> None:
    text = ir.print_ir(run_passes(ir.parse(program("aten.softmax.int", "<a = 4>")), "propagate{topology=flat},expand"))
    head, _, last = text.rpartition("= aten.div")
    line, end, rest = last.partition("\n")
    assert "aten.softmax.int" in comm_report(ir.parse(text)).compute
    assert (
        "aten.div.Tensor"
        in comm_report(ir.parse(head + "= aten.div" + line.split(" <")[0] + " <>" + end + rest)).compute
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[0, 0]]", "[[0, 9]]", "spmd.expansion names operand 9 of op 0, which the expansion does not have"),
        ("ops = 5", "ops = 4", "spmd.expansion names result 0 of op 4, which the expansion does not have"),
        ("ops = 5", "ops = 0", "spmd.expansion is malformed ('ops' is 0)"),
        ("[[4, 0]]", "[4]", "spmd.expansion is malformed"),
        ("needs = #spmd.shardings<@mesh, <a: S(1)>>", "needs = #spmd.shardings<@mesh, <a: S(7)>>", "7"),
    ],
)
def test_a_malformed_note_of_an_expansion_is_a_located_error(old: str, new: str, message: str) -> None:
    with pytest.raises(ShardingError) as error:
        expanded("aten.softmax.int", **{old: new})
    assert message in error.value.message and error.value.location is not None
