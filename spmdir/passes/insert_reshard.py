"""insert-reshard: insert a reshard where an op needs another sharding of its operand. The result is well typed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.local_forms import is_split
from spmdir.analysis.operand_choice import OperandChoice
from spmdir.core.errors import Location, ShardingError, print_remark
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import plugins
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.context import IRContext
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names, text_name
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp, has_lossy
from spmdir.dialects.values import function_attrs, needed_result, sharding_of
from spmdir.passes.expand import decided_sharding, expand_all, operand_choice
from spmdir.pipeline.base_passes import FunctionPass


@attrs.frozen
class _Reshards:
    """The reshards inserted so far, by value and sharding."""

    names: Names
    values: dict[tuple[SSAValue, Sharding], SSAValue] = attrs.field(factory=dict)

    def reshard(self, value: SSAValue, target: Sharding, user: Operation) -> SSAValue:
        """Return `value` in the sharding `target`. A new reshard is inserted before `user`."""
        if sharding_of(value) == target:
            return value
        key = (value, target)
        if key not in self.values:
            op = ReshardOp.build(value, target, user.location)
            self.names.assign_name(op.results[0], value, "reshard")
            Rewriter.insert_op(op, InsertPoint.before(user))
            self.values[key] = op.results[0]
        return self.values[key]


@dataclass(frozen=True)
class InsertReshardPass(FunctionPass):
    """Inserts a spmd.reshard before each use in another sharding. Users with the same need share it."""

    name = "insert-reshard"
    requires: ClassVar[str] = "decided"
    produces: ClassVar[str | None] = "resharded"

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Expand ops where required, and reshard operands of ops and results of the function to the needed shardings.

        Constraints become reshards, and the attribute `needs` is removed.
        """
        mesh = ir.mesh(module)
        function.attributes.pop(GIVEN, None)  # only the output of propagate can be decided again
        expand_all(function, mesh, ctx)
        choice = operand_choice(function, mesh, ctx)
        reshards = _Reshards(Names(function.body.block))
        needs_by_key: dict[Hashable, tuple[Sharding, ...]] = {}
        constraints: list[_Constraint] = []
        for user in list(function.body.block.ops):
            if isinstance(user, AtenOp):
                operands = tuple(user.operands)
                shardings = tuple([decided_sharding(operand, user) for operand in operands])
                for index, target in enumerate(_needed_shardings(user, shardings, choice, needs_by_key)):
                    if target != shardings[index]:
                        user.operands[index] = reshards.reshard(operands[index], target, user)
                user.properties.pop("needs", None)
            elif isinstance(user, (ConstraintOp, ReshardOp)):
                constraints += _replace_constraint(reshards, user)
        end = ir.terminator(function)
        for index, value in enumerate(end.operands):
            annotation = function_attrs(function, "res_attrs", index).get("spmd.sharding")
            target = needed_result(annotation, value, mesh)
            end.operands[index] = reshards.reshard(value, target, end)
        for constraint in constraints:
            constraint.remark_if_unused()


@attrs.frozen
class _Constraint:
    """A constraint to plug-in placements that was replaced by a reshard.

    Attributes:
        value: the result of the reshard.
        location: the location of the constraint.
    """

    value: SSAValue
    location: Location | None

    def remark_if_unused(self) -> None:
        """Print a remark to stderr if only reshards use the value, and the value has no lossy placement."""
        users = [use.operation for use in self.value.uses]
        sharding = sharding_of(self.value)
        is_used_as_is = any(not isinstance(user, ReshardOp) for user in users)
        rounds_value = bool(users) and has_lossy(sharding)
        if is_used_as_is or rounds_value:
            return
        name = text_name(self.value.owner.operands[0])  # type: ignore[union-attr]  # its producer is a reshard
        reason = "its users need other shardings" if users else "nothing uses it"
        text = (
            f"the constraint of {name} to <{sharding}> has no effect: {reason}; remove it, or give the op that should "
            "use it a strategy with this placement"
        )
        print_remark(text, self.location)


def _needed_shardings(
    op: AtenOp, current: tuple[Sharding, ...], choice: OperandChoice, needs_by_key: dict[Hashable, tuple[Sharding, ...]]
) -> tuple[Sharding, ...]:
    """Return the sharding that `op` needs of each operand.

    Propagate decided them if `op` has the attribute `needs`. Otherwise, they are the cheapest to reach from `current`.

    Args:
        current: the sharding of each operand.
        needs_by_key: a cache of the cheapest shardings, by a key that is equal for equal ops. Updated.
    """
    if op.needs:
        return tuple(need or sharding for need, sharding in zip(op.needs.data, current, strict=True))
    types = [meta_of(value.type) for value in (*op.operands, *op.results)]
    key = (op.name, is_split(op), current, *types, *map(op.properties.get, ("arguments", "structure", "sharding")))
    if key not in needs_by_key:
        needs_by_key[key] = choice.cheapest(op, current)
    return needs_by_key[key]


def _replace_constraint(reshards: _Reshards, op: ConstraintOp | ReshardOp) -> list[_Constraint]:
    """Replace `op` by a reshard, or by its operand if that already has the sharding.

    Returns: a `_Constraint` in a list, if `op` is a constraint to plug-in placements and a reshard was needed; else [].

    Raises:
        ShardingError: the target of `op` is open; located.
    """
    target = op.target
    if target is None or target.open_axes:
        raise ShardingError(
            f"'{op.name}' leaves an axis open; expected a placement on each axis: run propagate first", location_of(op)
        )
    operand, location = op.operands[0], location_of(op)
    has_plugins = isinstance(op, ConstraintOp) and bool(plugins(placement for _, placement in target.entries))
    value = reshards.reshard(operand, target, op)
    if value is not op.results[0]:
        op.results[0].replace_all_uses_with(value)
        Rewriter.erase_op(op)
    return [_Constraint(value, location)] if has_plugins and value is not operand else []
