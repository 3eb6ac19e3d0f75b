"""What is declared of inexact steps, followed to the results of a program."""

from __future__ import annotations

from typing import ClassVar

import attrs
import pytest

import spmdir
from spmdir import UNKNOWN, Edge, Error, PartialPlacement


@attrs.frozen
class Rough(PartialPlacement):
    text: ClassVar[str] = "Rough({parts})"
    parts: int

    @property
    def error(self):  # type: ignore[override]
        return UNKNOWN if self.parts == 0 else Error(lambda shape, count: 1 / self.parts / shape[0], "l2", "result")

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
    return list(map(str, spmdir.comm_report(module).errors))


@pytest.mark.parametrize(
    ("body", "result", "bound"),
    [
        ("%r = aten.relu(%z) : tensor<4x8xf32>", "4x8", "0.125"),
        ("%r = aten.permute(%z) {dims = [1, 0]} : tensor<8x4xf32>", "8x4", "0.125"),
        ("%r = aten.mul.Scalar(%z) {other = -3} : tensor<4x8xf32>", "4x8", "0.375"),
        ("%r = aten.div.Scalar(%z) {other = 4} : tensor<4x8xf32>", "4x8", "0.0312"),
        ("%r = aten.sub.Tensor(%y, %z) {alpha = 2} : tensor<4x8xf32>", "4x8", "0.25"),
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
        "result 0: error unknown: how it grows in aten.mul.Tensor at <text>:6:3 depends on other values than the error"
    )


def test_what_no_bound_is_declared_for_is_unknown_in_all_that_follows() -> None:
    (error,) = errors("%r = aten.relu(%z) : tensor<4x8xf32>", parts=0)
    assert error == "result 0: error unknown: no bound is declared from Rough(0) to R at <text>:5:3"


def test_a_result_that_no_inexact_step_has_a_part_in_is_not_listed() -> None:
    assert errors("%r = aten.relu(%y) : tensor<4x8xf32>") == []
