"""Give a program of one rank the messages and the op order of a reference, which differs only in sizes.

All ranks must run their collectives in the same order. A schedule depends on times, and times depend on sizes. So ranks
with different sizes cannot schedule their programs separately: all follow the schedule for one choice of sizes.

    reference, 16 rows    %a, %b = spmd.wait(all_gather_start(%v, %w)); %x = mm(%x0, %a)
    before, 6 rows        %a = all_gather %v; %x = mm(%x0, %a); %b = all_gather %w
    after, 6 rows         %a, %b = spmd.wait(all_gather_start(%v, %w)); %x = mm(%x0, %a)
"""

from __future__ import annotations

from dataclasses import dataclass

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation

from spmdir.analysis.local_programs.globalize import Unit, units_of
from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import print_type
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.context import IRContext
from spmdir.dialects.deadlock_check import LOCAL_MESSAGES
from spmdir.dialects.host_ops import HostCopyOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names, make_names_unique, name_of, text_name
from spmdir.dialects.ring_ops import RotationOp
from spmdir.dialects.row_exchanges import ExpertExchangeOp
from spmdir.dialects.shard_index_ops import ShardIndexOp
from spmdir.dialects.verifier import verify
from spmdir.passes.bucket import ArgumentPlaces, merge_into_bucket
from spmdir.passes.split_async import SplitAsyncPass
from spmdir.pipeline.base_passes import LocalPass
from spmdir.pipeline.pipeline import Pipeline
from spmdir.transforms.set_order import set_order

Key = tuple[str, ...]
"""The names of the results of a unit. For a start, the names of the results of its wait."""


def follow_schedule(module: ModuleOp, reference: ModuleOp, pipeline: Pipeline) -> None:
    """Schedule a program of one rank, in place, like `reference`.

    Args:
        module: a program after localize.
        reference: a program after all passes of `pipeline`, from a module that differs only in sizes.

    Raises:
        UnsupportedError: the programs differ in more than sizes; located.
    """
    FollowSchedulePass(reference).apply(pipeline.context(), module)
    verify(module)


def name_values(module: ModuleOp) -> None:
    """Give each value of a program of one rank a unique name, equal in programs that differ only in sizes."""
    block = ir.main_function(module).body.block
    names = Names(block)
    for op in block.ops:
        for result in op.results:
            if name_of(result) is None:
                names.assign_name(result, op.operands[0] if op.operands else result, "value")
    make_names_unique(block)


@dataclass(frozen=True)
class FollowSchedulePass(LocalPass):
    """Gives a program the buckets, starts, waits and the order of `reference`."""

    name = "follow"

    reference: ModuleOp

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        """Schedule `function` like the reference, in three steps: buckets, starts and waits, order.

        A *unit* is one op, or all ops of a local form. Units of both programs correspond by the names of their results.
        If the reference has `%a, %b = spmd.all_reduce(%x, %y)`, the function's `%a = spmd.all_reduce(%x)` and
        `%b = spmd.all_reduce(%y)` become such a bucket, and get its position in the order.

        Raises:
            UnsupportedError: a unit of one program has none in the other.
        """
        reference_units = [unit for _, unit in units_of(ir.main_function(self.reference).body.block)]
        units = {_unit_key(unit): unit for _, unit in units_of(function.body.block)}
        places = ArgumentPlaces(function)
        # Merge the collectives that the reference has in one bucket, and start them early if it has starts.
        for unit in reference_units:
            if len(unit[0].results) > 1 and (isinstance(unit[0], WaitOp) or _is_synchronous(unit[0])):
                # In `function`, each member is still a unit with one result. Only complete buckets are merged; the
                # comparison of keys below reports any other.
                members = [units.pop((name,), None) for name in _unit_key(unit)]
                if None not in members:
                    units[_unit_key(unit)] = merge_into_bucket(members, mesh, places)  # type: ignore  # none is None
        set_order(function.body.block, units.values())
        if any(
            isinstance(op, (Collective, HostCopyOp, ExpertExchangeOp)) and op.IS_START
            for unit in reference_units
            for op in unit
        ):
            SplitAsyncPass().schedule(ctx, function, mesh)
        units = {_unit_key(unit): unit for _, unit in units_of(function.body.block)}
        keys = list(map(_unit_key, reference_units))
        if len(units) != len(keys) or units.keys() != set(keys):
            differing_unit = next((unit for key, unit in units.items() if key not in set(keys)), [function])
            raise UnsupportedError(
                "the program for these sizes has other ops or messages than the program for the examples, "
                "so ranks of different sizes cannot run together; expected equal ops and messages: give "
                "all ranks inputs of one size",
                location_of(differing_unit[0]),
            )
        set_order(function.body.block, [units[key] for key in keys])


def _is_synchronous(op: Operation) -> bool:
    """Return whether an op is a collective that is not a start."""
    return isinstance(op, Collective) and not op.IS_START


def _unit_key(unit: Unit) -> Key:
    """Return the key by which units of two programs correspond.

    `%a, %b = spmd.wait(%p)` has the key (%a, %b), and the start that defines %p has the key (start, %a, %b).
    """
    op = unit[-1]
    if isinstance(op, (Collective, RotationOp, HostCopyOp, ExpertExchangeOp)) and op.IS_START:
        waits = (use.operation for result in op.results for use in result.uses)
        wait = next(wait for wait in waits if isinstance(wait, WaitOp))
        return ("start", *map(text_name, wait.results))
    return tuple(text_name(result) for op in unit for result in op.results)


@attrs.frozen
class RankMessage:
    """A collective of a rank's program, or an index op whose result depends on other ranks.

    Attributes:
        description: the op, its operands and mesh axes, as text.
        axes: the mesh axes of the collective; the ranks of a group along them must have equal messages.
        form: the types of the operands, and the arguments of the op, as text.
        is_returned: whether the program returns the results, and uses them in no other op.
    """

    description: str
    axes: tuple[str, ...]
    form: str
    is_returned: bool


def _is_returned(op: Operation) -> bool:
    """Return whether the program returns the results of `op`, and uses them in no other op.

    The results of a start are those of its wait.
    """
    users = [use.operation for result in op.results for use in result.uses]
    return all(isinstance(user, ReturnOp) or (isinstance(user, WaitOp) and _is_returned(user)) for user in users)


def messages(module: ModuleOp) -> list[RankMessage]:
    """Return the messages of a program of one rank in order, including index ops on which ranks must agree."""
    result = []
    for op in ir.main_function(module).body.block.ops:
        if isinstance(op, (Collective, *LOCAL_MESSAGES)):
            axes = tuple(op.axes)
        elif isinstance(op, ShardIndexOp):
            axes = op.shard.axes
        else:
            continue
        if isinstance(op, Collective) and op.spec.is_local:
            continue
        values = ", ".join(f"'{text_name(value)[1:]}'" for value in op.operands)
        types = ", ".join(print_type(value.type) for value in op.operands)
        arguments = {name: str(value) for name, value in op.properties.items()}
        name = op.name.removeprefix("spmd.").removesuffix("_start")
        description = f"{name} of {values or 'indices'} on mesh axes [{', '.join(axes)}]"
        result.append(RankMessage(description, axes, f"{types} {arguments}", _is_returned(op)))
    return result
