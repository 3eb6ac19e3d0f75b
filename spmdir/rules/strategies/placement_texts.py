"""The strategies that come as text with the class of a placement: its `rules`, or NAME.rules beside its NAME.py."""

from __future__ import annotations

import inspect
import sys
import textwrap
from functools import cache
from pathlib import Path

from spmdir.core.errors import Location, ParseError, SpmdirError
from spmdir.core.placement.standard import Placement
from spmdir.core.text_file import file_beside, read_text_file
from spmdir.rules.language.records import Records, merged, read, read_strategies


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
    place = _place(owner, kind.rules)
    text = textwrap.dedent(kind.rules)
    others = [record for records in read(text, place.file).values() for record in records]
    if others:
        first = others[0]
        raise ParseError(
            f"the `rules` of {kind.__name__} hold '{first.text.splitlines()[0]}'; expected strategies, as in "
            "`aten.chunk: (S(dim)) -> (R…)`, and rules of ops in a .rules file",
            Location(place.file, place.line + first.line - 1, 1),
        )
    indents = (len(a) - len(b) for a, b in zip(kind.rules.splitlines(), text.splitlines(), strict=True) if b)
    return read_strategies(text, place.file, place.line, next(indents, 0))


def _place(kind: type, text: str) -> Location:
    """Return where `text`, which is written in class `kind`, begins; where the class does if it is composed."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or kind.__module__
    try:
        source = Path(file).read_text(encoding="utf-8")
        before = source.find(text)
        if before >= 0:
            return Location(file, source.count("\n", 0, before) + 1, 1)
        return Location(file, inspect.getsourcelines(kind)[1], 1)
    except (OSError, TypeError, SpmdirError):
        return Location(file, 1, 1)
