"""Split an input file at `// -----` lines, as mlir-opt does."""

from __future__ import annotations

import re
from collections.abc import Iterator

SPLIT = "// -----\n"
"""The line that separates parts."""

_SPLIT = re.compile(r"^// -----.*$", re.MULTILINE)


def parts_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of each part of `text`. A part starts with its separator line."""
    first_line, start = 1, 0
    for mark in [*_SPLIT.finditer(text), None]:
        part = text[start : mark.start() if mark else None]
        yield first_line, part
        first_line, start = first_line + part.count("\n"), mark.start() if mark else 0
