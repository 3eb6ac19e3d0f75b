"""Run the passes of a pipeline that a module at any stage still needs before it can be emitted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.local_programs.type_check_cache import is_trusted
from spmdir.core.errors import SpmdirError, require_type
from spmdir.dialects import ir
from spmdir.dialects.names import text_name
from spmdir.dialects.size_ops import open_sizes
from spmdir.dialects.stage import is_at_least, is_local, recorded_passes, recorded_stage
from spmdir.dialects.stage_inference import has_open_results, is_undecided, stage_of
from spmdir.pipeline.layer_runner import is_outlined
from spmdir.pipeline.pipeline import Pipeline, Step, run_passes
from spmdir.transforms.layers.inlining import inline

_RESHARDING = ("insert-reshard", "lower-reshard")
"""The passes from a decided program to one with collectives."""


def localize(module: ModuleOp, pipeline: Pipeline, sizes: Mapping[str, int] | None = None) -> ModuleOp:
    """Return the program of one rank for `module` at any stage. It is a copy, unless no pass has to run.

    This runs the passes of `pipeline` that the module still needs, and localize. If the pipeline contains propagate but
    not insert-reshard or lower-reshard, these run too. A local program is type-checked, unless it is an unchanged
    output of localize.

    Args:
        sizes: numbers for symbolic sizes. Without them, the module must not have symbolic sizes.

    Raises:
        SpmdirError: a pass rejects the module, or a size is missing.
    """
    if sizes or open_sizes(module).symbols:
        module = bind_sizes(module, sizes or {}, pipeline)
    module = inline_layers(module)
    function = ir.main_function(module)
    pipeline = remaining_passes(add_reshard_passes(pipeline), function)
    if not is_local(function):
        ends_local = any(step.name == "localize" for step in pipeline.steps)
        pipeline = pipeline if ends_local else pipeline.with_steps((*pipeline.steps, Step("localize")))
    elif not is_trusted(function):
        run_passes(module, "verify-spmd")
    return run_passes(module.clone(), pipeline) if pipeline.steps else module


def bind_sizes(module: ModuleOp, sizes: Mapping[str, int], pipeline: Pipeline) -> ModuleOp:
    """Return a copy of `module` with numbers for symbolic sizes. If needed, propagate decides it first.

    Raises:
        SpmdirError: a size is missing, or the program was not traced for it.
    """
    require_type("sizes", sizes, Mapping, "a dict of numbers by name, as in {'s0': 8}")
    for name, number in sizes.items():
        require_type("the name of a size", name, str, "a string")
        if type(number) is not int:
            raise SpmdirError(f"size '{name}' is {number!r}; expected an int")
    copy = inline_layers(module).clone()
    function = ir.main_function(copy)
    deciding_steps = remaining_passes(pipeline.through("propagate"), function).steps if is_undecided(function) else ()
    options = tuple((name, str(number)) for name, number in sizes.items())
    return run_passes(copy, pipeline.with_steps((*deciding_steps, Step("bind-sizes", options))))


def bind_examples(module: ModuleOp, pipeline: Pipeline) -> ModuleOp:
    """Return a copy of `module` with its example values for symbolic sizes; `module` itself if it has none.

    Raises:
        SpmdirError: the program cannot be decided.
    """
    examples = open_sizes(module).hints
    return bind_sizes(module, examples, pipeline) if examples else module


def add_reshard_passes(pipeline: Pipeline) -> Pipeline:
    """Return `pipeline` with insert-reshard after propagate and lower-reshard after that, where they are missing.

    A pipeline without propagate and insert-reshard is returned unchanged.
    """
    for previous, name in itertools.pairwise(("propagate", *_RESHARDING)):
        names = [step.name for step in pipeline.steps]
        if previous in names and name not in names:
            first_part, last_part = pipeline.through(previous), pipeline.after(previous)
            pipeline = pipeline.with_steps((*first_part.steps, Step(name), *last_part.steps))
    return pipeline


def remaining_passes(pipeline: Pipeline, function: FuncOp) -> Pipeline:
    """Return the steps of `pipeline` that a program still needs: those after the last step that produces its stage.

    A pass that keeps the stage, such as `expand`, runs again if the program is at the stage that it requires. A pass of
    a plug-in does not run again if it is recorded on the function. A hand-written program with collectives may have
    results that need a reshard. Then `insert-reshard` and `lower-reshard` run again, and its collectives do not change.

    Args:
        function: the main function of the program.

    Example: of `propagate,expand,insert-reshard,lower-reshard,localize`, a program at the stage `decided` needs
    `expand,insert-reshard,lower-reshard,localize`.
    """
    steps, stage = pipeline.steps, stage_of(function)
    done_count = 0  # the number of steps up to the last one that produces the stage of the program
    for number, pass_ in enumerate(pipeline.made(), 1):
        produced = getattr(pass_, "produces", None)
        if produced is not None and is_at_least(stage, produced):
            done_count = number
    is_hand_written = stage == "lowered" and recorded_stage(function) is None  # with collectives
    if is_hand_written:
        done_count = len(pipeline.before("localize").steps)
    propagate_index = max((index for index in range(done_count) if steps[index].name == "propagate"), default=0)
    done_since_decision = steps[propagate_index:done_count]
    # First the finished steps that run again, because results of the function still need a reshard.
    repeated_names = () if is_local(function) or not has_open_results(function) else _RESHARDING
    remaining = [step for step in done_since_decision if step.name in repeated_names]
    # Then the other steps, without passes of plug-ins that ran before their turn.
    # Name of a pass → how often it is recorded beyond the steps that are done.
    ran_early = Counter(recorded_passes(function)) - Counter(step.name for step in done_since_decision)
    for step in steps[done_count:]:
        if ran_early[step.name] > 0:
            ran_early[step.name] -= 1
        else:
            remaining.append(step)
    return pipeline.with_steps(tuple(remaining))


def inline_calls(module: ModuleOp) -> ModuleOp:
    """Return `module` if it has no calls, or else a copy with inlined calls.

    Raises:
        SpmdirError: a call cannot be inlined.
    """
    if not any(isinstance(op, CallOp) for function in ir.functions(module) for op in function.body.block.ops):
        return module
    return run_passes(module.clone(), "inline")


def inline_layers(module: ModuleOp) -> ModuleOp:
    """Return `module` if it has no outlined layers, or else a copy with inlined layers."""
    if not is_outlined(module):
        return module
    copy = module.clone()
    inline(copy, layers_only=True)
    return copy


def names_in_layers(module: ModuleOp) -> dict[str, str]:
    """Return name of a value in the function of a layer → its name in the first such layer after inlining."""
    values: dict[str, SSAValue] = {}
    if is_outlined(module):
        inline(module.clone(), layers_only=True, named=values)
    return {name: text_name(value) for name, value in values.items()}


def resolve_names(module: ModuleOp, texts: Sequence[str], inlined_names: Container[str]) -> dict[str, str]:
    """Return text → the name of the same value after layers are inlined, or the text itself.

    Args:
        texts: names of values, and other texts. Other texts do not change. The name of a value in the function of a
            layer is replaced by that of the value in the first of the equal layers.
        inlined_names: the names of all values after layers are inlined. These do not change.
    """
    needs_layers = any(text.startswith("%") and text not in inlined_names for text in texts)
    names = names_in_layers(module) if needs_layers else {}
    return {text: text if text in inlined_names else names.get(text, text) for text in texts}
