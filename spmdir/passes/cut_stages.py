"""cut-stages: cut a training step of one micro-batch into the stages of a pipelined step."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from spmdir.analysis.stage_times import seconds_alone
from spmdir.core.errors import UnsupportedError
from spmdir.dialects import ir
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_op import pipeline_op
from spmdir.dialects.stage_inference import is_undecided
from spmdir.pipeline.base_passes import global_functions, reject_open_sizes
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.transforms.stages.backward_cut import ForwardStages
from spmdir.transforms.stages.cut import cut_step
from spmdir.transforms.stages.forward_cut import balanced_cuts, cut_at_modules, stages_at
from spmdir.transforms.stages.step_parts import StepParts, micro_batches

BACKWARD = 2.0
"""The time of the backward of an op, in times of its forward."""


@dataclass(frozen=True)
class CutStagesPass(ModulePass, MachineOptions):
    """Cuts a training step into the stages of a pipeline: functions for forward, backward and update of each stage."""

    name = "cut-stages"

    ranks: int = 0
    """The number of ranks along the pipeline axis; 0 for the number of stages."""

    stages: int = 0
    """The number of stages; 0 for as many as ranks. The stages take about the same time."""

    at: tuple[str, ...] = ()
    """The modules with which stages begin, such as `layers.2,layers.4` for three stages, in place of `stages`."""

    axis: str = "pp"
    """The name of the pipeline axis."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Cut the step.

        The number of stages is that of the options `stages` or `at`, or by default the number of ranks.

        Raises:
            SpmdirError: the module is not a decided training step, or an option does not fit it; located.
        """
        assert isinstance(ctx, IRContext)
        reject_open_sizes(op, self.name)
        function, mesh = self._function(op), ir.mesh(op)
        count = self.stages or (len(self.at) + 1 if self.at else self.ranks)
        ranks = self.ranks or count
        if count < 1:
            raise UnsupportedError(
                f"found stages={self.stages} and ranks={self.ranks}; expected a positive number of stages or ranks, as "
                "in cut-stages{ranks=2}",
                location_of(function),
            )
        if self.at and self.stages not in (0, len(self.at) + 1):
            raise UnsupportedError(
                f"`at` lists {len(self.at)} modules for {self.stages} stages; expected the first module of each stage "
                f"but the first: list {self.stages - 1} modules, or omit `stages`",
                location_of(function),
            )
        if self.axis in mesh.axis_names:
            raise UnsupportedError(
                f"the mesh has the axis '{self.axis}'; expected a mesh without the pipeline axis, since no "
                "tensor is sharded over it: remove the axis from the mesh",
                location_of(ir.mesh_op(op)),
            )
        topology = self.machine(ctx, function).topology

        def cut(parts: StepParts) -> ForwardStages:
            """Return the stages of the forward part: those that `at` names, or `count` stages of about equal time."""
            if self.at:
                return cut_at_modules(parts, self.at)

            def forward_and_backward_seconds(operation: Operation) -> float:
                return (1 + BACKWARD) * seconds_alone(operation, mesh, ctx.rules, topology)

            def message_seconds(size: float) -> float:
                return topology.inter_latency + size / topology.inter_bandwidth

            cuts = balanced_cuts(parts, count, micro_batches(parts), forward_and_backward_seconds, message_seconds)
            return stages_at(parts, cuts)

        cut_step(op, function, cut, self.axis, ranks)

    def _function(self, module: ModuleOp) -> FuncOp:
        """Return the step of a module; raise a located error if it is cut already, or is not decided."""
        if (step := pipeline_op(module)) is not None:
            raise UnsupportedError(
                "the step is cut into stages already; expected an uncut step: run cut-stages only once",
                location_of(step),
            )
        function = ir.main_function(module)
        global_functions(module, self.name)
        if is_undecided(function):
            raise UnsupportedError(
                "the step has values without a sharding; expected a sharding for each value: run propagate first",
                location_of(function),
            )
        return function
