"""The price of a candidate: a training step is captured at two depths, partitioned, scheduled and modelled."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator

import attrs
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.analysis.phases import phases
from spmdir.core.equal_layers import numbered_layer
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.pipeline.pipeline import SCHEDULED, Pipeline
from spmdir.plans.resolve import sharding_plan
from spmdir.report.rank_step import RankStep, rank_step
from spmdir.reshard.topology import Topology
from spmdir.schedule.memory import Memory as LiveBuffers
from spmdir.schedule.program import MEMORY_CLASSES
from spmdir.sweep.candidate import MeshRecipe
from spmdir.sweep.captures import CaptureOptions, imported
from spmdir.sweep.step_costs import Memory, StepCosts, at_depth
from spmdir.sweep.workload import Workload


@attrs.frozen
class StepOptions:
    """A way to run a training step on any mesh.

    Attributes:
        samples: the samples of a batch of all ranks.
        micro_batches: the number of micro-batches that it is cut into.
        recomputes: whether the backward recomputes each layer from its input.
    """

    samples: int
    micro_batches: int = 1
    recomputes: bool = False

    def at_depth(self, depth: int | None) -> CaptureOptions:
        """Return the options of the capture of a micro-batch, for a number of layers."""
        return CaptureOptions(self.samples // self.micro_batches, self.micro_batches > 1, self.recomputes, depth)


def price(workload: Workload, candidate: MeshRecipe, options: StepOptions, pipeline: Pipeline) -> StepCosts:
    """Return the costs of a step of the whole model.

    Raises:
        SpmdirError: the model cannot be captured or partitioned, or the recipe does not fit the model.
    """
    layers = workload.layers
    costs: dict[int, StepCosts] = {}
    for depth in layers.depths if layers else (None,):
        module, captured = imported(workload, candidate, options.at_depth(depth))
        with collector_paused():
            step = rank_step(module, None, pipeline)
        costs[depth or 0] = _step_costs(step, captured.accumulated, options.micro_batches, depth or 0)
    return at_depth(costs, layers.count if layers else 0)


def full_plan(workload: Workload, candidate: MeshRecipe) -> ShardingPlan:
    """Return the explicit plan of the recipe for the whole model."""
    return sharding_plan(workload.case(candidate.data_ranks, None).model, candidate.mesh, candidate.recipe)


def _step_costs(step: RankStep, accumulated: Collection[int], micro_batches: int, depth: int) -> StepCosts:
    """Return the costs of a step: runs of the part that `accumulated` needs, then a run of the whole program."""
    execution = step.execution
    repeated = [] if micro_batches == 1 else _tasks_of(step, accumulated)
    exposed = math.fsum(execution.transfers[index].exposed for index in repeated if index in execution.transfers)
    tasks = execution.program.tasks
    seconds = math.fsum(tasks[index].seconds for index in repeated) + exposed
    flops = math.fsum(tasks[index].kernel_cost.flops for index in repeated)
    return StepCosts(
        execution.seconds + (micro_batches - 1) * seconds,
        execution.exposed_seconds + (micro_batches - 1) * exposed,
        math.fsum(task.kernel_cost.flops for task in tasks) + (micro_batches - 1) * flops,
        _memory_by_place(step, depth),
    )


def _memory_by_place(step: RankStep, depth: int) -> dict[str, Memory]:
    """Return place → the memory at the peak of this place."""
    program = step.execution.program
    memory = LiveBuffers(program)
    peaks: dict[str, tuple[float, tuple[int, ...]]] = {}
    for index, places in enumerate(_places(step, depth)):
        for size in memory.moments(index):
            for place in places:
                if size > peaks.get(place, (0.0, ()))[0]:
                    peaks[place] = size, tuple(memory.live)
    return {
        place: {
            kind: math.fsum(program.buffers[b].bytes for b in live if program.buffers[b].kind == kind)
            for kind in MEMORY_CLASSES
        }
        for place, (_, live) in peaks.items()
    }


def _places(step: RankStep, depth: int) -> Iterator[tuple[str, ...]]:
    """Yield the places of each task: forward or backward, and before, after, or in the first or last of the layers.

    Tasks of the optimizer run between other tasks, and are at the place of the task before.
    """
    phase_of = phases(step.function, step.kinds)
    started: set[str] = set()
    places: tuple[str, ...] = ("forward, before the layers",)
    for task, ops in zip(step.execution.program.tasks, step.units, strict=True):
        phase, layer = phase_of[ops[0]], numbered_layer(task.path)
        if phase != "optimizer" and layer is None:
            places = (f"{phase}, {'after' if phase in started else 'before'} the layers",)
        elif phase != "optimizer" and layer is not None:
            started.add(phase)
            ends = {"first": 0, "last": depth - 1}
            places = tuple(f"{phase}, {name} layer" for name, position in ends.items() if layer[1] == position)
        yield places


def _tasks_of(step: RankStep, results: Collection[int]) -> list[int]:
    """Return the tasks that compute some results of the program."""
    returned = step.function.body.block.last_op
    assert returned is not None
    needed: set[Operation] = set()
    values: list[SSAValue] = [returned.operands[index] for index in results]
    while values:
        value = values.pop()
        if not isinstance(value, BlockArgument) and isinstance(value.owner, Operation) and value.owner not in needed:
            needed.add(value.owner)
            values += value.owner.operands
    return [index for index, ops in enumerate(step.units) if any(op in needed for op in ops)]


def sweep_pipeline(topology: Topology) -> Pipeline:
    """Return the pipeline that `parallelize` and `shard_module` run, without a memory limit and without sub-axes.

    The limit applies to the whole model, and the programs that are priced have fewer layers. A search over sub-axes
    takes ten times as long.
    """
    pipeline = Pipeline(SCHEDULED, topology=attrs.evolve(topology, memory=math.inf))
    return pipeline.with_option("propagate", "sub-axes", "none")


def parameter_count(workload: Workload) -> int:
    """Return the number of parameters of the whole model."""
    return sum(parameter.numel() for parameter in workload.case(1, None).model.parameters())
