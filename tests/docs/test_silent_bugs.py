"""The page of silent bugs has at least twenty, and each program is right without its wrong assumption."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spmdir.tools.spmd_run import main
from tests.docs.warm_commands import ROOT

PAGE = (ROOT / "docs/silent-bugs.md").read_text()
CASES = dict(
    re.findall(r"^### (.*)\n\n.*\n\n```console\n\$ spmd-\w+ .*\n(spmd\.mesh(?:.*\n)*?)END$", PAGE, re.MULTILINE)
)
"""Heading → program."""
_TABLE = re.findall(r"^\| \[(.*?)\]\((#.*?)\) \| (.*?) \|", PAGE, re.MULTILINE)
_REPORT = r"\[([\w./-]+#\d+)\]\(https://github\.com/([\w./-]+)/(?:issues|pull)/(\d+)\)"


def without_assumptions(program: str) -> str:
    """Remove the shardings of results and the collectives of `program`."""
    lines: list[str] = []
    names: dict[str, str] = {}
    for line in program.splitlines():
        for name, operand in names.items():
            line = re.sub(rf"{name}\b", operand, line)
        if collective := re.match(r" *(%\d+) = spmd\.\w+ (%\w+)", line):
            names[collective[1]] = collective[2]
        else:
            lines.append(re.sub(r"(tensor<[^<>]*>) <[^<>]*>", r"\1", line) if "= aten." in line else line)
    return "\n".join(lines)


def test_the_table_lists_each_bug_with_its_reports() -> None:
    sections = dict(re.findall(r"^### (.*)\n\n((?:.+\n)+)", PAGE, re.MULTILINE))
    assert [heading for heading, _, _ in _TABLE] == list(sections)
    for heading, _, cell in _TABLE:
        assert re.findall(_REPORT, cell) == re.findall(_REPORT, sections[heading]) != [], heading
    reports = re.findall(_REPORT, PAGE)
    assert all(text == f"{repository}#{number}" for text, repository, number in reports)
    assert len({text for text, _, _ in reports}) >= 20


def test_assumptions_are_removed() -> None:
    program = CASES["Bias added once per rank"]
    assert "spmd.all_reduce" in program and "P(sum)" in program
    assert "= spmd." not in without_assumptions(program) and "P(sum)" not in without_assumptions(program)
    assert "return %1" in without_assumptions(program)


@pytest.mark.parametrize("heading", CASES)
def test_ranks_equal_one_device_without_the_assumption(
    heading: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "program.mlir"
    file.write_text(without_assumptions(CASES[heading]))
    assert main([str(file), "--check"]) == 0, capsys.readouterr()
