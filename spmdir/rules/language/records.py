"""Split a .rules text into records: the texts of single rules and strategies. They are parsed on demand."""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

RULE_HEAD = re.compile(r"([a-z_]\w*(?:\.\w+)+)\(")
STRATEGY_HEAD = re.compile(r"([a-z_]\w*(?:\.\w+)+)[ \t]*:")
UNCHECKED = re.compile(r"[ \t]*#[ \t]*unchecked:[ \t]*(.+)")
"""The comment before a record with the reason why `spmd check-rules` cannot check it."""

_ANY_STRATEGY = re.compile(f"^{STRATEGY_HEAD.pattern}", re.MULTILINE)


@attrs.frozen
class Record:
    """The text of one rule or strategy.

    Attributes:
        file, line: its first line.
        indent: the columns by which its lines are indented in the file.
        is_composed: whether a class composes it, so it is not in the file; `line` is then the line of the class.
        unchecked: the reason in the comment before it why `spmd check-rules` cannot check it.
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
    """Return (first line, text, op name) of every record in a .rules file.

    A record is a line and the indented lines after it. Comments become empty lines, so that lines keep their numbers.
    The name is None if the record is not a rule.
    """
    records: list[tuple[int, list[str], str | None]] = []
    for line_number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            if records:
                records[-1][1].append("")
        elif line[0] in " \t" and records:
            records[-1][1].append(line)
        else:
            head = RULE_HEAD.match(line)
            records.append((line_number, [line], head.group(1) if head else None))
    return [(line_number, "\n".join(lines).rstrip(), op) for line_number, lines, op in records]


def reasons(text: str) -> dict[int, str]:
    """Return line of a record → REASON of the comment `# unchecked: REASON` before it.

    Comments and empty lines may be between both.
    """
    reason_of_line: dict[int, str] = {}
    if "unchecked:" not in text:
        return reason_of_line
    reason: str | None = None
    for line_number, line in enumerate(text.splitlines(), 1):
        if comment := UNCHECKED.fullmatch(line):
            reason = comment[1].strip()
        elif line.strip() and not line.lstrip().startswith("#"):
            if reason is not None:
                reason_of_line[line_number] = reason
            reason = None
    return reason_of_line


def read(text: str, file: str) -> dict[str, tuple[Record, ...]]:
    """Return op name → the rules of a .rules text. A malformed record has its text as its name."""
    records, unchecked_reasons = dict[str, tuple[Record, ...]](), reasons(text)
    for line, record, name in split_records(text):
        if not STRATEGY_HEAD.match(record):
            key = name or record
            records[key] = (*records.get(key, ()), Record(file, line, record, unchecked=unchecked_reasons.get(line)))
    return records


def read_strategies(text: str, file: str, first_line: int = 1, indent: int = 0) -> dict[str, tuple[Record, ...]]:
    """Return op name → the strategies of a .rules text that begins on `first_line` of a file, indented by `indent`."""
    records, unchecked_reasons = dict[str, tuple[Record, ...]](), reasons(text)
    if not _ANY_STRATEGY.search(text):
        return records
    for line, record, _ in split_records(text):
        if head := STRATEGY_HEAD.match(record):
            strategy = Record(file, line + first_line - 1, record, indent, unchecked=unchecked_reasons.get(line))
            records[head[1]] = (*records.get(head[1], ()), strategy)
    return records


def merge_records(records: Records, added: Records) -> dict[str, tuple[Record, ...]]:
    """Return op name → the records of both, those of `records` first; equal records once."""
    return {op: tuple(dict.fromkeys((*records.get(op, ()), *added.get(op, ())))) for op in {**records, **added}}
