"""Rules and rewrites with even blanks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spmdir
from spmdir.core.errors import SpmdirError
from spmdir.language_server.formatting import format_records, formatted
from spmdir.rewrites.rewrite_text import parse_rewrites
from spmdir.rules.language.parser import parse_rule, parse_strategy
from spmdir.rules.language.records import read, read_strategies
from tests.language_server.texts import document

SHIPPED = [
    path for path in sorted(Path(spmdir.__file__).parent.rglob("*.r*")) if path.suffix in (".rules", ".rewrites")
]
SMALL = [path for path in SHIPPED if path.suffix == ".rules" and path.stat().st_size < 2000]
MESSY = """# Mine.
\taten.none
aten.mm(a:m k ,b : k  n)->m n    sum k ;linear a  # ( of ,it
  local   k
  index=local_index(a,k)   # "x"


  return aten.mm( a,b , c = 1 )
"""
TIDY = """# Mine.
aten.none
aten.mm(a: m k, b: k  n) -> m n    sum k; linear a  # ( of ,it
    local   k
    index = local_index(a, k)   # "x"

    return aten.mm(a, b, c=1)
"""


def test_blanks_are_even_and_columns_stay() -> None:
    assert format_records(MESSY.replace("\t", "")) == format_records(TIDY) == TIDY


def test_shipped_texts_are_what_is_printed() -> None:
    assert len(SHIPPED) > 15
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        assert format_records(text) == text, path


def squeezed(text: str) -> str:
    """Return a text with other blanks where they mean nothing."""
    lines = [
        line if "#" in line or '"' in line else re.sub(r" ?(->|=>|,|==) ?", r"\1", line) for line in text.split("\n")
    ]
    return "\n".join(re.sub(r"^ +", lambda found: "  " * len(found[0]), line) + " " for line in lines)


def meaning_of(text: str) -> list[object]:
    rules = [parse_rule(one.text, "", 1) for records in read(text, "").values() for one in records]
    strategies = [parse_strategy(one.text, "", 1) for all_ in read_strategies(text, "").values() for one in all_]
    return [re.sub(r"Location\([^)]*\)", "", str(one)) for one in (*rules, *strategies)]


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_rules_mean_the_same(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    other = format_records(squeezed(text))
    assert squeezed(text) != text and format_records(other) == other
    assert meaning_of(other) == meaning_of(text)


def test_rewrites_mean_the_same() -> None:
    (path,) = (path for path in SHIPPED if path.suffix == ".rewrites")
    text = path.read_text(encoding="utf-8")
    assert list(map(str, parse_rewrites(format_records(squeezed(text)), ""))) == list(
        map(str, parse_rewrites(text, ""))
    )


@pytest.mark.parametrize("end", ["\f", "\u2028"])
def test_what_ends_a_line_of_a_record_stays(end: str) -> None:
    text = f"aten.cos(x: *) -> * {end}aten.sin(x: *) -> *\n"
    assert meaning_of(format_records(text)) == meaning_of(text) and len(meaning_of(text)) == 2


def test_an_editor_formats_rules_without_mistakes_alone() -> None:
    good = "aten.gelu( self:*,approximate )->*\n"
    assert formatted(document(good, "in.rules")) == "aten.gelu(self: *, approximate) -> *\n"
    with pytest.raises(SpmdirError, match="errors"):
        formatted(document("aten.gelu(self: *\n", "in.rules"))
    with pytest.raises(SpmdirError, match="a string has no end on its line"):
        format_records('aten.x(self: *) -> *    replicated "a\nb"\n')
