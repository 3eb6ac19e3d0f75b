"""Which partial reductions pass through which op: each decision beside numbers that show why."""

import math
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from spmdir.checking.rules.soundness import meta
from spmdir.core import dtype as dtypes
from spmdir.core.dtype import DType
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.rule_set import default
from spmdir.torch_interop.schemas import torch_op

INF, NAN = math.inf, math.nan
F32 = torch.float32


def t(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@attrs.frozen(eq=False)
class Case:
    """An op, what each of two ranks holds of each operand, and the strategy in question.

    An operand that is one tensor is replicated. The op passes the reductions of `row` if, for these numbers, the
    reduction of what the ranks get is what the op gives for the reduction of what they hold.
    """

    sentence: str
    op: str
    operands: tuple[Any, ...]
    row: str
    passes: bool
    arguments: dict[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return self.sentence


CASES = [
    Case("a number is added to a sum once", "aten.add.Scalar", ((t(1), t(2)),), "(P(sum)) -> (P(sum))", False,
         {"other": 1.0}),
    Case("zero may be added to a sum by every rank", "aten.add.Scalar", ((t(1), t(2)),), "(P(sum)) -> (P(sum))", True,
         {"other": 0}),
    Case("a sum divided by 0 is infinite, its partials of either sign", "aten.div.Scalar", ((t(1), t(-3)),),
         "(P(sum)) -> (P(sum))", False, {"other": 0}),
    Case("a number may be 0 in the result's type alone", "aten.div.Scalar", ((t(1, dtype=F32), t(-3, dtype=F32)),),
         "(P(sum)) -> (P(sum))", False, {"other": 1e-50}),
    Case("a sum may be divided by any other number", "aten.div.Tensor", ((t(1), t(-3)),),
         "(P(sum)) -> (P(sum))", True, {"other": -0.5}),
    Case("partials of either sign become infinities of either sign", "aten.mul.Scalar", ((t(1), t(-3)),),
         "(P(sum)) -> (P(sum))", False, {"other": INF}),
    Case("infinite numbers also multiply what is added", "aten.add.Tensor", ((t(1), t(2)), (t(5), t(-3))),
         "(P(sum), P(sum)) -> (P(sum))", False, {"alpha": INF}),
    Case("a number may be infinite in the result's type alone", "aten.mul.Scalar",
         ((t(1, dtype=F32), t(-3, dtype=F32)),), "(P(sum)) -> (P(sum))", False, {"other": 1e39}),
    Case("an integer may be infinite in the result's type too", "aten.mul.Scalar",
         ((t(1, dtype=torch.float16), t(-3, dtype=torch.float16)),), "(P(sum)) -> (P(sum))", False, {"other": 100000}),
    Case("0 times a sum is 0", "aten.mul.Scalar", ((t(1), t(-3)),), "(P(sum)) -> (P(sum))", True, {"other": 0}),
    Case("a slope of 0 makes nan of an infinity", "aten.leaky_relu", ((t(-INF), t(2)),),
         "(P(max)) -> (P(max))", False, {"negative_slope": 0.0}),
    Case("two partial sums are added", "aten.add.Tensor", ((t(1), t(2)), (t(5), t(-3))),
         "(P(sum), P(sum)) -> (P(sum))", True),
    Case("a tensor is added to a sum once", "aten.add.Tensor", ((t(1), t(2)), t(5)), "(P(sum), R) -> (P(sum))", False),
    Case("a number is added to a partial maximum", "aten.add.Scalar", ((t(-INF, NAN, 3), t(2, 1, 5)),),
         "(P(max)) -> (P(max))", True, {"other": 1.5}),
    Case("an infinite number makes nan of a rank's other infinity", "aten.add.Scalar", ((t(-INF), t(2)),),
         "(P(max)) -> (P(max))", False, {"other": INF}),
    Case("a tensor may hold the other infinity and make nan of it", "aten.add.Tensor", ((t(-INF), t(2)), t(INF)),
         "(P(max), R) -> (P(max))", False),
    Case("integers wrap when a number is added to a maximum", "aten.add.Scalar", ((ints(2**63 - 1), ints(0)),),
         "(P(max)) -> (P(max))", False, {"other": 1}),
    Case("the least integer has no negative", "aten.neg", ((ints(-(2**63)), ints(0)),), "(P(max)) -> (P(min))", False),
    Case("a negative turns a maximum into a minimum", "aten.neg", ((t(-INF, NAN), t(3, 2)),),
         "(P(max)) -> (P(min))", True),
    Case("a factor passes a sum", "aten.mul.Scalar", ((t(1), t(2)),), "(P(sum)) -> (P(sum))", True, {"other": -3}),
    Case("integer sums wrap alike before and after a factor", "aten.mul.Scalar", ((ints(2**62), ints(2**62 - 1)),),
         "(P(sum)) -> (P(sum))", True, {"other": 3}),
    Case("a positive factor passes a maximum", "aten.mul.Scalar", ((t(-INF, 1), t(2, 0)),), "(P(max)) -> (P(max))",
         True, {"other": 2.0}),
    Case("an infinite factor makes nan of a rank's zero", "aten.mul.Scalar", ((t(0), t(2)),), "(P(max)) -> (P(max))",
         False, {"other": INF}),
    Case("integers wrap under a factor", "aten.mul.Scalar", ((ints(2**62), ints(1)),), "(P(max)) -> (P(max))", False,
         {"other": 2}),
    Case("a product of two partial sums is no sum of products", "aten.mul.Tensor", ((t(1), t(2)), (t(5), t(3))),
         "(P(sum), P(sum)) -> (P(sum))", False),
    Case("a product of two partial products is one", "aten.mul.Tensor", ((t(4), t(2)), (t(5), t(3))),
         "(P(product), P(product)) -> (P(product))", True),
    Case("a quotient passes a sum", "aten.div.Tensor", ((t(1), t(2)), t(4)), "(P(sum), R) -> (P(sum))", True),
    Case("integers are rounded before they are divided", "aten.div.Scalar",
         ((ints(2**60, dtype=torch.int64), ints(1 - 2**60)),), "(P(sum)) -> (P(sum))", False, {"other": 2}),
    Case("a floored quotient is no sum of floored ones", "aten.div.Scalar_mode", ((t(1), t(1)),),
         "(P(sum)) -> (P(sum))", False, {"other": 2, "rounding_mode": "floor"}),
    Case("the floor of an infinite quotient is nan", "aten.div.Scalar_mode", ((t(INF), t(1)),),
         "(P(min)) -> (P(min))", False, {"other": 2, "rounding_mode": "floor"}),
    Case("a truncated quotient passes a minimum", "aten.div.Scalar_mode", ((t(INF, -3), t(1, 5)),),
         "(P(min)) -> (P(min))", True, {"other": 2, "rounding_mode": "trunc"}),
    Case("relu passes a maximum, nan and infinities too", "aten.relu", ((t(-INF, NAN, -1, 0), t(2, 1, -2, INF)),),
         "(P(max)) -> (P(max))", True),
    Case("relu of a sum is not a sum", "aten.relu", ((t(1), t(-2)),), "(P(sum)) -> (P(sum))", False),
    Case("an absolute value passes no maximum", "aten.abs", ((t(-5), t(2)),), "(P(max)) -> (P(max))", False),
    Case("an absolute value passes a product", "aten.abs", ((t(-5), t(2)),), "(P(product)) -> (P(product))", True),
    Case("a logarithm is nan where a rank holds what it is undefined on", "aten.log", ((t(-1), t(2)),),
         "(P(max)) -> (P(max))", False),
    Case("the sign of nan is 0", "aten.sign", ((t(NAN), t(2)),), "(P(max)) -> (P(max))", False),
    Case("the sign of an integer passes a maximum", "aten.sign", ((ints(-4), ints(2)),), "(P(max)) -> (P(max))", True),
    Case("a maximum of two passes a maximum in both", "aten.maximum", ((t(1, NAN), t(2, 1)), (t(5, 1), t(-3, 1))),
         "(P(max), P(max)) -> (P(max))", True),
    Case("a maximum of two passes a minimum in one", "aten.maximum", ((t(1, NAN), t(2, 1)), t(1.5, 0)),
         "(P(min), R) -> (P(min))", True),
    Case("fmax forgets nan, which a maximum keeps", "aten.fmax", ((t(NAN), t(2)), t(1)), "(P(max), R) -> (P(max))",
         False),
    Case("a leaky relu with a negative slope is not monotone", "aten.leaky_relu", ((t(-3), t(1)),),
         "(P(max)) -> (P(max))", False, {"negative_slope": -1}),
    Case("a leaky relu is monotone", "aten.leaky_relu", ((t(-3, NAN), t(1, 0)),), "(P(max)) -> (P(max))", True),
    Case("a threshold that lifts what is below it is not monotone", "aten.threshold", ((t(-3), t(1)),),
         "(P(max)) -> (P(max))", False, {"threshold": 0, "value": 7}),
    Case("a choice passes all reductions", "aten.where.self", (torch.tensor([True, False]), (t(3, 1), t(2, 9)),
         (t(4, 1), t(3, 5))), "(R, P(product), P(product)) -> (P(product))", True),
    Case("a filled number is not part of a sum", "aten.masked_fill.Scalar", ((t(1), t(2)), torch.tensor([True])),
         "(P(sum), R) -> (P(sum))", False, {"value": 1}),
    Case("sums in f32 are cast to f64 before or after", "aten._to_copy",
         ((t(1, dtype=torch.float32), t(2, dtype=torch.float32)),), "(P(sum)) -> (P(sum))", True,
         {"dtype": dtypes.F64}),
    Case("a cast to bf16 rounds each part", "aten._to_copy",
         ((t(257, dtype=torch.float32), t(-256, dtype=torch.float32)),), "(P(sum)) -> (P(sum))", False,
         {"dtype": dtypes.BF16}),
    Case("a cast to bf16 passes a maximum", "aten._to_copy",
         ((t(257, dtype=torch.float32), t(256, dtype=torch.float32)),), "(P(max)) -> (P(max))", True,
         {"dtype": dtypes.BF16}),
    Case("large integers are rounded as f32", "aten._to_copy", ((ints(2**40 + 1), ints(-(2**40))),),
         "(P(sum)) -> (P(sum))", False, {"dtype": dtypes.F32}),
    Case("integers passed their end before they are widened", "aten._to_copy",
         ((ints(2**31 - 1, dtype=torch.int32), ints(1, dtype=torch.int32)),), "(P(sum)) -> (P(sum))", False,
         {"dtype": dtypes.I64}),
    Case("integers wrap alike before and after they are narrowed", "aten._to_copy", ((ints(2**31 - 1), ints(9)),),
         "(P(sum)) -> (P(sum))", True, {"dtype": dtypes.I32}),
    Case("a narrowed maximum wraps", "aten._to_copy", ((ints(2**31), ints(9)),), "(P(max)) -> (P(max))", False,
         {"dtype": dtypes.I32}),
    Case("a truncated sum is no sum of truncated parts", "aten._to_copy", ((t(0.5), t(0.5)),),
         "(P(sum)) -> (P(sum))", False, {"dtype": dtypes.I64}),
    Case("a sum times a wider tensor is as wide", "aten.mul.Tensor", ((t(1, dtype=torch.float32),
         t(2, dtype=torch.float32)), t(3)), "(P(sum), R) -> (P(sum))", True),
    Case("an integer sum times a floating tensor is rounded first", "aten.mul.Tensor", ((ints(2**60), ints(1 - 2**60)),
         t(3, dtype=torch.float32)), "(P(sum), R) -> (P(sum))", False),
    Case("the real part passes a sum", "aten.real", ((torch.tensor([1 + 2j]), torch.tensor([3 - 5j])),),
         "(P(sum)) -> (P(sum))", True),
    Case("a conjugate passes a sum", "aten._conj_physical", ((torch.tensor([1 + 2j]), torch.tensor([3 - 5j])),),
         "(P(sum)) -> (P(sum))", True),
    Case("an absolute value of complex numbers passes no sum", "aten.abs",
         ((torch.tensor([1 + 2j]), torch.tensor([-3 - 5j])),), "(P(sum)) -> (P(sum))", False),
    Case("the gradient of a gated element passes a sum", "aten.threshold_backward", ((t(1), t(2)), t(3)),
         "(P(sum), R) -> (P(sum))", True, {"threshold": 0}),
    Case("a shifted integer passes a sum", "aten.bitwise_left_shift.Tensor", ((ints(2**61 + 1), ints(2**61)), ints(2)),
         "(P(sum), R) -> (P(sum))", True),
    Case("a shift to the right drops a carry", "aten.bitwise_right_shift.Tensor", ((ints(1), ints(1)), ints(1)),
         "(P(sum), R) -> (P(sum))", False),
    Case("a shift to the right passes a maximum", "aten.bitwise_right_shift.Tensor", ((ints(-5), ints(9)), ints(1)),
         "(P(max), R) -> (P(max))", True),
    Case("what is not so in any is so in all", "aten.logical_not",
         ((torch.tensor([True, False]), torch.tensor([False, False])),), "(P(any)) -> (P(all))", True),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_partial_reduction_passes_where_that_is_exact(case: Case):
    given, gives = (side.strip("() ").replace("(", " ").replace(")", "") for side in case.row.split("->"))
    kinds = [entry.split()[1] if " " in entry.strip() else None for entry in given.split(",")]
    shares = [operand if isinstance(operand, tuple) else (operand, operand) for operand in case.operands]
    arguments = {k: getattr(torch, TORCH[v.name]) if isinstance(v, DType) else v for k, v in case.arguments.items()}
    names = [a.name for a in torch_op(case.op)._schema.arguments]

    def run(tensors: list[Tensor]) -> Tensor:
        numbers = iter(tensors)
        values = {n: arguments.get(n) if n in arguments else next(numbers, None) for n in names}
        return torch_op(case.op)(**{n: v for n, v in values.items() if v is not None})

    combine = [REDUCTIONS[kind].combine if kind else (lambda a, _: a) for kind in kinds]
    whole = run([f(*share) for f, share in zip(combine, shares, strict=True)])
    ranks = [run([share[rank] for share in shares]) for rank in (0, 1)]
    found = REDUCTIONS[gives.split()[1]].combine(*ranks)
    exact = bool(torch.allclose(found, whole, rtol=1e-12, atol=0, equal_nan=True))
    assert exact == case.passes, f"the numbers do not show it: {found} and {whole}"

    metas: tuple[TensorMeta, ...] = tuple(meta(share[0]) for share in shares)
    rules = default()
    call = attrs.evolve(rules.infer_call(case.op, metas, case.arguments), results=(meta(whole),))
    rule = rules.instantiate(call)
    assert rule is not None
    assert (case.row in map(str, rule.strategies(2))) == case.passes, rule.text()


TORCH = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "i64": "int64", "i32": "int32"}
