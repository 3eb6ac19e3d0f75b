"""Which passes a module still needs before it can be emitted."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.errors import SpmdirError, require_type
from spmdir.dialects import ir
from spmdir.dialects.names import take_name
from spmdir.dialects.spmd import ConstraintOp, ReshardOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.dialects.verification import is_local
from spmdir.passes import run_passes
from spmdir.passes.bind_sizes import BindSizesPass
from spmdir.passes.local_programs.trusted import is_trusted


def bound(module: ModuleOp, sizes: Mapping[str, int]) -> ModuleOp:
    """A copy of `module` with the numbers `sizes` in the place of its symbolic sizes; decided for its examples first.

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
        run_passes(copy, "propagate")
    BindSizesPass(dict(sizes)).apply(ir.context(), copy)
    ir.verify(copy)
    return copy


def localized(module: ModuleOp) -> ModuleOp:
    """`module`, which may be at any stage, after all the passes that it still needs: a copy unless it needs none.

    A module that is localized already is type-checked, unless localize made it as it is.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    function = ir.main_function(module)
    if is_local(function):
        return module if is_trusted(function) else run_passes(module, "verify-spmd")
    return run_passes(copied(module), ",".join(missing_passes(function)))


def missing_passes(function: FuncOp) -> tuple[str, ...]:
    """The names of the passes that `function`, which has global types, needs before emission, in order.

    Collectives are fused only if they are still to be made: whoever lowered the reshards has seen what there is.
    insert-reshard and lower-reshard leave alone what is well typed already.
    """
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    undecided = is_undecided(function)
    reshards = any(op.needs is not None or isinstance(op, (ReshardOp, ConstraintOp)) for op in ops)
    return (
        *(("propagate",) if undecided else ()),
        "insert-reshard",
        "lower-reshard",
        *(("fuse-collectives",) if undecided or reshards else ()),
        "localize",
    )


def is_undecided(function: FuncOp) -> bool:
    """Whether a value of `function` has no sharding, or one that leaves an axis open."""
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    values = [*function.args, *(r for op in ops for r, meta in zip(op.results, op.metas, strict=True) if meta)]
    return any(sharding is None or sharding.open_axes for sharding in map(sharding_of, values))


def copied(module: ModuleOp) -> ModuleOp:
    """A copy of `module` with the names of its values whole."""
    mapping: dict[SSAValue, SSAValue] = {}
    copy = module.clone(mapping)
    for old, new in mapping.items():
        take_name(new, old)
    return copy
