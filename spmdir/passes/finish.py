"""The rest of a pipeline: what a module at any stage still needs before it can be emitted."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.errors import SpmdirError, require_type
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.names import take_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.dialects.verification import is_local
from spmdir.passes.bind_sizes import BindSizesPass
from spmdir.passes.local_programs.trusted import is_trusted
from spmdir.passes.pipeline import Pipeline, Step, run_passes
from spmdir.passes.propagation.objective import note_objective, objective_of

_COMPLETING = ("insert-reshard", "lower-reshard")
"""The passes that run always: they leave alone what is done, and complete what was written by hand."""


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
    copy = copied(module)
    if is_undecided(ir.main_function(copy)):
        run_passes(copy, pipeline.through("propagate"))
    BindSizesPass(dict(sizes)).apply(pipeline.context(), copy)
    ir.verify(copy)
    return copy


def localized(module: ModuleOp, pipeline: Pipeline) -> ModuleOp:
    """Return `module`, at any stage, after the rest of `pipeline` and localize: a copy unless it is local already.

    A module that is localized already is type-checked, unless localize made it as it is.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    function = ir.main_function(module)
    if is_local(function):
        return module if is_trusted(function) else run_passes(module, "verify-spmd")
    needed = rest(pipeline, function)
    ends_local = any(step.name == "localize" for step in needed.steps)
    return run_passes(copied(module), needed if ends_local else needed.with_steps((*needed.steps, Step("localize"))))


def rest(pipeline: Pipeline, function: FuncOp) -> Pipeline:
    """Return the steps of `pipeline` that `function`, which has global types, still needs, in order.

    What is done is read off the program. Without shardings that is nothing. Operands that are not yet what their op
    needs come from propagate, reshards from insert-reshard, and collectives stand at the end, right before localize.
    The steps up to there are left out, but for those of `_COMPLETING`.
    """
    if is_undecided(function):
        return pipeline
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    if any(op.needs is not None or isinstance(op, ConstraintOp) for op in ops):
        done = pipeline.through("propagate")
    elif any(isinstance(op, ReshardOp) for op in ops):
        done = pipeline.through("insert-reshard")
    else:
        lowered = any(isinstance(op, Collective) for op in ops)
        done = pipeline.before("localize") if lowered else pipeline.through("propagate")
    again = tuple(step for step in done.steps if step.name in _COMPLETING)
    return pipeline.with_steps(again + pipeline.steps[len(done.steps) :])


def is_undecided(function: FuncOp) -> bool:
    """Return whether a value of `function` has no sharding, or one that leaves an axis open."""
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    values = [*function.args, *(r for op in ops for r, meta in zip(op.results, op.metas, strict=True) if meta)]
    return any(sharding is None or sharding.open_axes for sharding in map(sharding_of, values))


def copied(module: ModuleOp) -> ModuleOp:
    """Return a copy of `module` with the full names of its values."""
    mapping: dict[SSAValue, SSAValue] = {}
    copy = module.clone(mapping)
    for old, new in mapping.items():
        take_name(new, old)
    for old, new in zip(ir.functions(module), ir.functions(copy), strict=True):
        if (cost := objective_of(old)) is not None:
            note_objective(new, cost)
    return copy
