"""The HTML report of a program: one file with all reports, which needs no network."""

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
"""The parts of the script, in order: the files `page_NAME.js`."""


def write_html(module: ModuleOp, pipeline: Pipeline, title: str, explained: int | None = None) -> str:
    """Return the HTML report of a program at any stage after import.

    Args:
        module: the program.
        pipeline: the pipeline whose remaining passes run on a copy.
        title: the title of the page.
        explained: the number of values to explain, as in `report_data`.

    Raises:
        SpmdirError: the program cannot be partitioned.
    """
    return page_of(report_data(module, pipeline, explained), title)


def page_of(data: dict[str, Any], title: str) -> str:
    """Return the page with `data` as JSON. `<` is escaped, so no text of the program can close the script element."""
    parts = {
        "title": escape(title),
        "style": _read_file("page.css"),
        "script": "".join(_read_file(f"page_{name}.js") for name in SCRIPTS),
        "data": json.dumps(data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c"),
    }
    # Pieces with odd indices are names of parts, such as `{title}`. Inserted text is not scanned for placeholders.
    pieces = _read_file("page.html").replace("}", "{").split("{")
    return "".join(parts[piece] if index % 2 else piece for index, piece in enumerate(pieces))


def _read_file(name: str) -> str:
    """Return the text of a file of this package."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
