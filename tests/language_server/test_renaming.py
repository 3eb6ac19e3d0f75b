"""Where names are defined and used, and renaming them."""

from __future__ import annotations

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.language_server.renaming import apply_edits, name_at, rename, rule_places
from tests.language_server.texts import MLP, decided, document

TWO = MLP + MLP.partition("\n\n")[2].partition("\n\n")[2].replace("@mlp", "@other")


def pieces(text: str, word: str, file: str = "in.mlir") -> list[str]:
    """Return the lines on which the name stands."""
    found = document(text, file)
    named = name_at(found, text.index(word) + 1)
    lines = text.split("\n")
    return [lines[found.scan.line(place.start)].strip() for place in named.places] if named else []


def test_a_value_is_defined_first_and_then_used_in_its_function() -> None:
    assert [line[:20] for line in pieces(TWO, "%0 =")] == ["%0 = aten.mm(%x, %w1", "%1 = aten.gelu(%0) {"]


def test_the_mesh_and_its_axes_are_found() -> None:
    assert len(pieces(MLP, "@mesh <")) == 4
    assert len(pieces(MLP, "tp = 4")) == 3
    assert pieces(MLP, "approximate") == pieces(MLP, "tensor<") == []


def test_broken_text_has_names() -> None:
    assert len(pieces(MLP.replace("aten.mm(%x, %w1)", "aten.mm(%x"), "%x:")) == 2


def test_an_op_is_defined_by_its_rules() -> None:
    (place,) = rule_places(document(MLP), MLP.index("aten.mm") + 2)
    with open(place.file) as file:
        assert file.read().splitlines()[place.line - 1].startswith("aten.mm(self")


def test_a_name_of_a_rule_is_that_of_its_record() -> None:
    rules = "my.op(x: m k) -> m\n    sum k\nmy.other(x: k) -> k\n"
    assert pieces(rules, "k)", "a.rules") == ["my.op(x: m k) -> m", "sum k"]


@pytest.mark.parametrize("word", ["%x:", "%0 =", "@mesh <", "tp = 4", "dp: S(0)", "@mlp"])
@pytest.mark.parametrize("passes", [(), ("--propagate",), ("--propagate", "--insert-reshard", "--lower-reshard")])
def test_a_renamed_program_is_renamed_back(word: str, passes: tuple[str, ...]) -> None:
    text = decided(*passes)
    renamed = apply_edits(text, rename(document(text), text.index(word) + 1, "zz"))
    assert renamed != text and document(renamed).mistakes == ()
    name = {"%0 =": "0", "tp = 4": "tp"}.get(word) or word.strip("%@: <").partition(":")[0]
    assert apply_edits(renamed, rename(document(renamed), text.index(word) + 1, name)) == text


@pytest.mark.parametrize(
    ("word", "name", "expected"),
    [
        ("%x:", "w1", "is already the name of another value"),
        ("%x:", "a b", "invalid value name 'a b'"),
        ("tp = 4", "dp", "is already the name of another axis"),
        ("tp = 4", "1", "invalid axis name '1'"),
        ("@mlp", "mesh", "is already the name of another symbol"),
        ("aten.mm", "aten.bmm", "cannot rename the text here"),
        ("16x1024", "q", "cannot rename the text here"),
    ],
)
def test_names_that_cannot_be_are_refused(word: str, name: str, expected: str) -> None:
    with pytest.raises(SpmdirError, match=expected):
        rename(document(MLP), MLP.index(word) + 1, name)


def test_an_argument_that_a_result_is_laid_out_as_keeps_its_result() -> None:
    text = MLP.replace("-> tensor<16x1024xf32>", '-> (tensor<16x1024xf32> {spmd.like = "x"})')
    assert 'spmd.like = "y"' in apply_edits(text, rename(document(text), text.index("%x:") + 1, "y"))


def test_axes_stand_in_lists_in_parts_and_in_texts() -> None:
    text = """spmd.mesh @mesh <dp = 2, tp = 4> intra [tp]

func.func @f(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp(1)2: S(0)>, spmd.keep = "tp"},
             %y: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
"""
    assert apply_edits(text, rename(document(text), text.index("tp =") + 1, "q")).count("q") == 4
