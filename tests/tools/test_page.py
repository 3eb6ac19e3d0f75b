"""docs/tools.md lists every option of every tool, and no others."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from spmdir.tools import SCRIPTS

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
SECTIONS = dict(re.findall(r"^## (spmd-\S+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
TOOLS = {name: import_module(f"spmdir.tools.{name.replace('-', '_')}") for name in SCRIPTS}
EVERYWHERE = {"-h", "--help", "--print-completion", "--version"}
"""Options that the page describes once for all tools."""


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings}


def listed(section: str) -> set[str]:
    """Return the options in the first column of a section's table; `--PASS` stands for all passes."""
    cells = (line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    names = {name for cell in cells for name in re.findall(r"`(--?[\w-]+)", cell)}
    return names - {"--PASS"}


def test_there_is_a_section_for_each_tool() -> None:
    assert set(SECTIONS) == set(TOOLS) == set(SCRIPTS)


@pytest.mark.parametrize(("name", "tool"), TOOLS.items(), ids=TOOLS)
def test_a_section_lists_the_options_of_its_tool(name: str, tool: ModuleType) -> None:
    own = options(tool.argument_parser()) - EVERYWHERE
    assert listed(SECTIONS[name]) == own
