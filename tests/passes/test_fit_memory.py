"""fit-memory: a rank holds no more than its budget and computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import spmdir
from benchmarks.programs import Config, shardings, trace
from spmdir.analysis.local_programs.type_check_cache import is_trusted
from spmdir.dialects import ir
from spmdir.dialects.recomputation import RECOMPUTES
from spmdir.reshard.topology import H100X8

SMALL = Config(layers=2, dim=16, heads=4, kv_heads=2, ffn=32, seq=16, batch=4, vocab=32, attention="matmul")
LOCAL = "propagate{memory=none},expand,insert-reshard,lower-reshard,fuse-collectives,localize"


SLOW_START = attrs.evolve(
    H100X8, name="slow-start", base_latency=14e-6, intra_latency=1.9e-6, inter_latency=4e-6, intra_bandwidth=370e9,
    inter_bandwidth=50e9, protocols=(), tree_efficiency=0.0,
)  # fmt: skip
"""A machine whose messages take long to start, so that a small program is partitioned as a large one is."""


@attrs.frozen(eq=False)
class Case:
    """The program of a rank as text, its inputs, and what it gives."""

    text: str
    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor]
    peak: float


@pytest.fixture(scope="module", params=["fsdp", "tp_fsdp"])
def case(request: pytest.FixtureRequest) -> Case:
    given, residual = shardings(SMALL, request.param)
    graph, (parameters, *tokens), *_ = trace(SMALL, residual, torch.float64, fake=False)
    pipeline = spmdir.Pipeline(LOCAL, topology=SLOW_START)
    module = spmdir.run_passes(spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 2}), given), pipeline)
    inputs = [*parameters.values(), *tokens]
    peak = spmdir.report.memory_report(module).peak_bytes
    return Case(spmdir.print_ir(module), inputs, spmdir.simulate(module, inputs), peak)


def fitted(case: Case, part: float) -> ModuleOp:
    return spmdir.run_passes(spmdir.parse(case.text), f"fit-memory{{budget={int(part * case.peak)}}}")


@pytest.mark.parametrize("part", [0.8, 0.6])
def test_a_rank_holds_its_budget_and_computes_the_same(case: Case, part: float) -> None:
    module = fitted(case, part)
    assert spmdir.report.memory_report(module).peak_bytes <= part * case.peak
    assert any(RECOMPUTES in op.attributes for op in module.walk())
    for found, expected in zip(spmdir.simulate(module, case.inputs), case.outputs, strict=True):
        assert torch.equal(found, expected)
    again = spmdir.run_passes(spmdir.parse(spmdir.print_ir(module)), "verify-spmd")
    assert spmdir.print_ir(again) == spmdir.print_ir(module)


def test_what_runs_again_is_noted_by_a_name_of_its_own(case: Case) -> None:
    module = spmdir.parse(case.text).clone()  # xDSL cuts numbers off the names of what it clones
    spmdir.run_passes(module, f"fit-memory{{budget={int(0.7 * case.peak)}}},verify-spmd")
    assert any(RECOMPUTES in op.attributes for op in module.walk())


def test_no_budget_that_is_met_changes_a_program(case: Case) -> None:
    assert spmdir.print_ir(fitted(case, 1.0)) == spmdir.print_ir(spmdir.parse(case.text))
    unlimited = spmdir.run_passes(spmdir.parse(case.text), "fit-memory")  # propagate{memory=none} decided it
    assert spmdir.print_ir(unlimited) == spmdir.print_ir(spmdir.parse(case.text))


def test_an_error_says_the_least_that_was_reached(case: Case) -> None:
    with pytest.raises(spmdir.SpmdirError, match="even with recomputation") as raised:
        fitted(case, 0.01)
    least = int(str(raised.value).rpartition("budget=")[2])
    reached = spmdir.run_passes(spmdir.parse(case.text), "fit-memory{budget=least}")
    assert spmdir.report.memory_report(reached).peak_bytes < 0.5 * case.peak
    assert least < 0.5 * case.peak


FAST = """intra_bandwidth = 370e9
inter_bandwidth = 50e9
base_latency = 14e-6
intra_latency = 1.9e-6
inter_latency = 4e-6
memory_bandwidth = 3.35e12
launch_latency = 2e-6
host_bandwidth = 1e15
"""
"""A machine on which copies to the host cost nothing."""


def test_values_on_the_host_are_the_same_when_they_are_back(case: Case, tmp_path: Path) -> None:
    (tmp_path / "fast.toml").write_text(FAST)
    options = f"topology={tmp_path / 'fast.toml'} memory={int(0.6 * case.peak)}"
    module = spmdir.run_passes(spmdir.parse(case.text), f"schedule{{{options}}}")
    assert any(op.name == "spmd.offload_start" for op in module.walk())
    report = spmdir.report.memory_report(module)
    assert report.peak_bytes <= 0.6 * case.peak
    assert report.host_bytes > 0
    for found, expected in zip(spmdir.simulate(module, case.inputs, interleavings=2), case.outputs, strict=True):
        assert torch.equal(found, expected)
    again = spmdir.run_passes(spmdir.parse(spmdir.print_ir(module)), "verify-spmd")
    assert spmdir.print_ir(again) == spmdir.print_ir(module)


def test_a_rank_holds_less_with_the_host_than_by_recomputing_alone(case: Case) -> None:
    held = [
        spmdir.report.memory_report(
            spmdir.run_passes(spmdir.parse(case.text), f"fit-memory{{budget=least offload={offload}}}")
        ).peak_bytes
        for offload in ("true", "false")
    ]
    assert held[0] < held[1]


def test_what_localize_made_and_fit_memory_changed_needs_no_check(case: Case) -> None:
    module = spmdir.run_passes(spmdir.parse(case.text), "verify-spmd")
    assert is_trusted(ir.main_function(module))
    spmdir.run_passes(module, f"fit-memory{{budget={int(0.7 * case.peak)}}}")
    assert is_trusted(ir.main_function(module))


def test_a_program_without_ops_holds_what_it_holds() -> None:
    shards = "{spmd.sharding = #spmd.sharding<@mesh, dp: S(0)>}"
    text = f"func.func @f(%x: tensor<8xf32> {shards}) -> (tensor<8xf32> {shards}) {{ return %x : tensor<8xf32> }}"
    with pytest.raises(spmdir.SpmdirError, match="a rank needs at least 16 B of memory, before the first op"):
        spmdir.run_passes(spmdir.parse(f"spmd.mesh @mesh <dp = 2>\n{text}"), "localize,fit-memory{budget=8}")
