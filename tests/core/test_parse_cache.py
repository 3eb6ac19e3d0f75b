"""Parsed texts are found by their text alone, and are the values that were written."""

import attrs
import pytest

from spmdir.core.errors import Location
from spmdir.core.parse_cache import ParsedTexts


@attrs.frozen
class Leaf:
    value: int | float | str | bool | None
    where: Location


@attrs.frozen
class Branch:
    leaves: tuple[Leaf, ...]
    names: frozenset[str]


VALUE = Branch(
    (Leaf(float("inf"), Location("a", 7, 3)), Leaf(True, Location("a", 8, 1)), Leaf(None, Location("a", 7, 1))),
    frozenset({"x", "y"}),
)


@pytest.fixture
def parsed(tmp_path):
    kept = ParsedTexts(tmp_path / "kept.parsed", (Branch, Leaf))
    kept.path.write_text(kept.spell([("one\ntwo", 7, VALUE)]))
    return kept


def test_a_text_is_found_as_the_value_that_was_written(parsed):
    assert parsed.find("one\ntwo", "a", 7) == VALUE


def test_places_are_those_of_the_text_that_is_asked_for(parsed):
    moved = parsed.find("one\ntwo", "b", 17)
    assert [leaf.where for leaf in moved.leaves] == [Location("b", 17, 3), Location("b", 18, 1), Location("b", 17, 1)]


def test_a_text_that_was_edited_is_not_found(parsed):
    assert parsed.find("one\ntwo ", "a", 7) is None


@pytest.mark.parametrize(
    "damage", [lambda text: text[:-9], lambda text: text[:-9] + b"\xff", lambda text: text[:30] + b"9]"]
)
def test_nothing_is_found_in_a_damaged_file(parsed, damage):
    parsed.path.write_bytes(damage(parsed.path.read_bytes()))
    assert parsed.find("one\ntwo", "a", 7) is None


def test_nothing_is_found_without_the_file(tmp_path):
    assert ParsedTexts(tmp_path / "none.parsed", ()).find("one", "a") is None
