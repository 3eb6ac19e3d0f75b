"""The notebook of the examples runs without a browser and without torch, and reports errors in its program."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.warm_commands import ROOT

SHARDED = "%w2: tensor<4096x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}"
HEADER = f"""
import sys
from types import SimpleNamespace

sys.path.insert(0, {str(ROOT / "examples")!r})
import notebook
_, values = notebook.app.run()
"""


def run(script: str) -> str:
    """Run the notebook, then `script`, in a new process, and return what the script prints."""
    command = [sys.executable, "-c", HEADER + script]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout


def test_the_notebook_shows_collectives_and_a_page_without_torch() -> None:
    printed = run("print(values['result'], values['communication'], values['page'][:15], 'torch' in sys.modules)")
    assert "spmd.reduce_scatter %2 on [tp] dim 0 op sum" in printed
    assert "objective" in printed
    assert printed.rstrip().lower().endswith("<!doctype html> false")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (SHARDED, SHARDED.replace("S(0)", "S(1)"), "spmd.all_gather"),
        (SHARDED, SHARDED.replace("S(0)", "S(2)"), "error: "),
        ("aten.gelu(%0)", "aten.gelu(%9)", "program:10:18: error: %9 is not defined"),
    ],
)
def test_an_edited_program_changes_the_result(old: str, new: str, expected: str) -> None:
    printed = run(
        f"text = values['program'].value.replace({old!r}, {new!r})\n"
        "edited = SimpleNamespace(value=text), SimpleNamespace(value='propagate,insert-reshard,lower-reshard')\n"
        "_, values = notebook.app.run(defs=dict(zip(('program', 'passes'), edited)))\n"
        "print(values['result'])"
    )
    assert expected in printed
