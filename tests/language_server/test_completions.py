"""What may stand where a text is being written; `|` is where."""

from __future__ import annotations

import pytest

from spmdir.language_server.completions import completions
from tests.language_server.texts import MLP, document


def offered(text: str, file: str = "in.mlir") -> list[str]:
    offset = text.index("|")
    return [one.text for one in completions(document(text.replace("|", ""), file), offset)[1]]


def written(line: str) -> str:
    return MLP.replace("  return", f"  {line}\n  return")


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("%3 = aten.gel|", ["aten.gelu", "aten.gelu_backward"]),
        ("%3 = spmd.all_g|", ["spmd.all_gather", "spmd.all_gather_start"]),
        ("%3 = aten.mm(%|", ["%x", "%w1", "%w2", "%0", "%1", "%2"]),
        ("%3 = aten.gelu(%2) {|", ["approximate"]),
        ("%3 = aten.gelu(%2) : tensor<16x1024xb|", ["16x1024xbf16"]),
        ("%3 = aten.gelu(%2) : tensor<16x1024xf32> <|", ["dp", "tp"]),
        ("%3 = aten.gelu(%2) : tensor<16x1024xf32> <dp: S(0), |", ["dp", "tp"]),
        ("%3 = aten.gelu(%2) : tensor<16x1024xf32> <dp: Cy|", ["Cyclic"]),
        ("%3 = spmd.all_reduce %2 on [|", ["dp", "tp"]),
        ("%3 = spmd.all_reduce %2 on [tp] op s|", ["sum"]),
        ("%3 = spmd.all_reduce %2 on [tp] o|", ["on", "op"]),
        ("%3 = spmd.constraint %2 : tensor<16x1024xf32> <@|", ["@mesh", "@mlp"]),
        ("// aten.gel|", []),
    ],
)
def test_what_is_offered_in_a_program(line: str, some: list[str]) -> None:
    found = offered(written(line))
    assert found == some if len(found) < 9 else set(some) <= set(found)


def test_ops_that_no_program_may_have_are_not_offered() -> None:
    assert "aten.gelu.out" not in offered(written("%3 = aten.gelu.|"))


@pytest.mark.parametrize(
    ("text", "file", "some"),
    [
        ("aten.addm|", "a.rules", "aten.addmm"),
        ("my.op(x: m k) -> m  su|", "a.rules", "sum"),
        ("my.op(x: m k) -> resh|", "a.rules", "reshape"),
        ("my.op(x: m k) -> m when cou|", "a.rules", "count"),
        ("one: all_g|", "a.rewrites", "all_gather"),
    ],
)
def test_what_is_offered_in_rules_and_rewrites(text: str, file: str, some: str) -> None:
    assert some in offered(text, file)
