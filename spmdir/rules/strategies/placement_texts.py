"""The strategies that come as text with the class of a placement: its `rules`, or NAME.rules beside its NAME.py."""

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
from spmdir.rules.language.records import Record, Records, merged, read, read_strategies


@cache
def texts_of(kind: type[Placement]) -> Records:
    """Return op → the strategies that are declared with the class `kind`; they are not parsed yet.

    Raises:
        ParseError: its `rules` hold something else.
    """
    return merged(_in_class(kind) if kind.rules else {}, _beside(kind))


def _beside(kind: type[Placement]) -> Records:
    beside = file_beside(getattr(sys.modules.get(kind.__module__), "__file__", None), ".rules")
    if beside is None:
        return {}
    is_ours = kind.__module__.startswith("spmdir.")
    text = read_text_file(beside, f"strategies from '{beside}'")
    return read_strategies(text, beside.name if is_ours else str(beside))


def _in_class(kind: type[Placement]) -> Records:
    owner = next(base for base in kind.__mro__ if "rules" in vars(base))
    file, source, first = _source(owner)
    before = source.find(kind.rules)
    begins = source.count("\n", 0, before) + 1 if before >= 0 else 1
    text = textwrap.dedent(kind.rules)
    indents = (len(a) - len(b) for a, b in zip(kind.rules.splitlines(), text.splitlines(), strict=True) if b)
    declared = read_strategies(text, file, begins, next(indents, 0))
    others = [record for records in read(text, file).values() for record in records]
    if before < 0:
        lines = source.splitlines()[first - 1 :]
        declared = {op: tuple(_placed(one, lines, first) for one in records) for op, records in declared.items()}
        others = [_placed(one, lines, first) for one in others]
    elif others:
        others = [attrs.evolve(others[0], line=others[0].line + begins - 1)]
    if others:
        raise ParseError(
            f"the `rules` of {kind.__name__} hold '{others[0].text.splitlines()[0]}'; expected strategies, as in "
            "`aten.chunk: (S(dim)) -> (R…)`, and rules of ops in a .rules file",
            Location(file, others[0].line, 1),
        )
    return declared


def _source(kind: type) -> tuple[str, str, int]:
    """Return the file of a class, its text and the line on which the class begins; no text where it has none."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
    try:
        return file, Path(file).read_text(encoding="utf-8"), inspect.getsourcelines(kind)[1]
    except (OSError, TypeError, UnicodeDecodeError):
        return file, "", 1


def _placed(record: Record, lines: Sequence[str], first: int) -> Record:
    """Return a record of a composed text, as an f-string, at the one of `lines`, from line `first` on, that gives it.

    Where none or several do, it is at the first one.
    """
    head = record.text.splitlines()[0].strip()
    found = [at for at, line in enumerate(lines) if line.strip() == head]
    found = found or [at for at, line in enumerate(lines) if "{" in line and _pattern(line).fullmatch(head)]
    if len(found) == 1:
        return attrs.evolve(record, line=first + found[0])
    return attrs.evolve(record, line=first, is_composed=True)


def _pattern(line: str) -> re.Pattern[str]:
    """Return what a line of an f-string may give; nothing where it says no more than that."""
    said = re.split(r"\{[^{}]*\}", line.strip())
    return re.compile(".+".join(map(re.escape, said)) if any(part.strip("\"' ,") for part in said) else "(?!)")
