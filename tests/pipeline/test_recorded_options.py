"""What propagate decided for is what later passes and reports go by, in one process and through text."""

from __future__ import annotations

import math
import re
from pathlib import Path

import attrs
import pytest

import spmdir
from spmdir.core.errors import ParseError
from spmdir.dialects import ir
from spmdir.dialects.machine_attribute import recorded_topology
from spmdir.pipeline.recorded_options import deciding_pass, machine_of
from spmdir.reshard.topology import FLAT

TEXT = """spmd.mesh @mesh <dp = 2, tp = 4>

func.func @f(%x: tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(0)>})
    -> (tensor<64x64xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  return %x : tensor<64x64xf32>
}
"""
LOWERED = "insert-reshard,lower-reshard"
COSTS = "exchange 8 ranks 1792 bytes = 1e-9\n"


def test_the_note_is_written_only_where_the_machine_is_not_the_default_one() -> None:
    def noted(options: str) -> bool:
        return "decided_by" in spmdir.print_ir(spmdir.run_passes(spmdir.parse(TEXT), f"propagate{options}"))

    assert [noted(o) for o in ("", "{effort=1}", "{topology=h100x8}", "{memory=auto}")] == [False] * 4
    assert [noted(o) for o in ("{topology=flat}", "{memory=1GB}", "{effort=1 topology=flat}")] == [True] * 3


@pytest.mark.parametrize("through_text", [False, True])
def test_later_passes_and_reports_go_by_the_machine_of_propagate(through_text: bool) -> None:
    module = spmdir.run_passes(spmdir.parse(TEXT), "propagate{topology=flat}")
    module = spmdir.parse(spmdir.print_ir(module)) if through_text else module
    module = spmdir.run_passes(module, LOWERED)
    assert "spmd.exchange" in spmdir.print_ir(module)  # on h100x8, a gather and a slice
    report = spmdir.report.comm_report(module)
    assert report == spmdir.report.comm_report(module, "flat")
    assert report.by_kind["exchange"].prices == ("flat",)
    localized = spmdir.run_passes(module, "localize")
    assert spmdir.report.comm_report(localized).by_kind["exchange"].prices == ("flat",)


@pytest.mark.parametrize("through_text", [False, True])
@pytest.mark.parametrize("in_file", [False, True])
def test_a_machine_that_is_no_preset_is_in_the_text(through_text: bool, in_file: bool, tmp_path: Path) -> None:
    own = attrs.evolve(FLAT, name="own", memory_bandwidth=1.0 / 3.0 * 1e13)
    path = tmp_path / "own.toml"
    if in_file:
        tables = ("name", "costs", "imbalance", "peak_flops", "protocols")
        values = attrs.asdict(own, filter=lambda field, value: field.name not in tables)
        lines = [f"{name} = {value!r}" for name, value in values.items() if value != math.inf]
        path.write_text("\n".join([*lines, "[peak_flops]", *(f"{unit} = {peak!r}" for unit, peak in own.peak_flops)]))
    pipeline = spmdir.Pipeline("propagate", topology=str(path) if in_file else own)
    module = spmdir.run_passes(spmdir.parse(TEXT), pipeline)
    path.unlink(missing_ok=True)
    module = spmdir.parse(spmdir.print_ir(module)) if through_text else module
    assert recorded_topology(ir.main_function(module)) == own
    report = spmdir.report.comm_report(spmdir.run_passes(module, LOWERED))
    assert report.by_kind["exchange"].prices == ("own",)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("3", r"'' of spmd.topology is 3 : i64; expected a number"),
        ('{name = "x"}', "spmd.topology: the topology has no intra_bandwidth"),
        ('{name = "x", speed = 1.0e+00 : f64}', "spmd.topology: unknown key 'speed' of a topology"),
        ('{name = "x", intra_bandwidth = 0.0e+00 : f64}', "spmd.topology: intra_bandwidth is 0"),
        ('{name = "x", intra_bandwidth = 0x7ff8000000000000 : f64}', "spmd.topology: intra_bandwidth is nan"),
    ],
)
def test_a_malformed_machine_is_a_located_error(topology: str, message: str) -> None:
    text = TEXT.replace(" {\n  return", f" attributes {{spmd.topology = {topology}}} {{\n  return")
    with pytest.raises(ParseError, match=rf"<text>:3:1: error: {message}"):
        spmdir.run_passes(spmdir.parse(text), LOWERED)


def test_a_file_that_a_text_names_is_read_only_if_the_pipeline_names_it_too(tmp_path: Path) -> None:
    path = tmp_path / "own.costs"
    path.write_text(COSTS)
    decided = spmdir.run_passes(spmdir.parse(TEXT), f"propagate{{costs={path}}}")
    text = spmdir.print_ir(decided)
    with pytest.raises(
        ParseError,
        match=r"spmd.decided_by names the file '.*own.costs'; expected it as an option, .* are not opened: give it",
    ):
        spmdir.run_passes(spmdir.parse(text), LOWERED)
    given = spmdir.Pipeline(LOWERED, costs=path)
    with pytest.raises(ParseError, match=r"names the file '.*own.costs'"):
        spmdir.run_passes(decided.clone(), LOWERED)
    for module in (spmdir.run_passes(spmdir.parse(text), given), spmdir.run_passes(decided, given)):
        assert spmdir.report.comm_report(module, pipeline=given).by_kind["exchange"].prices == (f"{path}:1",)
    with pytest.raises(ParseError, match=r"names the file 'm.toml'"):
        spmdir.run_passes(spmdir.parse(text.replace("costs=", "topology=m.toml costs=")), LOWERED)


def test_a_table_that_is_not_the_one_that_was_decided_by_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.costs"
    path.write_text(COSTS)
    decided = spmdir.run_passes(spmdir.parse(TEXT), f"propagate{{costs={path}}}")
    text, given = spmdir.print_ir(decided), spmdir.Pipeline(LOWERED, costs=path)
    lowered = spmdir.print_ir(spmdir.run_passes(decided, given))
    reporting = spmdir.Pipeline("", costs=path)
    path.write_text(f"# again\n{COSTS}")
    spmdir.run_passes(spmdir.parse(text), spmdir.Pipeline(LOWERED, costs=path))
    spmdir.report.comm_report(spmdir.parse(lowered), pipeline=reporting)
    assert "but propagate used" not in capsys.readouterr().err
    path.write_text(COSTS.replace("1e-9", "2e-9"))
    spmdir.run_passes(spmdir.parse(text), spmdir.Pipeline(LOWERED, costs=path))
    told = rf"uses a table of costs with digest \w+, but propagate used {path} with digest \w+; run propagate again"
    assert re.search(f"remark: lower-reshard {told}", capsys.readouterr().err)
    spmdir.report.comm_report(spmdir.parse(lowered), pipeline=reporting)
    assert re.search(f"remark: the cost report {told}", capsys.readouterr().err)


def test_own_options_come_before_what_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    module = spmdir.run_passes(spmdir.parse(TEXT), "propagate{topology=flat},insert-reshard")
    assert not capsys.readouterr().err
    module = spmdir.run_passes(module, "lower-reshard{topology=h100x8}")
    assert "remark: lower-reshard uses h100x8, but propagate used flat" in capsys.readouterr().err
    assert "spmd.all_gather" in spmdir.print_ir(module)


@pytest.mark.parametrize("decided_on", ["h100x8", "a100x8"])
def test_the_topology_of_a_pipeline_is_no_part_of_what_decided_a_program(
    decided_on: str, capsys: pytest.CaptureFixture[str]
) -> None:
    decided = spmdir.run_passes(spmdir.parse(TEXT), f"propagate{{topology={decided_on}}},insert-reshard")
    function = ir.main_function(decided)
    given = spmdir.Pipeline("lower-reshard", topology="flat")
    assert machine_of(function, given).topology.name == decided_on
    assert deciding_pass(function, given).topology == decided_on  # pyright: ignore[reportAttributeAccessIssue]
    lowered = [spmdir.run_passes(decided.clone(), steps) for steps in (given, "lower-reshard{topology=flat}")]
    expected = f"remark: lower-reshard uses flat, but propagate used {decided_on}\n"
    assert capsys.readouterr().err.count(expected) == 2
    assert len(set(map(spmdir.print_ir, lowered))) == 1


def test_the_machine_of_a_plugin_is_found_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "own.py"
    plugin.write_text("import attrs\nfrom spmdir.reshard.topology import FLAT\nOWN = attrs.evolve(FLAT, name='own')\n")
    own = attrs.evolve(FLAT, name="own")
    plugged = spmdir.Pipeline("propagate{topology=own},insert-reshard", plugins=[plugin])
    decided = spmdir.run_passes(spmdir.parse(TEXT), plugged)
    del ir.main_function(decided).attributes["spmd.topology"]
    function = ir.main_function(decided)
    assert machine_of(function, plugged).topology == own
    assert deciding_pass(function, plugged).topology == own  # pyright: ignore[reportAttributeAccessIssue]
    spmdir.run_passes(decided, plugged.with_steps(spmdir.Pipeline("lower-reshard").steps))
    assert not capsys.readouterr().err


def test_operands_are_placed_for_the_machine_that_reshards_are_planned_for() -> None:
    golden = Path(__file__).parents[1] / "golden/insert-reshard/operands_are_the_quickest_to_reach_on_the_machine.mlir"
    default = golden.read_text().partition("// -----")[0]
    module = spmdir.run_passes(spmdir.parse(default), spmdir.Pipeline("insert-reshard", topology="flat"))
    assert "%y.reshard = spmd.reshard %y" in spmdir.print_ir(module)  # on h100x8, %x is gathered


def test_the_file_of_a_machine_is_not_needed_where_there_is_no_reshard_to_plan() -> None:
    lowered = spmdir.run_passes(spmdir.parse(TEXT), f"propagate{{topology=flat}},{LOWERED}")
    text = spmdir.print_ir(lowered).replace("topology=flat", "topology=m.toml")
    assert "m.toml" in text
    assert spmdir.report.memory_report(spmdir.parse(text)) == spmdir.report.memory_report(lowered)
    decided = spmdir.print_ir(spmdir.run_passes(spmdir.parse(TEXT), "propagate{topology=flat}"))
    with pytest.raises(ParseError, match=r'-p "lower-reshard\{topology=m.toml\}"'):
        spmdir.report.memory_report(spmdir.parse(decided.replace("topology=flat", "topology=m.toml")))


def test_fuse_collectives_needs_no_file_of_a_machine_where_nothing_is_priced(tmp_path: Path) -> None:
    path = tmp_path / "own.costs"
    path.write_text(COSTS)
    lowered = spmdir.print_ir(spmdir.run_passes(spmdir.parse(TEXT), f"propagate{{costs={path}}},{LOWERED}"))
    path.unlink()
    assert "spmd.exchange" in lowered
    assert spmdir.print_ir(spmdir.run_passes(spmdir.parse(lowered), "fuse-collectives")) == lowered
    back_and_forth = """%g = spmd.all_gather %x.reshard on [tp] dim 1 : tensor<64x64xf32> <>
  %s = spmd.slice %g on [tp] dim 1 : tensor<64x64xf32> <tp: S(1)>
  return %s"""
    with pytest.raises(
        ParseError,
        match=r"names the file '.*own.costs'; expected it as an option, since files named in a program are not opened",
    ):
        spmdir.run_passes(spmdir.parse(lowered.replace("return %x.reshard", back_and_forth)), "fuse-collectives")
