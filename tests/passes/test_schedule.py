"""A training step computes the same numbers whichever passes schedule it, and its schedule is a well-typed program."""

from __future__ import annotations

from functools import cache

import attrs
import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

import spmdir
from benchmarks.programs import Config, shardings, trace
from spmdir.analysis.local_programs.type_check_cache import is_trusted
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.host_ops import HostCopyOp
from spmdir.dialects.reshard_ops import ReshardOp
from spmdir.passes.schedule import SchedulePass
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.reshard.topology import CPU_GLOO, H100X8, Topology
from spmdir.schedule.simulate import Execution, simulate

CONFIG = Config(layers=2, dim=16, heads=4, kv_heads=2, ffn=16, seq=4, batch=4, vocab=16)
LOCAL = "propagate,expand,insert-reshard,lower-reshard,fuse-collectives,localize"
SCHEDULES = (
    "bucket{memory=none}",
    "split-async",
    "split-async,reorder{memory=auto}",
    "split-async,reorder{mode=simple memory=auto}",
    "bucket{memory=auto},split-async,reorder{memory=none}",
    "schedule{memory=auto}",
    "schedule{memory=least}",
    "schedule{mode=simple memory=auto topology=cpu-gloo}",
)

WHOLE = "{spmd.sharding = #spmd.sharding<@mesh>}"


@cache
def step(plan: str) -> tuple[ModuleOp, list[Tensor], list[Tensor]]:
    """The program of one rank of a training step, its inputs, and what it computes."""
    given, residual = shardings(CONFIG, plan)
    graph, inputs, *_ = trace(CONFIG, residual, torch.float64, fake=False)
    parameters, *data = inputs
    module = spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 2}), given)
    module = spmdir.run_passes(module, LOCAL)
    values = [*parameters.values(), *data]
    return module, values, spmdir.simulate(module, values)


@pytest.mark.parametrize("passes", SCHEDULES)
@pytest.mark.parametrize("plan", ["tp_fsdp", "fsdp"])
def test_a_scheduled_step_computes_the_same(plan: str, passes: str) -> None:
    module, inputs, expected = step(plan)
    scheduled = spmdir.run_passes(module.clone(), f"{passes},verify-spmd")
    for found, value in zip(spmdir.simulate(scheduled, inputs, interleavings=1), expected, strict=True):
        assert torch.allclose(found, value, rtol=1e-10, atol=1e-12)


def test_a_schedule_of_a_trusted_program_is_trusted() -> None:
    given, residual = shardings(CONFIG, "tp_fsdp")
    module = spmdir.import_fx(trace(CONFIG, residual)[0], spmdir.Mesh({"data": 2, "model": 2}), given)
    module = spmdir.run_passes(module, f"{LOCAL},schedule")
    assert is_trusted(ir.main_function(module))


def test_a_schedule_is_the_same_text_when_it_is_made_again_from_text() -> None:
    module, *_ = step("tp_fsdp")
    scheduled = spmdir.run_passes(module.clone(), "schedule")
    again = spmdir.run_passes(spmdir.parse(spmdir.print_ir(module)), "schedule")
    assert spmdir.print_ir(scheduled) == spmdir.print_ir(again)


def test_each_collective_is_started_and_waited_for() -> None:
    module, *_ = step("fsdp")
    ops = list(ir.main_function(spmdir.run_passes(module.clone(), "schedule")).body.block.ops)
    collectives = [op for op in ops if isinstance(op, Collective) and not op.spec.is_local]
    assert not any(isinstance(op, ReshardOp) for op in ops)
    assert {op.IS_START for op in collectives if op.spec.may_be_async} == {True}
    assert len(collectives) == sum(isinstance(op, WaitOp) for op in ops)


@pytest.mark.parametrize("topology", [H100X8, CPU_GLOO], ids=str)
@pytest.mark.parametrize("plan", ["tp_fsdp", "fsdp"])
def test_a_schedule_takes_no_longer_and_holds_no_more(plan: str, topology: Topology) -> None:
    module, *_ = step(plan)

    def run(passes: str) -> Execution:
        found = spmdir.run_passes(module.clone(), passes)
        return simulate(rank_program(ir.main_function(found), ir.mesh(found), as_pipeline(None).rules, topology)[0])

    before, bucketed = run("split-async"), run(f"bucket{{topology={topology}}}")
    assert bucketed.peak_bytes <= before.peak_bytes
    scheduled = run(f"schedule{{topology={topology} memory=none}}")
    assert scheduled.peak_bytes <= before.peak_bytes
    assert scheduled.seconds < before.seconds


def held_meanwhile() -> str:
    """Return a program that holds what takes long to compute, while it has much else to hold and to do."""
    wide, weight = "tensor<8192x4096xbf16>", "tensor<4096x4096xbf16>"
    given = {"x": "tensor<8192x32768xbf16>", "first": "tensor<32768x4096xbf16>", "w": weight}
    arguments = ", ".join(f"%{name}: {type_} {WHOLE}" for name, type_ in given.items())
    ops = [f"%y = aten.mm(%x, %first) : {wide} <>"]
    ops += [f"%a{i} = aten.mm(%{f'a{i - 1}' if i else 'y'}, %w) : {wide} <>" for i in range(8)]
    ops += ["%wide = aten.cat([%a7, %a7, %a7]) {dim = 1} : tensor<8192x12288xbf16> <>"]
    ops += [f"%b0 = aten.slice.Tensor(%wide) {{dim = 1, end = 4096, start = 0, step = 1}} : {wide} <>"]
    ops += [f"%b{i + 1} = aten.mm(%b{i}, %w) : {wide} <>" for i in range(8)]
    ops += [f"%z = aten.mul.Tensor(%b8, %y) : {wide} <>", f"return %z : {wide}"]
    head = f'func.func @step({arguments}) -> ({wide} {WHOLE}) attributes {{spmd.stage = "local"}} {{'
    return "\n".join(["spmd.mesh @mesh <dp = 8>", head, *ops, "}"])


@pytest.mark.parametrize("with_host", [1.0, 3.0], ids=["shorter", "longer"])
def test_values_go_to_the_host_only_where_the_scheduled_step_is_then_shorter(
    monkeypatch: pytest.MonkeyPatch, with_host: float
) -> None:
    def seconds(self: SchedulePass, ctx: object, function: FuncOp, mesh: object) -> float:
        return with_host if copies(function) else 2.0

    def copies(function: FuncOp) -> bool:
        return any(isinstance(op, HostCopyOp) for op in function.body.block.ops)

    monkeypatch.setattr(SchedulePass, "_seconds", seconds)
    pipeline = spmdir.Pipeline("schedule{memory=1150MB},verify-spmd", topology=attrs.evolve(H100X8, name="mine"))
    context = pipeline.context()
    module = spmdir.run_passes(spmdir.parse(held_meanwhile()), pipeline, context=context)
    assert [trial.steps for trial in context.trials] == ["schedule{topology=mine memory=1150000000 offload=false}"]
    assert copies(ir.main_function(module)) == (with_host == 1.0)
    assert spmdir.report.memory_report(module).peak_bytes <= 1150e6


def tower(layers: int) -> str:
    """Return the forward and the backward of products, which holds most where the backward begins."""
    x, w, rows = "tensor<1024x128xf32>", "tensor<128x128xf32>", "<dp: S(0)>"
    names, sharded = [f"w{layer}" for layer in range(layers)], "{spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}"
    arguments = ", ".join([f"%h0: {x} {sharded}", *(f"%{name}: {w} {WHOLE}" for name in names)])
    ops = [f"%h{at + 1} = aten.mm(%h{at}, %{name}) : {x} {rows}" for at, name in enumerate(names)]
    ops += [f"%g{layers} = aten.mul.Tensor(%h{layers}, %h{layers}) : {x} {rows}"]
    for at, name in reversed([*enumerate(names)]):
        ops += [f"%t{at} = aten.t(%h{at}) : tensor<128x1024xf32> <dp: S(1)>"]
        ops += [f"%d{at} = aten.mm(%t{at}, %g{at + 1}) : {w} <dp: P(sum)>"]
        ops += [f"%r{at} = spmd.all_reduce %d{at} on [dp] op sum : {w} <>"]
        ops += [f"%g{at} = aten.mm(%g{at + 1}, %{name}) : {x} {rows}"]
    ops += [f"return {', '.join(f'%r{at}' for at in range(layers))} : {', '.join([w] * layers)}"]
    head = f"func.func @step({arguments}) -> ({', '.join([f'{w} {WHOLE}'] * layers)}) {{"
    return "\n".join(["spmd.mesh @mesh <dp = 4>", head, *ops, "}"])


def test_gradients_share_messages_where_there_is_memory_to_spare() -> None:
    def messages(options: str) -> tuple[int, float]:
        passes = f"localize,schedule{{topology=cpu-gloo{options}}},verify-spmd"
        module = spmdir.run_passes(spmdir.parse(tower(8)), passes)
        starts = [op for op in ir.main_function(module).body.block.ops if op.name == "spmd.all_reduce_start"]
        return len(starts), spmdir.report.memory_report(module).peak_bytes

    (alone, least), (shared, most) = messages(""), messages(" spare=25")
    assert shared < alone
    assert least < most <= 1.25 * least
