"""`spmd-opt` as its users meet it: what it prints, where, and with which status."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.dialects import ir
from spmdir.pipeline.pass_table import PASSES
from spmdir.pipeline.pipeline import PARTITIONING
from spmdir.rules.rule_set import packaged
from spmdir.tools import SCRIPTS, process_input, spmd_opt

ROOT = Path(__file__).parents[2]
GOOD = """\
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<4xf32> {spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}) -> tensor<4xf32> {
  %0 = aten.relu(%x) : tensor<4xf32> <dp: S(0)>
  return %0 : tensor<4xf32>
}
"""
BAD = GOOD.replace("<dp: S(0)>", "<tp: S(0)>")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run the tool in an empty folder: (status, stdout, stderr) of its arguments; `text` becomes `in.mlir`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, text: str = GOOD) -> tuple[int, str, str]:
        Path("in.mlir").write_text(text)
        status = spmd_opt.main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_without_passes_canonical_text_comes_out_as_it_went_in(run) -> None:
    assert run("in.mlir") == (0, GOOD, "")


def test_an_error_is_one_located_line_on_stderr_and_nothing_on_stdout(run) -> None:
    status, out, err = run("in.mlir", text=BAD)
    assert (status, out) == (1, "")
    assert err.startswith("in.mlir:4:3: error: ")
    assert err.count("\n") == 1


def test_a_file_is_written_whole(run, tmp_path: Path) -> None:
    assert run("in.mlir", "-o", "out.mlir") == (0, "", "")
    assert (tmp_path / "out.mlir").read_text() == GOOD


def test_an_error_leaves_the_output_file_as_it_was(run, tmp_path: Path) -> None:
    (tmp_path / "out.mlir").write_text("before")
    assert run("in.mlir", "-o", "out.mlir", text=BAD)[0] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.mlir", "out.mlir"]
    assert (tmp_path / "out.mlir").read_text() == "before"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.mlir"], "error: cannot read 'missing.mlir': No such file or directory"),
        (["."], "error: cannot read '.': Is a directory"),
        (["in.mlir", "-o", "missing/out.mlir"], "error: cannot write 'missing/out.mlir': No such file or directory"),
        (["in.mlir", "--propagat"], "error: unknown option '--propagat'; did you mean '--propagate'?; see"),
        (["in.mlir", "--timin"], "error: unknown option '--timin'; did you mean '--timing'?; see"),
        (["in.mlir", "-p", "nothing"], "error: unknown pass 'nothing'; expected one of inline, fold-experts,"),
        (["in.mlir", "-p"], "error: argument -p/--pass-pipeline: expected one argument; see spmd-opt --help"),
        (["in.mlir", "--cost-report"], "error: unknown option '--cost-report'; use `spmd report --view cost`; see"),
        (["in.mlir", "--cost-by=op"], "error: unknown option '--cost-by'; use `spmd report --by`; see"),
        (["in.mlir", "--cost-rows", "3"], "error: unknown option '--cost-rows'; use `spmd report --rows`; see"),
        (["in.mlir", "--memory-report"], "error: unknown option '--memory-report'; use `spmd report --view memory`;"),
        (["in.mlir", "--schedule-report"], "error: unknown option '--schedule-report'; use `spmd report --view sch"),
        (["in.mlir", "--print-timeline"], "error: unknown option '--print-timeline'; use `spmd report --view timel"),
        (["in.mlir", "--trace", "t.json"], "error: unknown option '--trace'; use `spmd report --format perfetto`;"),
        (["in.mlir", "--summary"], "error: unknown option '--summary'; use `spmd report --view summary`; see"),
        (["in.mlir", "--explain=%0"], "error: unknown option '--explain'; use `spmd explain`; see"),
    ],
)
def test_wrong_arguments_are_rejected_with_what_was_expected(run, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert err.startswith(message)


def test_text_that_is_no_utf_8_is_rejected(run, tmp_path: Path) -> None:
    (tmp_path / "latin.mlir").write_bytes(b"// \xe9")
    assert run("latin.mlir") == (
        1,
        "",
        "latin.mlir:1:4: error: the byte 0xe9 is not UTF-8 text; expected a text file in UTF-8: convert it\n",
    )


def test_parts_of_a_split_file_fail_alone_at_their_lines_in_the_file(run) -> None:
    text = f"{BAD}// -----\n{GOOD}// -----\n{BAD}"
    status, out, err = run("in.mlir", "--split-input-file", text=text)
    assert (status, out) == (1, "")
    assert [line.partition(": error")[0] for line in err.splitlines()] == ["in.mlir:4:3", "in.mlir:18:3"]


def test_parts_of_a_split_file_are_printed_apart(run) -> None:
    text = f"{GOOD}// -----\n{GOOD}"
    assert run("in.mlir", "--split-input-file", text=text) == (0, text, "")


def test_expected_errors_are_met_in_silence(run) -> None:
    text = BAD.replace("  %0", "  // expected-error@+1 {{axis 'tp' is not in mesh}}\n  %0")
    assert run("in.mlir", "--verify-diagnostics", text=text) == (0, "", "")


def test_an_expected_error_that_does_not_come_is_an_error(run) -> None:
    text = GOOD.replace("  %0", "  // expected-error@+1 {{axis 'tp'}}\n  %0")
    status, _, err = run("in.mlir", "--verify-diagnostics", text=text)
    assert status == 1
    assert err == "in.mlir:4:6: error: expected error 'axis 'tp'' on line 5 was not issued\n"


def test_generic_form_and_locations_are_printed_on_demand(run) -> None:
    assert '"aten.relu"(%x)' in run("in.mlir", "--print-op-generic")[1]
    assert "in.mlir" in run("in.mlir", "--print-debuginfo")[1]


def test_timing_goes_to_stderr_with_one_line_a_stage(run) -> None:
    packaged.cache_clear()  # a tool runs in a process of its own, where no rule was needed before
    status, out, err = run("in.mlir", "--timing")
    assert (status, out) == (0, GOOD)
    assert [line.split()[2] for line in err.splitlines()] == ["parse", "print"]


def test_timing_tells_what_rules_take_of_it(run) -> None:
    packaged.cache_clear()
    _, _, err = run("in.mlir", "--print-rules", "--timing")
    *stages, rules = err.splitlines()
    assert [line.split()[2] for line in stages] == ["parse", "print-rules", "print"]
    assert re.fullmatch(r" +\d+\.\d{4} s  of these, rules of \d+ different calls", rules)


def test_timing_tells_what_a_pass_takes_for_trials(run) -> None:
    _, _, err = run("in.mlir", "--propagate=memory=least", "--timing")
    trials = next(line for line in err.splitlines() if "trial" in line)
    assert re.fullmatch(rf" +\d+\.\d{{4}} s  of these, \d+ trial runs of {re.escape(PARTITIONING)}", trials)


def test_an_internal_error_has_status_2_and_no_traceback(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPMDIR_DEBUG", raising=False)
    monkeypatch.setattr(process_input, "process", lambda *_: 1 // 0)
    status, out, err = run("in.mlir")
    assert (status, out) == (2, "")
    assert err.startswith("error: internal error, please report: ZeroDivisionError")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "pipelines", "rest"),
    [
        (["--propagate", "in.mlir", "--localize"], ["propagate", "localize"], ["in.mlir"]),
        (["--propagate=a=1 b=2"], ["propagate{a=1 b=2}"], []),
        (["--propagate{a=1}"], ["propagate{a=1}"], []),
        (["--localize", "-p", "a,b", "--propagate"], ["localize", "a,b", "propagate"], []),
        (["--pass-pipeline=builtin.module(a,b)"], ["builtin.module(a,b)"], []),
        (["--pass-pipeline", "a{b=1}"], ["a{b=1}"], []),
        (["--timing", "-o", "out"], [], ["--timing", "-o", "out"]),
    ],
)
def test_pass_flags_make_one_pipeline_in_their_order(
    arguments: list[str], pipelines: list[str], rest: list[str]
) -> None:
    assert spmd_opt.split_pass_flags(arguments, PASSES) == (pipelines, rest)


PASSED = ["--propagate", "--insert-reshard", "--lower-reshard"]


@pytest.mark.parametrize(
    ("arguments", "dumps"),
    [
        (["--print-ir-before=propagate"], ["Before propagate"]),
        (["--print-ir-before-all"], ["Before propagate", "Before insert-reshard", "Before lower-reshard"]),
        (["--print-ir-after=insert-reshard,lower-reshard"], ["After insert-reshard", "After lower-reshard"]),
        (["--print-ir-after=propagate", "--print-ir-after=lower-reshard"], ["After propagate", "After lower-reshard"]),
        (["--print-ir-after-all"], ["After propagate", "After insert-reshard", "After lower-reshard"]),
        (["--print-ir-after-change"], ["After propagate", "After insert-reshard", "After lower-reshard"]),
        (["--print-ir-after-change", "--print-ir-after=lower-reshard"], ["After lower-reshard"]),
        (["--mlir-print-ir-before=localize"], []),
    ],
)
def test_the_ir_is_printed_around_the_passes_asked_for(run, arguments: list[str], dumps: list[str]) -> None:
    status, _, err = run("in.mlir", *PASSED, *arguments)
    assert status == 0
    assert re.findall(r"^// -----// IR Dump (.*) //----- //$", err, re.MULTILINE) == dumps


def test_the_ir_around_a_pass_that_does_not_exist_is_an_error(run) -> None:
    assert run("in.mlir", "--print-ir-after=propagat")[2].startswith("error: unknown pass 'propagat'")


def test_an_error_that_is_no_exception_is_an_internal_error_too(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise BaseException("a: b")

    monkeypatch.delenv("SPMDIR_DEBUG", raising=False)
    monkeypatch.setattr(process_input, "process", fail)
    assert run("in.mlir")[::2] == (2, INTERNAL)


INTERNAL = "error: internal error, please report: BaseException: a: b (set SPMDIR_DEBUG=1 for the traceback)\n"


def test_both_spellings_of_a_pipeline_give_the_same_and_are_dumped(run) -> None:
    expected = run("in.mlir", "--propagate=effort=2", "--insert-reshard")[1]
    text = "builtin.module(propagate{effort=2},insert-reshard)"
    assert run("in.mlir", f"--pass-pipeline={text}", "--dump-pass-pipeline") == (0, expected, f"{text}\n")


def test_what_a_pass_breaks_is_found_after_it_and_not_only_at_the_end(run) -> None:
    Path("breaks.py").write_text(BREAKS)
    arguments = ["in.mlir", "--load-plugin", "breaks.py", "--breaks", "--mends"]
    assert "aten.relu" in run(*arguments)[2]
    assert run(*arguments, "--no-verify-each")[0] == 0


def test_a_reproducer_fails_as_the_run_that_left_it(run) -> None:
    arguments = ["in.mlir", *PASSED, "--bind-sizes=s0=3", "--strip-spmd"]
    status, _, err = run(*arguments, "--mlir-pass-pipeline-crash-reproducer=left.mlir")
    error, note = reversed(err.splitlines())
    assert (status, note) == (1, "note: a reproducer is in 'left.mlir'")
    text = Path("left.mlir").read_text()
    assert text.startswith("// configuration: -pass-pipeline='builtin.module(bind-sizes{s0=3})'\n\nspmd.mesh @mesh")
    status, _, again = run("left.mlir", "--run-reproducer")
    assert (status, again.partition(": error: ")[2]) == (1, error.partition(": error: ")[2] + "\n")


def test_an_input_that_names_no_pipeline_is_no_reproducer(run) -> None:
    assert run("in.mlir", "--run-reproducer")[2].startswith("in.mlir:1:1: error: the input is not a reproducer")


def test_a_round_trip_through_both_forms_is_checked(run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("in.mlir", *PASSED, "--verify-roundtrip")[0] == 0
    printed = ir.print_ir

    def misprinted(module: ModuleOp, generic: bool = False, debuginfo: bool = False) -> str:
        return printed(module, generic, debuginfo).replace("aten.relu", "aten.abs" if generic else "aten.relu")

    monkeypatch.setattr(ir, "print_ir", misprinted)
    error = "error: the generic form parses to another module: line 4 is '  %0 = aten.relu(%x)"
    assert run("in.mlir", "--verify-roundtrip")[2].startswith(error)


BREAKS = """
from dataclasses import dataclass
from xdsl.dialects.builtin import StringAttr
from xdsl.passes import ModulePass

def first(module):
    return next(op for op in module.walk() if op.name == "aten.relu")

@dataclass(frozen=True)
class Breaks(ModulePass):
    name = "breaks"
    def apply(self, ctx, op):
        first(op).properties["spmd.shardings"] = StringAttr("none")

@dataclass(frozen=True)
class Mends(ModulePass):
    name = "mends"
    def apply(self, ctx, op):
        del first(op).properties["spmd.shardings"]
"""


def test_help_shows_every_pass_with_its_purpose(run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert out.count("\n  --") >= len(PASSES)
    assert out.startswith("usage: spmd-opt ") and "examples:" in out
    for name in PASSES:
        line = next(line for line in out.splitlines() if line.startswith(f"  --{name} "))
        assert len(line.split()) > 2


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_tool_has_a_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module(f"spmdir.tools.{name.replace('-', '_')}").main(["--version"])
    assert capsys.readouterr().out == f"{name} {spmdir.__version__}\n"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_neither_xdsl_nor_torch(option: str) -> None:
    program = (
        "import sys; from spmdir.tools.spmd_opt import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'xdsl', 'lark'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, option], capture_output=True, text=True, cwd=ROOT, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_stdin_is_read_and_torch_is_never_imported() -> None:
    program = (
        "import sys; from spmdir.tools.spmd_opt import main; status = main(); "
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "-", "--propagate", "--insert-reshard"],
        input=GOOD, capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "aten.relu" in done.stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = "from spmdir.tools.spmd_opt import main; import sys; sys.exit(main())"
    done = subprocess.run(
        f"'{sys.executable}' -c '{program}' examples/mlp.mlir | true",
        shell=True, capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.stderr == ""


def test_an_output_file_keeps_its_permissions(run) -> None:
    Path("out.mlir").touch(mode=0o600)
    assert run("in.mlir", "-o", "out.mlir") == (0, "", "")
    assert Path("out.mlir").read_text() == GOOD and Path("out.mlir").stat().st_mode & 0o777 == 0o600
