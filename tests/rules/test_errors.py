from pathlib import Path

import pytest

from spmdir.core.errors import RuleError, SpmdirError
from spmdir.core.placement.call import Call, Literal
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.rule_set import default

BAD = sorted((Path(__file__).parent / "bad").glob("*.rules"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_malformed_file_gets_all_its_errors_located(path: Path):
    with pytest.raises(SpmdirError) as caught:
        default().with_file(path)
    assert str(caught.value).replace(str(path), path.name) + "\n" == path.with_suffix(".txt").read_text()


def test_a_file_that_cannot_be_read_is_rejected(tmp_path: Path):
    with pytest.raises(SpmdirError, match=r"cannot read rules from .*missing\.rules"):
        default().with_file(tmp_path / "missing.rules")


def test_rules_of_a_file_replace_the_packaged_ones_and_leave_these_alone(tmp_path: Path):
    path = tmp_path / "own.rules"
    path.write_text("aten.relu(self: *) -> *    unsharded *\nours.scale(x: *, by) -> *    linear x\n")
    rules = default().with_file(path)
    relu = rules.instantiate(rules.infer_call("aten.relu", (TensorMeta((4,), "f32"),), {}))
    assert relu is not None and len(relu.strategies(2)) == 1
    assert rules.lookup("ours.scale") is not None and default().lookup("ours.scale") is None


MATRIX = TensorMeta((4, 6), "f32")


@pytest.mark.parametrize(
    ("op", "operands", "arguments", "message"),
    [
        (
            "aten.mm",
            (MATRIX, MATRIX),
            {},
            "operand 'mat2' has k = 4; expected 6, because all dimensions k have one size",
        ),
        ("aten.mm", (MATRIX,), {}, "aten.mm has no operand 'mat2'; expected a tensor: pass it"),
        ("aten.mm", (MATRIX,) * 3, {}, "has 3 tensor operands; expected at most 2"),
        ("aten.mm", (MATRIX, TensorMeta((2, 6, 3), "f32")), {}, "rank 3; expected the dimensions `k n`"),
        ("aten.relu", (MATRIX,), {"dmi": 1}, "no parameter 'dmi'"),
        ("aten.sum.dim_IntList", (MATRIX,), {"dim": (1,), "keep_dim": True}, r"did you mean 'keepdim'\?"),
        ("aten.amax", (MATRIX,), {"dim": (2,)}, "selects dimension 2 of a tensor of rank 2"),
        ("aten.add.Tensor", (MATRIX, TensorMeta((5,), "f32")), {}, "disagree in dimension -1 .*: 6 and 5"),
        ("aten.view", (MATRIX,), {"size": (5, 5)}, r"24 elements cannot be viewed as shape \[5, 5\]"),
        ("aten.slice.Tensor", (MATRIX,), {"end": 2.5}, "argument 'end' is 2.5; expected integers"),
        (
            "aten.reluu",
            (MATRIX,),
            {},
            r"op aten.reluu has no sharding rule; .*; did you mean 'aten.relu'\?",
        ),
        ("aten.index.Tensor", (MATRIX, TensorMeta((4, 6), "i1")), {}, "has another form; expected a list of tensors"),
    ],
)
def test_a_call_that_does_not_fit_is_rejected(op: str, operands: tuple, arguments: dict, message: str):
    rules = default()
    with pytest.raises(RuleError, match=message):
        rules.instantiate(rules.infer_call(op, operands, arguments))


def test_a_boolean_index_is_rejected():
    rules = default()
    with pytest.raises(RuleError, match="depends on the data"):
        rules.infer_call("aten.index.Tensor", (MATRIX, TensorMeta((4, 6), "i1")), {}, (1, (1,)))


def test_an_argument_of_another_kind_is_rejected_after_one_that_python_takes_for_equal():
    def call(dim: Literal) -> Call:
        return Call("aten.argmax", (TensorMeta((4, 6), "f32"),), (("dim", dim),), (TensorMeta((4,), "i64"),))

    assert default().instantiate(call(1))
    with pytest.raises(RuleError, match="argument 'dim' is true; expected an integer"):
        default().instantiate(call(True))
