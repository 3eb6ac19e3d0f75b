"""What bash completes, asked of bash itself; the scripts of other shells have the same words."""

from __future__ import annotations

import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from spmdir.pipeline.pass_table import PASSES
from spmdir.tools import SCRIPTS
from spmdir.tools.command import SHELLS
from spmdir.tools.shell_completion import completion_script

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
    return completion_script(parser, tuple(PASSES) if tool == "spmd-opt" else (), shell)


def completed(*lines: str) -> list[list[str]]:
    """Return what bash completes at the end of each line."""
    asked = ASK + "".join(f"ask {line}\n" for line in lines)
    text = script("spmd-opt", "bash")
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


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("tool", SCRIPTS)
def test_every_tool_has_a_script_for_every_shell(tool: str, shell: str) -> None:
    text = script(tool, shell)
    assert tool in text and "version" in text
    assert ("insert-reshard" in text) == (tool == "spmd-opt")


def test_a_tool_prints_its_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        import_module("spmdir.tools.spmd_opt").main(["--print-completion", "bash"])
    assert "--insert-reshard" in capsys.readouterr().out
    assert import_module("spmdir.tools.spmd_diff").main(["--print-completion", "fish"]) == 1
