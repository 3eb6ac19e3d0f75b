"""A tensor op as a plain value."""

from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import ArgumentsAttr, type_of

TEXT = """
spmd.mesh @mesh <tp = 2>

func.func @f(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %0 = aten.sum.dim_IntList(%x) {dim = [1]} : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def test_the_call_of_an_op_follows_its_types_and_arguments() -> None:
    (op,) = (op for op in ir.parse(TEXT).walk() if isinstance(op, AtenOp))
    before = op.call()
    assert op.call() is before
    op.operands[0]._type = type_of(TensorMeta((8, 4), "f32"))
    op.properties["arguments"] = ArgumentsAttr((("dim", (0,)),))
    assert before.operands == (TensorMeta((4, 8), "f32"),)
    assert op.call().operands == (TensorMeta((8, 4), "f32"),)
    assert op.call().argument == {"dim": (0,)}


def test_arguments_that_are_equal_in_python_alone_make_other_calls() -> None:
    (op,) = (op for op in ir.parse(TEXT).walk() if isinstance(op, AtenOp))
    op.properties["arguments"] = ArgumentsAttr((("keepdim", 1),))
    one = op.call()
    op.properties["arguments"] = ArgumentsAttr((("keepdim", True),))
    assert op.call() != one and op.call().argument["keepdim"] is True
