"""A topology and a table of measured times of the machine at hand: `python -m benchmarks.calibrate -o machine`.

Ranks are processes on this host: one for each GPU over NCCL, or some on CPU over gloo. Writes `machine.toml`, a
topology, and `machine.costs`, the measured times, and prints both. Takes about as long as `--seconds` says. A time is
the median of several runs; beside it, as a comment, is how far the middle half of them spreads.

With one host, what is between nodes is taken to be as what is within one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.distributed as dist

from spmdir.core.dtype import DType
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.measured_times import CostLine, op_text
from spmdir.reshard.topology import VECTOR, Topology, topology_text
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PRODUCTS = (256, 512, 1024, 2048, 4096, 8192)
"""Sizes of the square matrices that are multiplied."""

VECTORS = tuple(4**power for power in range(6, 13))
"""Elements of the vectors that are multiplied and added one by one."""

SENT = tuple(4**power for power in range(5, 14))
"""Bytes that a rank sends, about: a number of f32 to each other rank."""

USABLE = 0.9
"""The part of a GPU's memory that is left to programs."""

RUNS = (7, 101)
"""The fewest and the most runs of which a time is the median."""

MOST_RANKS = 8
"""The most processes on CPU unless more are asked for; as many as there are cores, if these are fewer."""

PATIENCE = timedelta(seconds=60)


@attrs.frozen
class Timing:
    """The times of several runs.

    Attributes:
        seconds: their median.
        spread: between the first and the third quartile, as a fraction of the median.
    """

    seconds: float
    spread: float

    @staticmethod
    def of(times: Sequence[float]) -> Timing:
        """Return the timing of runs, at least two, that took `times`."""
        first, middle, third = statistics.quantiles(times, n=4, method="inclusive")
        return Timing(middle, (third - first) / middle if middle else 0.0)


@attrs.frozen
class Machine:
    """What a rank computes on and talks over."""

    device: str
    backend: str
    ranks: int

    def wait(self) -> None:
        """Return once all that was started is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def machine_here(ranks: int) -> Machine:
    """Return one rank a GPU, or `ranks` on CPU."""
    if torch.cuda.is_available() and dist.is_nccl_available():
        return Machine("cuda", "nccl", torch.cuda.device_count())
    return Machine("cpu", "gloo", ranks)


def timed(run: Callable[[], object], machine: Machine, seconds: float, runs: int = 0) -> Timing:
    """Return the times of `run`: of as many runs as take `seconds`, within RUNS, or of `runs`."""
    run()
    machine.wait()
    times: list[float] = []
    while len(times) < (runs or RUNS[0]) or (not runs and sum(times) < seconds and len(times) < RUNS[1]):
        start = time.perf_counter()
        run()
        machine.wait()
        times.append(time.perf_counter() - start)
    return Timing.of(times)


def compute(machine: Machine, seconds: float) -> tuple[dict[str, float], float, float, dict[str, Timing]]:
    """Return peaks by unit, bytes a second of memory, seconds of a launch, and the times of products by their lines."""
    share = seconds / (len(TYPES) + 2)
    peaks: dict[str, float] = {}
    lines: dict[str, Timing] = {}
    for dtype in TYPES:
        found = list(products(machine, dtype, share))
        if found:
            peaks[DTYPES_OF_TORCH[dtype].name] = max(2 * size**3 / spent.seconds for size, spent in found)
            lines |= {_product(size, DTYPES_OF_TORCH[dtype]): spent for size, spent in found}
    few = torch.zeros(16, device=machine.device)
    launch = timed(lambda: few.add_(1), machine, share / 2).seconds
    peaks[VECTOR] = vector_peak(machine, share / 2)
    source = torch.zeros(2**26 if machine.device == "cpu" else 2**30, dtype=torch.uint8, device=machine.device)
    target = torch.empty_like(source)
    copied = timed(lambda: target.copy_(source), machine, share).seconds
    return peaks, 2 * source.numel() / copied, launch, lines


def vector_peak(machine: Machine, seconds: float) -> float:
    """Return the operations a second of elementwise ops, of the size at which they do most: where caches hold it."""
    found = []
    for size in VECTORS:
        total, one, other = (torch.ones(size, device=machine.device) for _ in range(3))
        run = partial(total.addcmul_, one, other, value=0.5)  # a product and a sum for each element
        found.append(2 * size / timed(run, machine, seconds / len(VECTORS)).seconds)
    return max(found)


def products(machine: Machine, dtype: torch.dtype, seconds: float) -> list[tuple[int, Timing]]:
    """Return (size, times) of products of matrices, larger ones as long as there is time."""
    found: list[tuple[int, Timing]] = []
    left, takes = seconds, RUNS[0] + 1
    for size in PRODUCTS:
        if found and takes * 8 * found[-1][1].seconds > left:
            break
        try:
            matrix = torch.ones(size, size, dtype=dtype, device=machine.device)
            spent = timed(lambda matrix=matrix: matrix @ matrix, machine, left / 8)
        except RuntimeError:
            break  # a type that the device does not multiply, or its memory is full
        found.append((size, spent))
        left -= max(takes * spent.seconds, left / 8)
    return found


def _product(size: int, dtype: DType) -> str:
    operand = TensorMeta((size, size), dtype)
    return op_text("aten.mm", (operand, operand))


def sizes(ranks: int) -> list[tuple[int, int]]:
    """Return the elements that a rank sends each other one, and the bytes that it sends in all."""
    chunks = [max(sent // (4 * (ranks - 1)), 2) for sent in SENT]
    return [(chunk, 4 * chunk * (ranks - 1)) for chunk in chunks]


def collective_runs(chunk: int, machine: Machine) -> dict[str, Callable[[], object]]:
    """Return, by collective, one in which each rank sends each other one `chunk` elements."""

    def empty(size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.float32, device=machine.device)

    one, all_ = empty(chunk), empty(chunk * machine.ranks)
    reduced = empty(chunk * machine.ranks // 2)  # an all-reduce goes round twice
    out = torch.empty_like(all_)
    return {
        "all_gather": lambda: dist.all_gather_into_tensor(out, one),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(one, all_),
        "all_reduce": lambda: dist.all_reduce(reduced),
        "all_to_all": lambda: dist.all_to_all_single(out, all_),
    }


def rank_main(rank: int, machine: Machine, store: str, seconds: float, results: Any) -> None:
    """Measure the collectives on one rank; rank 0 puts (collective, bytes, times) into `results`."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)  # newer versions have other names for the same collectives
    if machine.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        machine.backend, init_method=f"file://{store}", rank=rank, world_size=machine.ranks, timeout=PATIENCE
    )
    begin = time.perf_counter()
    for chunk, sent in sizes(machine.ranks):
        for name, run in collective_runs(chunk, machine).items():
            # All ranks have to run it as often, so that the slowest says how often.
            once = slowest(timed(run, machine, 0, runs=2).seconds, machine)
            runs = min(max(int(seconds / (8 * len(SENT) * once)), RUNS[0]), RUNS[1])
            spent = timed(run, machine, 0, runs=runs)
            spent = Timing(slowest(spent.seconds, machine), slowest(spent.spread, machine))
            if rank == 0:
                results.put((name, sent, spent))
        late = slowest(time.perf_counter() - begin, machine)
        if late * 4 > seconds:  # the next size takes four times as long
            break
    if rank == 0:
        results.put(None)
    dist.barrier()
    dist.destroy_process_group()


def slowest(seconds: float, machine: Machine) -> float:
    """Return the largest of the numbers that all ranks give."""
    number = torch.tensor([seconds], dtype=torch.float64, device=machine.device)
    dist.all_reduce(number, dist.ReduceOp.MAX)
    return float(number)


def communicate(machine: Machine, seconds: float) -> list[tuple[str, int, Timing]]:
    """Return (collective, bytes that a rank sends, times) of all that were measured."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (machine, str(Path(folder) / "store"), seconds, results)
        processes = [context.Process(target=rank_main, args=(rank, *arguments)) for rank in range(machine.ranks)]
        for process in processes:
            process.start()
        found = list(iter(lambda: results.get(timeout=seconds + PATIENCE.total_seconds()), None))
        for process in processes:
            process.join()
    return found


def topology_of(
    name: str,
    machine: Machine,
    computed: tuple[dict[str, float], float, float, dict[str, Timing]],
    sent: Sequence[tuple[str, int, float]],
) -> Topology:
    """Return the constants that fit what was measured: all-gathers go round the ranks, all-to-alls do not."""
    peaks, memory_bandwidth, launch, _ = computed
    times = {(collective, size): seconds for collective, size, seconds in sent}
    gathers = sorted((size, seconds) for (collective, size), seconds in times.items() if collective == "all_gather")
    (least, first), (most, last) = gathers[0], gathers[-1]
    around, direct = first, times["all_to_all", least]
    hops = machine.ranks - 1
    hop = max(around - direct, 0.0) / (hops - 1) if hops > 1 else 0.0
    # Where time allowed for one size alone, all of its time counts as sending.
    bandwidth = (most - least) / max(last - first, 1e-9) if most > least else most / first
    base = max(direct - hop, 0.0)
    memory = USABLE * torch.cuda.mem_get_info()[0] if machine.device == "cuda" else float("inf")
    return Topology(name, bandwidth, bandwidth, base, hop, hop, memory_bandwidth, launch, memory, peaks)


def calibrate(name: str, machine: Machine, seconds: float) -> tuple[Topology, dict[str, Timing]]:
    """Return the topology and the times, by their lines, of a machine, in about so many seconds."""
    torch.set_num_threads(1)
    computed = compute(machine, seconds / 3)
    found = communicate(machine, seconds / 3) if machine.ranks > 1 else []
    lines = {f"{collective} {machine.ranks} ranks {size} bytes": spent for collective, size, spent in found}
    sent = [(collective, size, spent.seconds) for collective, size, spent in found]
    if not sent:
        sent = [("all_gather", 0, 0.0), ("all_to_all", 0, 0.0), ("all_gather", 2**30, 2**30 / computed[1])]
    return topology_of(name, machine, computed, sent), {**computed[3], **lines}


def costs_of(timings: Mapping[str, Timing]) -> str:
    """Return the text of a table of costs."""
    lines = (f"{CostLine(what, spent.seconds)}  # spread {spent.spread:.0%}" for what, spent in timings.items())
    return "\n".join(["# measured by benchmarks.calibrate; seconds", *lines]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calibrate", description=summary)
    parser.add_argument("-o", "--output", default="machine", help="the files' name without its ending (machine)")
    parser.add_argument("--ranks", type=int, default=min(MOST_RANKS, os.cpu_count() or 1), help="processes, on CPU")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it may take, about (60)")
    options = parser.parse_args(arguments)
    output = Path(options.output)
    topology, timings = calibrate(output.name, machine_here(options.ranks), options.seconds)
    for ending, text in (
        (".toml", topology_text(topology, "measured by benchmarks.calibrate; SI units, all per rank")),
        (".costs", costs_of(timings)),
    ):
        output.with_suffix(ending).write_text(text)
        print(f"{output.with_suffix(ending)}:\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
