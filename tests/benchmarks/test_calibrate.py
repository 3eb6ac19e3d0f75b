"""The constants that fit measured times, and the files that say them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.calibrate import Machine, main, timed, topology_of
from spmdir.reshard.measured_times import read_costs
from spmdir.reshard.topology import H100X8, find_topology, topology_text


def test_the_constants_of_a_model_are_found_in_its_times() -> None:
    base, hop, bandwidth = 10e-6, 2e-6, 100e9
    times = [
        (name, size, base + hops * hop + size / bandwidth)
        for size in (0, 2**20, 2**30)
        for name, hops in (("all_gather", 7), ("all_to_all", 1))
    ]
    machine = Machine("cpu", "gloo", 8)
    found = topology_of("mine", machine, ({"f32": 1e12, "vector": 1e11}, 5e10, 3e-6, {}), times)
    assert (found.base_latency, found.intra_latency) == (pytest.approx(base), pytest.approx(hop))
    assert (found.intra_bandwidth, found.memory_bandwidth) == (pytest.approx(bandwidth), 5e10)
    assert (found.peak("f32"), found.peak("i32"), found.launch_latency) == (1e12, 1e11, 3e-6)


def test_a_topology_is_read_from_the_text_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(topology_text(H100X8, ""))
    read = find_topology(str(path))
    assert topology_text(read, "") == topology_text(H100X8, "")
    assert read.peak("bf16") == pytest.approx(H100X8.peak("bf16"), rel=1e-3)


@pytest.mark.gloo
def test_the_machine_at_hand_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-o", str(tmp_path / "mine"), "--ranks", "2", "--seconds", "0.5"]) == 0
    machine = find_topology(str(tmp_path / "mine.toml"))
    costs = read_costs(str(tmp_path / "mine.costs"))
    assert machine.intra_bandwidth > 0 and machine.peak("f32") > 0 and machine.memory_bandwidth > 0
    kinds = {line.entry.split()[0] for line in costs.lines}
    assert kinds == {"aten.mm", "all_gather", "all_reduce", "all_to_all", "reduce_scatter"}
    text = (tmp_path / "mine.costs").read_text()
    assert text in capsys.readouterr().out
    assert all(re.search(r"  # spread \d+%$", line) for line in text.splitlines()[1:])


def test_a_time_is_the_median_of_runs_and_tells_how_far_these_spread() -> None:
    clock = itertools.accumulate(itertools.chain.from_iterable((0.0, spent) for spent in (1.0, 2.0, 3.0, 4.0, 50.0)))
    with mock.patch("time.perf_counter", side_effect=clock):
        found = timed(lambda: None, Machine("cpu", "gloo", 1), 0, runs=5)
    assert (found.seconds, found.spread) == (3.0, pytest.approx(2 / 3))
