"""Canonical form, with comments."""

from __future__ import annotations

import pytest

from spmdir.core.errors import SpmdirError
from spmdir.language_server.formatting import edit_of, formatted
from spmdir.language_server.renaming import apply_edits
from tests.language_server.texts import MLP, decided, document

MESSY = """// Of the file.
spmd.mesh @mesh <dp=2,tp=4>   // the mesh
// Of the function.

func.func @f(%x: tensor<8x8xf32>, // an input
   // a weight
   %w: tensor<8x8xf32> {spmd.sharding=#spmd.sharding<@mesh,tp:S(1)>}) -> tensor<8x8xf32> {
      // Of the product.
      %0 = aten.mm( %x,%w ) : tensor<8x8xf32>  // the product
      %1 = aten.gelu(%0) {approximate="none"}: tensor<8x8xf32>
      // At the end.
      return %1 : tensor<8x8xf32>
} // closed
// Behind.
"""
TIDY = """// Of the file.
spmd.mesh @mesh <dp = 2, tp = 4>  // the mesh

// Of the function.

func.func @f(%x: tensor<8x8xf32>,  // an input
             // a weight
             %w: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}) -> tensor<8x8xf32> {
  // Of the product.
  %0 = aten.mm(%x, %w) : tensor<8x8xf32>  // the product
  %1 = aten.gelu(%0) {approximate = "none"} : tensor<8x8xf32>
  // At the end.
  return %1 : tensor<8x8xf32>
}  // closed
// Behind.
"""


def test_comments_stay_where_they_belong() -> None:
    assert formatted(document(MESSY)) == formatted(document(TIDY)) == TIDY


@pytest.mark.parametrize("passes", [(), ("--propagate",), ("--print-op-generic",)])
def test_what_is_printed_is_formatted(passes: tuple[str, ...]) -> None:
    text = decided(*passes)
    assert formatted(document(text)) == (decided() if "generic" in str(passes) else text)
    assert formatted(document(MLP)) == MLP


def test_parts_stay_apart() -> None:
    text = f"{TIDY}\n// -----\n\n{TIDY}"
    assert formatted(document(f"{MESSY}// -----\n{MESSY}")) == formatted(document(text)) == text


@pytest.mark.parametrize(
    ("text", "file", "expected"),
    [
        (MLP.replace("%w1)", "%w1"), "in.mlir", "the text has errors"),
        (
            MLP.replace("  return", "  // c\n  return").replace("xf32>\n  %1", 'xf32> loc("a":1:1)\n  %1'),
            "in.mlir",
            "locations",
        ),
        ("my.op(x: m) -> ", "a.rules", "the text has errors"),
        (MLP.replace("%x: tensor", "%x: /", 1), "in.mlir", "the text has errors"),
    ],
)
def test_what_cannot_be_formatted_is_refused(text: str, file: str, expected: str) -> None:
    with pytest.raises(SpmdirError, match=expected):
        formatted(document(text, file))


def test_an_edit_is_of_the_lines_that_differ() -> None:
    edit = edit_of(MESSY, TIDY)
    assert edit is not None and apply_edits(MESSY, [edit]) == TIDY
    assert edit_of(TIDY, TIDY) is None
    assert edit_of("a\nb\nc\n", "a\nq\nc\n") is not None
