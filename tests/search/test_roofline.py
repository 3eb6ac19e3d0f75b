"""What ops compute, by their rules and by the ops around them."""

from __future__ import annotations

import pytest

from spmdir.analysis.propagation.build_problem import build_problem
from spmdir.dialects import ir
from spmdir.reshard.topology import FLAT, H100X8, Topology
from spmdir.search.roofline import NO_WORK, Work

MESH = "spmd.mesh @mesh <tp = 4>\n"


def works_of(body: str) -> list[Work]:
    """Return the work of the ops of a function of `%x: 8x16`, `%m: 16x16` and `%i: 4` (integers)."""
    arguments = "%x: tensor<8x16xf32>, %m: tensor<16x16xf32>, %i: tensor<4xi64>"
    lines = body.strip().splitlines()
    last = lines[-1].split(" = ")[0].strip()
    result = lines[-1].rsplit(" : ", 1)[1]
    text = f"{MESH}func.func @f({arguments}) -> {result} {{\n{body}\n  return {last} : {result}\n}}"
    module = ir.parse(text)
    nodes = build_problem(ir.main_function(module), ir.mesh(module), ir.context().rules, H100X8)[1].nodes
    return [node.source.work for node in nodes[3 : 3 + len(lines)]]


SIZE = 8 * 16 * 4.0


@pytest.mark.parametrize(
    ("op", "expected"),
    {
        "aten.mm(%x, %m) : tensor<8x16xf32>": Work(4096, "f32", (SIZE, 1024), (SIZE,), 1, is_contraction=True),
        "aten.view(%x) {size = [128]} : tensor<128xf32>": NO_WORK,
        "aten.exp(%x) : tensor<8x16xf32>": Work(128, "vector", (SIZE,), (SIZE,), 1),
        "aten.sum.dim_IntList(%x) {dim = [1]} : tensor<8xf32>": Work(128, "vector", (SIZE,), (32,), 1),
        "aten.index_select(%m, %i) {dim = 0} : tensor<4x16xf32>": Work(256, "vector", (256, 32), (256,), 1),
    }.items(),
)  # fmt: skip
def test_an_op_is_priced_by_its_rule(op: str, expected: Work) -> None:
    assert works_of(f"  %0 = {op}") == [expected]


def test_a_sum_by_positions_is_no_matrix_product() -> None:
    options = "{num_weights = 1000, padding_idx = -1, scale_grad_by_freq = false}"
    op = f"aten.embedding_dense_backward(%x, %i) {options}"
    listed, result = "%x: tensor<4x16xf32>, %i: tensor<4xi64>", "tensor<1000x16xf32>"
    module = ir.parse(
        f"{MESH}func.func @f({listed}) -> {result} {{\n  %0 = {op} : {result}\n  return %0 : {result}\n}}"
    )
    problem = build_problem(ir.main_function(module), ir.mesh(module), ir.context().rules, H100X8)[1]
    work = problem.nodes[2].source.work
    assert (work.flops, work.unit) == (16000, "vector")


def test_a_chain_of_elementwise_ops_is_one_kernel_that_reads_its_inputs_and_writes_its_outputs_once() -> None:
    first, second, third = works_of("""  %0 = aten.exp(%x) : tensor<8x16xf32>
  %1 = aten.mul.Tensor(%0, %x) : tensor<8x16xf32>
  %2 = aten.neg(%1) : tensor<8x16xf32>""")
    assert (first.operand_bytes, first.result_bytes, first.launches) == ((SIZE,), (0,), 1)
    assert (second.operand_bytes, second.result_bytes, second.launches) == ((0, 0), (0,), 0)
    assert (third.operand_bytes, third.result_bytes, third.launches) == ((0,), (SIZE,), 0)


def test_a_chain_goes_through_views() -> None:
    first, view, second = works_of("""  %0 = aten.exp(%x) : tensor<8x16xf32>
  %1 = aten.view(%0) {size = [128]} : tensor<128xf32>
  %2 = aten.neg(%1) : tensor<128xf32>""")
    assert view == NO_WORK
    assert (first.launches, first.result_bytes, second.launches, second.operand_bytes) == (1, (0,), 0, (0,))


def test_a_value_that_another_kernel_reads_too_is_written() -> None:
    first, _, _ = works_of("""  %0 = aten.exp(%x) : tensor<8x16xf32>
  %1 = aten.mm(%0, %m) : tensor<8x16xf32>
  %2 = aten.add.Tensor(%0, %1) : tensor<8x16xf32>""")
    assert first.result_bytes == (SIZE,)


def test_a_broadcast_operand_is_read_as_it_is_in_memory() -> None:
    _, second = works_of("""  %0 = aten.expand(%x) {size = [32, 8, 16]} : tensor<32x8x16xf32>
  %1 = aten.exp(%0) : tensor<32x8x16xf32>""")
    assert (second.operand_bytes, second.result_bytes) == ((SIZE,), (32 * SIZE,))


@pytest.mark.parametrize(
    ("causal", "flops"), {"false": 4 * 2 * 8 * 16 * 16 * 32, "true": 2 * 2 * 8 * 16 * 16 * 32}.items()
)
def test_causal_attention_does_half_the_work(causal: str, flops: float) -> None:
    tensor = "tensor<2x8x16x32xbf16>"
    arguments = f"%q: {tensor}, %k: {tensor}, %v: {tensor}"
    op = f"aten.scaled_dot_product_attention(%q, %k, %v, none) {{is_causal = {causal}}} : {tensor}"
    module = ir.parse(f"{MESH}func.func @f({arguments}) -> {tensor} {{\n  %0 = {op}\n  return %0 : {tensor}\n}}")
    nodes = build_problem(ir.main_function(module), ir.mesh(module), ir.context().rules, H100X8)[1].nodes
    assert (nodes[3].source.work.flops, nodes[3].source.work.unit) == (flops, "bf16")


def test_the_flops_of_a_convolution_are_those_of_its_windows() -> None:
    arguments = "%x: tensor<2x3x8x8xf32>, %w: tensor<5x3x3x3xf32>"
    op = "aten.conv2d(%x, %w, none) {padding = [1, 1]} : tensor<2x5x8x8xf32>"
    text = (
        f"{MESH}func.func @f({arguments}) -> tensor<2x5x8x8xf32> {{\n  %0 = {op}\n  return %0 : tensor<2x5x8x8xf32>\n}}"
    )
    module = ir.parse(text)
    nodes = build_problem(ir.main_function(module), ir.mesh(module), ir.context().rules, H100X8)[1].nodes
    assert nodes[2].source.work.flops == 2 * 2 * 5 * 3 * 3 * 3 * 8 * 8


def test_time_is_the_longer_of_arithmetic_and_memory_and_a_launch() -> None:
    machine = Topology("m", 1, 1, 0, 0, 0, memory_bandwidth=100.0, launch_latency=3.0, peak_flops={"f32": 10.0})
    work = Work(1000, "f32", (200, 300), (500,), 2)
    assert work.seconds(machine) == 2 * 3 + 1000 / 10
    assert work.terms(machine, 0.01, (1.0, 0.5), (0.1,)) == (2 * 3, 1000 / 10 * 0.01, (200 + 150 + 50) / 100)
    assert work.seconds(FLAT) == 1000 / FLAT.peak("f32")


def test_a_unit_that_a_topology_does_not_name_is_its_vector_unit() -> None:
    assert H100X8.peak("i32") == H100X8.peak("vector")
    assert Topology("m", 1, 1, 0, 0, 0, 1).peak("f32") == float("inf")
