"""The tables of a parser are kept and read back; where they cannot be kept, they are built."""

import sys

import pytest

from spmdir.rules.language.grammar import load_grammar

GRAMMAR = 'start: "a" NUMBER+\nNUMBER: /\\d+/\n%ignore " "\n'


@pytest.fixture
def grammar(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "small.lark"
    path.write_text(GRAMMAR)
    return path


def test_kept_tables_parse_as_fresh_ones(grammar):
    (grammar.parent / "__pycache__").mkdir()
    fresh = load_grammar(grammar).parse("a 1 2")
    (kept,) = (grammar.parent / "__pycache__").iterdir()
    before = kept.read_bytes()
    assert load_grammar(grammar).parse("a 1 2") == fresh
    assert kept.read_bytes() == before


def test_tables_of_another_grammar_or_broken_ones_are_not_used(grammar):
    (grammar.parent / "__pycache__").mkdir()
    load_grammar(grammar)
    grammar.write_text(GRAMMAR.replace('"a"', '"b"'))
    assert load_grammar(grammar).parse("b 1").children == ["1"]
    (kept,) = (grammar.parent / "__pycache__").iterdir()
    kept.write_bytes(b"no tables")
    assert load_grammar(grammar).parse("b 1").children == ["1"]


def test_nothing_is_kept_where_python_keeps_no_bytecode(grammar, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (grammar.parent / "__pycache__").mkdir()
    assert load_grammar(grammar).parse("a 1").children == ["1"]
    assert not list((grammar.parent / "__pycache__").iterdir())


def test_a_folder_that_cannot_be_written_does_no_harm(grammar):
    assert load_grammar(grammar).parse("a 1").children == ["1"]
    assert not (grammar.parent / "__pycache__").exists()
