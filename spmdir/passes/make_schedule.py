"""make-schedule: choose the order in which the ranks of a pipeline run stages and send messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import attrs
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.analysis.stage_times import stage_times
from spmdir.core.byte_size import size_text
from spmdir.core.errors import SpmdirError, UnsupportedError, print_remark
from spmdir.core.placement.pipeline_axis import ScheduleKind
from spmdir.core.time_text import time_text
from spmdir.dialects import ir
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_flow import StepFlow
from spmdir.dialects.pipeline_op import pipeline_op
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipelined.actions import StepOrder
from spmdir.pipelined.global_order import with_updates
from spmdir.pipelined.kinds import make_order, stage_map_of
from spmdir.pipelined.step import PipelinedStep
from spmdir.pipelined.times import StageTimes, lower_bound, replay


@dataclass(frozen=True)
class MakeSchedulePass(ModulePass, MachineOptions):
    """Chooses the order of a pipelined step: which micro-batch each rank runs next, and when messages are sent."""

    name = "make-schedule"

    kind: ScheduleKind = "1f1b"
    """The kind of order, as for `spmd pipeline`."""

    live: int = 0
    """The number of activations of a stage that a rank may hold, for `search`; 0 for no limit."""

    remarks: bool = False
    """Whether to print a remark with the modelled time, its lower bound, the idle time and the saved activations."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Write the placement of stages and the order.

        Raises:
            SpmdirError: the module has no pipelined step, or the kind does not fit its stages; located.
        """
        assert isinstance(ctx, IRContext)
        pipeline = pipeline_op(op)
        if pipeline is None:
            raise UnsupportedError(
                "the module has no pipelined step; expected a `spmd.pipeline` op: run cut-stages first", location_of(op)
            )
        step = pipeline.step
        if self.kind in ("zb", "zbv") and not step.is_split:
            raise UnsupportedError(
                f"kind={self.kind} schedules the gradients of inputs and of weights separately, but one "
                "function computes both; expected a function for each: run split-backward first",
                location_of(pipeline),
            )
        try:
            step = _placed(step, stage_map_of(self.kind, step.ranks, len(step.stages)).coordinates)
            pipeline.set_step(step)
            flow = StepFlow.of(pipeline)
            machine = self.machine(ctx, next(iter(flow.functions.values())))
            times = stage_times(flow, ir.mesh(op), ctx.rules, machine.topology)
            order = make_order(self.kind, step.ranks, step.micro, times, self.live or None, flow.stage_map)
        except SpmdirError as error:
            raise error.at(location_of(pipeline)) from None
        # The order may place the stages differently.
        pipeline.set_step(_placed(step, order.stage_map.coordinates))
        entries = with_updates(order, StepFlow.of(pipeline).updates)
        pipeline.set_step(attrs.evolve(pipeline.step, entries=entries))
        if self.remarks:
            print_remark(_explanation(order, times), location_of(pipeline))


def _placed(step: PipelinedStep, coordinates: Sequence[int]) -> PipelinedStep:
    """Return a pipelined step without an order, with its stages on the ranks with the given coordinates.

    Args:
        coordinates: for each stage, its coordinate on the pipeline axis.
    """
    stages = tuple(
        attrs.evolve(stage, coordinate=coordinate) for stage, coordinate in zip(step.stages, coordinates, strict=True)
    )
    return attrs.evolve(step, stages=stages, entries=())


def _explanation(order: StepOrder, times: StageTimes) -> str:
    """Return the text of the remark about an order."""
    timeline = replay(order, times)
    bound = lower_bound(order.stage_map, order.micro, times, order.is_split)
    saved = ", ".join(map(size_text, timeline.peak_saved))
    return (
        f"the micro-batches take {time_text(timeline.seconds)}, and at least {time_text(bound)} in any order of these "
        f"stages; ranks are idle for {timeline.bubble:.1%} of the time, and save at most {saved} for the backward"
    )
