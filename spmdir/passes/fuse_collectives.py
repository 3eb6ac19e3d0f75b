"""Rewrites of collectives to a fixpoint, after duplicate and unused ones are gone. See fuse_collectives.rewrites."""

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
from spmdir.pipeline.limited_memory import most_bytes, peak_bytes, restore
from spmdir.pipeline.machine_options import MachineOptions
from spmdir.pipeline.noted_options import Memory
from spmdir.pipeline.options import Count
from spmdir.rewrites.benefit import Pricing
from spmdir.rewrites.engine import Engine
from spmdir.rewrites.rewrite_conditions import CONDITIONS, check_conditions
from spmdir.rewrites.rewrite_files import REWRITES, read_rewrites
from spmdir.rewrites.rewriting import Rewriting
from spmdir.rewrites.terms import Rewrite, duplicates
from spmdir.rewrites.trace import Attempt


@dataclass(frozen=True)
class FuseCollectivesPass(ModulePass, MachineOptions):
    """Drops and merges collectives by rewrites that keep the program well typed and never send more or take longer.

    Rewrites of plug-ins are those of the context: `context.rewrites += read_rewrites(Path("mine.rewrites"))`.

    Options:
        rewrites: files of rewrites to use beside the built-in ones.
        only: the names of the rewrites to use; all when empty.
        max-sweeps: how often to go over the program while something changes.
        memory: what a rank may hold at once, as of propagate; `auto` is what propagate decided for. What would hold
            more is not made, unless it holds no more than before.
        trace: print a remark to stderr for each match of a rewrite: that it was applied, or why not.
    """

    name = "fuse-collectives"
    requires: ClassVar[str] = "lowered"
    rewrites: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    max_sweeps: Count = 64
    memory: Memory = "auto"
    trace: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        if not self.trace:
            self.run(ctx, op)
            return
        attempts: dict[Attempt, None] = {}
        self.run(ctx, op, lambda attempt: attempts.setdefault(attempt))
        matched = {attempt.rewrite for attempt in attempts}
        own = {rewrite.name for rewrite in self._chosen(ctx) if self.only or rewrite not in read_rewrites(REWRITES)}
        for attempt in attempts:
            print(attempt, file=sys.stderr)
        if without := sorted(own - matched):
            text = f"no op has the form of the left side of {', '.join(without)}"
            print_remark(text, location_of(ir.main_function(op)))

    def run(self, context: IRContext, module: ModuleOp, on_attempt: Callable[[Attempt], None] | None = None) -> None:
        """Rewrite `module` in place.

        Args:
            on_attempt: called for each match of a rewrite with what became of it; str(attempt) is its remark.
        """
        rewrites, conditions = self._chosen(context), {**CONDITIONS, **context.conditions}
        check_conditions(rewrites, conditions)
        reject_open_sizes(module, self.name)
        mesh = ir.mesh(module)
        # The file of a machine need not be there unless something is priced.
        machines = [
            functools.cache(partial(self.machine_with_remark, context, function, self.memory))
            for function in global_functions(module, self.name)
        ]
        original = module.clone()
        for holds_no_more in (False, True):
            attempts: list[Attempt] = []
            may_hold_more = False
            for function, machine in zip(ir.functions(module), machines, strict=True):
                pricing = Pricing(mesh, context.rules, machine)
                engine = Engine(pricing, conditions, attempts.append if on_attempt else None, holds_no_more)
                may_hold_more |= self._rewrite(function.body.block, rewrites, engine)
            if not may_hold_more or _fits(module, original, context, min(machine().memory for machine in machines)):
                for attempt in attempts if on_attempt else ():
                    on_attempt(attempt)  # type: ignore  # not None
                return
            restore(module, original)

    def _rewrite(self, block: Block, rewrites: Sequence[Rewrite], engine: Engine) -> bool:
        """Rewrite the ops of `block` as long as something changes; return whether a rank may hold more then."""
        rewriting = Rewriting(rewrites, engine, Names(block))
        waiting: set[Operation] | None = None
        may_hold_more = False
        for _ in range(self.max_sweeps):
            ops = [op for op in block.ops if isinstance(op, ValueOp)]
            # One collective for equal ones is held from the first of them to the last use.
            merged = [] if engine.holds_no_more else _merge_duplicates(ops)
            changed = merged + _erase_unused(ops)
            if waiting is not None:
                waiting = waiting.union(*(_users(value, rewriting.reach) for value in changed))
                if not waiting:
                    break
            waiting = _sweep(ops, rewriting, waiting)
            may_hold_more |= bool(merged or waiting)
        return may_hold_more

    def _chosen(self, context: IRContext) -> list[Rewrite]:
        own = [rewrite for file in self.rewrites for rewrite in read_rewrites(Path(file))]
        rewrites: list[Rewrite] = [*read_rewrites(REWRITES), *context.rewrites, *own]
        # A file may be named twice, by a plug-in and by the option; its rewrites are the same ones.
        raise_all(duplicates(list(dict.fromkeys(rewrites))))
        names = [rewrite.name for rewrite in rewrites]
        for name in self.only:
            if name not in names:
                raise ParseError(
                    f"there is no rewrite '{name}'; there are {', '.join(names)}{did_you_mean(name, names)}"
                )
        return [rewrite for rewrite in rewrites if not self.only or rewrite.name in self.only]


def _fits(module: ModuleOp, original: ModuleOp, context: IRContext, limit: float) -> bool:
    """Return whether a rank holds no more than `limit`, or than in the `original` of `module`."""
    if limit == math.inf or max(most_bytes(one, ir.mesh(module)) for one in ir.functions(module)) <= limit:
        return True
    peak = peak_bytes(module, context)
    return peak <= limit or peak <= peak_bytes(original, context)


def _sweep(ops: Sequence[ValueOp], rewriting: Rewriting, waiting: set[Operation] | None) -> set[Operation]:
    """Rewrite those of `ops`, in program order, that are `waiting`, all if it is None.

    Returns: the ops to which a rewrite may apply now.
    """
    again: set[Operation] = set()
    for op in ops:
        if (waiting is None or op in waiting or op in again) and op.parent is not None:
            for value in rewriting.apply(op):
                again |= _users(value, rewriting.reach)
    return again


def _users(value: SSAValue, reach: int) -> set[Operation]:
    """Return the ops that see `value` within `reach` ops: a rewrite of them may depend on it."""
    found: set[Operation] = set()
    values = [value]
    for _ in range(reach):
        new = {use.operation for value in values for use in value.uses} - found
        found |= new
        values = [result for op in new for result in op.results]
    return found


def _merge_duplicates(ops: Sequence[ValueOp]) -> list[SSAValue]:
    """Replace equal collectives of one value by the first of them, and return the values whose users changed."""
    first: dict[Any, ValueOp] = {}
    touched: list[SSAValue] = []
    for op in ops:
        if not op.name.startswith("spmd.") or not isinstance(op, SpmdOp):  # isinstance is slow where it is false
            continue
        same = first.setdefault((op.name, tuple(op.operands), op.arguments, op.sharding), op)
        if same is not op:
            touched += [op.operands[0], same.results[0]]
            op.results[0].replace_all_uses_with(same.results[0])
            Rewriter.erase_op(op)
    return touched


def _erase_unused(ops: Sequence[ValueOp]) -> list[SSAValue]:
    """Remove the collectives that nothing uses, and return the values whose users changed."""
    touched: list[SSAValue] = []
    for op in reversed(ops):
        if op.parent is None or not op.name.startswith("spmd.") or not isinstance(op, SpmdOp):
            continue
        if not any(result.uses for result in op.results):
            touched += op.operands
            Rewriter.erase_op(op)
    return touched
