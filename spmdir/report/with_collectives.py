"""The program that a report of communication is about: with numbers for its sizes, and collectives for its reshards."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.observed_stage import stage_of
from spmdir.dialects.sizes import open_sizes
from spmdir.pipeline.finish import bind_sizes, inline_layers, remaining_passes
from spmdir.pipeline.pipeline import Pipeline, run_passes


def with_collectives(module: ModuleOp, pipeline: Pipeline) -> tuple[ModuleOp, tuple[str, ...]]:
    """Return `module` with collectives, and the passes that put them in: on a copy, if there are reshards to lower.

    Outlined layers are in the places of their calls then, and symbolic sizes have the numbers of their examples. What
    is not decided stays as it is.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    module = inline_layers(module)
    if examples := open_sizes(module).hints:
        sized = bind_sizes(module, examples, pipeline)
        return run_passes(sized, remaining_passes(pipeline, ir.main_function(sized)).before("localize")), ()
    if all(stage_of(function) not in ("decided", "resharded") for function in ir.functions(module)):
        return module, ()
    needed = remaining_passes(pipeline, ir.main_function(module)).through("lower-reshard")
    lowered = run_passes(module.clone(), needed)
    has_collectives = any(isinstance(op, Collective) for op in lowered.walk())
    return lowered, tuple(step.name for step in needed.steps) if has_collectives else ()
