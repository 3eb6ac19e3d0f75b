"""Plug-ins of `spmd-opt`: passes in Python, rules as text, and errors at their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.errors import SpmdirError
from spmdir.passes import PASSES, parse_pipeline
from spmdir.tools import spmd_opt
from spmdir.tools.plugins import load_plugins

RENAME = '''\
from __future__ import annotations
from dataclasses import dataclass
from xdsl.dialects.builtin import StringAttr
from xdsl.passes import ModulePass

@dataclass(frozen=True)
class RenamePass(ModulePass):
    """Renames every function."""

    name = "rename"
    to: str = "g"

    def apply(self, ctx, op):
        for function in op.body.block.ops:
            function.properties["sym_name"] = StringAttr(self.to)
'''


def write(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_a_pass_of_a_plugin_has_a_flag_with_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = write(tmp_path, "rename.py", RENAME)
    program = write(tmp_path, "in.mlir", "func.func @f() {\n  return\n}\n")
    assert spmd_opt.main([program, "--load-plugin", plugin, "--rename=to=h"]) == 0
    assert capsys.readouterr().out == "func.func @h() {\n  return\n}\n"


def test_a_plugin_stays_within_its_run(tmp_path: Path) -> None:
    session = load_plugins([write(tmp_path, "rename.py", RENAME)])
    assert [step.name for step in parse_pipeline("rename", session.passes)] == ["rename"]
    assert "rename" not in PASSES


def test_register_is_called_with_the_context(tmp_path: Path) -> None:
    session = load_plugins([write(tmp_path, "p.py", "def register(context):\n    context.rules = 'mine'\n")])
    assert session.context.rules == "mine"


def test_rules_of_a_plugin_replace_those_of_the_same_op(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.rules", "mine.relu(self: *) -> *\n")
    assert "mine.relu" in load_plugins([path]).context.rules.names


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.py", "x = (\n", "{path}:1:5: error: plug-in: '(' was never closed"),
        ("p.py", "\n1 / 0\n", "{path}:2:1: error: plug-in failed: ZeroDivisionError: division by zero"),
        ("p.py", "def register(context):\n    raise KeyError('k')\n", "{path}:2:1: error: plug-in failed: KeyError"),
        ("p.txt", "", "error: '{path}' is no plug-in; expected a .rules or a .py file"),
    ],
)
def test_a_broken_plugin_is_refused_at_its_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(SpmdirError) as refusal:
        load_plugins([path])
    assert str(refusal.value).startswith(message.format(path=path))


@pytest.mark.parametrize("name", ["missing.py", "missing.rules"])
def test_a_missing_plugin_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpmdirError, match="cannot read"):
        load_plugins([str(tmp_path / name)])
