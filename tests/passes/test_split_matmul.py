"""What split-matmul makes of a layer computes the same, in fewer modelled seconds."""

from __future__ import annotations

import torch

import spmdir
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.dialects import ir
from spmdir.reshard.topology import H100X8
from spmdir.rules.rule_set import default
from spmdir.schedule.simulate import simulate

ROWS = "#spmd.sharding<@mesh, dp: S(0), tp: S(1)>"


def layer(batch: int, seq: int, width: int, dtype: str) -> str:
    """A gated layer over rows that are sharded, between two products, with the gradients of one weight."""
    rows, inside = f"tensor<{batch}x{seq}x{width}x{dtype}>", f"tensor<{batch}x{seq}x{3 * width}x{dtype}>"
    square, up, down = (f"tensor<{a}x{b}x{dtype}>" for a, b in ((width, width), (width, 3 * width), (3 * width, width)))
    return f"""spmd.mesh @mesh <dp = 2, tp = 4>
func.func @main(%x: {rows} {{spmd.sharding = {ROWS}}}, %w: {square} {{spmd.sharding = #spmd.sharding<@mesh>}},
                %gate: {up} {{spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}},
                %up: {up} {{spmd.sharding = #spmd.sharding<@mesh, tp: S(1)>}},
                %down: {down} {{spmd.sharding = #spmd.sharding<@mesh, tp: S(0)>}}) -> ({rows}, {up}) {{
  %h = aten.matmul(%x, %w) : {rows} <dp: S(0), tp: S(1)>
  %g = spmd.all_gather %h on [tp] dim 1 : {rows} <dp: S(0)>
  %0 = aten.matmul(%g, %gate) : {inside} <dp: S(0), tp: S(2)>
  %1 = aten.matmul(%g, %up) : {inside} <dp: S(0), tp: S(2)>
  %2 = aten.mul.Tensor(%0, %1) : {inside} <dp: S(0), tp: S(2)>
  %3 = aten.matmul(%2, %down) : {rows} <dp: S(0), tp: P(sum)>
  %4 = spmd.reduce_scatter %3 on [tp] dim 1 op sum : {rows} <dp: S(0), tp: S(1)>
  %5 = aten.matmul(%4, %w) : {rows} <dp: S(0), tp: S(1)>
  %6 = aten.einsum([%g, %2]) {{equation = "abc,abd->cd"}} : {up} <tp: S(1), dp: P(sum)>
  %7 = spmd.all_reduce %6 on [dp] op sum : {up} <tp: S(1)>
  return %5, %7 : {rows}, {up}
}}"""


def test_a_layer_computes_the_same_on_all_ranks():
    torch.manual_seed(0)
    shapes = ((4, 8, 6), (6, 6), (6, 18), (6, 18), (18, 6))
    inputs = [torch.randn(*shape, dtype=torch.float64) for shape in shapes]
    plain, split = (spmdir.parse(layer(4, 8, 6, "f64")) for _ in range(2))
    spmdir.run_passes(split, "split-matmul{always=true},localize,verify-spmd")
    assert {"rotate", "all_reduce"} == spmdir.report.comm_report(split).by_kind.keys()
    found, expected = spmdir.simulate(split, inputs), spmdir.simulate(plain, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def seconds(passes: str) -> float:
    module = spmdir.run_passes(spmdir.parse(layer(2, 8192, 4096, "bf16")), passes)
    return simulate(rank_program(ir.main_function(module), ir.mesh(module), default(), H100X8)[0]).seconds


def test_a_layer_takes_less_time_and_no_other_choice_of_it_takes_less():
    plain, split, always = map(seconds, ("localize", "split-matmul,localize", "split-matmul{always=true},localize"))
    assert split < plain
    assert split <= always


SEVERAL_RESULTS = """spmd.mesh @mesh <a = 2>
func.func @main(%x: tensor<6x7xf64> {spmd.sharding = #spmd.sharding<@mesh, a: S(0)>},
                %y: tensor<6xi64> {spmd.sharding = #spmd.sharding<@mesh>},
                %w: tensor<7xf64> {spmd.sharding = #spmd.sharding<@mesh>}) -> tensor<f64> {
  %g = spmd.all_gather %x on [a] dim 0 : tensor<6x7xf64> <>
  %l, %t = aten.nll_loss_forward(%g, %y, %w) {ignore_index = -100, reduction = 1} : tensor<f64> <>, tensor<f64> <>
  return %l : tensor<f64>
}"""
"""An op that contracts, behind an all_gather, and has two results."""


def test_an_op_of_two_results_is_left_alone():
    inputs = [torch.randn(6, 7, dtype=torch.float64), torch.randint(0, 7, (6,)), torch.rand(7, dtype=torch.float64)]
    module = spmdir.run_passes(spmdir.parse(SEVERAL_RESULTS), "split-matmul{always=true},localize,verify-spmd")
    assert {"all_gather"} == spmdir.report.comm_report(module).by_kind.keys()
    (loss,) = spmdir.simulate(module, inputs)
    torch.testing.assert_close(loss, torch.nn.functional.nll_loss(*inputs))
