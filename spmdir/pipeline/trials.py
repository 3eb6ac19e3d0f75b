"""Trial runs: pipelines that a pass runs on copies of its program, to compare decisions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from spmdir.pipeline.pipeline import Step, as_pipeline, parse_steps, run_passes

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.dialects.context import IRContext


@attrs.frozen
class TrialRun:
    """A finished trial run.

    Attributes:
        steps: the text of the pipeline.
        seconds: the wall time that it took.
    """

    steps: str
    seconds: float


def run_trial(context: IRContext, copy: ModuleOp, steps: str | tuple[Step, ...]) -> ModuleOp:
    """Run passes on a copy of a program in place, and record the time in `context.trials`.

    The passes use the plug-ins, topology and costs of the pipeline of `context`. Rules, rewrites, conditions and
    collectives are those of `context`.

    Raises:
        SpmdirError: a pass rejects the copy.
    """
    pipeline = as_pipeline(context.pipeline).with_steps(parse_steps(steps))
    start = time.perf_counter()
    run_passes(copy, pipeline, context=context.for_trial(pipeline))
    context.trials.append(TrialRun(str(pipeline), time.perf_counter() - start))
    return copy


def total_by_steps(trials: Sequence[TrialRun]) -> dict[str, tuple[int, float]]:
    """Return text of a pipeline → the number of its runs, and their total seconds."""
    totals: dict[str, tuple[int, float]] = {}
    for trial in trials:
        count, seconds = totals.get(trial.steps, (0, 0.0))
        totals[trial.steps] = count + 1, seconds + trial.seconds
    return totals
