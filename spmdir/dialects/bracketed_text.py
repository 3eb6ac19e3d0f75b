"""Raw access to bracketed text in the IR."""

from __future__ import annotations

from xdsl.parser import AttrParser

from spmdir.core.brackets import scan_balanced


def take_balanced(parser: AttrParser) -> tuple[str, int]:
    """Consume the bracketed text at the parser's current token, and return (text with brackets, its position)."""
    start = parser.pos
    end = scan_balanced(parser.lexer.input.content, start)
    if end < 0:
        parser.raise_error("this bracket is not closed; expected the closing bracket before the end of the text")
    parser._resume_from(end)  # pyright: ignore[reportPrivateUsage]
    return parser.lexer.input.content[start:end], start
