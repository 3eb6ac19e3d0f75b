"""docs/tools.md lists every tool, subcommand and option, and no others."""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from pathlib import Path

import pytest

from spmdir.tools import SCRIPTS, spmd

PAGE = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
SECTIONS = dict(re.findall(r"^## (spmd[^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
PARSERS = {
    **{name: import_module(f"spmdir.tools.{name.replace('-', '_')}").argument_parser() for name in SCRIPTS},
    **{f"spmd {name}": spmd.argument_parser(name) for name in spmd.SUBCOMMANDS},
}
EVERYWHERE = {"-h", "--help", "--print-completion", "--version"}
"""Options that the page describes once for all tools."""


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {name for action in parser._actions for name in action.option_strings}


def listed(section: str) -> set[str]:
    """Return the options in the first column of a section's table; `--PASS` stands for all passes."""
    cells = (line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    names = {name for cell in cells for name in re.findall(r"`(--?[\w-]+(?:=all)?)", cell)}
    return names - {"--PASS"}


def test_there_is_a_section_for_each_tool_and_subcommand() -> None:
    assert set(SECTIONS) == set(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
def test_a_section_lists_the_options_of_its_tool(name: str) -> None:
    assert listed(SECTIONS[name]) == options(PARSERS[name]) - EVERYWHERE


def test_the_table_of_subcommands_has_their_sentences() -> None:
    rows = re.findall(r"^\| \[spmd (\S+)\]\(#spmd-\S+\) \| (.*?) \|", PAGE, re.MULTILINE)
    assert dict(rows) == dict(spmd.SUBCOMMANDS)


@pytest.mark.parametrize("name", PARSERS)
def test_each_option_is_explained_by_whole_sentences(name: str) -> None:
    for action in PARSERS[name]._actions:
        assert re.fullmatch(r"[A-Z-].*\.", action.help or ""), (name, action.option_strings, action.help)
