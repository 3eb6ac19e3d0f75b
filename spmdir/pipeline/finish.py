"""The rest of a pipeline: what a module at any stage still needs before it can be emitted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.local_programs.trusted import is_trusted
from spmdir.core.errors import SpmdirError, require_type
from spmdir.dialects import ir
from spmdir.dialects.names import text_name
from spmdir.dialects.observed_stage import has_open_results, is_undecided, stage_of
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.stage import is_at_least, is_local, passes_run, written_stage
from spmdir.pipeline.layer_runner import is_outlined
from spmdir.pipeline.pipeline import Pipeline, Step, run_passes
from spmdir.transforms.layers.inlining import inline

_RESHARDING = ("insert-reshard", "lower-reshard")
"""The passes that take a decided program to one with collectives."""


def localize(module: ModuleOp, pipeline: Pipeline, sizes: Mapping[str, int] | None = None) -> ModuleOp:
    """Return the program of one rank, of `module` at any stage: a copy, unless nothing is to be done.

    The passes of `pipeline` that the module still needs are run, with insert-reshard and lower-reshard if it decides
    without them, and localize. A program that is local already is type-checked, unless localize made it as it is.

    Args:
        sizes: the numbers of its symbolic sizes; it may have none left if they are omitted.

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
    """Return a copy of `module` with numbers for its symbolic sizes; it is decided for its examples first, if need be.

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
    deciding = remaining_passes(pipeline.through("propagate"), function).steps if is_undecided(function) else ()
    options = tuple((name, str(number)) for name, number in sizes.items())
    return run_passes(copy, pipeline.with_steps((*deciding, Step("bind-sizes", options))))


def bind_examples(module: ModuleOp, pipeline: Pipeline) -> ModuleOp:
    """Return `module` if it has no symbolic sizes; else a copy with the numbers of their examples, as `bind_sizes`.

    Raises:
        SpmdirError: the program cannot be decided.
    """
    examples = open_sizes(module).hints
    return bind_sizes(module, examples, pipeline) if examples else module


def add_reshard_passes(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline with the missing passes up to lower-reshard after a `propagate`, each after the one before."""
    for before, name in itertools.pairwise(("propagate", *_RESHARDING)):
        names = [step.name for step in pipeline.steps]
        if before in names and name not in names:
            done, then = pipeline.through(before), pipeline.after(before)
            pipeline = pipeline.with_steps((*done.steps, Step(name), *then.steps))
    return pipeline


def remaining_passes(pipeline: Pipeline, function: FuncOp) -> Pipeline:
    """Return the steps of `pipeline` that a program still needs: those after the last one that produces its stage.

    A pass that keeps the stage, such as `expand`, runs again if the program is at the stage that it requires. A pass of
    a plug-in does not if it is recorded on the function. A program written by hand may have collectives and results
    that are still to be resharded: then `insert-reshard` and `lower-reshard` run again. Its collectives stay.

    Args:
        function: the main function of the program.

    Example: of `propagate,expand,insert-reshard,lower-reshard,localize`, a program at the stage `decided` needs
    `expand,insert-reshard,lower-reshard,localize`.
    """
    steps, stage = pipeline.steps, stage_of(function)
    produced = [getattr(made, "produces", None) for made in pipeline.made()]
    done = [index for index, each in enumerate(produced, 1) if each is not None and is_at_least(stage, each)]
    start = max(done, default=0)
    if stage == "lowered" and written_stage(function) is None:
        start = len(pipeline.before("localize").steps)
    decided = max((index for index in range(start) if steps[index].name == "propagate"), default=0)
    again = () if is_local(function) or not has_open_results(function) else _RESHARDING
    already_run = Counter(passes_run(function)) - Counter(step.name for step in steps[decided:start])
    remaining = [step for step in steps[decided:start] if step.name in again]
    for step in steps[start:]:
        if already_run[step.name] > 0:
            already_run[step.name] -= 1
        else:
            remaining.append(step)
    return pipeline.with_steps(tuple(remaining))


def inline_calls(module: ModuleOp) -> ModuleOp:
    """Return `module` if its functions call none; else a copy with the calls inlined.

    Raises:
        SpmdirError: a call cannot be inlined.
    """
    if not any(isinstance(op, CallOp) for function in ir.functions(module) for op in function.body.block.ops):
        return module
    return run_passes(module.clone(), "inline")


def inline_layers(module: ModuleOp) -> ModuleOp:
    """Return `module` if no layers of it are outlined; else a copy in which they are inlined."""
    if not is_outlined(module):
        return module
    copy = module.clone()
    inline(copy, layers_only=True)
    return copy


def names_in_layers(module: ModuleOp) -> dict[str, str]:
    """Return, by the name of each value of a layer's function, its name in the first of these layers if inlined."""
    values: dict[str, SSAValue] = {}
    if is_outlined(module):
        inline(module.clone(), layers_only=True, named=values)
    return {name: text_name(value) for name, value in values.items()}


def resolve_names(module: ModuleOp, texts: Sequence[str], known: Container[str]) -> dict[str, str]:
    """Return each text → the name of the value that it names once layers are inlined, or else the text itself.

    Args:
        texts: names of values, of which those of a layer's function name the value in the first of the equal layers;
            and texts that name other things, which stay.
        known: the names of the values if layers are inlined, which stay.
    """
    needs_layers = any(text.startswith("%") and text not in known for text in texts)
    names = names_in_layers(module) if needs_layers else {}
    return {text: text if text in known else names.get(text, text) for text in texts}
