"""Infer the stage of a function from its ops if it has no `spmd.stage`, and check that the two agree."""

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
from spmdir.dialects.stage import PASSES_RUN, STAGE, STAGES, is_at_least, is_local, recorded_passes, recorded_stage
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, needed_result, sharding_of


def stage_of(function: FuncOp) -> str:
    """Return the stage of `function`: its `spmd.stage`, or the stage inferred from its ops.

    A function without reshards is `lowered` if it contains collectives, else `decided`.
    """
    recorded = recorded_stage(function)
    if recorded is not None:
        return recorded
    last_allowed = last_stage(function)
    if last_allowed != STAGES[-1]:
        return last_allowed
    return "lowered" if any(isinstance(op, Collective) for op in function.body.block.ops) else "decided"


def last_stage(function: FuncOp) -> str:
    """Return the last stage that allows all ops of `function`, without regard to its attribute."""
    if is_local(function):
        return STAGES[-1]
    limits = [STAGES.index(stage) for stage, _ in _stage_limits(function)]
    return STAGES[min(limits, default=len(STAGES) - 1)]


def is_undecided(function: FuncOp) -> bool:
    """Return whether a value of `function` has no sharding or an open axis, or an op calls another function."""
    return any(stage == "imported" for stage, _ in _stage_limits(function))


def has_open_results(function: FuncOp) -> bool:
    """Return whether a result of `function` requires a reshard: to its annotation, or because it is partial."""
    mesh, return_op = mesh_of(function), function.body.block.last_op
    if mesh is None or return_op is None:
        return False
    for index, value in enumerate(return_op.operands):
        annotation = function_attrs(function, "res_attrs", index).get("spmd.sharding")
        if sharding_of(value) not in (None, needed_result(annotation, value, mesh)):
            return True
    return False


def check_stage(function: FuncOp) -> None:
    """Raise VerifyException unless the `spmd.stage` of `function` allows all its ops."""
    passes_attribute = function.attributes.get(PASSES_RUN)
    if passes_attribute is not None and not (
        isinstance(passes_attribute, ArrayAttr) and len(recorded_passes(function)) == len(passes_attribute)
    ):
        raise VerifyException(f'{PASSES_RUN} is {passes_attribute}; expected names of passes, as in ["mine"]')
    attribute = function.attributes.get(STAGE)
    if attribute is None:
        return
    if not isinstance(attribute, StringAttr) or attribute.data not in STAGES:
        raise VerifyException(f"{STAGE} is {attribute}; expected one of {', '.join(STAGES)}, as a string")
    for stage, reason in () if is_local(function) else _stage_limits(function):
        if not is_at_least(stage, attribute.data):
            raise VerifyException(
                f"{STAGE} is '{attribute.data}', but {reason}; expected '{stage}', or no {STAGE} in a "
                "hand-written program"
            )


def _stage_limits(function: FuncOp) -> Iterator[tuple[str, str]]:
    """Yield (last stage that allows it, description) for each value or op that is not allowed at all stages."""
    for argument in function.args:
        yield from _value_limits(argument)
    for op in function.body.block.ops:
        if isinstance(op, ValueOp):
            yield from _op_limits(op)
        elif type(op) is CallOp and layer_named(op) is None:
            yield "imported", f"it calls {op.callee}"


def _op_limits(op: ValueOp) -> Iterator[tuple[str, str]]:
    """Yield (last stage that allows it, description) for an op and its results."""
    for result, meta in zip(op.results, op.metas, strict=True):
        if meta is not None:
            yield from _value_limits(result)
    if op.needs is not None or type(op) is ConstraintOp:
        yield "decided", f"'{op.name}' requires reshards of its operands"
    if type(op) is ReshardOp:
        yield "resharded", f"'{op.name}' is not lowered to collectives"


def _value_limits(value: SSAValue) -> Iterator[tuple[str, str]]:
    """Yield (last stage that allows it, description) for a value whose sharding is not decided."""
    sharding = sharding_of(value)
    if sharding is None or sharding.open_axes:
        yield "imported", f"{text_name(value)} has {f'the sharding <{sharding}>' if sharding else 'no sharding'}"
