"""Verification of a module: a table with the checks of each kind of op."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import methodcaller
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.dialects.caches import check_caches, check_shared_arguments
from spmdir.dialects.cast_first import check_first_cast
from spmdir.dialects.deadlock_check import check_in_flight
from spmdir.dialects.function_checks import check_function, check_layer_call
from spmdir.dialects.locations import location_of
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.pipeline_check import check_step
from spmdir.dialects.pipeline_op import PipelineOp, pipeline_op
from spmdir.dialects.recomputation import check_recomputations
from spmdir.dialects.size_ops import SizesOp, check_sizes, open_sizes
from spmdir.dialects.stage_inference import check_stage
from spmdir.dialects.value_op import ValueOp

_DECLARATIONS: tuple[tuple[type[Operation], str], ...] = (
    (MeshOp, "the module declares {} meshes; expected one: remove the others"),
    (SizesOp, "the module has {} spmd.sizes ops; expected one: declare all sizes in it"),
    (PipelineOp, "the module has {} spmd.pipeline ops; expected one: remove the others"),
)
"""Ops that a module has at most once, each with the error for several."""

_MEMBERS: dict[type[Operation] | type[None], tuple[type[Operation], ...]] = {
    ModuleOp: (MeshOp, SizesOp, FuncOp, PipelineOp),
    FuncOp: (CallOp, ReturnOp),
}
"""Op → ops that it may contain, apart from tensor ops."""


def verify(module: ModuleOp, kinds: tuple[type[Operation], ...] = (Operation,)) -> None:
    """Raise SpmdirError, located, unless every op is well formed and every collective a legal transition.

    Args:
        kinds: the classes of the ops to verify; all by default.
    """
    for _, error in mistakes(module, kinds):
        raise error from None


def mistakes(
    module: ModuleOp, kinds: tuple[type[Operation], ...] = (Operation,)
) -> Iterator[tuple[Operation, SpmdirError]]:
    """Yield each op that is not well formed, with its located error; see `verify`.

    Ops with invalid operands or in an invalid function are skipped, and all ops if the mesh is invalid: the first error
    is enough.
    """
    for kind, message in _DECLARATIONS:
        declarations = [op for op in module.body.block.ops if isinstance(op, kind)]
        if len(declarations) > 1:
            yield declarations[1], UnsupportedError(message.format(len(declarations)), location_of(declarations[1]))
            return
    sizes = open_sizes(module)
    functions: list[FuncOp] = []
    invalid_ops: set[Operation | None] = set()
    # The mesh is checked first, because other ops are checked against it.
    meshes = (op for op in module.body.block.ops if isinstance(op, MeshOp))
    for op in (*meshes, *module.walk()):
        if not isinstance(op, kinds):
            continue
        if invalid_ops and not invalid_ops.isdisjoint(_producers(op)):
            invalid_ops.add(op)
            continue
        try:
            for check in _checks_of(type(op)):
                check(op)
            if sizes.symbols or isinstance(op, FuncOp):
                check_sizes(op, sizes)
        except (VerifyException, ValueError, SpmdirError) as error:
            invalid_ops.add(op)
            yield op, _located(error, op)
        if isinstance(op, MeshOp) and invalid_ops:
            return
        if isinstance(op, FuncOp):
            functions.append(op)
    if invalid_ops:
        return
    for function in functions:
        try:
            for check in FUNCTION_CHECKS:
                check(function)
        except VerifyException as error:
            yield function, _located(error, function)
        except SpmdirError as error:
            yield function, error
    try:
        check_shared_arguments(functions)
    except SpmdirError as error:
        yield module, error
    step = pipeline_op(module) if not invalid_ops and kinds == (Operation,) else None
    if step is not None:
        yield from ((step, error) for error in check_step(step))


def _located(error: Exception, op: Operation) -> SpmdirError:
    """Return an error about `op`, with its name and location."""
    if isinstance(error, SpmdirError):
        return error.at(location_of(op), f"'{op.name}'")
    return SpmdirError(f"'{op.name}': {error}", location_of(op))


def _producers(op: Operation) -> Iterator[Operation | None]:
    """Yield the op or the function that defines each operand of `op`."""
    for operand in op.operands:
        owner = operand.owner
        yield owner if isinstance(owner, Operation) else owner.parent_op()


def _check_place(op: Operation) -> None:
    """Raise VerifyException if an op that is not a tensor op is not allowed in its parent. Plug-in ops are allowed."""
    if op.name.partition(".")[0] not in ("builtin", "func", "spmd"):
        return
    parent = op.parent_op()
    expected = _MEMBERS.get(type(parent), (ModuleOp,))
    if not isinstance(op, expected):
        where = f"in '{parent.name}'" if parent else "at the top"
        raise VerifyException(f"is not allowed {where}; expected {', '.join(kind.name for kind in expected)}")


OP_CHECKS: tuple[tuple[type[Operation], Callable[[Any], None]], ...] = (
    (Operation, methodcaller("verify", False)),  # False: nested ops are verified separately
    (Operation, check_first_cast),
    (CallOp, check_layer_call),
    (FuncOp, check_function),
)
"""Kind of op → a check that raises VerifyException, ValueError or SpmdirError unless the op is well formed."""

FUNCTION_CHECKS = (check_stage, check_in_flight, check_recomputations, check_caches)
"""The checks of a function whose ops are well formed."""


@lru_cache(maxsize=4096)
def _checks_of(kind: type[Operation]) -> tuple[Callable[[Any], None], ...]:
    """Return the checks of an op class: those of `OP_CHECKS`, and `_check_place` if it is not a class of tensor ops."""
    checks = tuple(check for checked, check in OP_CHECKS if issubclass(kind, checked))
    return checks if issubclass(kind, ValueOp) else (_check_place, *checks)
