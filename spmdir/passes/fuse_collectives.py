"""Rewrites of collectives to a fixpoint, after duplicate and unused ones are gone. See fuse_collectives.rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from spmdir.core.errors import ParseError, did_you_mean
from spmdir.dialects import ir
from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.names import Names
from spmdir.dialects.syntax.context import IRContext
from spmdir.dialects.value_op import ValueOp
from spmdir.passes import Count
from spmdir.passes.fusion.rewrite_text import Collective as CollectiveTerm
from spmdir.passes.fusion.rewrite_text import Rewrite, Term, Value, read_rewrites, subterms
from spmdir.passes.fusion.rewriting import Engine
from spmdir.passes.stage import sized_function

REWRITES = Path(__file__).parent / "fusion" / "fuse_collectives.rewrites"


LOCAL = ""
"""What stands for the kind of a local op where collectives have their name."""

Index = dict[str, list[tuple[str | None, Rewrite]]]
"""Kind of op → the rewrites whose left side it may begin, each with the kind of what makes an operand, if not any."""


@dataclass(frozen=True)
class FuseCollectivesPass(ModulePass):
    """Drops and merges collectives by rewrites that keep the program well typed and never send more bytes.

    Rewrites of plug-ins are those of the context: `context.rewrites += read_rewrites(Path("mine.rewrites"))`.

    Options:
        rewrites: a file of rewrites to use beside the built-in ones.
        only: the names of the rewrites to use; all when empty.
        max-sweeps: how often to go over the program while something changes.
    """

    name = "fuse-collectives"
    rewrites: str = ""
    only: tuple[str, ...] = ()
    max_sweeps: Count = 64

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        function = sized_function(op, self.name)
        rewrites = self._chosen(ctx)
        index, reach = _indexed(rewrites), max((len(list(subterms(r.left))) for r in rewrites), default=0)
        block = function.body.block
        engine = Engine(ir.mesh(op), ctx.rules, Names(block))
        waiting = set(block.ops)
        for _ in range(self.max_sweeps):
            for value in [*_merge_duplicates(block), *_erase_unused(block)]:
                waiting |= _users(value, reach)
            if not waiting:
                return
            waiting = _sweep(block, engine, index, waiting, reach)

    def _chosen(self, context: IRContext) -> list[Rewrite]:
        own = read_rewrites(Path(self.rewrites)) if self.rewrites else ()
        rewrites: list[Rewrite] = [*read_rewrites(REWRITES), *context.rewrites, *own]
        names = [rewrite.name for rewrite in rewrites]
        for name in self.only:
            if name not in names:
                raise ParseError(
                    f"there is no rewrite '{name}'; there are {', '.join(names)}{did_you_mean(name, names)}"
                )
        return [rewrite for rewrite in rewrites if not self.only or rewrite.name in self.only]


def _indexed(rewrites: Sequence[Rewrite]) -> Index:
    index: Index = {}
    for rewrite in rewrites:
        outer = rewrite.left
        assert not isinstance(outer, Value)  # a left side that is only x is refused where it is read
        inner = None if isinstance(outer.operand, Value) else _term_kind(outer.operand)
        index.setdefault(_term_kind(outer), []).append((inner, rewrite))
    return index


def _term_kind(term: Term) -> str:
    return f"spmd.{term.kind}" if isinstance(term, CollectiveTerm) else LOCAL


def _op_kind(op: Any) -> str | None:
    """The kind of what makes a value; None for a function argument."""
    name = getattr(op, "name", None)
    return name if name is None or name.startswith("spmd.") else LOCAL


def _sweep(block: Block, engine: Engine, index: Index, waiting: set[Operation], reach: int) -> set[Operation]:
    """Try every rewrite on the ops that wait for it, in program order; the ops of which one may apply now."""
    again: set[Operation] = set()
    for op in list(block.ops):
        if not isinstance(op, ValueOp) or (op not in waiting and op not in again):
            continue
        below = {_op_kind(operand.owner) for operand in op.operands}
        for inner, rewrite in index.get(_op_kind(op) or LOCAL, ()):
            if op.parent is not block:
                break
            if inner is None or inner in below:
                for value in engine.rewrite(op, rewrite):
                    again |= _users(value, reach)
    return again


def _users(value: SSAValue, reach: int) -> set[Operation]:
    """The ops that see `value` within `reach` ops: those whose rewriting may turn on it."""
    found: set[Operation] = set()
    values = [value]
    for _ in range(reach):
        new = {use.operation for value in values for use in value.uses} - found
        found |= new
        values = [result for op in new for result in op.results]
    return found


def _merge_duplicates(block: Block) -> list[SSAValue]:
    """Let the first of several equal collectives of one value serve for all; the values whose users changed."""
    first: dict[Any, ValueOp] = {}
    touched: list[SSAValue] = []
    for op in list(block.ops):
        if not isinstance(op, SpmdOp):
            continue
        same = first.setdefault((op.name, op.operands[0], op.arguments, op.sharding), op)
        if same is not op:
            touched += [op.operands[0], same.results[0]]
            op.results[0].replace_all_uses_with(same.results[0])
            Rewriter.erase_op(op)
    return touched


def _erase_unused(block: Block) -> list[SSAValue]:
    """Remove the collectives that nothing uses; the values whose users changed."""
    touched: list[SSAValue] = []
    for op in reversed(list(block.ops)):
        if isinstance(op, SpmdOp) and not any(op.results[0].uses):
            touched += op.operands
            Rewriter.erase_op(op)
    return touched
