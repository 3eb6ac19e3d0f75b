"""fuse-collectives: merge duplicate collectives, remove unused ones, and apply rewrites until none makes the program
cheaper. The rewrites are in fuse_collectives.rewrites.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from spmdir.core.errors import ParseError, did_you_mean, print_remark, raise_all
from spmdir.dialects import ir
from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import Names
from spmdir.dialects.value_op import ValueOp
from spmdir.pipeline.base_passes import global_functions, reject_open_sizes
from spmdir.pipeline.limited_memory import peak_bound, peak_bytes, restore
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.options import Count
from spmdir.pipeline.recorded_options import Memory
from spmdir.rewrites.apply_rewrites import Rewriting
from spmdir.rewrites.benefit import Pricing
from spmdir.rewrites.engine import Engine
from spmdir.rewrites.rewrite_conditions import CONDITIONS, check_conditions
from spmdir.rewrites.rewrite_files import REWRITES, read_rewrites
from spmdir.rewrites.terms import Rewrite, duplicates
from spmdir.rewrites.trace import Attempt


@dataclass(frozen=True)
class FuseCollectivesPass(ModulePass, MachineOptions):
    """Removes and merges collectives by rewrites. No rewrite increases the bytes or the modelled time.

    To add rewrites of a plug-in to a context: `context.rewrites += read_rewrites(Path("mine.rewrites"))`.

    Options:
        rewrites: files of rewrites, in addition to the built-in ones.
        only: the names of the rewrites to use; by default all.
        max-sweeps: the largest number of sweeps over the program.
        memory: the memory limit of a rank, as for propagate; `auto` is the limit that propagate used. A rewrite must
            not raise the peak above this limit.
        trace: print a remark to stderr for each match of a rewrite, with the reason if it was not applied.
    """

    name = "fuse-collectives"
    requires: ClassVar[str] = "lowered"
    rewrites: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    max_sweeps: Count = 64
    memory: Memory = "auto"
    trace: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Rewrite the module in place. With `trace`, print a remark for each attempt.

        A further remark lists the rewrites of the user (of `only`, `rewrites` or a plug-in) that matched nowhere.
        """
        assert isinstance(ctx, IRContext)
        if not self.trace:
            self.run(ctx, op)
            return
        attempts: dict[Attempt, None] = {}
        self.run(ctx, op, lambda attempt: attempts.setdefault(attempt))
        matched = {attempt.rewrite for attempt in attempts}
        chosen_by_user = {
            rewrite.name for rewrite in self._chosen(ctx) if self.only or rewrite not in read_rewrites(REWRITES)
        }
        for attempt in attempts:
            print(attempt, file=sys.stderr)
        unmatched = sorted(chosen_by_user - matched)
        if unmatched:
            text = f"no op has the form of the left side of {', '.join(unmatched)}"
            print_remark(text, location_of(ir.main_function(op)))

    def run(self, context: IRContext, module: ModuleOp, on_attempt: Callable[[Attempt], None] | None = None) -> None:
        """Rewrite `module` in place.

        The first run ignores memory. If its result exceeds the memory limit, the module is restored, and a second run
        rejects all rewrites that may increase live memory.

        Args:
            on_attempt: called with the outcome of each match of a rewrite. `str(attempt)` is its remark.

        Raises:
            SpmdirError: a rewrite is malformed or has an unknown condition, or the module has symbolic sizes; located.
        """
        rewrites, conditions = self._chosen(context), {**CONDITIONS, **context.conditions}
        check_conditions(rewrites, conditions)
        reject_open_sizes(module, self.name)
        mesh = ir.mesh(module)
        # The file of a machine is read only if something is priced, so it may be missing otherwise.
        machines = [
            functools.cache(partial(self.machine_with_remark, context, function, self.memory))
            for function in global_functions(module, self.name)
        ]
        original = module.clone()
        for keeps_memory in (False, True):  # whether rewrites that may increase live memory are rejected
            attempts: list[Attempt] = []
            may_need_memory = False
            for function, machine in zip(ir.functions(module), machines, strict=True):
                pricing = Pricing(mesh, context.rules, machine)
                engine = Engine(pricing, conditions, attempts.append if on_attempt else None, keeps_memory)
                may_need_memory |= self._rewrite(function.body.block, rewrites, engine)
            if not may_need_memory or _fits(module, original, context, min(machine().memory for machine in machines)):
                if on_attempt is not None:
                    for attempt in attempts:
                        on_attempt(attempt)
                return
            restore(module, original)

    def _rewrite(self, block: Block, rewrites: Sequence[Rewrite], engine: Engine) -> bool:
        """Rewrite the ops of `block` until nothing changes, in at most `max_sweeps` sweeps.

        Returns: whether the peak memory of a rank may have risen.
        """
        rewriting = Rewriting(rewrites, engine, Names(block))
        worklist: set[Operation] | None = None  # the ops to try in the next sweep; None in the first: all
        may_need_memory = False
        for _ in range(self.max_sweeps):
            ops = [op for op in block.ops if isinstance(op, ValueOp)]
            # A merged collective is live from the first duplicate to the last use, so the peak may rise.
            merged = [] if engine.holds_no_more else _merge_duplicates(ops)
            changed = merged + _erase_unused(ops)
            if worklist is not None:
                worklist = worklist.union(*(_users_within(value, rewriting.reach) for value in changed))
                if not worklist:
                    break
            worklist = _sweep(ops, rewriting, worklist)
            may_need_memory |= bool(merged or worklist)
        return may_need_memory

    def _chosen(self, context: IRContext) -> list[Rewrite]:
        """Return the rewrites to use: the built-in ones, those of the context and of the option `rewrites`.

        Raises:
            ParseError, SpmdirErrors: a file is malformed, two rewrites have one name, or `only` has an unknown name.
        """
        of_option = [rewrite for file in self.rewrites for rewrite in read_rewrites(Path(file))]
        rewrites: list[Rewrite] = [*read_rewrites(REWRITES), *context.rewrites, *of_option]
        # A plug-in and the option may list the same file, so equal rewrites count once.
        raise_all(duplicates(list(dict.fromkeys(rewrites))))
        names = [rewrite.name for rewrite in rewrites]
        for name in self.only:
            if name not in names:
                raise ParseError(
                    f"unknown rewrite '{name}'; expected one of {', '.join(names)}{did_you_mean(name, names)}"
                )
        return [rewrite for rewrite in rewrites if not self.only or rewrite.name in self.only]


def _fits(module: ModuleOp, original: ModuleOp, context: IRContext, limit: float) -> bool:
    """Return whether the peak of a rank is at most `limit`, or at most the peak of the `original` of `module`."""
    if limit == math.inf or max(peak_bound(function, ir.mesh(module)) for function in ir.functions(module)) <= limit:
        return True
    peak = peak_bytes(module, context)
    return peak <= limit or peak <= peak_bytes(original, context)


def _sweep(ops: Sequence[ValueOp], rewriting: Rewriting, worklist: set[Operation] | None) -> set[Operation]:
    """Rewrite the `ops` that are in `worklist`, in program order; all `ops` if it is None.

    Returns: the worklist for the next sweep: ops to which a rewrite may apply now.
    """
    next_worklist: set[Operation] = set()
    for op in ops:
        if (worklist is None or op in worklist or op in next_worklist) and op.parent is not None:
            for value in rewriting.apply(op):
                next_worklist |= _users_within(value, rewriting.reach)
    return next_worklist


def _users_within(value: SSAValue, reach: int) -> set[Operation]:
    """Return the ops whose rewrites may depend on `value`: its users, their users and so on, `reach` times."""
    users: set[Operation] = set()
    values = [value]
    for _ in range(reach):
        next_users = {use.operation for value in values for use in value.uses} - users
        users |= next_users
        values = [result for op in next_users for result in op.results]
    return users


def _merge_duplicates(ops: Sequence[ValueOp]) -> list[SSAValue]:
    """Replace collectives by earlier equal collectives of the same value. Return the values whose users changed."""
    first_by_key: dict[Any, ValueOp] = {}
    touched: list[SSAValue] = []
    for op in ops:
        if not op.name.startswith("spmd.") or not isinstance(op, SpmdOp):  # isinstance is slow where it is false
            continue
        first_equal = first_by_key.setdefault((op.name, tuple(op.operands), op.arguments, op.sharding), op)
        if first_equal is not op:
            touched += [op.operands[0], first_equal.results[0]]
            op.results[0].replace_all_uses_with(first_equal.results[0])
            Rewriter.erase_op(op)
    return touched


def _erase_unused(ops: Sequence[ValueOp]) -> list[SSAValue]:
    """Erase unused collectives. Return the values whose users changed."""
    touched: list[SSAValue] = []
    for op in reversed(ops):
        if op.parent is None or not op.name.startswith("spmd.") or not isinstance(op, SpmdOp):
            continue
        if not any(result.uses for result in op.results):
            touched += op.operands
            Rewriter.erase_op(op)
    return touched
