"""Collect all syntax errors of a text: parse it again without the ops that did not parse."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spmdir.core.errors import SpmdirError, flat
from spmdir.dialects import ir

MAX_PARSES = 10
"""The largest number of times that a text is parsed."""

MAX_CHARACTERS = 1 << 17
"""The largest text that is parsed again, in characters. A longer text has only its first error, to save time."""

_OP = re.compile(r"\s*(%[\w$.-]+(?:\s*,\s*%[\w$.-]+)*)\s*=")
_RETURN = re.compile(r"\s*(?:func\.)?return\b")
_NAME = re.compile(r"%[\w$.-]+")


def syntax_errors(text: str, file: str, first_line: int, error: SpmdirError) -> Iterator[SpmdirError]:
    """Yield `error`, the first syntax error of a text, and the errors of later ops.

    An op that does not parse is removed, with all ops that depend on its results. These have no errors.
    """
    yield error
    lines = text.split("\n")
    for _ in range(MAX_PARSES if len(text) <= MAX_CHARACTERS else 0):
        index = error.location.line - first_line if error.location is not None else -1
        if not 0 <= index < len(lines) or _OP.match(lines[index]) is None:
            return
        removed = _remove_op(lines, index)
        try:
            ir.parse("\n".join(lines), file, first_line, verify_module=False)
            return
        except SpmdirError as parse_error:
            error = flat(parse_error)[0]
        next_index = error.location.line - first_line if error.location is not None else -1
        if not 0 <= next_index < len(lines) or removed.intersection(_NAME.findall(lines[next_index])):
            return
        yield error


def _remove_op(lines: list[str], start: int) -> set[str]:
    """Replace an op, and all ops of its function that depend on it, by empty lines. A return of them returns nothing.

    Returns: the names of all removed results.
    """
    removed: set[str] = set()
    for index in range(start, len(lines)):
        if "func.func" in lines[index]:
            break
        op = _OP.match(lines[index])
        if op is not None and (index == start or removed.intersection(_NAME.findall(lines[index], op.end()))):
            removed.update(_NAME.findall(op[1]))
            lines[index] = ""
        elif _RETURN.match(lines[index]) and removed.intersection(_NAME.findall(lines[index])):
            lines[index] = "return"
    return removed
