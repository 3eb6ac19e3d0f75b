"""Programs of ranks as fx graphs: what is read back, before and after others have scheduled it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

import spmdir
from benchmarks import manual_schedule
from benchmarks.programs import Config, parameter_shapes, shardings, trace
from benchmarks.rank_graph import RankGraph, connect, rank_graph, read
from benchmarks.torch_schedules import schedule_overlap_bucketing
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.dialects import ir
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.reshard.topology import H100X8
from spmdir.schedule.program import Program
from spmdir.schedule.simulate import simulate

SMALL = Config(dim=1024, heads=8, kv_heads=4, ffn=4096, seq=1024, batch=8, vocab=32000, attention="sdpa")

PIPELINE = "propagate{memory=none},expand,insert-reshard,lower-reshard,fuse-collectives,localize,split-async"


@pytest.fixture
def traced() -> Iterator[tuple[RankGraph, Program]]:
    mesh = spmdir.Mesh({"data": 2, "model": 2})
    given, residual = shardings(SMALL, "tp_fsdp")
    graph, *_ = trace(SMALL, residual)
    module = spmdir.run_passes(spmdir.import_fx(graph, mesh, given), PIPELINE)
    program, units = rank_program(ir.main_function(module), mesh, as_pipeline(None).rules, H100X8)
    yield rank_graph(module, connect(mesh), program, units), program
    dist.destroy_process_group()


def sent(program: Program) -> list[float]:
    return [task.transfer.wire_bytes for task in program.tasks if task.transfer is not None]


def test_a_graph_costs_what_its_program_does_and_bucketed_by_others_sends_as_much(traced) -> None:
    graph, program = traced
    before, alone = simulate(read(graph, H100X8)), simulate(program)
    assert before.seconds == pytest.approx(alone.seconds)
    assert before.peak_bytes == pytest.approx(alone.peak_bytes)

    def block(name: str) -> str:
        return name.replace(".", "_").partition("_")[0]

    gathered = manual_schedule.gathers(graph, block)
    reduced = manual_schedule.reductions(graph, ["loss", *parameter_shapes(SMALL)], block)
    by_hand = manual_schedule.scheduled(before.program, gathered, reduced, lambda program, bucket: (0.0, 0.0))
    assert all({"l0", "l1"} <= set(blocks.values()) for blocks in (gathered, reduced))
    schedule_overlap_bucketing(graph)
    after = read(graph, H100X8)
    for scheduled in (by_hand, after):
        assert len(sent(scheduled)) < len(sent(program))
        assert sum(sent(scheduled)) == pytest.approx(sum(sent(program)))
        assert simulate(scheduled).seconds < before.seconds
        assert all(max(task.needs, default=-1) < at for at, task in enumerate(scheduled.tasks))
