"""The tasks of a rank: their prices are those of the reports, and their buffers those of the memory report."""

from __future__ import annotations

import math

import attrs
import pytest
from xdsl.dialects.builtin import ModuleOp

import spmdir
from benchmarks.programs import Config, shardings, trace
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import Pipeline
from spmdir.reshard.cost import step_terms
from spmdir.reshard.measured_times import parse_costs
from spmdir.reshard.topology import H100X8, Topology
from spmdir.schedule.program import Program, Task
from spmdir.schedule.simulate import simulate

MESH = "spmd.mesh @mesh <dp = 2, tp = 4>\n"
LOWERED = "propagate{memory=none},insert-reshard,lower-reshard"


def tasks_of(module: ModuleOp, topology: Topology = H100X8) -> Program:
    """Return the tasks of a module, which is localized on a copy."""
    local = spmdir.run_passes(spmdir.parse(spmdir.print_ir(module)), "localize")
    pipeline = Pipeline()
    with pipeline.rules:
        return rank_program(ir.main_function(local), ir.mesh(local), pipeline.rules, topology)[0]


def of_text(body: str, topology: Topology = H100X8) -> Program:
    return tasks_of(spmdir.parse(f"{MESH}{body}"), topology)


def sharding(text: str) -> str:
    return f"{{spmd.sharding = #spmd.sharding<@mesh{', ' * bool(text)}{text}>}}"


@pytest.fixture(scope="module")
def llama() -> ModuleOp:
    config = Config(layers=1, dim=128, heads=4, kv_heads=4, ffn=256, seq=128, batch=4, vocab=512, attention="sdpa")
    given, residual = shardings(config, "tp_fsdp")
    graph, *_ = trace(config, residual)
    return spmdir.run_passes(spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given), LOWERED)


PRODUCTS = f"""
func.func @f(%x: tensor<4096x1024xbf16> {sharding("dp: S(0)")}, %v: tensor<1024x4096xbf16> {sharding("tp: S(1)")},
             %w: tensor<4096x1024xbf16> {sharding("tp: S(0)")}) -> (tensor<1024x4096xbf16> {sharding("dp: S(1)")}) {{
  %0 = aten.mm(%x, %v) : tensor<4096x4096xbf16> <dp: S(0), tp: S(1)>
  %1 = aten.neg(%0) : tensor<4096x4096xbf16> <dp: S(0), tp: S(1)>
  %2 = aten.relu(%1) : tensor<4096x4096xbf16> <dp: S(0), tp: S(1)>
  %3 = aten.mm(%2, %w) : tensor<4096x1024xbf16> <dp: S(0), tp: P(sum)>
  %4 = spmd.all_reduce %3 on [tp] op sum : tensor<4096x1024xbf16> <dp: S(0)>
  %5 = aten.t(%4) : tensor<1024x4096xbf16> <dp: S(1)>
  return %5 : tensor<1024x4096xbf16>
}}"""


def test_compute_and_transfers_add_up_to_what_the_cost_report_says_of_the_global_program() -> None:
    module = spmdir.parse(f"{MESH}{PRODUCTS}")
    report, found = spmdir.report.comm_report(module), simulate(tasks_of(module))
    compute = math.fsum(share.seconds for kind, share in report.compute.items() if kind != "inputs")
    assert found.compute_seconds == pytest.approx(compute, rel=1e-12)
    assert found.seconds == pytest.approx(compute + report.seconds, rel=1e-12)


def test_ops_of_a_model_have_the_prices_of_the_cost_report(llama: ModuleOp) -> None:
    """But for reading inputs, elementwise ops on both sides of a collective, and the form of a lookup."""
    report, program = spmdir.report.comm_report(llama), tasks_of(llama)
    others = {"inputs", "aten.mul.Tensor", "aten.add.Tensor", "aten.embedding"}
    kinds = set(report.compute) - others
    assert {"aten.einsum", "aten.silu", "aten.sum.dim_IntList", "aten.embedding_dense_backward", "spmd.slice"} <= kinds
    for kind in kinds:
        seconds = math.fsum(task.seconds for task in program.tasks if task.op == kind)
        assert seconds == pytest.approx(report.compute[kind].seconds, rel=1e-9)


def test_the_peak_of_a_model_is_that_of_the_memory_report(llama: ModuleOp) -> None:
    assert simulate(tasks_of(llama)).peak_bytes == spmdir.report.memory_report(llama).peak_bytes


def test_the_kinds_of_buffers_are_those_of_the_memory_report(llama: ModuleOp) -> None:
    kinds = {buffer.kind for buffer in tasks_of(llama).buffers}
    assert {"parameters", "gradients", "inputs", "activations", "gathered weights"} <= kinds


GATHER = f"""
func.func @f(%x: tensor<1024x1024xf32> {sharding("tp: S(1)")}) -> (tensor<1024x1024xf32> {sharding("")}) {{
  BODY
  return %g : tensor<1024x1024xf32>
}}"""
AT_ONCE = GATHER.replace("BODY", "%g = spmd.all_gather %x on [tp] dim 1 : tensor<1024x1024xf32> <>")
STARTED = GATHER.replace(
    "BODY",
    "%h = spmd.all_gather_start %x on [tp] dim 1 stream ahead : !spmd.pending<tensor<1024x1024xf32>> <>\n"
    "  %g = spmd.wait %h : tensor<1024x1024xf32> <>",
)


def test_a_wait_unpacks_what_its_start_sent() -> None:
    (whole,), (start, wait) = of_text(AT_ONCE).tasks, of_text(STARTED).tasks
    assert (whole.is_blocking, start.is_blocking, wait.waits_for) == (True, False, 0)
    assert start.transfer == attrs.evolve(transfer(whole), stream="ahead", packing_seconds=0.0)
    assert (start.seconds, wait.seconds) == (0.0, whole.seconds)
    assert whole.seconds == pytest.approx(2 * 2**20 / H100X8.memory_bandwidth + H100X8.launch_latency)
    assert simulate(of_text(AT_ONCE)).seconds == simulate(of_text(STARTED)).seconds


def transfer(task: Task) -> object:
    assert task.transfer is not None
    return task.transfer


def test_the_operand_of_a_start_is_held_until_its_wait() -> None:
    start, wait = of_text(STARTED).tasks
    assert set(start.reads) <= set(wait.reads)


def bucket(kind: str, before: str, after: str, sizes: tuple[str, ...] = ("64x64", "128x64")) -> tuple[str, str]:
    """Return a program with one collective for each tensor, and one with one for both."""
    arguments = ", ".join(f"%x{at}: tensor<{size}xf32> {sharding(before)}" for at, size in enumerate(sizes))
    types, results = (
        ", ".join(f"tensor<{size}xf32> {suffix}" for size in sizes) for suffix in (f"<{after}>", sharding(after))
    )
    head = f"func.func @f({arguments}) -> ({results}) {{\n"
    tail = f"  return %g0, %g1 : {', '.join(f'tensor<{size}xf32>' for size in sizes)}\n}}"
    one_by_one = "".join(
        f"  %g{at} = spmd.{kind.format(f'%x{at}')} : tensor<{size}xf32> <{after}>\n" for at, size in enumerate(sizes)
    )
    return head + one_by_one + tail, f"{head}  %g0, %g1 = spmd.{kind.format('%x0, %x1')} : {types}\n{tail}"


BUCKETS = {
    "all_gather": ("all_gather {} on [tp] dim 0", "tp: S(0)", "", (48 + 192) * 256),
    "reduce_scatter": ("reduce_scatter {} on [tp] dim 0 op sum", "tp: P(sum)", "tp: S(0)", 192 * 256),
    "all_reduce": ("all_reduce {} on [tp] op sum", "tp: P(sum)", "", 192 * 256),
    "all_to_all": ("all_to_all {} on [tp] from 0 to 1", "tp: S(0)", "tp: S(1)", 0),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_a_bucket_is_one_message_of_all_bytes_with_one_latency(name: str) -> None:
    kind, before, after, _ = BUCKETS[name]
    apart, joint = (of_text(text) for text in bucket(kind, before, after))
    first, second, both = (transfer(task) for task in (*apart.tasks, *joint.tasks))
    assert both.wire_bytes == pytest.approx(first.wire_bytes + second.wire_bytes)  # type: ignore  # a Transfer
    assert both.intra == pytest.approx(first.intra + second.intra)  # type: ignore
    assert both.latency == first.latency == second.latency  # type: ignore
    assert joint.tasks[0].seconds > math.fsum(task.seconds for task in apart.tasks)  # it is packed


def test_sums_of_a_bucket_are_packed_and_are_views_of_what_arrives() -> None:
    (task,) = of_text(bucket(*BUCKETS["all_reduce"][:3])[1]).tasks
    size = (64 + 128) * 64 * 4
    assert task.seconds == pytest.approx(2 * size / H100X8.memory_bandwidth + H100X8.launch_latency)
    assert len(task.allocates) == 1


def test_what_a_bucket_gathers_is_copied_apart() -> None:
    program = of_text(bucket(*BUCKETS["all_gather"][:3])[1])
    (task,), size = program.tasks, (64 + 128) * 64 * 4
    assert task.seconds == pytest.approx(2 * (size / 4 + size) / H100X8.memory_bandwidth + 3 * H100X8.launch_latency)
    assert [program.buffers[buffer].bytes for buffer in task.allocates] == [64 * 64 * 4, 128 * 64 * 4]
    assert task.transient == size  # what arrives, once what is sent has been freed


def test_the_cost_report_prices_a_bucket_as_the_one_message_that_it_is() -> None:
    text = f"{MESH}{bucket(*BUCKETS['all_reduce'][:3])[1]}"
    report, (task,) = (
        spmdir.report.comm_report(spmdir.parse(text)),
        of_text(bucket(*BUCKETS["all_reduce"][:3])[1]).tasks,
    )
    assert report.count == 1
    assert report.seconds == pytest.approx(transfer(task).seconds + task.seconds)  # type: ignore  # a Transfer


def test_a_measured_collective_has_latency_in_the_modelled_proportion() -> None:
    sent = 3 * 2**20
    (modelled,) = of_text(AT_ONCE).tasks
    by_model = transfer(modelled)
    table = parse_costs(f"all_gather 4 ranks {sent} bytes = 123e-6\n", "costs.txt")
    (task,) = of_text(AT_ONCE, attrs.evolve(H100X8, costs=table)).tasks
    found = transfer(task)
    share = by_model.latency / (by_model.seconds + modelled.seconds)  # type: ignore  # a Transfer
    assert found.latency == pytest.approx(123e-6 * share)  # type: ignore
    assert (found.seconds, task.seconds) == (pytest.approx(123e-6), 0.0)  # type: ignore


def test_a_bucket_of_measured_collectives_is_packed_on_top() -> None:
    apart, joint = bucket(*BUCKETS["all_gather"][:3])
    table = parse_costs("all_gather 4 ranks 1 bytes = 50e-6\nall_gather 4 ranks 1000000 bytes = 80e-6\n", "costs.txt")
    measured = attrs.evolve(H100X8, costs=table)
    first, second = of_text(apart, measured).tasks
    (both,) = of_text(joint, measured).tasks
    assert both.seconds == of_text(joint).tasks[0].seconds  # a gather along dimension 0 alone copies nothing
    assert first.transfer.packing_seconds > 0  # type: ignore
    assert 0 < both.transfer.latency < first.transfer.latency + second.transfer.latency  # type: ignore


def test_a_local_form_is_one_task_that_waits_for_what_it_sends() -> None:
    program = of_text(f"""
func.func @f(%x: tensor<2x4x64x64xf32> {sharding("tp: S(2)")}, %w: tensor<4x4x3x3xf32> {sharding("")})
    -> (tensor<2x4x64x64xf32> {sharding("tp: S(2)")}) {{
  %0 = aten.convolution(%x, %w, none) {{dilation = [1, 1], groups = 1, output_padding = [0, 0], padding = [1, 1],
      stride = [1, 1], transposed = false}} : tensor<2x4x64x64xf32> <tp: S(2)>
  return %0 : tensor<2x4x64x64xf32>
}}""")
    (task,) = program.tasks
    assert (task.op, task.name, task.is_blocking) == ("aten.convolution", "%0", True)
    assert transfer(task).wire_bytes == 2 * 2 * 4 * 64 * 4  # type: ignore  # a row of each side
    assert task.seconds > 0


def test_a_local_form_may_lack_a_result() -> None:
    image, spread = "tensor<2x4x64x64xf32>", sharding("tp: S(2)")
    (task,) = of_text(f"""
func.func @f(%g: {image} {spread}, %x: {image} {spread}, %w: tensor<4x4x3x3xf32> {sharding("")})
    -> ({image} {spread}) {{
  %0, %1, %2 = aten.convolution_backward(%g, %x, %w) {{bias_sizes = none, dilation = [1, 1], groups = 1,
      output_mask = [true, false, false], output_padding = [0, 0], padding = [1, 1], stride = [1, 1],
      transposed = false}} : {image} <tp: S(2)>, none, none
  return %0 : {image}
}}""").tasks
    assert (task.op, task.name) == ("aten.convolution_backward", "%0")


def test_a_product_that_is_split_hides_what_it_sends_behind_its_blocks() -> None:
    body = f"""
func.func @f(%x: tensor<4096x4096xbf16> {sharding("tp: S(0)")}, %w: tensor<4096x4096xbf16> {sharding("tp: S(1)")})
    -> (tensor<4096x4096xbf16> {sharding("tp: S(1)")}) {{
  %y = aten.mm(%x, %w) : tensor<4096x4096xbf16> <tp: S(1)> attributes {{spmd.split}}
  return %y : tensor<4096x4096xbf16>
}}"""
    (task,), found = of_text(body).tasks, simulate(of_text(body))
    product = 2 * 4096**3 / 4 / H100X8.peak("bf16")
    joined = 2 * 4096 * 1024 * 2 / H100X8.memory_bandwidth + H100X8.launch_latency
    assert task.overlap == pytest.approx((task.seconds - joined) * 3 / 4)
    assert product < task.seconds < 1.4 * product  # three more kernels, and blocks that are joined
    assert found.seconds < task.seconds + transfer(task).seconds  # type: ignore  # a Transfer
    assert found.peak_bytes == pytest.approx(spmdir.report.memory_report(spmdir.parse(f"{MESH}{body}")).peak_bytes)


def test_the_terms_of_a_step_add_up_to_its_cost() -> None:
    report = spmdir.report.comm_report(spmdir.parse(f"{MESH}{AT_ONCE}"))
    module = spmdir.parse(f"{MESH}{AT_ONCE}")
    op = next(iter(ir.main_function(module).body.block.ops))
    terms = step_terms(op.step(ir.mesh(module)), (1024, 1024), 4, ir.mesh(module))  # type: ignore  # a collective
    assert terms.seconds == report.seconds
    assert terms.packing + terms.unpacking == pytest.approx(terms.copies + terms.launches)


def test_what_joining_costs_is_what_a_bucket_of_two_takes_more_than_both_alone() -> None:
    """But for the launch of the kernel that packs, which each of more members would share."""

    def gathers(body: str) -> str:
        given = ", ".join(f"%w{at}: tensor<1024x1024xbf16> {sharding('dp: S(1)')}" for at in (0, 1))
        kind = "tensor<1024x1024xbf16>"
        return f"func.func @f({given}) -> ({kind}, {kind}) {{\n{body}\n  return %0, %1 : {kind}, {kind}\n}}"

    one = "%{0} = spmd.all_gather %w{0} on [dp] dim 1 : tensor<1024x1024xbf16> <>"
    alone = of_text(gathers("\n".join(one.format(at) for at in (0, 1)))).tasks
    types = ", ".join(["tensor<1024x1024xbf16> <>"] * 2)
    (both,) = of_text(gathers(f"%0, %1 = spmd.all_gather %w0, %w1 on [dp] dim [1, 1] : {types}")).tasks
    joining = math.fsum(task.transfer.packing_seconds for task in alone if task.transfer is not None)
    assert joining > 0
    assert both.seconds == pytest.approx(math.fsum(task.seconds for task in alone) + joining)
    assert both.transfer is not None and both.transfer.packing_seconds == 0


def test_a_slice_that_is_a_view_reads_what_it_is_a_view_of() -> None:
    program = of_text(f"""
func.func @f(%x: tensor<8x4xf32> {sharding("")}) -> (tensor<8x4xf32> {sharding("tp: S(0)")}) {{
  %0 = aten.neg(%x) : tensor<8x4xf32> <>
  %1 = spmd.slice %0 on [tp] dim 0 : tensor<8x4xf32> <tp: S(0)>
  return %1 : tensor<8x4xf32>
}}""")
    made, view = program.tasks
    assert (view.allocates, view.reads) == ((), made.allocates)
