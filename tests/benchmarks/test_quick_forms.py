"""Every benchmark, run in its quickest form: it ends, and prints figures, none of which is NaN."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from benchmarks import measure

ROOT = Path(measure.__file__).parent

QUICK_FORMS = {
    "autoparallel_decisions": "--models tiny --layers 1 --mesh 2,4",
    "certified_gaps": "--models tiny --layers 1 --meshes 2x2 --plans open",
    "compile_time": "--layers 1 --attention sdpa",
    "context_parallel": "--ranks 2 --length 64",
    "correctness": "--models llama --plans fsdp --meshes 3 --sizes 2x4",
    "expert_layer": "--small --mesh 2,2,1",
    "fit_memory": "--layers 2 --batch 512",
    "flatness": "--plans tp --layers 1,2,3 --no-wide",
    "integer_program": "--models tiny --layers 1 --meshes 2x2",
    "large_meshes": "--part 'mlp, even' --part 'mlp, uneven'",
    "memory": "--layers 1",
    "memory_model": "--models llama --plans fsdp",
    "outlined": "--layers 1 --programs forward --repeats 1",
    "overlap_decision": "--layers 1 --plans tp",
    "parse_speed": "--ops 500",
    "partitioner": "--layers 1 --vocabs 4096 --budgets 0.5",
    "peers": "--small --programs mlp --plans tp --meshes 2x4",
    "pipelined_step": "--layers 2 --mesh 2,2,2 --micro 4",
    "program_page": "--layers 1",
    "published_prices": "",
    "read_back": "--schemes tp --models gpt2 --faults 2",
    "reshard_bound": "--limit 5",
    "runner_up": "--plans tp --layers 1 --most 3",
    "schedule": "--layers 1 --plans tp_fsdp --dtypes bfloat16",
    "schedule_time": "--layers 1 --plans tp_fsdp",
    "search_quality": "--plans tp --layers 1 --efforts 0 --exhaustive 1",
    "startup": "--runs 1",
    "style": "spmdir/core/mesh.py",
    "wire_bytes": "--plans tp --layers 1 --wide-layers 0",
}
"""Benchmark → the options of its quickest form."""

ON_RANKS = {
    "calibrate": "--ranks 2 --seconds 0.5 -o measured",
    "decode_step": "--layers 1 --dim 64 --ranks 2 --rounds 1 --tokens 2",
    "first_step": "--layers 1 --dim 16 --seq 4 --batch 4 --sides cold",
    "expert_step": "--rounds 1 --layers 1 --dim 32 --hidden 32 --tokens 64",
    "gloo_step": "--rounds 1 --layers 1 --dim 32 --seq 4 --batch 4",
    "module_startup": "--layers 2 --dim 32",
    "module_step": "--rounds 1 --recipes fsdp --sizes tiny",
    "redistribute": "--rounds 1",
    "rule_coverage": "--ops aten.relu --limit 1 --processes 1",
    "stage_step": "--rounds 1 --ranks 2 --layers 2 --dim 32 --seq 4 --batch 4 --micro 2",
}
"""The same of benchmarks that start processes."""

SHARED = {
    "__init__",
    "dtensor_programs",
    "manual_schedule",
    "measure",
    "plain_schedule",
    "programs",
    "rank_graph",
    "rank_models",
}
SHARED |= {"rule_coverage_worker", "torch_schedules"}
"""Modules that benchmarks import."""

SAVED_GRAPH = """
import torch

class Repro(torch.nn.Module):
    def forward(self, x, w):
        gathered = torch.ops._c10d_functional.all_gather_into_tensor.default(w, 2, "0")
        return (torch.ops.aten.mm.default(x, torch.ops._c10d_functional.wait_tensor.default(gathered)),)

def load_args(reader):
    reader.tensor(reader.storage(None, 64), (4, 4))
    reader.tensor(reader.storage(None, 32), (2, 4))

def get_pg_config():
    return {"0": {"size": 2, "rank": 0}}

def get_colls_estimations_file():
    return "times.table"
"""

TIMES = """group size kind 1MB 2MB
---
0 2 all_gather_into_tensor 0.1 0.2
"""


class InThisProcess:
    """A pool of one process that runs what it is given at once, in this process."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str, str], str]]:
    """Runs a benchmark with options, and returns what it prints."""

    def run(name: str, options: str) -> str:
        monkeypatch.setattr(measure, "ProcessPoolExecutor", InThisProcess)
        monkeypatch.setattr(sys, "argv", [name, *shlex.split(options)])
        monkeypatch.chdir(tmp_path)
        assert importlib.import_module(f"benchmarks.{name}").main() in (None, 0)
        printed = capsys.readouterr().out
        assert re.search(r"\d", printed)
        assert not re.search(r"\bnan\b", printed)
        return printed

    yield run
    if dist.is_initialized():  # benchmarks that end with their process leave it
        dist.destroy_process_group()


def test_every_benchmark_has_a_quick_form() -> None:
    benchmarks = {path.stem for path in ROOT.glob("*.py")} - SHARED
    assert benchmarks == {*QUICK_FORMS, *ON_RANKS, "saved_graphs"}


@pytest.mark.parametrize("name", QUICK_FORMS)
def test_a_benchmark_runs(name: str, run: Callable[[str, str], str]) -> None:
    run(name, QUICK_FORMS[name])


@pytest.mark.gloo
@pytest.mark.parametrize("name", ON_RANKS)
def test_a_benchmark_of_several_processes_runs(name: str, run: Callable[[str, str], str]) -> None:
    run(name, ON_RANKS[name])


def test_peers_are_compared_without_jaxlib(monkeypatch: pytest.MonkeyPatch, run: Callable[[str, str], str]) -> None:
    monkeypatch.setattr("benchmarks.peers.find_spec", lambda name: None)
    printed = run("peers", QUICK_FORMS["peers"])
    assert "install it with `make peers`" in printed
    assert re.search(r"mlp +tp +DTensor +\d.*\n.*mlp +tp +Shardy +not installed *\n.*mlp +tp +spmdir +\d", printed)


def test_saved_graphs_are_scheduled(tmp_path: Path, run: Callable[[str, str], str]) -> None:
    (tmp_path / "repro_llama3_8b_tiny.py").write_text(SAVED_GRAPH)
    (tmp_path / "times.table").write_text(TIMES)
    assert "spmdir" in run("saved_graphs", f"{tmp_path} --graphs tiny")
