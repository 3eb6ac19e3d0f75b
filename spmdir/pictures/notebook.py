"""Show modules in notebooks. Their class is that of xDSL, so a formatter is registered."""

from __future__ import annotations

import sys
from typing import Any

from spmdir.core.errors import SpmdirError
from spmdir.core.html_text import html_text

MAX_LINES = 400
"""The largest number of lines that are shown."""


def show_modules() -> None:
    """Register formatters that show modules as text, if this runs in a notebook or IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    formatter = getattr(shell, "display_formatter", None)
    if formatter is not None:
        for mime_type, show in (("text/html", module_html), ("text/plain", print_module)):
            formatter.formatters[mime_type].for_type_by_name("xdsl.dialects.builtin", "ModuleOp", show)


def module_html(module: Any) -> str | None:
    """Return the text of a module as HTML; None if it has no spmdir mesh. Then the notebook shows its default."""
    text_and_axes = _text_and_axes(module)
    return None if text_and_axes is None else html_text(*text_and_axes)


def print_module(module: Any, printer: Any, cycle: bool) -> None:
    """Print a module with the printer of IPython."""
    text_and_axes = _text_and_axes(module)
    printer.text(repr(module) if text_and_axes is None else text_and_axes[0])


def _text_and_axes(module: Any) -> tuple[str, tuple[str, ...]] | None:
    """Return the first lines of a module and the axes of its mesh; None if it has no spmdir mesh."""
    from spmdir.dialects import ir

    try:
        axes, lines = ir.mesh(module).axis_names, ir.print_ir(module).splitlines()
    except SpmdirError:
        return None
    omitted = [f"… {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    return "\n".join([*lines[:MAX_LINES], *omitted]), axes
