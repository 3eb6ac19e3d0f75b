"""What notebooks show: values by `_repr_html_`, modules since the notebook is told how."""

from __future__ import annotations

import subprocess
import sys

import spmdir
from spmdir.pictures.notebook import module_html, print_module

TEXT = """spmd.mesh @mesh <dp = 2, tp = 2>

func.func @main(%x: tensor<8x4xf32> {spmd.name = "<b>&", spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>})
    -> tensor<8x4xf32> {
  %y = aten.neg(%x) : tensor<8x4xf32> <dp: S(0), tp: S(1)>
  return %y : tensor<8x4xf32>
}
"""


def test_a_module_is_its_text_with_shardings_in_the_colours_of_axes():
    html = module_html(spmdir.parse(TEXT))
    assert html is not None
    assert html.count("<b style='color:#0077aa'>dp: S(0)</b>") == 2
    assert html.count("<b style='color:#dd6600'>tp: S(1)</b>") == 1
    assert '"&lt;b&gt;&amp;"' in html


def test_values_that_are_printed_are_shown_as_they_are_printed():
    mesh = spmdir.Mesh({"dp": 2})
    sharding = spmdir.Sharding((("dp", spmdir.S(0)),))
    plan = spmdir.plan_reshard((8, 8), "f32", "dp: S(0)", "", mesh)
    module = spmdir.parse(TEXT)
    for value in (sharding, plan, spmdir.report.comm_report(module), spmdir.report.memory_report(module)):
        assert value._repr_html_().startswith("<pre")  # type: ignore[attr-defined]
    assert "dp: S(0)" in sharding._repr_html_()


class Printer:
    """What IPython prints with."""

    told = ""

    def text(self, text: str) -> None:
        self.told += text


def test_ipython_shows_modules_as_their_text():
    module, alone = spmdir.parse(TEXT), Printer()
    print_module(module, alone, False)
    assert alone.told == spmdir.print_ir(module).rstrip("\n")


def test_a_notebook_is_told_of_modules_when_spmdir_is_imported():
    code = """
import sys, types
told = []
formatter = types.SimpleNamespace(for_type_by_name=lambda *given: told.append(given))
formatters = {"text/html": formatter, "text/plain": formatter}
shell = types.SimpleNamespace(display_formatter=types.SimpleNamespace(formatters=formatters))
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
import spmdir
print(told[0][:2], "xdsl" in sys.modules, "torch" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "('xdsl.dialects.builtin', 'ModuleOp') False False\n"
