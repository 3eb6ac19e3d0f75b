"""Read a line of source and the lines around it, if its file exists here."""

from __future__ import annotations

import sys
from pathlib import Path

from spmdir.core.errors import Location

CONTEXT_LINES = 3
"""The number of lines before and after the line."""

MAX_WIDTH = 200
"""The largest number of characters of a line."""


def source_lines(location: Location | None) -> list[tuple[int, str]]:
    """Return (number, text) of the lines around a location; empty if the file is not found."""
    # A program may name any file, and reports are shared: read source files only.
    if location is None or not location.line or not location.file.endswith((".py", ".mlir")):
        return []
    for folder in ("", *sys.path):
        path = Path(folder, location.file)
        try:
            if path.is_file() and path.stat().st_size < 1 << 20:
                text = path.read_text(encoding="utf-8").splitlines()
                start = max(0, location.line - 1 - CONTEXT_LINES)
                return [
                    (number, line[:MAX_WIDTH])
                    for number, line in enumerate(text[start : location.line + CONTEXT_LINES], start + 1)
                ]
        except (OSError, ValueError):
            continue
    return []
