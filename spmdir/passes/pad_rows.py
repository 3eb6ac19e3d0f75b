"""pad-rows: dispatch rows to ranks of experts in a fixed number of slots, so that all sizes are static."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.routes import REGROUP, routes_of_values
from spmdir.core.errors import ShardingError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import ArgumentsAttr, meta_of
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names, text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.placements.routed_rows import Cleared, Grouped, Home, Slots

CLEAR = "experts.clear"


@dataclass(frozen=True)
class PadRowsPass(FunctionPass):
    """Replaces the placement `Grouped` by `Slots`, and inserts `experts.clear` where an op combines rows.

    Options:
        capacity: the number of rows that a rank may send to each expert. If more rows are sent, the program raises an
            error on all ranks, before it writes to the state.
    """

    name = "pad-rows"
    requires: ClassVar[str] = "lowered"

    capacity: Annotated[int, "from 1 on"] = 0

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Pad the rows of `function`.

        Exchanges of rows get the capacity, and all values in the placement `Grouped` become `Slots`, with padding rows
        of unspecified elements. An op that combines rows, such as a sum, reads a copy with zeros as padding.

        Raises:
            UnsupportedError: the option `capacity` is missing.
            ShardingError: ranks have different numbers of tokens, or a sum is over rows of several routes; located.
        """
        if self.capacity < 1:
            raise UnsupportedError("pad-rows requires the option `capacity`; write it as in pad-rows{capacity=16}")
        mesh, ops = ir.mesh(module), [op for op in function.body.block.ops if isinstance(op, ValueOp)]
        for op in ops:
            if op.name == REGROUP and any(map(_is_grouped, (*op.operands, *op.results))):
                self._set_capacity(op, mesh)
        for op in ops:
            op.set_shardings([_replaced(sharding, Grouped, Slots) for sharding in op.shardings])
        clearer = _Clearer(function)
        for op in ops:
            keeps_rows_apart = all(map(_is_padded, op.results))
            if isinstance(op, AtenOp) and op.name not in (REGROUP, CLEAR) and not keeps_rows_apart:
                for index, operand in enumerate(op.operands):
                    if _is_padded(operand):
                        op.operands[index] = clearer.clear(operand, op)

    def _set_capacity(self, op: ValueOp, mesh: Mesh) -> None:
        """Write the capacity to the arguments of an exchange of rows.

        Raises:
            ShardingError: the operand or the result has the tokens of a rank, and ranks have different numbers of them;
                located.
        """
        for value in (op.operands[0], op.results[0]):
            meta, sharding = meta_of(value.type), sharding_of(value)
            if meta is None or sharding is None or not any(isinstance(p, Home) for _, p in sharding.entries):
                continue
            if meta.shape[0] % mesh.group_size(sharding.dim_axes(0)):
                raise ShardingError(
                    f"pad-rows found {meta.shape[0]} rows, which the ranks do not divide evenly; expected equally many "
                    "tokens on each rank, since all sizes are static: change the batch, or remove pad-rows",
                    location_of(op),
                )
        op.properties["arguments"] = ArgumentsAttr(tuple(sorted({**op.argument, "capacity": self.capacity}.items())))


class _Clearer:
    """Inserts `experts.clear`, once for each value."""

    def __init__(self, function: FuncOp):
        self._names, self._routes = Names(function.body.block), routes_of_values(function.body.block)
        self._cleared: dict[SSAValue, SSAValue] = {}

    def clear(self, value: SSAValue, user: Operation) -> SSAValue:
        """Return `value` with zeros as padding. A new op is inserted before `user`."""
        if value not in self._cleared:
            routes = self._routes[value]
            if len(routes) != 1:
                raise ShardingError(
                    f"pad-rows found {len(routes)} routes of the rows of {text_name(value)}; expected rows of one "
                    "experts.route: regroup the rows of each route alone, or remove pad-rows",
                    location_of(user),
                )
            (order,) = routes
            arrivals: Any = order.owner.results[2]  # type: ignore  # an experts.route
            sharding = _replaced(sharding_of(value), Slots, Cleared)
            op = op_class(CLEAR).build_op(
                [value, arrivals], [meta_of(value.type)], (), [sharding], location=user.location
            )
            self._names.assign_name(op.results[0], value, "clear")
            Rewriter.insert_op(op, InsertPoint.before(user))
            self._cleared[value] = op.results[0]
        return self._cleared[value]


def _replaced(sharding: Sharding | None, old: type[Placement], new: Any) -> Sharding | None:
    """Return a sharding with the placements of one class replaced by those of another with the same dimension."""
    if sharding is None:
        return None
    entries: Sequence[tuple[str, Placement]] = [
        (axis, new(placement.dim) if isinstance(placement, old) else placement) for axis, placement in sharding.entries
    ]
    return Sharding(entries, sharding.mesh)


def _is_grouped(value: SSAValue) -> bool:
    """Return whether a rank has the rows of its own experts, without padding."""
    return _has(value, Grouped)


def _is_padded(value: SSAValue) -> bool:
    """Return whether a rank has padding rows of unspecified elements."""
    return _has(value, Slots)


def _has(value: SSAValue, kind: type[Placement]) -> bool:
    """Return whether the sharding of a value has a placement of this class."""
    sharding = sharding_of(value)
    return sharding is not None and any(isinstance(placement, kind) for _, placement in sharding.entries)
