"""The table of element types: it says what torch does, of every op that has a rule, and programs are checked by it."""

from __future__ import annotations

import pickle

import pytest

from spmdir.checking.rules.captured import capture
from spmdir.checking.rules.dtype_fit import fit, violations
from spmdir.checking.rules.dtype_trials import trials
from spmdir.checking.rules.samples import all_samples
from spmdir.checking.rules.samples.sample import Sample
from spmdir.checking.rules.soundness import call_of
from spmdir.core import dtype as dt
from spmdir.core.errors import RuleError
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.element_types import TABLE, parse, signature, signatures
from spmdir.rules.instantiate import choose_rule
from spmdir.rules.language.promotion import dtype_mismatch
from spmdir.rules.rule_set import default
from spmdir.torch_interop.dtypes import TORCH_DTYPES

DERIVED_AGAIN = """
    aten.mm aten.add.Tensor aten.add.Scalar aten.div.Tensor_mode aten.floor_divide aten.eq.Tensor aten.where.self
    aten.gather aten.embedding aten.sum aten.mean aten.argmax aten._softmax aten.softmax.int aten.abs aten.angle
    aten._to_copy aten.full aten.arange aten.cat aten.native_layer_norm aten.topk aten.bitwise_and.Tensor aten.cumsum
    aten.native_layer_norm_backward aten._scaled_dot_product_flash_attention_for_cpu_backward
"""
"""Ops that stand for all: the table is derived from torch by `make op-table`, which takes minutes."""

LINES = """
    aten.mm [same self mat2] -> self
    aten.gather [index: i64 i32] -> self
    aten.sum -> dtype or sum(self)
    aten.div.Tensor_mode {rounding_mode = none} -> float(self, other)
    aten.mean [self: float complex unless dtype] -> dtype or self
    aten.topk [self: float int] -> self, i64
    aten.native_layer_norm [same weight bias; input: float] -> input, wide(input) | weight, ?
    aten._softmax {half_to_float = true} [self: f16 bf16] -> f32
"""


@pytest.fixture(scope="module")
def samples() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in all_samples(default()):
        found.setdefault(sample.op, []).append(sample)
    return found


@pytest.mark.parametrize("line", [line.strip() for line in LINES.splitlines() if line.strip()])
def test_a_line_is_read_and_spelled_alike(line: str):
    assert str(parse(line)) == line


def test_the_table_has_every_op_that_has_a_rule_and_is_spelled_as_it_would_be_written():
    lines = TABLE.read_text().splitlines()
    assert [str(parse(line)) for line in lines] == lines
    assert {parse(line).op for line in lines} == {*default().records}
    unchecked = {parse(line).op for line in lines if not any(parse(line).results)}
    assert len(unchecked) < 0.03 * len(default().records), unchecked


@pytest.mark.parametrize("op", DERIVED_AGAIN.split())
def test_the_table_says_what_the_installed_torch_does(op: str, samples: dict[str, list[Sample]]):
    found = trials(samples[op])
    assert len(found) > 10
    assert [str(line) for line in fit(op, found)] == [str(line) for line in signatures(op)]
    assert violations(signatures(op), found)[0] == []


def test_what_rules_declare_of_results_is_what_the_table_says(samples: dict[str, list[Sample]]):
    checked = 0
    for op, listed in samples.items():
        call, _, _ = call_of(listed[0])
        rule, binding = choose_rule(default().alternatives(op), call) or (None, None)
        if rule is None or binding is None or not any(result.dtype for result in rule.results):
            continue
        known = signature(op, binding.arguments)
        named = {name: tuple(call.operands[i] for i in binding.operands(name)) for name in binding.tensors}
        for index, meta in enumerate(call.results):
            declared = rule.results[0 if rule.result_list else index].dtype
            expected = known.expected(index, named, binding.arguments) if known and declared and meta else ()
            if expected:
                wrong = [dtype_mismatch(each, declared, index, binding, call.operands) for each in expected]
                assert None in wrong, (op, index, wrong, expected)
                checked += 1
    assert checked > 150


@pytest.mark.parametrize("index", range(5, 600, 60))
def test_no_call_of_the_samples_of_torch_is_rejected_in_any_element_type(index: int):
    types = [TORCH_DTYPES[dtype] for dtype in dt.DTYPES.values()]
    for op, _, pickled in capture(index, frozenset(default().records), types):
        sample = pickle.loads(pickled)
        call, _, _ = call_of(sample)
        default().instantiate(call)
        assert signatures(op)


FULL, BF16, I64, I32, I1 = (TensorMeta((4,), dtype) for dtype in (dt.F32, dt.BF16, dt.I64, dt.I32, dt.I1))
SCALAR = TensorMeta((), dt.F64)


@pytest.mark.parametrize(
    ("op", "operands", "arguments", "result", "message"),
    [
        ("aten.mm", {"self": FULL, "mat2": BF16}, {}, dt.F32, "'self' has f32, 'mat2' has bf16; expected one type"),
        ("aten.add.Tensor", {"self": FULL, "other": I64}, {}, dt.I32, "has the element type i32; expected f32"),
        ("aten.add.Tensor", {"self": I32, "other": SCALAR}, {}, dt.F64, None),
        ("aten.add.Tensor", {"self": BF16, "other": SCALAR}, {}, dt.F64, "f64; expected bf16"),
        ("aten.add.Tensor", {"self": I64}, {"other": 1.5}, dt.I64, "i64; expected f32"),
        ("aten.add.Tensor", {"self": I64}, {"other": 1.5}, dt.F32, None),
        ("aten.add.Tensor", {"self": I1, "other": I1}, {}, dt.I64, "i64; expected i1"),
        ("aten.lt.Tensor", {"self": FULL, "other": FULL}, {}, dt.F32, "f32; expected i1"),
        ("aten.softmax.int", {"self": BF16}, {"dim": 0, "dtype": dt.F32}, dt.BF16, "bf16; expected f32"),
        ("aten.sum", {"self": I32}, {}, dt.I32, "i32; expected i64"),
        ("aten.sum", {"self": I32}, {"dtype": dt.I32}, dt.I32, None),
        ("aten.mean", {"self": I32}, {}, dt.F32, "operand 'self' has element type i32; expected .*or argument 'dtype'"),
        ("aten.mean", {"self": I32}, {"dtype": dt.F32}, dt.F32, None),
        ("aten.gather", {"self": FULL, "index": BF16}, {}, dt.F32, "operand 'index' has element type bf16"),
        ("aten.div.Tensor", {"self": I32, "other": I32}, {}, dt.I32, "i32; expected f32"),
        ("aten.floor_divide", {"self": I32, "other": I32}, {}, dt.F32, "f32; expected i32"),
        ("aten.abs", {"self": TensorMeta((4,), dt.COMPLEX_F32)}, {}, dt.COMPLEX_F32, "complex<f32>; expected f32"),
        ("aten._to_copy", {"self": FULL}, {"dtype": dt.BF16}, dt.F32, "f32; expected bf16"),
        ("aten.bitwise_and.Tensor", {"self": FULL, "other": I32}, {}, dt.F32, "operand 'self' has element type f32"),
        ("aten.add.Tensor", {"self": TensorMeta((4,), dt.F8E5M2), "other": BF16}, {}, dt.BF16, "torch cannot promote"),
    ],
)
def test_what_torch_rejects_or_does_not_give_is_an_error(op, operands, arguments, result, message):
    line = signature(op, arguments)
    assert line is not None
    named = {name: (meta,) for name, meta in operands.items()}
    if message is None:
        line.check(named, arguments, [result])
    else:
        with pytest.raises(RuleError, match=message):
            line.check(named, arguments, [result])
