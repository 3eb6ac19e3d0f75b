"""Fit the constants of a topology to a measured step.

Each constant is scaled by the ratio of measured to modelled time of the tasks that it limits:

    limit     tasks  modelled  measured  constant           scaled by
    compute   96     41.8 ms   40.2 ms   peak_flops         1 / 0.96
    memory    137    5.9 ms    10.9 ms   memory_bandwidth   1 / 1.84
    launch    14     0.03 ms   0.02 ms   launch_latency     0.64

After that, other tasks may be limited by a constant, so this is repeated. Unlike measured times of single ops, the
constants hold for other shardings of the program too.
"""

from __future__ import annotations

import attrs
from xdsl.dialects.builtin import ModuleOp

from spmdir.pipeline.pipeline import Pipeline
from spmdir.report.measured_step import MeasuredStep
from spmdir.report.rank_step import RankStep, rank_step
from spmdir.reshard.topology import Topology
from spmdir.schedule.program import Task, Transfer

_ROUNDS = 4
"""How often the constants are scaled."""


def fit_topology(module: ModuleOp, measured: MeasuredStep, pipeline: Pipeline) -> Topology:
    """Return the topology of `module`, with constants that fit a measured step.

    Constants that limit no measured task keep their values.

    Args:
        module, pipeline: those of the measured step.
    """
    step = rank_step(module, None, pipeline)
    for _ in range(_ROUNDS):
        step = rank_step(module, _scaled(step, measured), pipeline)
    return step.machine


def _scaled(step: RankStep, measured: MeasuredStep) -> Topology:
    """Return the topology of a step, with each constant scaled by measured / modelled time of the tasks it limits."""
    modelled: dict[str, float] = {}
    measured_seconds: dict[str, float] = {}
    for task, seconds, transfer_seconds in zip(
        step.execution.program.tasks, measured.seconds, measured.transfers, strict=True
    ):
        for limit, task_modelled, task_measured in _limits(task, seconds, transfer_seconds):
            modelled[limit] = modelled.get(limit, 0.0) + task_modelled
            measured_seconds[limit] = measured_seconds.get(limit, 0.0) + task_measured
    ratios = {limit: measured_seconds[limit] / model for limit, model in modelled.items()}
    machine = step.machine
    compute, latency = ratios.get("compute", 1.0), ratios.get("latency", 1.0)
    return attrs.evolve(
        machine,
        peak_flops=tuple((unit, peak / compute) for unit, peak in machine.peak_flops),
        memory_bandwidth=machine.memory_bandwidth / ratios.get("memory", 1.0),
        launch_latency=machine.launch_latency * ratios.get("launch", 1.0),
        intra_bandwidth=machine.intra_bandwidth / ratios.get("intra", 1.0),
        inter_bandwidth=machine.inter_bandwidth / ratios.get("inter", 1.0),
        base_latency=machine.base_latency * latency,
        intra_latency=machine.intra_latency * latency,
        inter_latency=machine.inter_latency * latency,
        protocols=tuple(
            attrs.evolve(
                protocol,
                base_latency=protocol.base_latency * latency,
                intra_latency=protocol.intra_latency * latency,
                inter_latency=protocol.inter_latency * latency,
            )
            for protocol in machine.protocols
        ),
    )


def _limits(task: Task, seconds: float, transfer_seconds: float) -> list[tuple[str, float, float]]:
    """Return [(name of the limit of a task, its modelled seconds, its measured seconds)]; [] if it was not measured.

    Args:
        seconds, transfer_seconds: the measured time of the kernels of the task, and of its transfer.
    """
    if task.transfer is not None:
        return [(_limit_of(task.transfer), task.transfer.seconds, transfer_seconds)] if transfer_seconds else []
    if task.waits_for is not None or not task.seconds or not seconds:
        return []
    return [(task.kernel_cost.bound, task.seconds, seconds)]


def _limit_of(transfer: Transfer) -> str:
    """Return which term of a transfer is longest."""
    terms = {"latency": transfer.latency, "intra": transfer.intra, "inter": transfer.inter}
    return max(terms, key=terms.__getitem__)
