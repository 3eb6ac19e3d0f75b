"""The rest of a pipeline: what a module at any stage still needs before it can be emitted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from spmdir.core.errors import SpmdirError, require_type
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.layer_calls import is_inlined
from spmdir.dialects.names import take_name, text_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.dialects.verification import is_local
from spmdir.passes.bind_sizes import BindSizesPass
from spmdir.passes.executed import executed, note_all
from spmdir.passes.inline import inline
from spmdir.passes.layers.around import is_outlined
from spmdir.passes.layers.outline import outline_layers
from spmdir.passes.local_programs.trusted import is_trusted
from spmdir.passes.pipeline import Pipeline, Step, run_passes
from spmdir.passes.propagation.objective import copy_notes

_COMPLETING = ("insert-reshard", "lower-reshard")
"""The passes that run always: they leave alone what is done, and complete what was written by hand."""

_STAGES = ("propagate", *_COMPLETING, "localize")
"""The passes that take a program from one stage to the next."""


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
    copy = copied(without_layers(module))
    if is_undecided(ir.main_function(copy)):
        run_passes(copy, rest(pipeline.through("propagate"), copy))
    BindSizesPass(dict(sizes)).apply(pipeline.context(), copy)
    ir.verify(copy)
    return copy


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
        return run_passes(copied(checked), needed) if needed.steps else checked
    ends_local = any(step.name == "localize" for step in needed.steps)
    return run_passes(copied(module), needed if ends_local else needed.with_steps((*needed.steps, Step("localize"))))


def completed(pipeline: Pipeline) -> Pipeline:
    """Return a pipeline that decides with the passes of `_COMPLETING` that it lacks, each behind the stage before."""
    for before, name in itertools.pairwise(_STAGES[:3]):
        names = [step.name for step in pipeline.steps]
        if before in names and name not in names:
            done, then = pipeline.through(before), pipeline.after(before)
            pipeline = pipeline.with_steps((*done.steps, Step(name), *then.steps))
    return pipeline


def rest(pipeline: Pipeline, module: ModuleOp) -> Pipeline:
    """Return the steps of `pipeline` that `module` still needs, in order.

    These are the steps that have not run on it, of those behind the stage that it is at. The stage is that of the
    last pass of `_STAGES` that has run; for a program that came as text it is read off the program. Of the steps
    before, those of `_COMPLETING` run again.
    """
    stage, ran = _stage(ir.main_function(module)), executed(module)
    if stage is None:  # what came after was undone with the decisions
        ran = tuple(itertools.takewhile(lambda name: name != "propagate", ran))
    start = 0 if stage is None or stage in ran else _end_of_stage(pipeline, stage)
    open_, left = Counter(ran), []
    for index, step in enumerate(pipeline.steps):
        if not open_[step.name]:
            left.append((index, step))
            continue
        open_[step.name] -= 1
        if step.name in _STAGES:
            start = max(start, index + 1)
    again = () if stage == "localize" else (step for step in pipeline.steps[:start] if step.name in _COMPLETING)
    return pipeline.with_steps((*again, *(step for index, step in left if index >= start)))


def _stage(function: FuncOp) -> str | None:
    """Return the pass of `_STAGES` after which a program looks like `function`; None if it is not decided.

    Operands that are not yet what their op needs come from propagate, reshards from insert-reshard, and collectives
    from lower-reshard. A program without any of these may have been decided or written so.
    """
    if is_local(function):
        return "localize"
    if is_undecided(function):
        return None
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    if any(op.needs is not None or isinstance(op, ConstraintOp) for op in ops):
        return "propagate"
    if any(isinstance(op, ReshardOp) for op in ops):
        return "insert-reshard"
    return "lower-reshard" if any(isinstance(op, Collective) for op in ops) else "propagate"


def _end_of_stage(pipeline: Pipeline, stage: str) -> int:
    """Return how many steps of `pipeline` a program at `stage` has behind it, if it does not say what has run.

    Whether the steps between lower-reshard and localize have run cannot be seen; they count as run.
    """
    if stage == "localize":
        return len(pipeline.steps)
    return len((pipeline.before("localize") if stage == "lower-reshard" else pipeline.through(stage)).steps)


def inlined(module: ModuleOp) -> ModuleOp:
    """Return `module` if its functions call none; else a copy with the calls inlined.

    Raises:
        SpmdirError: a call cannot be inlined.
    """
    if not any(isinstance(op, CallOp) for function in ir.functions(module) for op in function.body.block.ops):
        return module
    return run_passes(copied(module), "inline")


def without_layers(module: ModuleOp) -> ModuleOp:
    """Return `module` if no layers of it are outlined; else a copy in which they are inlined."""
    if not is_outlined(module):
        return module
    copy = copied(module)
    inline(copy, layers_only=True)
    return copy


def layer_values(module: ModuleOp) -> dict[str, str]:
    """Return, by the name of each value of a layer's function, its name in the first of these layers if inlined."""
    values: dict[str, SSAValue] = {}
    if is_outlined(module):
        inline(copied(module), layers_only=True, named=values)
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


def with_layers(module: ModuleOp, pipeline: Pipeline) -> ModuleOp:
    """Return `module`, or a copy with outlined layers if they are inlined for the passes that run on it just now."""
    if not is_inlined(module):
        return module
    copy = copied(module)
    outline_layers(copy, pipeline.rules)
    return copy


def is_undecided(function: FuncOp) -> bool:
    """Return whether a value of `function`, such as the result of a call, has no sharding, or one with an open axis."""
    if any(isinstance(op, CallOp) for op in function.body.block.ops):
        return True
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    values = [*function.args, *(r for op in ops for r, meta in zip(op.results, op.metas, strict=True) if meta)]
    return any(sharding is None or sharding.open_axes for sharding in map(sharding_of, values))


def copied(module: ModuleOp) -> ModuleOp:
    """Return a copy of `module` with the full names of its values, and what is noted on it."""
    mapping: dict[SSAValue, SSAValue] = {}
    copy = module.clone(mapping)
    note_all(copy, executed(module))
    for old, new in mapping.items():
        take_name(new, old)
    for old, new in zip(ir.functions(module), ir.functions(copy), strict=True):
        copy_notes(old, new)
    return copy
