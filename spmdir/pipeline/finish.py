"""The rest of a pipeline: what a module at any stage still needs before it can be emitted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp
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


def bound(module: ModuleOp, sizes: Mapping[str, int], pipeline: Pipeline) -> ModuleOp:
    """Return a copy of `module` with the numbers `sizes` for its symbolic sizes; decided for its examples first.

    Raises:
        SpmdirError: a size is missing, or the program was not traced for it.
    """
    require_type("sizes", sizes, Mapping, "a dict of numbers by name, as in {'s0': 8}")
    for name, number in sizes.items():
        require_type("the name of a size", name, str, "a string")
        if type(number) is not int:
            raise SpmdirError(f"size '{name}' is {number!r}; expected an int")
    copy = without_layers(module).clone()
    deciding = rest(pipeline.through("propagate"), copy).steps if is_undecided(ir.main_function(copy)) else ()
    bind_sizes = Step("bind-sizes", tuple((name, str(number)) for name, number in sizes.items()))
    return run_passes(copy, pipeline.with_steps((*deciding, bind_sizes)))


def at_examples(module: ModuleOp, pipeline: Pipeline) -> ModuleOp:
    """Return `module` if it has no symbolic sizes; else a copy with the numbers of their examples, as `bound`.

    Raises:
        SpmdirError: the program cannot be decided.
    """
    examples = open_sizes(module).hints
    return bound(module, examples, pipeline) if examples else module


def localized(module: ModuleOp, pipeline: Pipeline) -> ModuleOp:
    """Return `module`, at any stage, after the rest of `pipeline` and localize: a copy unless nothing was to be done.

    A pipeline that decides without insert-reshard or lower-reshard is completed with them. A module that is localized
    already is type-checked, unless localize made it as it is.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    module = without_layers(module)
    function, needed = ir.main_function(module), rest(completed(pipeline), module)
    if is_local(function):
        checked = module if is_trusted(function) else run_passes(module, "verify-spmd")
        return run_passes(checked.clone(), needed) if needed.steps else checked
    ends_local = any(step.name == "localize" for step in needed.steps)
    return run_passes(module.clone(), needed if ends_local else needed.with_steps((*needed.steps, Step("localize"))))


def completed(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline that decides with the passes up to lower-reshard that it lacks, each after the pass before."""
    for before, name in itertools.pairwise(("propagate", *_RESHARDING)):
        names = [step.name for step in pipeline.steps]
        if before in names and name not in names:
            done, then = pipeline.through(before), pipeline.after(before)
            pipeline = pipeline.with_steps((*done.steps, Step(name), *then.steps))
    return pipeline


def rest(pipeline: Pipeline, module: ModuleOp) -> Pipeline:
    """Return the steps of `pipeline` that `module` still needs: those after the last one that produces its stage.

    A pass that keeps the stage, such as `expand`, runs again if the module is at the stage that it requires; one of a
    plug-in does not if it is recorded on the module. A program written by hand may have collectives and results that
    are still to be resharded: then `insert-reshard` and `lower-reshard` run again. Its collectives stay as written.

    Example: of `propagate,expand,insert-reshard,lower-reshard,localize`, a module at the stage `decided` needs
    `expand,insert-reshard,lower-reshard,localize`.
    """
    function, steps = ir.main_function(module), pipeline.steps
    stage, produced = stage_of(function), [getattr(made, "produces", None) for made in pipeline.made()]
    done = [index for index, each in enumerate(produced, 1) if each is not None and is_at_least(stage, each)]
    start = max(done, default=0)
    if stage == "lowered" and written_stage(function) is None:
        start = len(pipeline.before("localize").steps)
    decided = max((index for index in range(start) if steps[index].name == "propagate"), default=0)
    again = () if is_local(function) or not has_open_results(function) else _RESHARDING
    already_run = Counter(passes_run(function)) - Counter(step.name for step in steps[decided:start])
    left = [step for step in steps[decided:start] if step.name in again]
    for step in steps[start:]:
        if already_run[step.name] > 0:
            already_run[step.name] -= 1
        else:
            left.append(step)
    return pipeline.with_steps(tuple(left))


def inlined(module: ModuleOp) -> ModuleOp:
    """Return `module` if its functions call none; else a copy with the calls inlined.

    Raises:
        SpmdirError: a call cannot be inlined.
    """
    if not any(isinstance(op, CallOp) for function in ir.functions(module) for op in function.body.block.ops):
        return module
    return run_passes(module.clone(), "inline")


def without_layers(module: ModuleOp) -> ModuleOp:
    """Return `module` if no layers of it are outlined; else a copy in which they are inlined."""
    if not is_outlined(module):
        return module
    copy = module.clone()
    inline(copy, layers_only=True)
    return copy


def layer_values(module: ModuleOp) -> dict[str, str]:
    """Return, by the name of each value of a layer's function, its name in the first of these layers if inlined."""
    values: dict[str, SSAValue] = {}
    if is_outlined(module):
        inline(module.clone(), layers_only=True, named=values)
    return {name: text_name(value) for name, value in values.items()}


def named_in_layers(module: ModuleOp, asked: Sequence[str], known: Container[str]) -> dict[str, str]:
    """Return each text that names values → itself, or what it names in the first of equal layers if these are inlined.

    Args:
        asked: names of values, and texts that name other things, which stay as they are.
        known: the names of the values if layers are inlined; one of them stands for itself.
    """
    unknown = any(one.startswith("%") and one not in known for one in asked)
    values = layer_values(module) if unknown else {}
    return {one: one if one in known else values.get(one, one) for one in asked}
