"""Prepare a program for a report on communication: bind symbolic sizes, and lower reshards to collectives."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.size_ops import open_sizes
from spmdir.dialects.stage_inference import stage_of
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import bind_sizes, inline_layers, remaining_passes


def with_collectives(module: ModuleOp, pipeline: Pipeline) -> tuple[ModuleOp, tuple[str, ...]]:
    """Return `module` with collectives, and the names of the passes that inserted them.

    Passes run on a copy. Outlined layers are inlined, and symbolic sizes have the values of their examples. An
    undecided program gets no collectives.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    module = inline_layers(module)
    examples = open_sizes(module).hints
    if examples:
        sized = bind_sizes(module, examples, pipeline)
        return run_passes(sized, remaining_passes(pipeline, ir.main_function(sized)).before("localize")), ()
    if all(stage_of(function) not in ("decided", "resharded") for function in ir.functions(module)):
        return module, ()
    needed = remaining_passes(pipeline, ir.main_function(module)).through("lower-reshard")
    lowered = run_passes(module.clone(), needed)
    has_collectives = any(isinstance(op, Collective) for op in lowered.walk())
    return lowered, tuple(step.name for step in needed.steps) if has_collectives else ()
