"""The parser is asked again without the ops that it could not read."""

from __future__ import annotations

from spmdir.language_server.recovery import MAX_CHARACTERS
from tests.language_server.texts import MLP, document, underlined

CHAIN = """spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = aten.relu(%nowhere) : tensor<8x8xf32>
  %b = aten.relu(%a) : tensor<8x8xf32>
  %c = aten.relu(%x : tensor<8x8xf32>
  %d = aten.mm(%b, %x) : tensor<8x8xq32>
  %e = aten.relu(%x) : tensor<8x8xq32>
  return %e : tensor<8x8xf32>
}

func.func @g(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %a = aten.relu(%x) : tensor<8x8xf32>
  %b = aten.relu(%y) : tensor<8x8xf32>
  return %a : tensor<8x8xf32>
}
"""


def test_each_op_that_cannot_be_read_is_said_and_not_those_that_use_it() -> None:
    lines = [CHAIN.count("\n", 0, one.span.start) + 1 for one in document(CHAIN).mistakes]
    assert lines == [4, 6, 8, 14]
    assert [text for text, _ in underlined(document(CHAIN))][-1] == "%y"


def test_long_texts_have_their_first_mistake_alone() -> None:
    text = MLP.replace("(%0)", "(%8)").replace("(%1, %w2)", "(%x, %9)")
    assert len(document(text).mistakes) == 2
    assert len(document("// " + "c" * MAX_CHARACTERS + "\n" + text).mistakes) == 1
