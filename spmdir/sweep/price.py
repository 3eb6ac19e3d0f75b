"""The price of a candidate: a training step is captured, partitioned, scheduled and modelled.

`estimate` prices the traced program, which has few layers, and adds the share of a layer for each further layer. Its
memory, compute and bound are close to those of the whole model. `refine` also prices a deeper program: its schedule
shows how much communication each of many layers exposes. The deeper program is decided separately.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Collection, Iterable, Iterator

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.analysis.phases import phases
from spmdir.core.equal_layers import numbered_layer
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects import ir
from spmdir.dialects.machine_attribute import recorded_certificate
from spmdir.pipeline.pipeline import SCHEDULED, Pipeline, run_passes
from spmdir.plans.resolve import sharding_plan
from spmdir.report.rank_step import RankStep, rank_step
from spmdir.reshard.topology import Topology
from spmdir.schedule.memory import Memory as LiveBuffers
from spmdir.schedule.program import MEMORY_CLASSES
from spmdir.schedule.simulate import Execution
from spmdir.sweep.candidate import MeshRecipe
from spmdir.sweep.captures import Captured, CaptureOptions, imported
from spmdir.sweep.deepen import deepen
from spmdir.sweep.step_costs import Memory, StepCosts, at_depth
from spmdir.sweep.workload import PERIODS, LayerPattern, Workload

GAP = 0.2
"""The option `gap` of `propagate`. Dives after a decision within this gap take most of the time, and rarely help."""

_LARGE = 0.01
"""The fraction of the flops of the largest op that a large op has."""


@attrs.frozen
class StepOptions:
    """A way to run a training step on any mesh.

    Attributes:
        samples: the samples of a batch of all ranks.
        micro_batches: the number of micro-batches that it is cut into.
        recomputes: whether the backward recomputes each layer from its input.
        regathers: whether gathered weights are freed after the forward of a layer, and gathered again for its backward.
    """

    samples: int
    micro_batches: int = 1
    recomputes: bool = False
    regathers: bool = False

    def at_depth(self, depth: int | None) -> CaptureOptions:
        """Return the options of the capture of a micro-batch, for a number of layers."""
        return CaptureOptions(self.samples // self.micro_batches, self.micro_batches > 1, self.recomputes, depth)

    def scheduled_by(self, pipeline: Pipeline) -> Pipeline:
        """Return the pipeline that runs a step in this way."""
        return pipeline.with_option("schedule", "regather", "true") if self.regathers else pipeline


@attrs.frozen(eq=False)
class Estimate:
    """The costs of a step of the whole model, according to one program with few layers.

    Attributes:
        costs: the costs of the whole model.
        traced: the costs of the program.
        module: the program, decided.
        undecided: the program before `propagate`.
        captured: its capture.
    """

    costs: StepCosts
    traced: StepCosts
    module: ModuleOp
    undecided: ModuleOp
    captured: Captured


def price(workload: Workload, candidate: MeshRecipe, options: StepOptions, pipeline: Pipeline) -> StepCosts:
    """Return the costs of a step of the whole model.

    Raises:
        SpmdirError: the model cannot be captured or partitioned, or the recipe does not fit the model.
    """
    return refine(workload, candidate, options, pipeline, estimate(workload, candidate, options, pipeline))


def estimate(
    workload: Workload,
    candidate: MeshRecipe,
    options: StepOptions,
    pipeline: Pipeline,
    decided: Estimate | None = None,
) -> Estimate:
    """Return the costs of a step of the whole model, from the traced program.

    Args:
        decided: an estimate with options that differ only in `regathers`. Its program is decided alike, so it is
            scheduled again.

    Raises:
        SpmdirError: as `price`.
    """
    layers = workload.layers
    depth = layers.traced if layers else 0
    if decided is None:
        undecided, captured = imported(workload, candidate.of_stage, options.at_depth(depth or None))
        module = run_passes(undecided.clone(), pipeline.through("propagate"))
    else:
        module, undecided, captured = decided.module, decided.undecided, decided.captured
    step = rank_step(module, None, options.scheduled_by(pipeline))
    costs = _step_costs(step, captured.accumulated, options.micro_batches, depth)
    whole = costs
    if layers and depth < layers.count:
        period = _period_costs(step, layers, captured.accumulated, options.micro_batches)
        extended = costs.plus(period, (layers.count - depth) / layers.period)
        whole = extended.exposing(extended.exposed_seconds)
    return Estimate(_of_stage(whole, workload, candidate, options), costs, module, undecided, captured)


def refine(
    workload: Workload, candidate: MeshRecipe, options: StepOptions, pipeline: Pipeline, estimate: Estimate
) -> StepCosts:
    """Return the costs of a step of the whole model, from the program of an estimate and a deeper one.

    Raises:
        SpmdirError: as `price`.
    """
    layers = workload.layers
    if layers is None or layers.depths[-1] == layers.traced:
        return estimate.costs
    depth = layers.depths[-1]
    copies = (depth - layers.traced) // layers.period
    # The decision of few layers can differ: without enough work, the best decision of ddp replicates the batch.
    program = deepen(estimate.undecided, layers.first, layers.period, copies)
    if program is None:
        module, captured = imported(workload, candidate.of_stage, options.at_depth(depth))
        accumulated = captured.accumulated
    else:
        module, results = program.module, enumerate(program.origins)
        accumulated = frozenset(index for index, origin in results if origin in estimate.captured.accumulated)
    step = rank_step(module, None, options.scheduled_by(pipeline))
    deep = _step_costs(step, accumulated, options.micro_batches, depth)
    whole = at_depth({layers.traced: estimate.traced, depth: deep}, layers.count)
    return _of_stage(whole, workload, candidate, options)


def _of_stage(costs: StepCosts, workload: Workload, candidate: MeshRecipe, options: StepOptions) -> StepCosts:
    """Return the costs of a rank of the longest stage, from those of a rank with the whole model."""
    if candidate.stages == 1:
        return costs
    return costs.of_stage(candidate.stages, options.micro_batches, workload.layers.count if workload.layers else 0)


def certified_gap(workload: Workload, candidate: MeshRecipe, options: StepOptions, pipeline: Pipeline) -> float | None:
    """Return how far the decision of the traced program may be from the best one, as a fraction of its cost.

    The plan of the recipe is given; the certificate covers all decisions for the other values. The result is None if
    nothing can be proved.

    Raises:
        SpmdirError: as `price`.
    """
    layers = workload.layers
    module, _ = imported(workload, candidate.of_stage, options.at_depth(layers.traced if layers else None))
    deciding = pipeline.through("propagate").with_option("propagate", "certify", "true")
    with contextlib.redirect_stderr(io.StringIO()):  # the remark of the certificate, and warnings that were printed
        run_passes(module, deciding)
    certificate = recorded_certificate(ir.main_function(module))
    return None if certificate is None else certificate.gap


def full_plan(workload: Workload, candidate: MeshRecipe) -> ShardingPlan:
    """Return the explicit plan of the recipe for the whole model."""
    return sharding_plan(workload.model(), candidate.mesh, candidate.recipe)


def _step_costs(step: RankStep, accumulated: Collection[int], micro_batches: int, depth: int) -> StepCosts:
    """Return the costs of a step: the whole program once, and its repeated part for each further micro-batch.

    Args:
        accumulated: the indices of the results of which each micro-batch computes a new value.
        depth: the number of layers of the program.
    """
    execution = step.execution
    whole = _task_costs(execution, range(len(execution.program.tasks)))
    whole = attrs.evolve(
        whole,
        seconds=execution.seconds,
        exposed_seconds=execution.exposed_seconds,
        places={place: _kinds(step, live) for place, live in _live_by_place(step, depth).items()},
    )
    repeated = [] if micro_batches == 1 else _tasks_of(step, accumulated)
    return whole.plus(_task_costs(execution, repeated), micro_batches - 1)


def _period_costs(step: RankStep, layers: LayerPattern, accumulated: Collection[int], micro_batches: int) -> StepCosts:
    """Return the share of one period of layers in the costs of the traced program.

    The time is the average over all periods, because buckets and starts are in other layers than their tensors. The
    memory at a place is what the middle period has there, without buffers of messages.
    """

    def period_of(path: str) -> int:
        """Return the period of the layer in a module path; -1 if it is in none."""
        layer = numbered_layer(path)
        return (layer[1] - layers.first) // layers.period if layer and layer[1] >= layers.first else -1

    execution = step.execution
    tasks_of_layers = [index for index, task in enumerate(execution.program.tasks) if period_of(task.path) >= 0]
    costs = _task_costs(execution, tasks_of_layers)
    if micro_batches > 1:
        accumulating = set(_tasks_of(step, accumulated))
        repeated = [index for index in tasks_of_layers if index in accumulating]
        costs = costs.plus(_task_costs(execution, repeated), micro_batches - 1)
    middle_buffers = {
        buffer
        for buffer, value in enumerate(step.memory.values)
        if period_of(_path_of(step, value)) == PERIODS // 2
        and step.memory.buffers[buffer].kind != "communication buffers"
    }
    live_buffers = _live_by_place(step, layers.traced)
    places = {place: _kinds(step, middle_buffers.intersection(live)) for place, live in live_buffers.items()}
    return StepCosts(0.0, 0.0, 0.0, places).plus(costs, 1 / PERIODS)


def _path_of(step: RankStep, value: SSAValue) -> str:
    """Return the module path of the op or argument that defines a value; "" if it has none."""
    return step.paths.get(value if isinstance(value, BlockArgument) else value.owner, "")  # type: ignore[arg-type]


def _task_costs(execution: Execution, tasks: Iterable[int]) -> StepCosts:
    """Return the costs of some tasks, without memory."""
    tasks = list(tasks)
    records = [execution.program.tasks[index] for index in tasks]
    exposed = math.fsum(execution.transfers[index].exposed for index in tasks if index in execution.transfers)
    transfers = [task.transfer for task in records if task.transfer is not None]
    return StepCosts(
        math.fsum(task.seconds for task in records) + exposed,
        exposed,
        math.fsum(task.kernel_cost.flops for task in records),
        {},
        math.fsum(transfer.intra for transfer in transfers),
        math.fsum(transfer.inter for transfer in transfers),
    )


def _live_by_place(step: RankStep, depth: int) -> dict[str, tuple[int, ...]]:
    """Return place (see `_places`) → indices of the live buffers when the memory at this place is largest."""
    memory = LiveBuffers(step.execution.program)
    peaks: dict[str, tuple[float, tuple[int, ...]]] = {}
    for index, places in enumerate(_places(step, depth)):
        for size in memory.moments(index):
            for place in places:
                if size > peaks.get(place, (0.0, ()))[0]:
                    peaks[place] = size, tuple(memory.live)
    return {place: live for place, (_, live) in peaks.items()}


def _kinds(step: RankStep, live: Iterable[int]) -> Memory:
    """Return kind of memory → the bytes of some buffers."""
    sizes: dict[str, float] = dict.fromkeys(MEMORY_CLASSES, 0.0)
    for buffer in map(step.execution.program.buffers.__getitem__, live):
        sizes[buffer.kind] += buffer.bytes
    return sizes


def _places(step: RankStep, depth: int) -> Iterator[tuple[str, ...]]:
    """Yield the places of each task: a phase, and a position relative to the layers.

    Examples are `forward, before the layers`, `backward, last layer` and `backward, after the layers`. The layers begin
    with their first large op, because a schedule moves transfers, casts and small ops to the front. Tasks of the
    optimizer and sums of gradients, which have no path, are at the place of the task before.
    """
    phase_of = phases(step.function, step.kinds)
    started: set[str] = set()
    large = _LARGE * max((task.kernel_cost.flops for task in step.execution.program.tasks), default=0.0)
    places: tuple[str, ...] = ("forward, before the layers",)
    for task, ops in zip(step.execution.program.tasks, step.units, strict=True):
        phase, layer = phase_of[ops[0]], numbered_layer(task.path)
        has_place = phase != "optimizer" and task.path
        if has_place and layer is None:
            places = (f"{phase}, {'after' if phase in started else 'before'} the layers",)
        elif has_place and layer is not None and (task.kernel_cost.flops >= large or phase in started):
            started.add(phase)
            ends = {"first": 0, "last": depth - 1}
            places = tuple(f"{phase}, {name} layer" for name, position in ends.items() if layer[1] == position)
        yield places


def _tasks_of(step: RankStep, results: Collection[int]) -> list[int]:
    """Return the indices of the tasks that compute the results with these indices, directly or through other tasks."""
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
    takes ten times as long, and dives take four times as long.
    """
    pipeline = Pipeline(SCHEDULED, topology=attrs.evolve(topology, memory=math.inf))
    return pipeline.with_option("propagate", "sub-axes", "none").with_option("propagate", "gap", str(GAP))


def parameter_count(workload: Workload) -> int:
    """Return the number of parameters of the whole model."""
    return sum(parameter.numel() for parameter in workload.model().parameters())
