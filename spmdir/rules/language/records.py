"""The records of a .rules text: rules and strategies that are not parsed yet."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

RULE_HEAD = re.compile(r"([a-z_]\w*(?:\.\w+)+)\(")
STRATEGY_HEAD = re.compile(r"([a-z_]\w*(?:\.\w+)+)[ \t]*:")
UNCHECKED = re.compile(r"[ \t]*#[ \t]*unchecked:[ \t]*(.+)")
"""A comment in front of a record that says why `spmd check-rules` cannot check it."""

_ANY_STRATEGY = re.compile(f"^{STRATEGY_HEAD.pattern}", re.MULTILINE)


@attrs.frozen
class Record:
    """The text of one rule or strategy that is not parsed yet.

    Attributes:
        file, line: where it begins.
        indent: the columns that stand in front of each of its lines in the file.
        is_composed: whether it stands nowhere in the file; `line` is that of the class which composes it.
        unchecked: why `spmd check-rules` cannot check it, as a comment in front of it says.
    """

    file: str
    line: int
    text: str
    indent: int = 0
    is_composed: bool = False
    unchecked: str | None = None


Records = Mapping[str, tuple[Record, ...]]
"""Op name → its records, in order."""


def split_records(text: str) -> list[tuple[int, str, str | None]]:
    """Return (first line, record, op name or None if the record begins like no rule) of every record in a .rules
    file."""
    records: list[tuple[int, list[str], str | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            if records:
                records[-1][1].append("")
        elif line[0] in " \t" and records:
            records[-1][1].append(line)
        else:
            head = RULE_HEAD.match(line)
            records.append((number, [line], head.group(1) if head else None))
    return [(number, "\n".join(lines).rstrip(), op) for number, lines, op in records]


def reasons(text: str) -> dict[int, str]:
    """Return line of a record → why it cannot be checked, as the comment `# unchecked: REASON` in front of it says."""
    found: dict[int, str] = {}
    reason: str | None = None
    for number, line in enumerate(text.splitlines(), 1) if "unchecked:" in text else ():
        if said := UNCHECKED.fullmatch(line):
            reason = said[1].strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            if reason is not None:
                found[number] = reason
            reason = None
    return found


def read(text: str, file: str) -> dict[str, tuple[Record, ...]]:
    """Return op name → the rules of a .rules text; a line that begins nothing is recorded under its own text."""
    records, why = dict[str, tuple[Record, ...]](), reasons(text)
    for line, record, name in split_records(text):
        if not STRATEGY_HEAD.match(record):
            key = name or record
            records[key] = (*records.get(key, ()), Record(file, line, record, unchecked=why.get(line)))
    return records


def read_strategies(text: str, file: str, first_line: int = 1, indent: int = 0) -> dict[str, tuple[Record, ...]]:
    """Return op name → the strategies of a .rules text that begins on `first_line` of the file, so far indented."""
    records, why = dict[str, tuple[Record, ...]](), reasons(text)
    for line, record, _ in split_records(text) if _ANY_STRATEGY.search(text) else ():
        if head := STRATEGY_HEAD.match(record):
            made = Record(file, line + first_line - 1, record, indent, unchecked=why.get(line))
            records[head[1]] = (*records.get(head[1], ()), made)
    return records


def merged(records: Records, more: Records) -> dict[str, tuple[Record, ...]]:
    """Return the records of both, those of `records` first."""
    return {op: tuple(dict.fromkeys((*records.get(op, ()), *more.get(op, ())))) for op in {**records, **more}}
