"""Steps of the planner ↔ collective ops of the IR."""

from __future__ import annotations

from typing import Any

from xdsl.ir import SSAValue

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective
from spmdir.dialects.spmd import Spmd
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.multi_axis_steps import WHOLE_MOVES
from spmdir.reshard.steps import Step

_CLASSES: dict[str, type[Collective]] = {
    op.name.removeprefix("spmd."): op for op in Spmd.operations if issubclass(op, Collective)
}


def build_collective(step: Step, value: SSAValue, location: Any) -> ValueOp:
    """The op that does `step` on `value`; its result has the type of `value`."""
    axes = None if step.kind in WHOLE_MOVES else step.axes
    given = (("axes", axes), ("dim", step.dim), ("op", step.op), ("to_dim", step.to_dim))
    arguments = tuple((name, argument) for name, argument in given if argument is not None)
    return _CLASSES[step.kind].build_op([value], [meta_of(value.type)], arguments, [step.target], location=location)


def step_of(op: Collective, mesh: Mesh) -> Step:
    """The step that a collective does; the kind of a `broadcast` is one that the planner never plans.

    Raises:
        ShardingError: the operand or the result has no sharding.
    """
    source, target = sharding_of(op.operands[0]), op.target
    if source is None or target is None:
        raise ShardingError(f"{op.name} needs the shardings of its operand and of its result")
    kind, argument = op.name.removeprefix("spmd."), op.argument
    axes: Any = WHOLE_MOVES[kind].axes(source, target, mesh) if kind in WHOLE_MOVES else argument["axes"]
    dim, to_dim, reduction = (argument.get(name) for name in ("dim", "to_dim", "op"))
    return Step(kind, tuple(axes), source, target, dim, to_dim, reduction)  # type: ignore  # literals of the right kind
