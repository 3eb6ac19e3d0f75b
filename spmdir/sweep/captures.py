"""Captures of training steps. One trace serves all recipes, meshes and numbers of micro-batches of one size.

A recipe changes the traced program only by its constraints on activations. So the trace has a mark at each activation
that any recipe constrains. A mark is a constraint with an axis that no mesh has. A copy of the trace for one recipe
contains its constraints in place of the marks. Example, of a projection that only `fsdp*cp` constrains:

    trace                                copy for fsdp*cp                      copy for fsdp
    up = mm(x, w)                        up = mm(x, w)                         up = mm(x, w)
    y = constrain(up, "mark3: S(0)")     y = constrain(up, "dp: S(0), …")      silu(up)
    silu(y)                              silu(y)
"""

from __future__ import annotations

import functools
import re
from typing import Any

import attrs
import torch
from torch import fx, nn
from torch.utils.checkpoint import checkpoint
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding_plan import Activation, Layout, ShardingPlan
from spmdir.core.progress import say
from spmdir.importer.admitted_nodes import reject_effects
from spmdir.importer.constrain import CONSTRAIN
from spmdir.importer.importer import import_program
from spmdir.importer.program import Program
from spmdir.importer.read_traced import read_traced
from spmdir.plans.activations import constrained_activations
from spmdir.plans.module_names import modules_of, values_by_module
from spmdir.plans.resolve import sharding_plan
from spmdir.runtime.capture import Capture, capture_step
from spmdir.runtime.signature import annotate_updates
from spmdir.runtime.training import TrainingStep, training_step
from spmdir.sweep.candidate import RECIPE_AXES, MeshRecipe
from spmdir.sweep.workload import Workload, layers_in
from spmdir.torch_interop import pytree

_MARK = re.compile(r"mark([0-9]+): S\(0\)")
Place = tuple[str, str]
"""A module, and the position or key of one of its outputs."""


@attrs.frozen
class CaptureOptions:
    """The options that change the trace of a step. Captures with equal options are shared.

    Attributes:
        samples: the samples of a micro-batch of all ranks.
        accumulates: whether a step has several micro-batches.
        recomputes: whether the backward recomputes each layer from its input.
        depth: the number of layers; None for all.
    """

    samples: int
    accumulates: bool
    recomputes: bool
    depth: int | None


@attrs.frozen(eq=False)
class Captured:
    """A captured training step.

    Attributes:
        capture: the trace.
        program: the marked program of the trace, without in-place ops.
        places: the marked activations; mark N is at `places[N]`.
        accumulated: the indices of the results of which each micro-batch computes a new value: outputs and the
            gradients that are accumulated.
    """

    capture: Capture
    program: Program
    places: tuple[Place, ...]
    accumulated: frozenset[int]


def imported(workload: Workload, candidate: MeshRecipe, options: CaptureOptions) -> tuple[ModuleOp, Captured]:
    """Return (program of a micro-batch, the marked capture that it was copied from).

    The program has the shardings that the recipe of `candidate` states; `propagate` has not run yet. The capture is
    shared by all recipes: its trace has marks, and none of these shardings. It describes the arguments and results.
    """
    model = _training_step(workload, options)[0].model
    plan = sharding_plan(model, candidate.mesh, candidate.recipe)
    captured = _capture_marked(workload, options)
    capture = captured.capture
    trace = _with_activations(captured, plan, model)
    plan = plan.with_inputs(len(capture.state), len(capture.convention.examples))
    module = import_program(trace, candidate.mesh, plan, capture.result_shardings(None), "warn")
    annotate_updates(module, capture)
    return module, captured


@functools.lru_cache(maxsize=32)
def _training_step(workload: Workload, options: CaptureOptions) -> tuple[TrainingStep, Any, tuple[Any, ...]]:
    """Return (training step with AdamW, its state, an example micro-batch)."""
    micro_batches = 2 if options.accumulates else 1  # more micro-batches change only a constant of the trace
    case = workload.case(options.samples * micro_batches, options.depth)
    if options.recomputes:
        for layer in layers_in(case.model):
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    step, state = training_step(
        case.model, case.loss, optimizer, accumulate=micro_batches, compute_dtype=torch.bfloat16
    )
    return step, state, step.split_batch(case.batch)[0]


@functools.lru_cache(maxsize=32)
def _capture_marked(workload: Workload, options: CaptureOptions) -> Captured:
    """Return the trace of a micro-batch, with marked activations."""
    step, state, batch = _training_step(workload, options)
    say("tracing {} layers of {}", options.depth or "all", workload.name)
    places = _constrained_places(step.model)
    marks: dict[str, dict[str, Layout]] = {}
    for index, (name, key) in enumerate(places):
        marks.setdefault(name, {})[key] = Layout(f"mark{index}: S(0)")
    plan = ShardingPlan(activations={name: Activation(outputs=outputs) for name, outputs in marks.items()})
    with constrained_activations(step.model, plan):
        capture = capture_step(step.micro_step, state, batch, torch.device("cpu"))
    # The results of the trace are the outputs, then the new value of each tensor of the state.
    output_count = len(capture.outputs)
    key_of_tensor = [key for key, part in state.items() for _ in pytree.tree_leaves(part)]
    accumulated = [output_count + index for index, key in enumerate(key_of_tensor) if step.is_accumulated(key)]
    assert isinstance(capture.program, fx.GraphModule)
    reject_effects(capture.program)
    program = read_traced(capture.program, None)
    return Captured(capture, program, places, frozenset([*range(output_count), *accumulated]))


def _constrained_places(model: nn.Module) -> tuple[Place, ...]:
    """Return the activations that some recipe constrains."""
    places: dict[Place, None] = {}
    for recipe, axes in RECIPE_AXES.items():
        try:
            plan = sharding_plan(model, Mesh(dict.fromkeys(axes, 2)), recipe)
        except SpmdirError:  # the error is reported when the recipe is priced
            continue
        places |= dict.fromkeys(_layouts(plan, model))
    return tuple(places)


def _layouts(plan: ShardingPlan, model: nn.Module) -> dict[Place, Layout]:
    """Return the layouts of the activations in the plan of a recipe, which constrains outputs only."""
    activations = values_by_module(plan.activations, modules_of(model))
    return {
        (name, key): layout for name, activation in activations.items() for key, layout in activation.outputs.items()
    }


def _with_activations(captured: Captured, plan: ShardingPlan, model: nn.Module) -> Program:
    """Return a copy of the program with the constraints of a plan in place of the marks.

    A gradient has the layout of its activation, because recipes have no partial layouts.
    """
    program = captured.program
    layouts = _layouts(plan, model)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in program.graph.nodes:
        if node.op == "output":
            continue
        mark = _MARK.fullmatch(node.args[1]) if node.target is CONSTRAIN else None
        if mark is None:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            continue
        layout = layouts.get(captured.places[int(mark[1])])
        if layout is None:  # the recipe does not constrain this activation, so its users read the unmarked value
            copies[node] = copies[node.args[0]]
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].args = copies[node].args[0], layout.of_rank(node.meta["val"].dim())
    graph.output(fx.map_arg(program.graph.output_node().args[0], copies.__getitem__))
    inputs = [attrs.evolve(entry, node=copies[entry.node]) for entry in program.inputs]
    outputs = [
        attrs.evolve(entry, value=copies[entry.value]) if isinstance(entry.value, fx.Node) else entry
        for entry in program.outputs
    ]
    return attrs.evolve(program, graph=graph, inputs=inputs, outputs=outputs)
