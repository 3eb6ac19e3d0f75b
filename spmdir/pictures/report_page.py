"""The page of a program: one file of HTML that needs no network, with everything the reports say."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spmdir.pictures.report_data import report_data
from spmdir.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

SCRIPTS = ("base", "overview", "layers", "graph", "mesh", "timeline", "memory", "lines", "passes", "start")
"""The parts of the script, in their order: each of page_NAME.js."""


def write_html(module: ModuleOp, pipeline: Pipeline, title: str, explained: int | None = None) -> str:
    """Return the page of a program at any stage after import.

    Args:
        explained: how many values are explained, of a program that is not decided: each alternative is decided again.
            If None, as many as take little time.

    Raises:
        SpmdirError: it cannot be partitioned.
    """
    return page_of(report_data(module, pipeline, explained), title)


def page_of(data: dict[str, Any], title: str) -> str:
    """Return the page that shows `data`, in which no text can end the element that it is in."""
    parts = {
        "title": escape(title),
        "style": _file("page.css"),
        "script": "".join(_file(f"page_{name}.js") for name in SCRIPTS),
        "data": json.dumps(data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c"),
    }
    # Split first, so that nothing of the data is taken for a place of the template.
    pieces = _file("page.html").replace("}", "{").split("{")
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
