"""What words mean."""

from __future__ import annotations

import pytest

from spmdir.language_server.hover_texts import meaning
from tests.language_server.texts import MLP, decided, document


def said(text: str, word: str, file: str = "in.mlir") -> str:
    found = meaning(document(text, file), text.index(word) + 1)
    return found[0] if found else ""


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("%w1:", "%w1 : tensor<1024x4096xf32> <tp: S(1)>\n```\n\na rank has `1024x1024xf32`: 4.194 MB of 16.78 MB"),
        ("%0 =", "%0 : tensor<16x4096xf32>"),
        ("aten.mm", "aten.mm(self: m k, mat2: k n) -> m n"),
        ("aten.mm", "([m, k], [k, n]) -> ([m, n]) {m = 16, k = 1024, n = 4096}"),
        ("tp = 4", "axis `tp` of mesh `@mesh`: 4 ranks"),
        ("@mesh, dp", "mesh `@mesh <dp = 2, tp = 4>`: 8 ranks"),
        ("S(1)", "placement `S`: `S(d)`: rank i has chunk i of dimension d"),
    ],
)
def test_a_word_of_a_program_says_what_it_is(word: str, expected: str) -> None:
    assert expected in said(MLP, word)


def test_a_comment_means_nothing() -> None:
    assert said(MLP, "perceptron") == said("// aten.mm", "aten.mm") == ""


def test_a_collective_says_its_price() -> None:
    text = decided("--propagate", "--insert-reshard", "--lower-reshard")
    for word in ("spmd.reduce_scatter", "%_2.reshard = "):
        assert "reduce_scatter on [tp]" in said(text, word) and "sent, on h100x8" in said(text, word)


def test_a_value_of_a_broken_text_means_what_it_meant() -> None:
    broken = MLP.replace("aten.mm(%x, %w1)", "aten.mm(%x")
    found = meaning(document(broken, previous=document(MLP)), broken.index("%w1:") + 1)
    assert found is not None and "a rank has" in found[0]


def test_a_value_says_where_the_model_makes_it() -> None:
    text = MLP.replace("tensor<16x4096xf32>\n  %1", 'tensor<16x4096xf32> loc("model.py":3:1)\n  %1')
    assert "from `model.py:3`" in said(text, "%0 =")


def test_uneven_shards_say_how_they_differ() -> None:
    text = MLP.replace("16x1024", "15x1024").replace("16x4096", "15x4096")
    assert "a rank has `8x1024xf32`, others from 7x1024xf32" in said(text, "%x:")


@pytest.mark.parametrize(
    ("text", "word", "file", "expected"),
    [
        ("my.op(x: m k) -> m when count(m) > 1", "count", "a.rules", "number of elements along these factors"),
        ("aten.mm(self: m k) -> m", "aten.mm", "a.rules", "contraction.rules:"),
        ("one: all_gather x on A dim d => x", "all_gather", "a.rewrites", "and concatenates them"),
    ],
)
def test_words_of_rules_and_rewrites(text: str, word: str, file: str, expected: str) -> None:
    assert expected in said(text, word, file)
