"""What is declared of inexact steps, followed to the results of a program."""

from __future__ import annotations

import itertools
from typing import ClassVar

import attrs
import pytest
import torch

import spmdir
from spmdir.core.dtype import DType
from spmdir.dialects.aten import AtenOp
from spmdir.placement import UNKNOWN, Edge, ErrorBound, PartialPlacement
from spmdir.report.output_errors import EPSILON, GROWTH
from spmdir.torch_interop.dtypes import TORCH_DTYPES


@attrs.frozen
class Rough(PartialPlacement):
    text: ClassVar[str] = "Rough({parts})"
    parts: int

    @property
    def error(self):  # type: ignore[override]
        return (
            UNKNOWN if self.parts == 0 else ErrorBound(lambda shape, count: 1 / self.parts / shape[0], "l2", "result")
        )

    def edges(self):
        yield Edge(lambda x, group: x, source="P(sum)")
        yield Edge(lambda x, group: group.all_reduce(x), target="R", by="all_reduce")


PROGRAM = """
spmd.mesh @mesh <tp = 2>
func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh, tp: Rough(PARTS)>},
             %y: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<RESULTxf32> {
  %z = spmd.reshard %x : tensor<4x8xf32> <>
  BODY
  return %r : tensor<RESULTxf32>
}
"""

BOUND = "at most {} of the norm of the exact value (l2), from Rough(2) to R at <text>:5:3"


def errors(body: str, result: str = "4x8", parts: int = 2) -> list[str]:
    text = PROGRAM.replace("PARTS", str(parts)).replace("RESULT", result).replace("BODY", body)
    module = spmdir.run_passes(spmdir.parse(text), "propagate,insert-reshard,lower-reshard")
    return list(map(str, spmdir.report.comm_report(module).errors))


@pytest.mark.parametrize(
    ("body", "result", "bound"),
    [
        ("%r = aten.relu(%z) : tensor<4x8xf32>", "4x8", "0.125"),
        ("%r = aten.permute(%z) {dims = [1, 0]} : tensor<8x4xf32>", "8x4", "0.125"),
        ("%r = aten.mul.Scalar(%z) {other = -3} : tensor<4x8xf32>", "4x8", "0.375"),
        ("%r = aten.div.Scalar(%z) {other = 4} : tensor<4x8xf32>", "4x8", "0.0312"),
        ("%r = aten.sub.Tensor(%y, %z) {alpha = 2} : tensor<4x8xf32>", "4x8", "0.25"),
        ("%r = aten.add.Tensor(%z) {other = 1.0, alpha = 0.5} : tensor<4x8xf32>", "4x8", "0.125"),
        ("%r = aten.rsub.Scalar(%z) {other = 1.0, alpha = -1000} : tensor<4x8xf32>", "4x8", "125"),
        ("%r = aten.leaky_relu(%z) {negative_slope = 1000} : tensor<4x8xf32>", "4x8", "125"),
        ("%r = aten.leaky_relu(%z) : tensor<4x8xf32>", "4x8", "0.125"),
        ("%r = aten.sum.dim_IntList(%z) {dim = [0]} : tensor<8xf32>", "8", "0.5"),
        ("%r = aten.mean.dim(%z) {dim = [0]} : tensor<8xf32>", "8", "0.125"),
    ],
)
def test_an_error_grows_by_what_the_ops_after_it_do(body: str, result: str, bound: str) -> None:
    assert errors(body, result) == [f"result 0: error {BOUND.format(bound)}"]


def test_the_errors_of_both_operands_of_a_sum_add_up() -> None:
    once = BOUND.format("0.125")
    assert errors("%r = aten.add.Tensor(%z, %z) : tensor<4x8xf32>") == [f"result 0: error {once} + {once}"]


def test_a_product_with_another_tensor_ends_what_is_known_and_says_where() -> None:
    (error,) = errors("%r = aten.mul.Tensor(%z, %y) : tensor<4x8xf32>")
    assert error == (
        "result 0: error unknown: the growth of the error in aten.mul.Tensor at <text>:6:3 depends on the "
        "values of operands"
    )


def test_a_conversion_to_integers_ends_what_is_known() -> None:
    (error,) = errors(
        "%i = aten._to_copy(%z) {dtype = i64} : tensor<4x8xi64>\n%r = aten._to_copy(%i) {dtype = f32} : tensor<4x8xf32>"
    )
    assert error == (
        "result 0: error unknown: no limit is known for the growth of the error in aten._to_copy at <text>:6:3 "
        "from f32 to i64"
    )


def test_a_conversion_to_fewer_digits_adds_its_rounding() -> None:
    (error,) = errors(
        "%i = aten._to_copy(%z) {dtype = bf16} : tensor<4x8xbf16>\n"
        "%r = aten._to_copy(%i) {dtype = f32} : tensor<4x8xf32>"
    )
    assert error == (
        f"result 0: error {BOUND.format('0.126')} + at most 0.00781 of the largest absolute element (max), "
        "from f32 to bf16 at <text>:6:3"
    )


ARGUMENTS = {
    "aten.rsub.Scalar": {"other": 2.0, "alpha": -1000.0},
    "aten.leaky_relu": {"negative_slope": 1000.0},
    "aten.clamp": {"min": -0.5, "max": 0.5},
    "aten.clamp_max": {"max": 0.5},
    "aten.clamp_min": {"min": -0.5},
    "aten._to_copy": {"dtype": "f64"},
    "aten.slice.Tensor": {"dim": 1, "start": 1, "end": 6, "step": 2},
    "aten.select.int": {"dim": 1, "index": 2},
    "aten.flip": {"dims": [0]},
    "aten.roll": {"shifts": [2], "dims": [1]},
    **{f"aten.{name}": {"dim": [0]} for name in ("amax", "amin", "mean.dim", "sum.dim_IntList")},
    **{f"aten.{name}.Tensor": {"alpha": -3.0} for name in ("add", "sub")},
    **{f"aten.{name}.Scalar": {"other": 2.0, "alpha": -3.0} for name in ("add", "sub")},
    **{f"aten.{name}.{kind}": {"other": -0.25} for name in ("mul", "div") for kind in ("Tensor", "Scalar")},
}
"""Op → its arguments besides tensors."""

TENSORS = {f"aten.{name}": "%x, %y" for name in ("add.Tensor", "sub.Tensor", "maximum", "minimum")} | {
    f"aten.{name}": "[%x, %y]" for name in ("cat", "stack")
}
"""Op → its tensors, where it does not take one."""


@pytest.mark.parametrize("name", sorted(GROWTH))
def test_no_error_grows_by_more_than_the_table_says(name: str) -> None:
    arguments, tensors = ARGUMENTS.get(name, {}), TENSORS.get(name, "%x")
    count, is_list = tensors.count("%"), "[" in tensors
    written = ", ".join(f"{key} = {value}" for key, value in arguments.items())
    keywords = {**arguments, "dtype": torch.float64} if "dtype" in arguments else arguments
    run = getattr(getattr(torch.ops.aten, name.split(".")[1]), (*name.split("."), "default")[2])

    def values(inputs: list[torch.Tensor]) -> torch.Tensor:
        return run(inputs, **keywords) if is_list else run(*inputs, **keywords)

    shape = "".join(f"{size}x" for size in values([torch.zeros(4, 8)] * count).shape)
    module = spmdir.parse(f"""
      spmd.mesh @mesh <tp = 1>
      func.func @f(%x: tensor<4x8xf64>, %y: tensor<4x8xf64>) -> tensor<{shape}f64> {{
        %r = {name}({tensors}) {{{written}}} : tensor<{shape}f64>
        return %r : tensor<{shape}f64>
      }}""")
    (op,) = (op for op in module.walk() if isinstance(op, AtenOp))
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(4, 8, dtype=torch.float64, generator=generator) for _ in range(count)]
    for scale, index in itertools.product((1e-3, 1.0, 10.0), range(count)):
        random = scale * (2 * torch.rand(4, 8, dtype=torch.float64, generator=generator) - 1)
        for error in (random, torch.full_like(random, scale)):
            inexact = [value + error * (at == index) for at, value in enumerate(exact)]
            grown = (values(inexact) - values(exact)).abs().max()
            assert grown <= GROWTH[name](op, index) * error.abs().max() * (1 + 1e-9)


@pytest.mark.parametrize("dtype", EPSILON, ids=str)
def test_rounding_moves_two_values_apart_by_no_more_than_is_counted(dtype: DType) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 1 + torch.rand(1000, dtype=torch.float64, generator=generator)
    y, to = x + 1e-9, TORCH_DTYPES[dtype]
    apart = (x.to(to).double() - y.to(to).double()).abs().max()
    assert apart <= 1e-9 * (1 + EPSILON[dtype]) + EPSILON[dtype] * x.abs().max()
    assert EPSILON[dtype] == torch.finfo(to).eps


def test_what_no_bound_is_declared_for_is_unknown_in_all_that_follows() -> None:
    (error,) = errors("%r = aten.relu(%z) : tensor<4x8xf32>", parts=0)
    assert error == "result 0: error unknown: the step from Rough(0) to R at <text>:5:3 declares no error bound"


def test_a_result_that_no_inexact_step_has_a_part_in_is_not_listed() -> None:
    assert errors("%r = aten.relu(%y) : tensor<4x8xf32>") == []
