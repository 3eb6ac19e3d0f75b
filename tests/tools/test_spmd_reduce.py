"""`spmd-reduce` leaves what a failure needs, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.dialects import ir
from spmdir.tools.reducer import TrialProgram, reduce
from spmdir.tools.spmd_reduce import main

MLP = """spmd.mesh @mesh <dp = 2, tp = 4>

func.func @mlp(%x: tensor<16x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>, spmd.name = "x"},
               %w1: tensor<8x32xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>},
               %w2: tensor<32x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>})
    -> (tensor<16x8xf32>, tensor<16x32xf32>) {
  %0 = aten.mm(%x, %w1) : tensor<16x32xf32>
  %1 = aten.gelu(%0) : tensor<16x32xf32> <dp: S(0), tp: P(sum)>
  %2 = aten.mm(%1, %w2) : tensor<16x8xf32>
  %3 = aten.neg(%1) : tensor<16x32xf32>
  return %2, %3 : tensor<16x8xf32>, tensor<16x32xf32>
}
"""
GELU = """spmd.mesh @mesh <tp = 2>

func.func @mlp(%0: tensor<1x1xf32>) {
  %1 = aten.gelu(%0) : tensor<1x1xf32> <tp: P(sum)>
  return
}
"""


FAILS = """
from dataclasses import dataclass
from xdsl.passes import ModulePass
import spmdir

@dataclass(frozen=True)
class FailsPass(ModulePass):
    \"\"\"Fails.\"\"\"

    name = "fails"

    def apply(self, ctx, op):
        raise spmdir.SpmdirError("there is no relu")
"""


def reduced(tmp_path: Path, text: str, *options: str) -> str:
    """Return what is left of `text`."""
    source, target = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(text)
    assert main([str(source), "-o", str(target), *options]) == 0
    return target.read_text()


@pytest.mark.parametrize(
    ("run", "left"),
    [
        ("spmd-opt --propagate --insert-reshard --lower-reshard", "spmd-opt --propagate"),
        ("spmd-opt -p 'propagate{effort=1},insert-reshard'", "spmd-opt -p 'propagate{effort=1}'"),
    ],
)
def test_program_and_pipeline_are_what_the_error_needs(tmp_path, capsys, run: str, left: str) -> None:
    assert reduced(tmp_path, MLP, "--run", run, "--expect-error", "no strategy of its rule gives") == GELU
    assert capsys.readouterr().err.splitlines()[1] == f"remark: {left}"


def test_plug_ins_are_given_to_the_tool_that_is_run(tmp_path, capsys) -> None:
    plugin = tmp_path / "fails.py"
    plugin.write_text(FAILS)
    options = ("--load-plugin", str(plugin), "--run", "spmd-opt --fails", "--expect-error", "no relu")
    assert reduced(tmp_path, MLP, *options).count("\n") < MLP.count("\n")
    assert capsys.readouterr().err.splitlines()[1] == f"remark: spmd-opt --fails --load-plugin={plugin}"


def test_a_program_that_succeeds_is_reduced_by_its_output(tmp_path) -> None:
    found = reduced(tmp_path, MLP.replace("tp: P(sum)", "tp: S(1)"), "--run", "spmd-opt", "--expect-output", "aten.neg")
    assert found == "func.func @mlp(%1: tensor<1x1xf32>) {\n  %3 = aten.neg(%1) : tensor<1x1xf32>\n  return\n}\n"


def test_the_options_of_a_subcommand_are_reduced_too(tmp_path, capsys) -> None:
    program = MLP.replace("tp: P(sum)", "tp: S(1)")
    options = ("--run", "spmd report - --by=kind,module --sort=sent", "--expect-output", "aten.neg")
    found = reduced(tmp_path, program, *options)
    assert re.findall(r"aten[.]\w+", found) == ["aten.neg"]
    assert capsys.readouterr().err.splitlines()[1] == "remark: spmd report --by=kind"


@pytest.mark.parametrize("command", ["grep -q aten.mm {}", "grep -q aten.mm"])
def test_a_command_reads_a_file_or_stdin(tmp_path, command: str) -> None:
    found = reduced(tmp_path, MLP, "--test", command)
    assert [line.strip() for line in found.splitlines() if "aten" in line] == [
        "%0 = aten.mm(%x, %w1) : tensor<1x1xf32>"
    ]


def test_an_axis_goes_from_collectives_and_functions_that_nothing_needs_go(tmp_path) -> None:
    text = """spmd.mesh @mesh <dp = 2, tp = 4>

func.func @used(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0), tp: S(1)>}) -> tensor<8x8xf32> {
  %a = spmd.all_gather %x on [dp] dim 0 : tensor<8x8xf32> <tp: S(1)>
  %b = spmd.all_gather %a on [tp] dim 1 : tensor<8x8xf32> <>
  return %b : tensor<8x8xf32>
}

func.func @other(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = func.call @third(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}

func.func @third(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
"""
    found = reduced(tmp_path, text, "--run", "spmd-opt", "--expect-output", r"all_gather .* on .tp.")
    assert (
        found
        == """spmd.mesh @mesh <tp = 2>

func.func @used(%a: tensor<1x1xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) {
  %b = spmd.all_gather %a on [tp] dim 1 : tensor<1x1xf32> <>
  return
}
"""
    )


def test_an_input_that_does_not_verify_is_reduced_to_what_does_not(tmp_path) -> None:
    text = MLP.replace("dp: S(0), tp: P(sum)", "dp: S(0), dp: S(1)").replace("<dp: S(0), dp: S(1)>", "<pp: S(0)>")
    found = reduced(tmp_path, text, "--run", "spmd-opt", "--expect-error", "pp")
    assert "%1 = aten.gelu(%0) : tensor<1x1xf32> <pp: S(0)>" in found
    assert len(found.splitlines()) <= 6


def test_candidates_verify_and_the_result_is_the_same_each_time() -> None:
    def is_interesting(candidate: TrialProgram) -> bool:
        ir.parse(candidate.text)
        tried.append(candidate.text)
        return "aten.neg" in candidate.text

    runs = []
    for _ in range(2):
        tried: list[str] = []
        found = reduce(TrialProgram(MLP), is_interesting, timeout=60)
        assert found.finished
        assert found.probes == len(tried) - 1
        runs.append((found.candidate.text, tuple(tried)))
    assert runs[0] == runs[1]


def test_what_was_found_is_kept_when_time_is_up() -> None:
    found = reduce(TrialProgram(MLP), lambda candidate: True, timeout=0)
    assert not found.finished
    assert found.candidate.text == ir.print_ir(ir.parse(MLP))


def test_a_program_that_is_not_of_interest_is_an_error() -> None:
    with pytest.raises(SpmdirError, match="does not show the failure"):
        reduce(TrialProgram(MLP), lambda candidate: False, timeout=60)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "error: found neither --test nor --run; expected one of --test COMMAND and --run COMMAND"),
        (("--test", "true", "--run", "spmd-opt"), "error: found both --test and --run; expected one of --test COMMAND"),
        (("--run", "spmd-opt"), "error: found 0 of --expect-error and --expect-output; expected exactly one"),
        (("--run", "spmd-opt", "--expect-error", "("), "error: '(' is not a regular expression"),
        (("--run", "spmd-ran", "--expect-error", "x"), "did you mean 'spmd-run'?"),
        (("--test", "true", "--timeout", "soon"), "'soon' is not a time; expected seconds, as in 60"),
        (("--run", "spmd-opt", "--expect-error", "x"), "does not show the failure"),
    ],
)
def test_wrong_options_are_errors(tmp_path, capsys, options: tuple[str, ...], message: str) -> None:
    source = tmp_path / "in.mlir"
    source.write_text(MLP)
    assert main([str(source), *options]) == 1
    assert message in capsys.readouterr().err


def failing(tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the error of the tool on MLP."""
    source = tmp_path / "in.mlir"
    source.write_text(MLP)
    assert main([str(source), *options]) != 0
    return capsys.readouterr().err


def test_a_program_that_does_not_pass_the_test_shows_what_the_tool_printed(tmp_path, capsys) -> None:
    said = failing(tmp_path, capsys, "--run", "spmd-opt --propagate", "--expect-error", "no such words")
    assert "does not show the failure" in said and "no strategy of its rule gives" in said
    assert "it printed:\nhello" in failing(tmp_path, capsys, "--test", "echo hello; false")


def test_a_pipe_in_run_is_an_error_that_names_test(tmp_path, capsys) -> None:
    said = failing(tmp_path, capsys, "--run", "spmd-opt | grep x", "--expect-output", "x")
    assert "contains '|'; expected one tool, or --test" in said


def test_calls_are_inlined_and_ops_are_counted(tmp_path, capsys) -> None:
    text = """func.func private @g(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = aten.neg(%x) : tensor<4xf32>
  return %0 : tensor<4xf32>
}

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = func.call @g(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = aten.exp(%0) : tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""
    left = reduced(tmp_path, text, "--test", "grep -q aten.neg {} && grep -q @f {}")
    assert "call" not in left and "@g" not in left
    assert capsys.readouterr().err.startswith("remark: 1 of 3 ops are left")
