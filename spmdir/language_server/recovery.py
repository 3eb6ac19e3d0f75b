"""All that the parser has to say about a text: it is asked again without the ops that it could not read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from spmdir.core.errors import SpmdirError, flat
from spmdir.dialects import ir

MOST = 10
"""How many times a text is read."""

LONGEST = 1 << 17
"""Characters of a text that is read again; what is longer has its first error alone, or it would take seconds."""

_OP = re.compile(r"\s*(%[\w$.-]+(?:\s*,\s*%[\w$.-]+)*)\s*=")
_RETURN = re.compile(r"\s*(?:func\.)?return\b")
_NAME = re.compile(r"%[\w$.-]+")


def syntax_errors(text: str, file: str, first_line: int, error: SpmdirError) -> Iterator[SpmdirError]:
    """Yield `error`, the first of a text that cannot be read, and those of later ops.

    An op whose line cannot be read is left out, with those that use its results, of which nothing can be said.
    """
    yield error
    lines = text.split("\n")
    for _ in range(MOST if len(text) <= LONGEST else 0):
        at = error.location.line - first_line if error.location is not None else -1
        if not 0 <= at < len(lines) or _OP.match(lines[at]) is None:
            return
        unknown = _leave_out(lines, at)
        try:
            ir.parse("\n".join(lines), file, first_line, verify_module=False)
            return
        except SpmdirError as found:
            error = flat(found)[0]
        following = error.location.line - first_line if error.location is not None else -1
        if not 0 <= following < len(lines) or unknown.intersection(_NAME.findall(lines[following])):
            return
        yield error


def _leave_out(lines: list[str], at: int) -> set[str]:
    """Empty the line of an op, and those in its function that use its results, of which it returns none then.

    Returns: the names of all results that are left out.
    """
    unknown: set[str] = set()
    for index in range(at, len(lines)):
        if "func.func" in lines[index]:
            break
        op = _OP.match(lines[index])
        if op is not None and (index == at or unknown.intersection(_NAME.findall(lines[index], op.end()))):
            unknown.update(_NAME.findall(op[1]))
            lines[index] = ""
        elif _RETURN.match(lines[index]) and unknown.intersection(_NAME.findall(lines[index])):
            lines[index] = "return"
    return unknown
