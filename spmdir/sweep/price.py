"""The price of a candidate: a training step is captured at two depths, partitioned, scheduled and modelled."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from typing import Any

import attrs
import torch
from torch.utils.checkpoint import checkpoint
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.analysis.phases import phases
from spmdir.core.equal_layers import numbered_layer
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.core.progress import say
from spmdir.importer.importer import import_fx
from spmdir.pipeline.pipeline import SCHEDULED, Pipeline
from spmdir.plans.activations import constrained_activations
from spmdir.plans.resolve import sharding_plan
from spmdir.report.rank_step import RankStep, rank_step
from spmdir.reshard.topology import Topology
from spmdir.runtime.capture import Capture, capture_step
from spmdir.runtime.signature import return_whole
from spmdir.runtime.training import TrainingStep, training_step
from spmdir.schedule.memory import Memory as LiveBuffers
from spmdir.schedule.program import MEMORY_CLASSES
from spmdir.sweep.candidate import MeshRecipe
from spmdir.sweep.step_costs import Memory, StepCosts, at_depth
from spmdir.sweep.workload import Workload, layers_in
from spmdir.torch_interop import pytree


@attrs.frozen
class CaptureOptions:
    """What a captured step depends on, except for the plan.

    Attributes:
        samples: the samples of a batch of all ranks.
        micro_batches: the number of micro-batches that it is cut into.
        recomputes: whether the backward recomputes each layer from its input.
        depth: the number of layers; None for all.
    """

    samples: int
    micro_batches: int
    recomputes: bool
    depth: int | None


@attrs.frozen(eq=False)
class Captured:
    """A captured training step.

    Attributes:
        capture: the trace.
        accumulated: the indices of the results that each micro-batch renews.
    """

    capture: Capture
    accumulated: frozenset[int]


def price(workload: Workload, candidate: MeshRecipe, options: CaptureOptions, pipeline: Pipeline) -> StepCosts:
    """Return the costs of a step of the whole model.

    Args:
        options: its `depth` is ignored.

    Raises:
        SpmdirError: the model cannot be captured or partitioned, or the recipe does not fit the model.
    """
    layers = workload.layers
    costs: dict[int, StepCosts] = {}
    for depth in layers.depths if layers else (None,):
        module, captured = imported(workload, candidate, attrs.evolve(options, depth=depth))
        with collector_paused():
            step = rank_step(module, None, pipeline)
        costs[depth or 0] = _step_costs(step, captured.accumulated, options.micro_batches, depth or 0)
    return at_depth(costs, layers.count if layers else 0)


def imported(workload: Workload, candidate: MeshRecipe, options: CaptureOptions) -> tuple[ModuleOp, Captured]:
    """Return the undecided program of a step with the annotations of the recipe, and its capture."""
    plan = sharding_plan(_built(workload, options)[0].model, candidate.mesh, candidate.recipe)
    captured = _captured(workload, options, _Activations(plan))
    capture = captured.capture
    plan = plan.with_inputs(len(capture.state), len(capture.convention.examples))
    module = import_fx(capture.program, candidate.mesh, plan, out_shardings=capture.result_shardings(None))
    return_whole(module, capture)
    return module, captured


def full_plan(workload: Workload, candidate: MeshRecipe) -> ShardingPlan:
    """Return the explicit plan of the recipe for the whole model."""
    return sharding_plan(workload.case(candidate.data_ranks, None).model, candidate.mesh, candidate.recipe)


class _Activations:
    """A plan as a key of captures: two plans with the same constraints on activations are equal."""

    def __init__(self, plan: ShardingPlan):
        self.plan = ShardingPlan(activations=plan.activations)
        self._text = str(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Activations) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@functools.lru_cache(maxsize=32)
def _built(workload: Workload, options: CaptureOptions) -> tuple[TrainingStep, Any, tuple[Any, ...]]:
    """Return a training step with AdamW, its state, and a micro-batch."""
    case = workload.case(options.samples, options.depth)
    if options.recomputes:
        for layer in layers_in(case.model):
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    step, state = training_step(
        case.model, case.loss, optimizer, accumulate=options.micro_batches, compute_dtype=torch.bfloat16
    )
    return step, state, step.split_batch(case.batch)[0]


@functools.lru_cache(maxsize=32)
def _captured(workload: Workload, options: CaptureOptions, activations: _Activations) -> Captured:
    """Return the trace of a micro-batch, under the constraints on activations."""
    step, state, batch = _built(workload, options)
    say("tracing {} layers of {}", options.depth or "all", workload.name)
    with constrained_activations(step.model, activations.plan):
        capture = capture_step(step.micro_step, state, batch, torch.device("cpu"))
    keys = [key for key, part in state.items() for _ in pytree.tree_leaves(part)]
    outputs = len(capture.outputs)
    accumulated = [outputs + index for index, key in enumerate(keys) if step.is_accumulated(key)]
    return Captured(capture, frozenset([*range(outputs), *accumulated]))


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
