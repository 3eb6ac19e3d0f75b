"""bucket: merge similar, independent collectives into one message."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from spmdir.analysis.local_programs.globalize import Unit
from spmdir.analysis.scheduling.rank_program import RankProgram, rank_program
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import Collective
from spmdir.dialects.context import IRContext
from spmdir.dialects.names import copy_name
from spmdir.dialects.recomputation import RECOMPUTES
from spmdir.dialects.values import backward_ops, sharding_of
from spmdir.pipeline.base_passes import LocalPass
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.recorded_options import Memory
from spmdir.schedule.buckets import merge_collectives
from spmdir.transforms.set_order import set_order


@dataclass(frozen=True)
class BucketPass(LocalPass, MachineOptions):
    """Merges independent collectives of the same kind on the same axes into one message."""

    name = "bucket"

    memory: Memory = None
    """The memory limit of a rank: a size, or `auto` for the limit of propagate. By default, the peak does not rise."""

    def schedule(self, ctx: IRContext, function: FuncOp, mesh: Mesh, ranked: RankProgram | None = None) -> None:
        """Merge collectives with equal keys where the scheduler finds that this saves time within the memory limit.

        The ops of `function` get the order that the merges require.

        Args:
            ranked: the tasks of `function`; computed if None.
        """
        machine = self.machine(ctx, function, self.memory)
        # Forward outputs are returned before backward starts, so a bucket must not mix forward and backward members.
        backward = backward_ops(function)
        key_of_op: dict[Operation, Hashable] = {}  # collectives with equal keys may share a bucket
        for op in function.body.block.ops:
            key = _bucket_key(op, mesh)
            if key is not None:
                key_of_op[op] = key, op in backward
        if len(set(key_of_op.values())) == len(key_of_op):
            return  # no two collectives may share a bucket
        program, units = ranked or rank_program(function, mesh, ctx.rules, machine.topology)
        key_of_task = {
            task: key_of_op[ops[0]]
            for task, ops in enumerate(units)
            if len(ops) == 1 and ops[0] in key_of_op and program.tasks[task].transfer is not None
        }
        places = ArgumentPlaces(function)
        limit = machine.memory if machine.memory < math.inf else 0.0  # with 0, the peak must not rise
        task_groups = merge_collectives(program, key_of_task, limit)
        new_units = [merge_into_bucket([units[task] for task in group], mesh, places) for group in task_groups]
        set_order(function.body.block, new_units)


def _bucket_key(op: Operation, mesh: Mesh) -> Hashable | None:
    """Return a key that is equal for collectives that may share a bucket; None if `op` cannot be in a bucket."""
    if not isinstance(op, Collective) or op.IS_START or not op.spec.may_be_bucketed:
        return None
    shardings = [sharding_of(value) for pair in op.pairs for value in pair]
    meta = meta_of(op.operands[0].type)
    if meta is None or any(sharding is None or sharding.has_lossy for sharding in shardings):
        return None
    # A recomputed all-gather is freed in between, so it must not share a bucket with the original.
    return op.name, op.message_of(op.step(mesh)), meta.dtype, RECOMPUTES in op.attributes


class ArgumentPlaces:
    """The order of collectives by the argument or result of the function that they belong to.

    Attributes:
        results: value that the function returns → its index among the results.
    """

    def __init__(self, function: FuncOp):
        self.results = {value: place for place, value in enumerate(ir.terminator(function).operands)}

    def place_of(self, op: Collective) -> tuple[int, int]:
        """Return the sort key of a collective: (0, argument index), (1, result index) or (2, 0).

        The argument index is that of the argument which the operand is computed from, if ops of one operand lead to the
        operand. Otherwise, the result index is that of the result of the function which the collective leads to by ops
        of one operand and one user. If there is neither such an argument nor such a result, the key is (2, 0).
        """
        for value in _sources_of(op.operands[0]):
            if isinstance(value, BlockArgument):
                return 0, value.index
        for value in _values_computed_from(op.results[0]):
            if value in self.results:
                return 1, self.results[value]
        return 2, 0


def _sources_of(value: SSAValue) -> Iterator[SSAValue]:
    """Yield `value`, then the operand of its producer, and so on, as long as the producer has a single operand."""
    yield value
    while isinstance(value.owner, Operation) and len(value.owner.operands) == 1:
        value = value.owner.operands[0]
        yield value


def _values_computed_from(value: SSAValue) -> Iterator[SSAValue]:
    """Yield `value`, then the result of its only user, and so on, up to a user with several operands or results."""
    yield value
    while True:
        users = [use.operation for use in value.uses]
        if len(users) != 1 or len(users[0].results) != 1 or len(users[0].operands) != 1:
            return
        value = users[0].results[0]
        yield value


def merge_into_bucket(units: Sequence[Unit], mesh: Mesh, places: ArgumentPlaces) -> Unit:
    """Replace several units, each a collective, by one bucket, and return its unit. A single unit is not changed."""
    if len(units) == 1:
        return units[0]
    ops = sorted((cast(Collective, unit[0]) for unit in units), key=places.place_of)
    bucket = type(ops[0]).joined(ops, mesh)
    for old, result in zip([result for op in ops for result in op.results], bucket.results, strict=True):
        old.replace_all_uses_with(result)
        copy_name(result, old)
    for op in ops:
        Rewriter.erase_op(op)
    return [bucket]
