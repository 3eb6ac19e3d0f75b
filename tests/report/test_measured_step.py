"""Measured times beside modelled ones: traces of real ranks, and traces with GPU events that are written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.core.errors import ParseError, SpmdirError
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.report import cost_table
from spmdir.report.measured_step import MeasuredStep
from spmdir.report.profiler_trace import read_trace
from spmdir.report.rank_step import rank_step
from spmdir.report.refit import fit_topology
from spmdir.reshard.measured_times import Costs, read_costs
from spmdir.reshard.topology import H100X8, Topology, find_topology
from spmdir.tools.spmd import main
from tests.lowering.gloo_ranks import on_ranks
from tests.report import traced_ranks


def event(name: str, category: str, begin: float, duration: float, **arguments: Any) -> dict[str, Any]:
    thread = {"cpu_op": "main", "user_annotation": "main"}.get(category, "stream")
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": begin, "dur": duration,
            "args": arguments}  # fmt: skip


def op(number: Any, name: str, begin: float, *dims: list[int], duration: float = 1.0) -> dict[str, Any]:
    return event(name, "cpu_op", begin, duration, **{"External id": number, "Input Dims": [*dims]})


def kernel(number: Any, name: str, begin: float, duration: float) -> dict[str, Any]:
    return event(name, "kernel", begin, duration, **{"External id": number})


def trace_file(folder: Path, *events: dict[str, Any], name: str = "trace.json") -> str:
    path = folder / name
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}))
    return str(path)


def test_a_call_has_the_time_of_the_kernels_that_it_launches(tmp_path: Path):
    path = trace_file(
        tmp_path,
        op(1, "aten::einsum", 0, [4, 8], [8, 4], duration=10),
        op(2, "aten::bmm", 2, [1, 4, 8], [1, 8, 4], duration=5),
        kernel(2, "gemm", 20, 30),
        kernel(1, "copy", 50, 4),
        op(3, "_c10d_functional::all_reduce", 12, [4, 4]),
        kernel(3, "ncclDevKernel_AllReduce", 40, 20),
    )
    (step,) = read_trace(path).steps
    product, message = step.calls
    assert (product.name, product.dims) == ("aten::einsum", ((4, 8), (8, 4)))
    assert product.seconds == pytest.approx(34e-6)
    assert message.transfer == pytest.approx(20e-6)
    assert message.seconds == pytest.approx(6e-6)  # kernels run until 54, the message until 60
    assert step.seconds == pytest.approx(60e-6)


def test_each_profiler_step_is_one_step_and_a_compressed_trace_is_read(tmp_path: Path):
    events = [
        event("ProfilerStep#1", "user_annotation", 0, 100),
        op(1, "aten::sin", 10, [4], duration=5),
        event("ProfilerStep#2", "user_annotation", 100, 100),
        op(2, "aten::sin", 110, [4], duration=7),
        op(3, "aten::cos", 250, [4]),
    ]
    path = trace_file(tmp_path, *events)
    compressed = tmp_path / "trace.json.gz"
    compressed.write_bytes(gzip.compress(Path(path).read_bytes()))
    trace = read_trace(compressed)
    assert [[call.seconds for call in step.calls] for step in trace.steps] == [
        [pytest.approx(5e-6)],
        [pytest.approx(7e-6)],
    ]
    assert trace.steps == read_trace(path).steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "has no list `traceEvents`"),
        ('{"traceEvents": 3}', "has no list `traceEvents`"),
        ('{"traceEvents": [1, {"ph": "M"}]}', "contains no calls of torch ops"),
        ('{"traceEvents": [{"ph": "X", "ts": "soon", "dur": 1}]}', "event 0 .* has ts = 'soon' and dur = 1"),
        ('{"traceEvents": [{"ph": "X", "ts": 1, "dur": -1}]}', "has ts = 1 and dur = -1"),
        ('{"traceEvents": [{"ph": "X", "ts": NaN, "dur": 1}]}', "has ts = nan"),
        ('{"traceEvents": [{"ph": "X", "ts": 1' + "0" * 400 + ', "dur": 1}]}', "event 0 .* has ts = 1000"),
        (
            '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::sin", "ts": 1, "dur": 1}, {"ph": "X", '
            '"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 9, "dur": 1}]}',
            "no calls of torch ops in its steps",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_an_error(tmp_path: Path, text: str, message: str):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=message):
        read_trace(path)


def test_calls_of_other_shapes_or_collectives_belong_to_no_op(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    program, costs = tmp_path / "f.mlir", tmp_path / "f.costs"
    program.write_text(LOCAL)
    calls = [op(1, "aten::sin", 0, [4, 8], duration=10), op([3], "aten::mm", 30, [40, 8], [8, 4], duration=30)]
    path = trace_file(tmp_path, *calls)
    assert main(["report", str(program), "--measured", path, "--refit", str(costs)]) == 0
    assert "not to ops: aten::mm 0.03 ms" in capsys.readouterr().out
    assert costs.read_text() == "aten.sin f32[4,8] = 1e-05\n"


def test_kernels_that_no_call_launches_are_reported(tmp_path: Path):
    events = [op(1, "aten::sin", 0, [4]), kernel(1, "sin", 2, 5), kernel(99, "graph", 10, 600)]
    events += [op(None, "aten::view", 20, [4]), kernel(None, "without an id", 700, 300)]
    (step,) = read_trace(trace_file(tmp_path, *events)).steps
    assert [(call.name, round(call.seconds * 1e6)) for call in step.calls] == [
        ("aten::sin", 5),
        ("aten::view", 0),
        ("kernels of no call", 900),
    ]


def test_a_rank_of_another_program_is_an_error(tmp_path: Path):
    paths = [
        trace_file(tmp_path, op(1, "aten::sin", 0, [4, 8]), name="first.json"),
        trace_file(tmp_path, op(1, "aten::tan", 0, [4, 8]), name="second.json"),
    ]
    with pytest.raises(SpmdirError, match=r"no call of '.*second\.json' belongs to this program"):
        cost_table(spmdir.parse(LOCAL), measured=paths)


def test_a_missing_file_and_a_damaged_archive_are_errors(tmp_path: Path):
    with pytest.raises(ParseError, match="cannot read the trace"):
        read_trace(tmp_path / "absent.json")
    damaged = tmp_path / "damaged.json.gz"
    damaged.write_bytes(gzip.compress(b"{}" * 1000)[:-20])
    with pytest.raises(ParseError, match="cannot read the trace"):
        read_trace(damaged)


def test_a_trace_of_another_program_is_an_error(tmp_path: Path):
    path = trace_file(tmp_path, op(1, "aten::tan", 0, [3]))
    with pytest.raises(SpmdirError, match=r"no call of '.*trace\.json' belongs to this program"):
        cost_table(spmdir.parse(traced_ranks.PROGRAM), measured=[path])


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("traces")
    return on_ranks(4, traced_ranks.trace, folder, str(folder))


@pytest.mark.gloo
def test_time_of_real_ranks_belongs_to_ops(traces: list[str]):
    module = spmdir.run_passes(spmdir.parse(traced_ranks.PROGRAM), traced_ranks.PASSES)
    table = cost_table(module, by="op", measured=traces, rows=None)
    measured = table.measured
    assert measured is not None
    assert (measured.ranks, measured.steps) == (4, 4 * traced_ranks.STEPS)
    assert measured.attributed >= 0.95
    assert measured.missing == ()
    by_kind = cost_table(module, by="kind", measured=traces, rows=None)
    kinds = {record["kind"] for record in by_kind.records() if record.get("measured_seconds")}
    assert {"aten.mm", "aten.gelu", "aten.mul.Tensor", "all_gather"} <= kinds
    assert sum(measured.seconds) <= 4 * measured.step_seconds
    assert "measured" in str(table) and "waits for late ranks" in str(table)


@pytest.mark.gloo
def test_refitted_times_are_the_measured_ones(traces: list[str], tmp_path: Path):
    module = spmdir.run_passes(spmdir.parse(traced_ranks.PROGRAM), traced_ranks.PASSES)
    measured = cost_table(module, measured=traces).measured
    assert measured is not None
    path = tmp_path / "refit.costs"
    path.write_text(str(measured.refitted))
    kinds = {line.entry.split()[0] for line in read_costs(str(path)).lines}
    assert kinds >= {"aten.mm", "aten.gelu", "aten.mul.Tensor", "all_gather"}
    repriced = cost_table(module, by="op", pipeline=spmdir.Pipeline("propagate", costs=path), rows=None)
    modelled = {row.labels[0]: row.seconds for row in repriced.rows if row.labels[1].startswith("aten.")}
    names = [task.name for task in rank_step(module, None, as_pipeline(None)).execution.program.tasks]
    for name, seconds in zip(names, measured.seconds, strict=True):
        assert name not in modelled or modelled[name] == pytest.approx(seconds, rel=1e-5)


LOCAL = """
spmd.mesh @mesh <dp = 2>

func.func @f(%x: tensor<4x8xf32> {spmd.sharding = #spmd.sharding<@mesh>},
             %w: tensor<8x4xf32> {spmd.sharding = #spmd.sharding<@mesh>})
    -> (tensor<4x4xf32> {spmd.sharding = #spmd.sharding<@mesh>}) {
  %sine = aten.sin(%x) : tensor<4x8xf32>
  %cosine = aten.cos(%sine) : tensor<4x8xf32>
  %product = aten.mm(%cosine, %w) : tensor<4x4xf32>
  return %product : tensor<4x4xf32>
}
"""


def test_the_command_prints_measured_columns_and_writes_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    calls = [
        op(1, "aten::sin", 0, [4, 8], duration=10),
        op(2, "aten::tanh", 20, [9, 9], duration=5),
        op(3, "aten::mm", 30, [4, 8], [8, 4], duration=30),
    ]
    program, costs = tmp_path / "f.mlir", tmp_path / "f.costs"
    program.write_text(LOCAL)
    path = trace_file(tmp_path, *calls)
    options = ["--by", "kind", "--sort", "misfit", "--measured", path, "--refit", str(costs)]
    assert main(["report", str(program), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split()[:6] == ["kind", "count", "ms", "measured", "of", "model"]
    assert printed[1].split()[:2] == ["aten.mm", "1"]
    assert printed[1].split()[3] == "0.03"
    assert printed[-1] == (
        "measured step of a rank 0.06 ms, the median of 1 steps on 1 ranks: 88.9% of the time of calls belongs to ops; "
        "not to ops: aten::tanh 0.005 ms; ops without calls: 1, such as %cosine"
    )
    assert costs.read_text() == "aten.sin f32[4,8] = 1e-05\naten.mm f32[4,8] f32[8,4] = 3e-05\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--refit", "f.costs"], "found --refit without --measured"),
        (["--sort", "misfit"], "found --sort misfit without --measured"),
        (["--measured", "t.json", "--view", "memory"], "found --measured without the view table"),
        (["--measured", "t.json", "-o", "page.html"], "found --measured without the view table"),
    ],
)
def test_options_of_measured_times_that_do_not_fit_are_errors(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    program = tmp_path / "f.mlir"
    program.write_text(LOCAL)
    assert main(["report", str(program), *options]) != 0
    assert message in capsys.readouterr().err


def measured_on(machine: Topology, module: ModuleOp) -> MeasuredStep:
    """Return the step that a rank of `machine` would measure, if its times were as modelled."""
    program = rank_step(module, machine, as_pipeline(None)).execution.program
    transfers = tuple(task.transfer.seconds if task.transfer else 0.0 for task in program.tasks)
    seconds = tuple(task.seconds for task in program.tasks)
    return MeasuredStep(seconds, transfers, sum(seconds), 0.0, 1.0, (), (), 1, 1, Costs("", ()))


def test_fitted_constants_hold_for_a_plan_that_was_not_measured():
    slow = attrs.evolve(
        H100X8,
        peak_flops=tuple((unit, peak / 3) for unit, peak in H100X8.peak_flops),
        memory_bandwidth=H100X8.memory_bandwidth / 2,
        launch_latency=H100X8.launch_latency * 1.5,
        intra_bandwidth=H100X8.intra_bandwidth / 4,
    )
    large = traced_ranks.PROGRAM.replace("256", "8192").replace("128", "4096").replace("512", "4096")
    measured, other = spmdir.parse(large), spmdir.parse(large.replace("tp: S(1)", "tp: S(0)"))
    fitted = fit_topology(measured, measured_on(slow, measured), as_pipeline(None))
    predicted, actual, unfitted = (
        rank_step(other, machine, as_pipeline(None)).execution.seconds for machine in (fitted, slow, H100X8)
    )
    assert predicted == pytest.approx(actual, rel=0.1)
    assert unfitted < 0.7 * actual


def test_a_topology_file_is_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    program, fitted = tmp_path / "f.mlir", tmp_path / "own.toml"
    program.write_text(LOCAL)
    path = trace_file(tmp_path, op(1, "aten::sin", 0, [4, 8], duration=10))
    assert main(["report", str(program), "--measured", path, "--refit", str(fitted)]) == 0
    assert find_topology(str(fitted)).launch_latency == pytest.approx(1e-5, rel=0.01)
