"""The stage of a function, as its attribute states it or as its ops show it, and the check that both agree."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from spmdir.dialects.collectives import Collective
from spmdir.dialects.layer_calls import layer_named
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.sharding_checks import mesh_of
from spmdir.dialects.stage import PASSES_RUN, STAGE, STAGES, is_at_least, is_local, passes_run, written_stage
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, needed_result, sharding_of


def stage_of(function: FuncOp) -> str:
    """Return the stage of `function`: the one it states, else the first of STAGES that admits all its ops.

    A function without reshards is `lowered` if it contains collectives, else `decided`.
    """
    written = written_stage(function)
    if written is not None:
        return written
    latest = last_stage(function)
    if latest != STAGES[-1]:
        return latest
    return "lowered" if any(isinstance(op, Collective) for op in function.body.block.ops) else "decided"


def last_stage(function: FuncOp) -> str:
    """Return the last stage that admits all ops of `function`, whatever it states."""
    if is_local(function):
        return STAGES[-1]
    return STAGES[min((STAGES.index(stage) for stage, _ in _limits(function)), default=len(STAGES) - 1)]


def is_undecided(function: FuncOp) -> bool:
    """Return whether a value of `function`, such as the result of a call, has no sharding, or one with an open axis."""
    return any(stage == "imported" for stage, _ in _limits(function))


def has_open_results(function: FuncOp) -> bool:
    """Return whether a result of `function` is still to be resharded: to what it promises, or since it is partial."""
    mesh, end = mesh_of(function), function.body.block.last_op
    if mesh is None or end is None:
        return False
    for index, value in enumerate(end.operands):
        annotation = function_attrs(function, "res_attrs", index).get("spmd.sharding")
        if sharding_of(value) not in (None, needed_result(annotation, value, mesh)):
            return True
    return False


def check_stage(function: FuncOp) -> None:
    """Raise VerifyException unless the stage that `function` states admits all its ops."""
    recorded = function.attributes.get(PASSES_RUN)
    if recorded is not None and not (isinstance(recorded, ArrayAttr) and len(passes_run(function)) == len(recorded)):
        raise VerifyException(f'{PASSES_RUN} is {recorded}; expected names of passes, as in ["mine"]')
    attribute = function.attributes.get(STAGE)
    if attribute is None:
        return
    if not isinstance(attribute, StringAttr) or attribute.data not in STAGES:
        raise VerifyException(f"{STAGE} is {attribute}; expected one of {', '.join(STAGES)}, as a string")
    for stage, reason in () if is_local(function) else _limits(function):
        if not is_at_least(stage, attribute.data):
            raise VerifyException(
                f"{STAGE} is '{attribute.data}', but {reason}; expected '{stage}', or no {STAGE} in a program that is "
                "written by hand"
            )


def _limits(function: FuncOp) -> Iterator[tuple[str, str]]:
    """Yield the last stage that admits a value or an op, and what it is, for all that some stage does not admit."""
    for argument in function.args:
        yield from _value_limits(argument)
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            yield from _op_limits(op)
        elif type(op) is CallOp and layer_named(op) is None:
            yield "imported", f"it calls {op.callee}"


def _op_limits(op: ValueOp) -> Iterator[tuple[str, str]]:
    for result, meta in zip(op.results, op.metas, strict=True):
        if meta is not None:
            yield from _value_limits(result)
    if op.needs is not None or type(op) is ConstraintOp:
        yield "decided", f"'{op.name}' has operands that are to be resharded"
    if type(op) is ReshardOp:
        yield "resharded", f"'{op.name}' has no collectives"


def _value_limits(value: SSAValue) -> Iterator[tuple[str, str]]:
    sharding = sharding_of(value)
    if sharding is None or sharding.open_axes:
        yield "imported", f"{text_name(value)} has {f'the sharding <{sharding}>' if sharding else 'no sharding'}"
