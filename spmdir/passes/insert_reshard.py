"""A reshard wherever an operand's sharding is not the one its op needs; afterwards the type check holds."""

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
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, needed_result, sharding_of
from spmdir.passes.expand import expand_all, operand_choice
from spmdir.pipeline.base_passes import FunctionPass


@attrs.frozen
class _Reshards:
    """The reshards made so far, by value and sharding."""

    names: Names
    made: dict[tuple[SSAValue, Sharding], SSAValue] = attrs.field(factory=dict)

    def resharded(self, value: SSAValue, wanted: Sharding, user: Operation) -> SSAValue:
        """Return `value` in the wanted sharding, by a reshard before `user` unless one was made already."""
        if sharding_of(value) == wanted:
            return value
        key = (value, wanted)
        if key not in self.made:
            reshard = ReshardOp.build(value, wanted, user.location)
            self.names.give(reshard.results[0], value, "reshard")
            Rewriter.insert_op(reshard, InsertPoint.before(user))
            self.made[key] = reshard.results[0]
        return self.made[key]


@dataclass(frozen=True)
class InsertReshardPass(FunctionPass):
    """Puts a spmd.reshard before each use that needs another sharding; one serves all users that need the same."""

    name = "insert-reshard"
    requires: ClassVar[str] = "decided"
    produces: ClassVar[str | None] = "resharded"

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        mesh = ir.mesh(module)
        function.attributes.pop(GIVEN, None)  # what is decided again is what propagate gave
        expand_all(function, mesh, ctx)
        choice = operand_choice(function, mesh, ctx)
        made = _Reshards(Names(function.body.block))
        wanted_by: dict[Hashable, tuple[Sharding, ...]] = {}
        constraints: list[_Constraint] = []
        for user in list(function.body.block.ops):
            if isinstance(user, AtenOp):
                operands = tuple(user.operands)
                shardings = tuple([_known(operand, user) for operand in operands])
                for index, wanted in enumerate(_wanted(user, shardings, choice, wanted_by)):
                    if wanted != shardings[index]:
                        user.operands[index] = made.resharded(operands[index], wanted, user)
                user.properties.pop("needs", None)
            elif isinstance(user, (ConstraintOp, ReshardOp)):
                constraints += _replace_constraint(made, user)
        end = ir.terminator(function)
        for index, value in enumerate(end.operands):
            asked = function_attrs(function, "res_attrs", index).get("spmd.sharding")
            wanted = needed_result(asked, value, mesh)
            end.operands[index] = made.resharded(value, wanted, end)
        for constraint in constraints:
            constraint.remark_if_unused()


@attrs.frozen
class _Constraint:
    """A constraint that asks for placements which nothing gets unasked, after it became a reshard.

    Attributes:
        value: what the reshard gives.
        location: that of the constraint.
    """

    value: SSAValue
    location: Location | None

    def remark_if_unused(self) -> None:
        """Print a remark to stderr if no op takes the value as the constraint says, and nothing is lost by that."""
        users = [use.operation for use in self.value.uses]
        sharding = sharding_of(self.value)
        if not all(isinstance(user, ReshardOp) for user in users) or (users and has_lossy(sharding)):
            return
        name = text_name(self.value.owner.operands[0])  # type: ignore[union-attr]  # a reshard gives it
        taken = "its users take it in other shardings" if users else "nothing uses it"
        text = (
            f"the constraint of {name} to <{sharding}> has no effect: {taken}; remove it, or give the op that should "
            "use it a strategy with this placement"
        )
        print_remark(text, self.location)


def _wanted(
    op: AtenOp, current: tuple[Sharding, ...], choice: OperandChoice, known: dict[Hashable, tuple[Sharding, ...]]
) -> tuple[Sharding, ...]:
    """Return the operand shardings of an op: as propagate decided, else those that reach its results in least time.

    Args:
        known: what was found for the ops before, by all that it depends on.
    """
    if op.needs:
        return tuple(need or has for need, has in zip(op.needs.data, current, strict=True))
    types = [meta_of(value.type) for value in (*op.operands, *op.results)]
    key = (op.name, is_split(op), current, *types, *map(op.properties.get, ("arguments", "structure", "sharding")))
    if key not in known:
        known[key] = choice.cheapest(op, current)
    return known[key]


def _known(value: SSAValue, user: ValueOp) -> Sharding:
    sharding = sharding_of(value)
    if sharding is None or sharding.open_axes:
        raise ShardingError(f"an operand of '{user.name}' has no sharding yet; run propagate first", location_of(user))
    return sharding


def _replace_constraint(made: _Reshards, op: ConstraintOp | ReshardOp) -> list[_Constraint]:
    """Put a reshard in the place of `op`; return what is to be looked at once all users are known."""
    wanted = op.target
    if wanted is None or wanted.open_axes:
        raise ShardingError(f"'{op.name}' leaves an axis open; run propagate first", location_of(op))
    operand, location = op.operands[0], location_of(op)
    is_special = isinstance(op, ConstraintOp) and bool(plugins(placement for _, placement in wanted.entries))
    value = made.resharded(operand, wanted, op)
    if value is not op.results[0]:
        op.results[0].replace_all_uses_with(value)
        Rewriter.erase_op(op)
    return [_Constraint(value, location)] if is_special and value is not operand else []
