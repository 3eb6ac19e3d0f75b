"""Golden files: RUN lines, an expectation under each part, updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from spmdir.core.errors import ParseError, SpmdirError
from spmdir.tools import spmd_opt
from spmdir.tools.golden import read_golden, update_golden


def run(command: Sequence[str], text: str) -> tuple[int, str, str]:
    """Print the lines of the input that are not empty in capitals; an input with `bad` fails on its line."""
    lines = text.splitlines()
    if "bad" in lines:
        return 1, "", f"<stdin>:{lines.index('bad') + 1}:1: error: bad\n"
    return 0, "".join(f"{line.upper()}\n" for line in lines if line and not line.startswith("//")), ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("// RUN: spmd-opt %s\na\n", "// RUN: spmd-opt %s\na\n\n// | A\n"),
        ("// RUN: not spmd-opt %s\nbad\n", "// RUN: not spmd-opt %s\nbad\n\n// ! %s:2:1: error: bad\n"),
        ("// RUN: spmd-opt %s\na\n\n// | stale\n", "// RUN: spmd-opt %s\na\n\n// | A\n"),
        (
            "// RUN: not spmd-opt %s --split-input-file\na\n// -----\nbad\n",
            "// RUN: not spmd-opt %s --split-input-file\na\n\n// | A\n\n// -----\nbad\n\n// ! %s:7:1: error: bad\n",
        ),
        (
            "// RUN: spmd-opt %s | spmd report -\na\n",
            "// RUN: spmd-opt %s | spmd report -\na\n\n// | A\n// $ spmd report -\n// | A\n",
        ),
        (
            "// RUN: not spmd-opt %s | spmd report -\nbad\n",
            "// RUN: not spmd-opt %s | spmd report -\nbad\n\n// ! %s:2:1: error: bad\n",
        ),
        ("// RUN: spmd-opt %s --verify-diagnostics\na\n", "// RUN: spmd-opt %s --verify-diagnostics\na\n"),
    ],
)
def test_an_update_writes_each_expectation_under_its_part_and_changes_nothing_the_second_time(
    text: str, expected: str
) -> None:
    assert update_golden(text, "in.mlir", run) == expected
    assert update_golden(expected, "in.mlir", run) == expected


@pytest.mark.parametrize(
    "line",
    [
        "",
        "// RUN:",
        "// RUN: spmd-opt --propagate",
        "// RUN: spmd-opt %s | filecheck %s",
        "// RUN: other %s",
        "// RUN: spmd-opt - | spmd report %s",
    ],
)
def test_another_first_line_than_a_run_line_is_an_error(line: str) -> None:
    with pytest.raises(ParseError, match=r"expected `// RUN: spmd-opt %s …`"):
        read_golden(f"{line}\na\n", "in.mlir")


def test_arguments_are_those_of_a_shell_and_name_the_folder_of_the_file() -> None:
    golden = read_golden("// RUN: spmd-opt %s --a='b c' --load-plugin %S/own.py\n", "dir/in.mlir")
    assert golden.commands == (("spmd-opt", "-", "--a=b c", "--load-plugin", "dir/own.py"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "// RUN: not spmd-opt %s\na\n",
            "spmd-opt succeeded; expected an error, as `// RUN: not spmd-opt …` requires",
        ),
        ("// RUN: spmd-opt %s\nbad\n", "in.mlir:2:1: error: bad"),
    ],
)
def test_another_exit_status_than_that_of_the_run_line_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SpmdirError) as error:
        update_golden(text, "in.mlir", run)
    assert message in error.value.message


def test_the_tool_checks_and_updates_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sub" / "mesh.mlir"
    file.parent.mkdir()
    file.write_text("// RUN: spmd-opt %s\nspmd.mesh  @mesh <dp = 2>\n")
    assert spmd_opt.main(["--golden", str(tmp_path)]) == 1
    assert f"{file}:1:1: error: the output differs" in capsys.readouterr().err
    assert spmd_opt.main(["--golden", str(tmp_path), "--update-golden"]) == 0
    assert file.read_text().endswith("\n\n// | spmd.mesh @mesh <dp = 2>\n")
    assert spmd_opt.main(["--golden", str(tmp_path)]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--version", "exited before it read the program"),
        ("--golden .", "the RUN line has --golden; expected one run of a tool"),
        ('"abc', "cannot be split into arguments"),
    ],
)
def test_a_run_line_that_runs_no_program_is_an_error_and_the_other_files_are_checked(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.mlir").write_text(f"// RUN: spmd-opt %s {arguments}\nspmd.mesh @mesh <dp = 2>\n")
    (tmp_path / "b.mlir").write_text("// RUN: spmd-opt %s\nspmd.mesh @mesh <dp = 2>\n\n// | other\n")
    assert spmd_opt.main(["--golden", str(tmp_path)]) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert "b.mlir:1:1: error: the output differs" in errors
