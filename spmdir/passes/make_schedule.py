"""make-schedule: choose the order in which the ranks of a pipeline run stages and send messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import attrs
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_flow import StepFlow
from spmdir.dialects.pipeline_op import pipeline_op
from spmdir.pipelined.global_order import with_updates
from spmdir.pipelined.kinds import make_order, stage_map_of
from spmdir.pipelined.times import equal_stages


@dataclass(frozen=True)
class MakeSchedulePass(ModulePass):
    """Chooses the order of a pipelined step: which micro-batch each rank runs next, and when messages are sent."""

    name = "make-schedule"

    kind: Literal["gpipe", "1f1b", "zb", "zbv", "search"] = "1f1b"
    """The kind of order, as for `spmd pipeline`."""

    live: int = 0
    """The number of activations of a stage that a rank may hold, for `search`; 0 for as many as for `zb`."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Write the placement of stages and the order.

        Raises:
            SpmdirError: the module has no pipelined step, or the kind does not fit its stages; located.
        """
        pipeline = pipeline_op(op)
        if pipeline is None:
            raise UnsupportedError("the module has no pipelined step; run cut-stages first", location_of(op))
        step = pipeline.step
        if self.kind in ("zb", "zbv") and not step.is_split:
            raise UnsupportedError(
                f"kind={self.kind} runs input and weight gradients apart; run split-backward first",
                location_of(pipeline),
            )
        try:
            coordinates = stage_map_of(self.kind, step.ranks, len(step.stages)).coordinates
            stages = tuple(
                attrs.evolve(stage, coordinate=coordinate)
                for stage, coordinate in zip(step.stages, coordinates, strict=True)
            )
            step = attrs.evolve(step, stages=stages, entries=())
            pipeline.set_step(step)
            flow = StepFlow.of(pipeline)
            times = equal_stages(len(stages), 1, 1, 1)
            order = make_order(self.kind, step.ranks, step.micro, times, self.live or None, flow.stage_map)
        except SpmdirError as error:
            raise error.at(location_of(pipeline)) from None
        pipeline.set_step(attrs.evolve(step, entries=with_updates(order, flow.updates)))
