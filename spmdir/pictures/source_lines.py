"""The text of a line of source with what stands around it, where its file is found."""

from __future__ import annotations

import sys
from pathlib import Path

from spmdir.core.errors import Location

AROUND = 3
"""How many lines of the file are shown before and after one."""

WIDTH = 200
"""How many characters of a line are shown."""


def source_lines(location: Location | None) -> list[tuple[int, str]]:
    """Return (number, text) of the lines around one; none where no file of this name is found."""
    # A program may name any file, and pages are passed on.
    if location is None or not location.line or not location.file.endswith((".py", ".mlir")):
        return []
    for folder in ("", *sys.path):
        path = Path(folder, location.file)
        try:
            if path.is_file() and path.stat().st_size < 1 << 20:
                text = path.read_text(encoding="utf-8").splitlines()
                first = max(0, location.line - 1 - AROUND)
                return [(at, one[:WIDTH]) for at, one in enumerate(text[first : location.line + AROUND], first + 1)]
        except (OSError, ValueError):
            continue
    return []
