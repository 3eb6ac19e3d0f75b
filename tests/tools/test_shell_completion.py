"""What bash completes, asked of bash itself; the scripts of other shells have the same words."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from spmdir.pipeline.pass_table import PASSES
from spmdir.tools import SCRIPTS
from spmdir.tools.argument_parser import SHELLS
from spmdir.tools.shell_completion import completion_script
from spmdir.tools.spmd import SUBCOMMANDS

ROOT = Path(__file__).parents[2]
ASK = """
source /dev/stdin
ask() {
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  "$(complete -p "$1" | sed 's/.*-F \\([^ ]*\\).*/\\1/')"
  echo "${COMPREPLY[@]}"
}
"""


def script(tool: str, shell: str) -> str:
    parser = import_module(f"spmdir.tools.{tool.replace('-', '_')}").argument_parser()
    return completion_script(parser.with_subcommands(), tuple(PASSES) if tool == "spmd-opt" else (), shell)


def completed(*lines: str) -> list[list[str]]:
    """Return what bash completes at the end of each line, all of one tool."""
    asked = ASK + "".join(f"ask {line}\n" for line in lines)
    text = script(lines[0].split()[0], "bash")
    run = subprocess.run(["bash", "-c", asked], input=text, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line.split() for line in run.stdout.splitlines()]


def test_options_passes_and_files_are_completed() -> None:
    assert completed(
        "spmd-opt --propag",
        "spmd-opt --propagate --insert-",
        "spmd-opt -p insert",
        "spmd-opt -p propagate,insert",
        "spmd-opt --print-ir-after locali",
        "spmd-opt examples/m",
    ) == [
        ["--propagate"],
        ["--insert-reshard"],
        ["insert-reshard"],
        ["propagate,insert-reshard"],
        ["localize"],
        ["examples/mlp.mlir"],
    ]


def test_subcommands_their_options_and_files_are_completed() -> None:
    assert completed("spmd re", "spmd report --vie", "spmd plan-reshard --to", "spmd diff examples/m") == [
        ["report"],
        ["--view"],
        ["--topology"],
        ["examples/mlp.mlir"],
    ]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("tool", SCRIPTS)
def test_every_tool_has_a_script_for_every_shell(tool: str, shell: str) -> None:
    text = script(tool, shell)
    assert tool in text and "version" in text
    assert ("insert-reshard" in text) == (tool == "spmd-opt")
    assert all(name in text for name in SUBCOMMANDS if tool == "spmd")


def test_a_tool_prints_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module("spmdir.tools.spmd_opt").main(["--print-completion", "bash"])
    assert "--insert-reshard" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        import_module("spmdir.tools.spmd").main(["--print-completion", "bash"])
    assert "plan-reshard" in capsys.readouterr().out
    assert import_module("spmdir.tools.spmd_run").main(["--print-completion", "fish"]) == 1
