"""`spmd` as its users meet it: its subcommands, their help and options, and what wrong ones are answered with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spmdir.tools import spmd
from spmdir.tools.spmd_report import _VIEWS

ROOT = Path(__file__).parents[2]
MLP = str(ROOT / "examples" / "mlp.mlir")


def test_help_lists_each_subcommand_with_its_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        spmd.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for name, sentence in spmd.SUBCOMMANDS.items():
        assert f"  {name:<17}{sentence}" in lines


@pytest.mark.parametrize("name", spmd.SUBCOMMANDS)
def test_each_subcommand_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        spmd.main([name, "--help"])
    out = capsys.readouterr().out
    assert out.startswith(f"usage: spmd {name} ")
    assert spmd.SUBCOMMANDS[name] in out and "examples:" in out and f"\n  spmd {name} " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["raport"],
            "unknown subcommand 'raport'; expected one of report, explain, diff, plan-model, pipeline, plan-reshard",
        ),
        (["raport"], "did you mean 'report'?; see spmd --help"),
        ([], "no subcommand; expected one of report, "),
        (["--colour"], "unknown option '--colour'; see spmd --help"),
        (["report", MLP, "--vew", "cost"], "unknown option '--vew'; did you mean '--view'?; see spmd report --help"),
        (
            ["report", MLP, "--view", "costs"],
            "unknown view 'costs'; expected table, summary, cost, memory, experts, serving, s",
        ),
        (["report", MLP, "--view", "costs"], "did you mean 'cost'?"),
        (
            ["report", MLP, "--view", "memory", "-o", "a.csv"],
            "found --view memory with --format csv; expected --format text: leave out --view",
        ),
        (
            ["report", MLP, "--view", "memory", "--by", "op"],
            "found --by without the view table; expected this view: add it, as in --view memory,",
        ),
        (["report", MLP, "--rows", "0"], "invalid number of rows '0'; expected a number from 1 to"),
        (["report", MLP, "--by", "modul"], "unknown key 'modul' of a cost table; expected one of op, line, module,"),
        (["report", MLP, "-o", "a.cvs"], "no format has the extension of 'a.cvs'; expected trace.json,"),
        (["diff", "-", "-"], "both programs are `-`, but stdin contains one program; expected a file for one of them"),
        (
            ["check-placement"],
            "no file was named; expected Python files or modules that declare placements; see spmd che",
        ),
        (["explain", MLP, "--set", "%w"], "invalid change '%w'; expected 'PLACE = SHARDING', as in '%x = dp: S(0)'"),
    ],
)
def test_wrong_arguments_are_answered_with_what_was_expected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spmd.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.startswith("error: ") and err.count("\n") == 1


def test_views_are_printed_in_the_order_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    first = {
        "table": "module", "summary": "mesh", "cost": "collective", "memory": "peak", "schedule": "step",
        "timeline": "start", "serving": "the program has no", "experts": "the program has no experts",
    }  # fmt: skip
    assert set(first) == set(_VIEWS)
    views = [*reversed(first)]
    assert spmd.main(["report", MLP, "--view", ",".join(views), "--by", "module,kind"]) == 0
    text = capsys.readouterr().out
    positions = [text.index(f"\n\n{first[view]} ") for view in views[1:]]
    assert text.startswith("the program has no experts") and positions == sorted(positions)


def test_all_rows_are_printed_on_demand_and_json_has_them_always(capsys: pytest.CaptureFixture[str]) -> None:
    assert spmd.main(["report", MLP, "--by", "op", "--rows", "1"]) == 0
    assert "\nothers " in capsys.readouterr().out
    assert spmd.main(["report", MLP, "--by", "op", "--rows", "all"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:-1]
    assert spmd.main(["report", MLP, "--by", "op", "--rows", "1", "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == len(rows)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["report", "--help"], ["explain", "--help"]])
def test_help_and_version_import_neither_xdsl_nor_torch(arguments: list[str]) -> None:
    program = (
        "import sys; from spmdir.tools.spmd import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'xdsl', 'lark'} & set(sys.modules)\n"
        "loaded = {name for name in sys.modules if name.startswith('spmdir.tools.spmd_')}\n"
        "assert loaded == {f'spmdir.tools.spmd_{name}' for name in sys.argv[1:2] if name[0] != '-'}"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_comes_from_a_pipe_and_a_reader_that_leaves_early_is_no_error() -> None:
    tools = (f"'{sys.executable}' -m spmdir.tools.{name}" for name in ("spmd_opt", "spmd"))
    command = "{} examples/mlp.mlir --propagate | {} report - --view summary".format(*tools)
    for reader, expected in (("head -1", "mesh        dp = 2, tp = 4\n"), ("true", "")):
        done = subprocess.run(
            f"{command} | {reader}", shell=True, capture_output=True, text=True, cwd=ROOT, timeout=600
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (expected, "")
