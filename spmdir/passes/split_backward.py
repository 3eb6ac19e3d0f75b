"""split-backward: split the backward of the stages of a pipelined step into input and weight gradients."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from spmdir.core.errors import UnsupportedError
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_op import pipeline_op
from spmdir.pipeline.base_passes import global_functions
from spmdir.transforms.stages.split_stages import split_stages


@dataclass(frozen=True)
class SplitBackwardPass(ModulePass):
    """Splits the backward of each stage into the input gradient, and the weight gradient that no other stage needs."""

    name = "split-backward"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Split the backward of each stage. The step loses its order.

        Raises:
            SpmdirError: the module has no pipelined step, or its backward is split; located.
        """
        global_functions(op, self.name)
        pipeline = pipeline_op(op)
        if pipeline is None:
            raise UnsupportedError(
                "the module has no pipelined step; expected a `spmd.pipeline` op: run cut-stages first", location_of(op)
            )
        split_stages(op, pipeline)
