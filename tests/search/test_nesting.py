"""Axes that shard one dimension nest in the order in which the reshards around take least time."""

from __future__ import annotations

from typing import Any

import pytest

from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.passes import mesh_search
from spmdir.pipeline.pipeline import run_passes
from spmdir.report.communication import comm_report
from spmdir.reshard import plan_tree
from spmdir.search import nesting

PIPELINE = "propagate{topology=flat},insert-reshard,lower-reshard{topology=flat}"
PROGRAM = """spmd.mesh @mesh <a = 2, b = 2, c = 2>
func.func @main(%x: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, c: S(0), b: S(0)>},
                %y: tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), c: S(1)>})
    -> (tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), c: S(0), b: S(0)>},
        tensor<512x512xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: S(1), c: S(1)>}) {
  %0 = aten.add.Tensor(%x, %y) : tensor<512x512xf32>
  %1 = aten.relu(%0) : tensor<512x512xf32>
  %2 = aten.mul.Tensor(%1, %1) : tensor<512x512xf32>
  return %1, %2 : tensor<512x512xf32>, tensor<512x512xf32>
}
"""


def _wire_bytes(text: str) -> float:
    return comm_report(run_passes(ir.parse(text), PIPELINE), "flat").wire_bytes


def test_orders_that_requests_leave_open_are_those_of_least_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_search, "nest", lambda *problem: nesting.nest(*problem[:4]))
    assert _wire_bytes(PROGRAM) == 327680
    monkeypatch.setattr(nesting, "TRIES", 0)
    assert _wire_bytes(PROGRAM) == 491520


def test_orders_that_bounds_rule_out_are_not_planned_and_would_not_have_been_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned: list[object] = []

    def counted(meta: TensorMeta, *reshards: Any) -> plan_tree.PlanTree:
        planned.append(reshards)
        return plan_tree.plan_tree(meta, *reshards)

    monkeypatch.setattr(nesting, "plan_tree", counted)
    pruned, count = ir.print_ir(run_passes(ir.parse(PROGRAM), PIPELINE)), len(planned)
    monkeypatch.setattr(nesting, "_least_seconds", lambda *reshards: 0.0)
    assert ir.print_ir(run_passes(ir.parse(PROGRAM), PIPELINE)) == pruned
    assert 0 < count < len(planned) - count


def test_annotated_orders_stay_although_others_would_take_less_time() -> None:
    text = """spmd.mesh @mesh <a = 2, b = 2>
func.func @main(%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>})
    -> (tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, b: S(0), a: S(0)>}) {
  %0 = aten.relu(%x) : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}
"""
    text = ir.print_ir(run_passes(ir.parse(text), PIPELINE))
    assert "%x: tensor<8x8xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>}" in text
    assert "spmd.permute" in text


def test_orders_that_the_search_priced_are_tried_and_the_objective_is_that_of_what_is_emitted() -> None:
    text = """spmd.mesh @mesh <a = 3, b = 2>
func.func @f(%a0: tensor<128x1024xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(1), b: S(0)>},
  %a1: tensor<1024x3xf32>, %a2: tensor<3x7xf32>)
    -> (tensor<128x7xf32> {spmd.sharding = #spmd.sharding<@mesh, a: S(0), b: S(0)>}) {
  %0 = aten.mm(%a0, %a1) : tensor<128x3xf32>
  %1 = aten.add.Tensor(%0, %0) : tensor<128x3xf32>
  %2 = aten._softmax(%a0) {dim = 1, half_to_float = false} : tensor<128x1024xf32>
  %3 = aten.mm(%0, %a2) : tensor<128x7xf32>
  return %3 : tensor<128x7xf32>
}
"""
    module = run_passes(ir.parse(text), "propagate,insert-reshard,lower-reshard")
    objective = comm_report(module).objective
    assert objective is not None
    assert comm_report(module).seconds < objective < 0.04e-3
