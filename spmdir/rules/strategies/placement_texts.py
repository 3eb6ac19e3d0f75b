"""Read the strategies of a placement class: its `rules`, or the file NAME.rules next to its NAME.py."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import attrs

from spmdir.core.errors import Location, ParseError
from spmdir.core.placement.standard import Placement
from spmdir.core.text_file import file_beside, read_text_file
from spmdir.rules.language.records import Record, Records, merge_records, read, read_strategies


@cache
def texts_of(kind: type[Placement]) -> Records:
    """Return op → the unparsed strategies of the placement class `kind`.

    Raises:
        ParseError: its `rules` contain a rule instead of a strategy.
    """
    return merge_records(_class_texts(kind) if kind.rules else {}, _file_texts(kind))


def _file_texts(kind: type[Placement]) -> Records:
    """Return the strategies in the .rules file next to the module of the placement class; empty if there is none."""
    path = file_beside(getattr(sys.modules.get(kind.__module__), "__file__", None), ".rules")
    if path is None:
        return {}
    is_ours = kind.__module__.startswith("spmdir.")
    text = read_text_file(path, f"strategies from '{path}'")
    return read_strategies(text, path.name if is_ours else str(path))


def _class_texts(kind: type[Placement]) -> Records:
    """Return the strategies in the `rules` of a placement class. Each has its line in the file of the class.

    If `rules` is not a literal in the file, such as an f-string, each record is located by its first line.
    """
    owner = next(base for base in kind.__mro__ if "rules" in vars(base))
    file, source, first_line = _source(owner)
    rules_offset = source.find(kind.rules)  # -1 if `rules` is not a literal
    line = source.count("\n", 0, rules_offset) + 1 if rules_offset >= 0 else 1
    # Parse the text without its common indentation, which is added to the columns of errors again.
    text = textwrap.dedent(kind.rules)
    lines_of_both = zip(kind.rules.splitlines(), text.splitlines(), strict=True)
    indent = next((len(indented) - len(dedented) for indented, dedented in lines_of_both if dedented), 0)
    declared = read_strategies(text, file, line, indent)
    rule_list = [record for records in read(text, file).values() for record in records]
    if rules_offset < 0:
        lines = source.splitlines()[first_line - 1 :]
        declared = {
            op: tuple(_located(record, lines, first_line) for record in records) for op, records in declared.items()
        }
        rule_list = [_located(record, lines, first_line) for record in rule_list]
    elif rule_list:
        rule_list = [attrs.evolve(rule_list[0], line=rule_list[0].line + line - 1)]
    if rule_list:
        raise ParseError(
            f"the `rules` of {kind.__name__} contain '{rule_list[0].text.splitlines()[0]}'; expected strategies, as in "
            "`aten.chunk: (S(dim)) -> (R…)`; write rules of ops into a .rules file",
            Location(file, rule_list[0].line, 1),
        )
    return declared


def _source(kind: type) -> tuple[str, str, int]:
    """Return the file of a class, the text of the file, and the number of the first line of the class.

    If the source cannot be read, the text is "" and the line is 1. Without a file, the name of the module replaces it.
    """
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
    try:
        return file, Path(file).read_text(encoding="utf-8"), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError, UnicodeDecodeError):
        return file, "", 1


def _located(record: Record, lines: Sequence[str], first_line: int) -> Record:
    """Return `record` with the line that it comes from, if its text is composed, for example by an f-string.

    If no line or several lines match, it is located at `first_line`.

    Args:
        lines: the source of the class.
        first_line: the number of the first of `lines`.
    """
    head = record.text.splitlines()[0].strip()
    matches = [index for index, line in enumerate(lines) if line.strip() == head]
    matches = matches or [index for index, line in enumerate(lines) if "{" in line and _pattern(line).fullmatch(head)]
    if len(matches) == 1:
        return attrs.evolve(record, line=first_line + matches[0])
    return attrs.evolve(record, line=first_line, is_composed=True)


def _pattern(line: str) -> re.Pattern[str]:
    """Return a pattern for the values of a line of an f-string; it matches nothing if the line is all placeholders.

    For example, the line `(P({op})) -> (R)` has a pattern for `(P(sum)) -> (R)`.
    """
    literals = re.split(r"\{[^{}]*\}", line.strip())
    is_all_placeholders = not any(literal.strip("\"' ,") for literal in literals)
    return re.compile("(?!)" if is_all_placeholders else ".+".join(map(re.escape, literals)))
