"""Parsers from .lark files, their tables kept beside the bytecode: building them costs more than most parsing."""

from __future__ import annotations

import sys
from pathlib import Path

from lark import Lark


def load_grammar(path: Path, start: str = "start") -> Lark:
    """Return the LALR parser of the grammar at `path`.

    Its tables are kept in `__pycache__`, under a digest of the grammar and of the versions of lark and Python; where
    that cannot be written, or Python is told not to write bytecode, they are built anew.
    """
    kept = "" if sys.dont_write_bytecode else str(path.parent / "__pycache__" / f"{path.name}.tables")
    text = path.read_text(encoding="utf-8")
    return Lark(text, start=start, parser="lalr", maybe_placeholders=True, cache=kept or False)
