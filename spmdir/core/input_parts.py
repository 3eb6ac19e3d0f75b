"""Split an input file at `// -----` lines, as mlir-opt does."""

from __future__ import annotations

import re
from collections.abc import Iterator

SPLIT = "// -----\n"
"""The line that separates parts."""

_SPLIT = re.compile(r"^// -----.*$", re.MULTILINE)


def parts_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each part of `text`.

    The first part starts at line 1. Each other part starts with its separator line.
    """
    first_line = 1
    starts = [0, *(separator.start() for separator in _SPLIT.finditer(text))]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        part = text[start:end]
        yield first_line, part
        first_line += part.count("\n")
