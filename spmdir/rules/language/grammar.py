"""Load parsers from .lark files. Their tables are cached, because building them takes longer than most parsing."""

from __future__ import annotations

import sys
from pathlib import Path

from lark import Lark


def load_grammar(path: Path, start: str = "start") -> Lark:
    """Return the LALR parser of the grammar at `path`.

    The tables are cached in `__pycache__`, keyed by the grammar and the versions of lark and Python. If the directory
    is read-only, or Python runs with `-B`, they are built each time.
    """
    table_path = path.parent / "__pycache__" / f"{path.name}.{start}.tables"
    cache = False if sys.dont_write_bytecode else str(table_path)
    return Lark(path.read_text(encoding="utf-8"), start=start, parser="lalr", maybe_placeholders=True, cache=cache)
