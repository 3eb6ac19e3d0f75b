"""The words of highlighters are those of the dialects, of rules and of rewrites; the grammars of editors have them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spmdir.core.dtype import DTYPES
from spmdir.core.placement.base import SHIPPED
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.dialects.collectives import Collective
from spmdir.dialects.spmd import Spmd
from spmdir.dialects.value_op import ValueOp
from spmdir.language_server import keywords

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "editors" / "vscode"
GRAMMARS = {path.name.partition(".")[0]: json.loads(path.read_text()) for path in FOLDER.glob("syntaxes/*.json")}
LISTS = {
    "spmdir": (
        "STRUCTURE",
        "CLAUSES",
        "TAILS",
        "COLLECTIVES",
        "OTHER_OPS",
        "PLACEMENTS",
        "REDUCTIONS",
        "ELEMENT_TYPES",
    ),
    "rules": ("RULE_CLAUSES", "RULE_CONTROL", "REDUCTIONS", "PLACEMENTS", "ELEMENT_TYPES"),
    "rewrites": ("COLLECTIVES", "REWRITE_WORDS"),
}


def test_the_ops_are_those_of_the_dialect() -> None:
    names = {kind.name.removeprefix("spmd.").removesuffix("_start") for kind in Spmd.operations}
    assert set(keywords.COLLECTIVES) | set(keywords.OTHER_OPS) == names
    assert not set(keywords.COLLECTIVES) & set(keywords.OTHER_OPS)
    sending = {kind.name[5:].removesuffix("_start") for kind in Spmd.operations if issubclass(kind, Collective)}
    assert sending <= set(keywords.COLLECTIVES) | set(keywords.OTHER_OPS)


def test_the_clauses_are_those_of_the_ops() -> None:
    kinds = [kind for kind in Spmd.operations if issubclass(kind, ValueOp)]
    assert set(keywords.CLAUSES) == {keyword for kind in kinds for keyword, _ in kind.CLAUSES}


def test_placements_reductions_and_types_are_those_of_the_core() -> None:
    assert set(keywords.PLACEMENTS) == set(SHIPPED) - {"?"}
    assert tuple(REDUCTIONS) == keywords.REDUCTIONS
    assert set(keywords.ELEMENT_TYPES) == {name.partition("<")[0] for name in DTYPES}


def test_the_words_of_rules_and_rewrites_are_those_of_their_grammars() -> None:
    grammar = (ROOT / "spmdir/rules/language/rules.lark").read_text()
    terminals = {word for found in re.findall(r"/\(?([a-z|]+)\)?\\b/", grammar) for word in found.split("|")}
    quoted = set(re.findall(r'"([a-z]+)"', grammar))
    known = {*keywords.RULE_CLAUSES, *keywords.RULE_CONTROL, *keywords.REDUCTIONS}
    assert terminals - {"scalar"} | quoted == known - {"avg"}
    rewrites = (ROOT / "spmdir/rewrites/rewrites.lark").read_text()
    assert set(re.findall(r'"([a-z]{2,})"', rewrites)) <= set(keywords.REWRITE_WORDS)


@pytest.mark.parametrize(("name", "lists"), LISTS.items(), ids=LISTS)
def test_a_grammar_of_editors_has_the_words(name: str, lists: tuple[str, ...]) -> None:
    matches = " ".join(pattern["match"] for pattern in GRAMMARS[name]["patterns"])
    for of in lists:
        assert "|".join(map(re.escape, getattr(keywords, of))).replace(r"\ ", " ") in matches, of


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_patterns_of_a_grammar_compile_and_say_what_they_name(name: str) -> None:
    scope = GRAMMARS[name]["scopeName"].rpartition(".")[2]
    for pattern in GRAMMARS[name]["patterns"]:
        re.compile(pattern["match"])
        assert pattern["name"].endswith(f".{scope}")


def test_the_extension_names_files_that_are_there() -> None:
    package = json.loads((FOLDER / "package.json").read_text())
    contributed = package["contributes"]
    named = [one["configuration"] for one in contributed["languages"]] + [
        one["path"] for one in contributed["grammars"]
    ]
    for path in [*named, package["main"]]:
        assert (FOLDER / path).exists(), path
    scopes = {one["scopeName"] for one in contributed["grammars"]}
    assert scopes == {grammar["scopeName"] for grammar in GRAMMARS.values()}
