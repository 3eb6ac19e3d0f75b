"""What texts declare, and hints in their lines."""

from __future__ import annotations

from spmdir.language_server.declared_names import shard_hints, symbols
from tests.language_server.texts import MLP, decided, document


def test_a_program_declares_its_mesh_and_its_functions() -> None:
    found = list(symbols(document(MLP)))
    assert [(one.name, one.kind) for one in found] == [("@mesh", "mesh"), ("@mlp", "function")]
    assert MLP[found[1].full_span.start : found[1].full_span.end].endswith("}")


def test_rules_and_rewrites_declare_their_names() -> None:
    rules = "my.op(x: m) -> m\n    sum m\nmy.other: (S(0)) -> (S(0))\n"
    assert [one.name for one in symbols(document(rules, "a.rules"))] == ["my.op", "my.other"]
    assert [one.name for one in symbols(document("a-b: f(x, ...) => x\n", "a.rewrites"))] == ["a-b"]


def test_a_sharded_value_says_what_a_rank_has() -> None:
    text = decided("--propagate")
    found = {text[:at].split()[-1].rpartition("(")[2]: shape for at, shape in shard_hints(document(text), 0, len(text))}
    assert found["%0"] == "8x1024xf32"
    assert not list(shard_hints(document(text.replace("%w1)", "%w1")), 0, len(text)))
