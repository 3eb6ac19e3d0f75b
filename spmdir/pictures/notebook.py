"""Modules in notebooks: their class is xDSL's, so the notebook is told how to show them."""

from __future__ import annotations

import sys
from typing import Any

from spmdir.core.errors import SpmdirError
from spmdir.core.html_text import html_text

LINES = 400
"""How many lines of a module are shown."""


def show_modules() -> None:
    """Let the notebook or IPython in which this runs, if one does, show modules as their text."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    formatter = getattr(shell, "display_formatter", None)
    if formatter is not None:
        for kind, shown in (("text/html", module_html), ("text/plain", print_module)):
            formatter.formatters[kind].for_type_by_name("xdsl.dialects.builtin", "ModuleOp", shown)


def module_html(module: Any) -> str | None:
    """Return the text of a module as HTML; None, which stands for what the notebook does by itself, if it is not of
    ours."""
    found = _shown(module)
    return None if found is None else html_text(*found)


def print_module(module: Any, printer: Any, cycle: bool) -> None:
    """Print a module where IPython shows it."""
    found = _shown(module)
    printer.text(repr(module) if found is None else found[0])


def _shown(module: Any) -> tuple[str, tuple[str, ...]] | None:
    """Return the first lines of a module and the axes of its mesh; None if it is not of ours."""
    from spmdir.dialects import ir

    try:
        axes, lines = ir.mesh(module).axis_names, ir.print_ir(module).splitlines()
    except SpmdirError:
        return None
    more = [f"… {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    return "\n".join([*lines[:LINES], *more]), axes
