"""bucket: one collective for several that are alike and may be at one place of the program."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from spmdir.analysis.local_programs.globalize import Unit
from spmdir.analysis.scheduling.rank_program import rank_program
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective
from spmdir.dialects.context import IRContext
from spmdir.dialects.names import take_name
from spmdir.dialects.recomputation import RECOMPUTES
from spmdir.dialects.values import backward_ops, sharding_of
from spmdir.pipeline.base_passes import LocalPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.noted_options import Memory
from spmdir.schedule.buckets import merge_collectives
from spmdir.transforms.set_order import set_order


@dataclass(frozen=True)
class BucketPass(LocalPass, MachineOptions):
    """Joins collectives of one kind, on the same axes, that do not depend on each other."""

    name = "bucket"

    memory: Memory = None
    """What a rank may hold: `auto` is what propagate decided for; without a limit what it holds anyway."""

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh) -> None:
        machine = self.machine(ctx, function, self.memory)
        # Outputs are returned before their gradients are given, so no message has parts of both sides.
        late = backward_ops(function)
        keys = {op: (key, op in late) for op in function.body.block.ops if (key := _key(op, mesh)) is not None}
        if len(set(keys.values())) == len(keys):
            return
        program, units = rank_program(function, mesh, ctx.rules, machine.topology)
        by_task = {
            task: keys[ops[0]]
            for task, ops in enumerate(units)
            if len(ops) == 1 and ops[0] in keys and program.tasks[task].transfer is not None
        }
        places = BucketPlaces(function)
        found = merge_collectives(program, by_task, machine.memory if machine.memory < math.inf else 0.0)
        set_order(function.body.block, [joined([units[task] for task in item], mesh, places) for item in found])


def _key(op: Operation, mesh: Mesh) -> Hashable | None:
    """Return what collectives have in common that may be one; None if `op` is none that may be one with others."""
    if not isinstance(op, Collective) or op.IS_START or not op.spec.may_be_bucketed:
        return None
    held = [sharding_of(value) for pair in op.pairs for value in pair]
    meta = meta_of(op.operands[0].type)
    if meta is None or any(sharding is None or sharding.has_lossy for sharding in held):
        return None
    # What is gathered again is not held meanwhile, so it is in no message with what is gathered the first time.
    return op.name, op.message_of(op.step(mesh)), meta.dtype, RECOMPUTES in op.attributes


class BucketPlaces:
    """The places of a function's arguments and results that values come from or go to."""

    def __init__(self, function: FuncOp):
        self.results = {value: place for place, value in enumerate(ir.terminator(function).operands)}

    def of(self, op: Collective) -> tuple[int, int]:
        """Return the place of the argument that a collective's operand is made of alone, else that of the result that
        its own is made into, else none."""
        for value in _makers(op.operands[0]):
            if isinstance(value, BlockArgument):
                return 0, value.index
        return next(((1, self.results[value]) for value in _takers(op.results[0]) if value in self.results), (2, 0))


def _makers(value: SSAValue) -> Iterator[SSAValue]:
    """Yield a value, what it is made of alone, and so on."""
    yield value
    while isinstance(value.owner, Operation) and len(value.owner.operands) == 1:
        value = value.owner.operands[0]
        yield value


def _takers(value: SSAValue) -> Iterator[SSAValue]:
    """Yield a value, what is made of it alone, and so on, as long as nothing else is."""
    yield value
    while True:
        users = [use.operation for use in value.uses]
        if len(users) != 1 or len(users[0].results) != 1 or len(users[0].operands) != 1:
            return
        value = users[0].results[0]
        yield value


def joined(units: Sequence[Unit], mesh: Mesh, places: BucketPlaces) -> Unit:
    """Return the op in the place of several units, each a collective; one unit as it is."""
    if len(units) == 1:
        return units[0]
    ops = sorted((cast(Collective, unit[0]) for unit in units), key=places.of)
    new = type(ops[0]).joined(ops, mesh)
    for old, result in zip([result for op in ops for result in op.results], new.results, strict=True):
        old.replace_all_uses_with(result)
        take_name(result, old)
    for op in ops:
        Rewriter.erase_op(op)
    return [new]
