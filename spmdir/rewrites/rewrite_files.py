"""Read files of rewrites. The shipped file is also stored parsed, so it needs no parser."""

from __future__ import annotations

import functools
from pathlib import Path

from spmdir.core.parse_cache import ParsedTexts
from spmdir.core.text_file import read_text_file
from spmdir.rewrites.terms import Collective, Condition, Function, Rewrite, Value

REWRITES = Path(__file__).with_name("fuse_collectives.rewrites")
"""The shipped rewrites."""

PARSED = ParsedTexts(REWRITES.with_suffix(".parsed"), (Rewrite, Collective, Function, Value, Condition))
"""The parsed form of the shipped rewrites; `make parsed-texts` writes it."""


@functools.cache
def read_rewrites(path: Path) -> tuple[Rewrite, ...]:
    """Return the rewrites in a file, in order. fuse-collectives uses the rewrites in `IRContext.rewrites`.

    Raises:
        ParseError: the file cannot be read, or its text is malformed.
    """
    text = read_text_file(path, f"rewrites from '{path}'")
    parsed = PARSED.find(text, str(path))
    if parsed is not None:
        return parsed
    from spmdir.rewrites.rewrite_text import parse_rewrites  # imports lark, which few pipelines need

    return parse_rewrites(text, str(path))
