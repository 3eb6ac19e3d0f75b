"""`parallelize` for a mesh with a pipeline axis: cut a decided training step into stages, and lower those of a rank."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import attrs
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.pipeline_axis import PipelineAxis
from spmdir.core.progress import say
from spmdir.dialects import ir
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_flow import StepFlow
from spmdir.lowering.emit import emit
from spmdir.lowering.process_groups import symbolic_group
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import add_reshard_passes, localize, remaining_passes
from spmdir.runtime.initial_state import initial_state
from spmdir.runtime.parallel_options import ChosenOptions
from spmdir.runtime.pipelined_parallel import PipelinedParallel, StagePrograms
from spmdir.runtime.rank_state import RankState, allocate_meta
from spmdir.runtime.set_up import SetUp
from spmdir.runtime.signature import Signature
from spmdir.runtime.stage_messages import value_layouts
from spmdir.runtime.stage_ranks import StageRanks
from spmdir.runtime.traces import Traces, trace_again
from spmdir.runtime.tracing import Decided, Traceable
from spmdir.runtime.training import TrainingStep
from spmdir.simulator.pipelined_step import stage_module
from spmdir.simulator.step_values import scheduled_step

_UNSUPPORTED = ("out_shardings", "local_inputs", "dynamic_shapes")
"""The options of `parallelize` that a pipelined step does not support."""


def parallelize_stages(
    setup: SetUp,
    pipeline: PipelineAxis,
    decided: Decided,
    traceable: Traceable,
    signature: Signature,
    originals: Mapping[str, Tensor],
    tied: Mapping[str, str],
) -> PipelinedParallel:
    """Return the program of this rank for a decided training step; all ranks must call this.

    Args:
        setup: the settings, with the mesh that contains the pipeline axis.
        decided: the step of one micro-batch, decided for the other axes.
        traceable: the traced step.
        signature: the signature of the step.
        originals: name → whole tensor of the state.
        tied: further name of a tied parameter → its name in the state.

    Raises:
        SpmdirError: the step cannot be cut into stages, or a stage cannot be lowered. All ranks raise.
    """
    step, size, passes = traceable.program, setup.mesh.sizes[pipeline.axis], setup.pipeline
    with passes.rules:
        text = setup.group.broadcast_text(
            "the stages of the program",
            lambda: ir.print_ir(cut_decided(decided.module, pipeline, size, passes), debuginfo=True),
        )
        module = ir.read_printed(text)
    with setup.group.check_agreement("lowering") as status:
        coordinate, rates = setup.mesh.coordinate(setup.rank)[pipeline.axis], step.rates()
        with passes.rules:
            programs = lower_stages(module, decided.setup, coordinate)
        kept = kept_names(programs.flow, originals, rates, coordinate)
        initial = initial_state(signature.state_arguments, originals, decided.setup, status, kept)
        state = RankState(
            shards=allocate_meta(initial.shards, setup.device),
            edge_states={},
            unset={name for name, tensor in originals.items() if tensor.is_meta and name in kept},
            rates={name: originals[name].item() for name in rates},
        )
    with setup.group.report_errors():
        ranks = setup.connect_ranks()
        programs = attrs.evolve(programs, ranks=StageRanks.of(ranks, pipeline))
        first = decided.connect(signature, programs, ranks, traceable)
        initial.copy_from_first_rank(ranks)
    assert programs.ranks is not None
    return PipelinedParallel(
        ranks=ranks,
        traces=Traces(first, lambda args: (), trace_again, {(): first}),
        state=state,
        tied=tied,
        step=step,
        programs=programs,
        stage_ranks=programs.ranks,
    )


def check_stages(model: Any, pipeline: PipelineAxis, mesh: Mesh, options: ChosenOptions) -> None:
    """Raise an error if a program cannot be cut into stages, or an option is not supported."""
    mesh.require(pipeline.axis)
    size = mesh.sizes[pipeline.axis]
    if not isinstance(model, TrainingStep) or model.micro_batches == 1:
        program = "a step with accumulate=1" if isinstance(model, TrainingStep) else f"a {type(model).__name__}"
        raise UnsupportedError(
            f"the plan cuts the model into stages along '{pipeline.axis}', but the program is {program}; expected a "
            f"training step with micro-batches: pass step and state of training_step(…, accumulate={4 * size})"
        )
    for name in _UNSUPPORTED:
        if getattr(options, name):
            raise UnsupportedError(
                f"{name} is not supported with the pipeline axis '{pipeline.axis}'; expected one of them: "
                f"omit {name}, or use a mesh without this axis"
            )


def stage_passes(pipeline: PipelineAxis, ranks: int) -> str:
    """Return the passes that cut a lowered step into stages and choose the order of their actions.

    Args:
        ranks: the size of the pipeline axis.
    """
    # Without a choice of the user, each rank has one stage. In the schedule `zbv`, it has two.
    stages = pipeline.stages or (len(pipeline.at) + 1 if pipeline.at else ranks * (1 + (pipeline.schedule == "zbv")))
    cut = f"cut-stages{{ranks={ranks} stages={stages} axis={pipeline.axis}"
    cut += f" at={','.join(pipeline.at)}}}" if pipeline.at else "}"
    split = ["split-backward"] if pipeline.schedule in ("zb", "zbv", "search") else []
    return ",".join([cut, *split, f"make-schedule{{kind={pipeline.schedule}}}"])


def cut_decided(module: ModuleOp, pipeline: PipelineAxis, ranks: int, passes: Pipeline) -> ModuleOp:
    """Return a decided training step as a pipelined step with an order. The module itself is consumed.

    Args:
        ranks: the size of the pipeline axis.
        passes: the passes of the program, which run up to `lower-reshard`.

    Raises:
        SpmdirError: the step cannot be cut, or the schedule does not fit; located.
    """
    say("cutting the program into stages")
    lowering = remaining_passes(add_reshard_passes(passes), ir.main_function(module)).through("lower-reshard")
    cutting = Pipeline(stage_passes(pipeline, ranks), plugins=passes.plugins, topology=passes.topology)
    return run_passes(module, passes.with_steps((*lowering.steps, *cutting.steps)))


def lower_stages(module: ModuleOp, setup: SetUp, coordinate: int) -> StagePrograms:
    """Return the programs of a rank at a coordinate of the pipeline axis.

    Args:
        setup: the settings, with the mesh of the other axes.

    Raises:
        SpmdirError: a function cannot be lowered; located.
    """
    say("lowering the stages")
    flow = StepFlow.of(scheduled_step(module))
    graphs = {}
    for part, function in flow.functions.items():
        # Skip the stages of other ranks, and functions without results.
        if flow.step.stages[part.stage].coordinate != coordinate or not function.function_type.outputs.data:
            continue
        localized = localize(stage_module(module, function), setup.pipeline)
        local = ir.main_function(localized)
        if len(local.args) != len(function.args):
            raise UnsupportedError(
                "the step keeps state of a placement between steps, such as the error of a compressed sum; "
                "expected placements without state in a pipelined step: use an exact placement in the plan",
                location_of(function),
            )
        graphs[part] = emit(local, setup.mesh, setup.rank, symbolic_group).to(setup.device)
    layouts = value_layouts(flow)
    for name in flow.step.outputs:
        if any(placement.trait != "replicated" for _, placement in layouts[name].sharding.entries):
            raise UnsupportedError(
                f"the output '{name}' has the sharding <{layouts[name].sharding}>; expected a replicated "
                "output: declare it in out_shardings",
                location_of(scheduled_step(module)),
            )
    return StagePrograms(module, flow, graphs, layouts)


def kept_names(flow: StepFlow, names: Collection[str], rates: Mapping[str, float], coordinate: int) -> set[str]:
    """Return the names of the tensors of the state that the ranks at a coordinate keep between steps.

    These are the tensors that their stages use, and the learning rates. The first coordinate also keeps the tensors
    that no stage uses. Sums over micro-batches are not kept: they are 0 between steps.

    Args:
        names: the names of all tensors of the state.
        rates: name → learning rate; only the names are read.
    """
    stages = range(len(flow.step.stages))
    used = {stage: set(flow.state_names(stage)) for stage in stages}
    kept = set(rates)
    for stage in stages:
        if flow.step.stages[stage].coordinate == coordinate:
            kept |= used[stage]
    if coordinate == 0:
        kept |= set(names) - set().union(*used.values())
    return {name for name in kept if not flow.step.is_sum(name)}
