"""Which part of the time of each value's reshards a schedule leaves exposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from xdsl.ir import SSAValue

from spmdir.analysis.units import Unit
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.collectives import Collective
from spmdir.schedule.simulate import Execution

UNSENT = 0.5
"""The least part that is exposed of a reshard that there is not: others may want to be hidden by the same compute."""


def exposed_parts(
    run: Execution,
    units: Sequence[Unit],
    owner: Callable[[SSAValue], tuple[int, bool] | None],
    values: Sequence[TensorMeta],
    bandwidth: float,
) -> tuple[float, ...]:
    """Return, by value, the part of the time of its reshards that is exposed, as the program runs.

    Of a value that is not sent it is what does not fit, at full bandwidth, between where it is made and where it is
    used, but at least `UNSENT`.

    Args:
        units: the ops of each task of `run`.
        owner: returns the value that a value of the program is or is a copy of, and whether it is one.
        values: by number, what they are before they are sharded.
        bandwidth: of a rank, in bytes a second.
    """
    parts: list[list[float]] = [[] for _ in values]
    made, used = [0.0] * len(values), [run.seconds] * len(values)
    for task, ops in enumerate(units):
        read = [found[0] for op in ops for value in op.operands if (found := owner(value))]
        written = [found[0] for op in ops for value in op.results if (found := owner(value)) and not found[1]]
        for value in read:
            used[value] = min(used[value], run.first[task])
        for value in written:
            made[value] = max(made[value], run.last[task])
        transfer = run.program.tasks[task].transfer
        if transfer is not None and transfer.seconds and isinstance(ops[0], Collective) and len(ops) == 1:
            for value in read:
                parts[value].append(min(run.sent[task].exposed / transfer.seconds, 1.0))
    return tuple(
        mean(found) if found else _unsent(last - first, meta.bytes / bandwidth)
        for found, first, last, meta in zip(parts, made, used, values, strict=True)
    )


def _unsent(window: float, seconds: float) -> float:
    return max(UNSENT, 1 - window / seconds) if seconds else 1.0
