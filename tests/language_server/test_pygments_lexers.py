"""The lexers know every character of our texts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from pygments.lexer import RegexLexer
from pygments.token import Error, Keyword, Name, Token

from spmdir.language_server.pygments_lexers import RewritesLexer, RulesLexer, SpmdLexer

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(mlir|rules|rewrites)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MALFORMED = {"text_that_begins_with_no_token", "string_is_never_closed", "unclosed_string_before_much_text"}
MALFORMED |= {"brackets_that_are_not_closed"}
"""Programs that are no tokens."""


def texts(*patterns: str) -> Iterator[str]:
    return (p.read_text() for pattern in patterns for p in ROOT.glob(pattern) if p.stem not in MALFORMED)


@pytest.mark.parametrize(
    ("lexer", "patterns", "least"),
    [
        (SpmdLexer(), ("tests/golden/**/*.mlir", "examples/*.mlir"), 300),
        (RulesLexer(), ("spmdir/**/*.rules", "tests/golden/**/*.rules"), 15),
        (RewritesLexer(), ("spmdir/**/*.rewrites",), 1),
    ],
)
def test_there_is_nothing_that_a_lexer_does_not_know(lexer: RegexLexer, patterns: tuple[str, ...], least: int) -> None:
    count = 0
    for text in texts(*patterns):
        tokens = list(lexer.get_tokens_unprocessed(text))
        assert "".join(piece for _, _, piece in tokens) == text
        assert not [piece for _, kind, piece in tokens if kind is Error], text[:200]
        count += 1
    assert count >= least


def test_there_is_nothing_on_our_pages_that_a_lexer_does_not_know() -> None:
    lexers = {"mlir": SpmdLexer(), "rules": RulesLexer(), "rewrites": RewritesLexer()}
    found = [match for text in texts("README.md", "docs/**/*.md") for match in FENCE.finditer(text)]
    assert {match[1] for match in found} == set(lexers)
    for match in found:
        assert Error not in {kind for kind, _ in lexers[match[1]].get_tokens(match[2])}, match[2]


@pytest.mark.parametrize(
    ("lexer", "text", "word", "kind"),
    [
        (SpmdLexer(), "%1 = spmd.all_gather %0 on [tp]", "spmd.all_gather", Name.Builtin),
        (SpmdLexer(), "%1 = spmd.all_gather %0 on [tp]", "on", Keyword.Pseudo),
        (SpmdLexer(), "%1 = aten.mm(%0) : tensor<8x8xf32> <dp: S(0)>", "aten.mm", Name.Function),
        (SpmdLexer(), "%1 = aten.mm(%0) : tensor<8x8xf32> <dp: S(0)>", "S", Name.Class),
        (SpmdLexer(), "%1 = aten.mm(%0) : tensor<8x8xf32> <dp: S(0)>", "f32", Keyword.Type),
        (RulesLexer(), "aten.mm(self: m k, mat2: k n) -> m n    sum k", "sum", Keyword),
        (RulesLexer(), "aten.sum(self: *) -> scalar    sum *", "aten.sum", Name.Function),
        (RewritesLexer(), "a-b: all_gather x on A => x", "all_gather", Name.Builtin),
    ],
)
def test_words_are_what_they_are(lexer: RegexLexer, text: str, word: str, kind: Token) -> None:
    assert (kind, word) in [(found, piece) for found, piece in lexer.get_tokens(text)]


def test_the_package_offers_the_lexers_to_pygments() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    offered = [EntryPoint(name, home, "") for name, home in project["entry-points"]["pygments.lexers"].items()]
    assert [entry.load() for entry in offered] == [SpmdLexer, RewritesLexer, RulesLexer]
