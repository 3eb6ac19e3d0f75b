"""Files of rewrites as values: the packaged ones as they parse, so that using them needs no parser."""

from __future__ import annotations

import functools
from pathlib import Path

from spmdir.core.parsed_texts import ParsedTexts
from spmdir.core.text_file import read_text_file
from spmdir.rewrites.terms import Collective, Condition, Function, Rewrite, Value

REWRITES = Path(__file__).with_name("fuse_collectives.rewrites")
"""The rewrites that come with spmdir."""

PARSED = ParsedTexts(REWRITES.with_suffix(".parsed"), (Rewrite, Collective, Function, Value, Condition))
"""They as they parse; `make parsed-texts` writes them."""


@functools.cache
def read_rewrites(path: Path) -> tuple[Rewrite, ...]:
    """Return the rewrites in a file, in order; add them to `IRContext.rewrites` for fuse-collectives to use them.

    Raises:
        ParseError: it cannot be read, or does not parse.
    """
    text = read_text_file(path, f"rewrites from '{path}'")
    kept = PARSED.find(text, str(path))
    if kept is not None:
        return kept
    from spmdir.rewrites.rewrite_text import parse_rewrites  # lark, which few pipelines need

    return parse_rewrites(text, str(path))
