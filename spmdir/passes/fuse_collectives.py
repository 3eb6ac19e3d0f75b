"""Rewrites of collectives to a fixpoint, after duplicate and unused ones are gone. See fuse_collectives.rewrites."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from spmdir.dialects import ir
from spmdir.dialects.spmd import SpmdOp
from spmdir.dialects.syntax import IRContext
from spmdir.dialects.value_op import ValueOp
from spmdir.errors import ParseError, did_you_mean
from spmdir.passes.rewrite_text import Collective, Rewrite, read_rewrites
from spmdir.passes.rewriting import Engine
from spmdir.passes.stage import global_function

REWRITES = Path(__file__).with_suffix(".rewrites")


@dataclass(frozen=True)
class FuseCollectivesPass(ModulePass):
    """Drops and merges collectives by rewrites that keep the program well typed and never send more bytes.

    Options:
        rewrites: a file of rewrites to use beside the built-in ones.
        only: the names of the rewrites to use; all when empty.
        max-sweeps: how often to go over the program while something changes.
    """

    name = "fuse-collectives"
    rewrites: str = ""
    only: tuple[str, ...] = ()
    max_sweeps: int = 64

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        function = global_function(op, self.name)
        by_kind: dict[str, list[Rewrite]] = {}
        for rewrite in self._chosen():
            kind = f"spmd.{rewrite.left.kind}" if isinstance(rewrite.left, Collective) else ""
            by_kind.setdefault(kind, []).append(rewrite)
        engine, block = Engine(ir.mesh(op), ctx.rules), function.body.block
        for _ in range(self.max_sweeps):
            changed = _merge_duplicates(block) | _erase_unused(block)
            if not (_sweep(block, engine, by_kind) or changed):
                return

    def _chosen(self) -> list[Rewrite]:
        rewrites = read_rewrites(REWRITES) + (read_rewrites(Path(self.rewrites)) if self.rewrites else ())
        names = [rewrite.name for rewrite in rewrites]
        for name in self.only:
            if name not in names:
                raise ParseError(
                    f"there is no rewrite '{name}'; there are {', '.join(names)}{did_you_mean(name, names)}"
                )
        return [rewrite for rewrite in rewrites if not self.only or rewrite.name in self.only]


def _sweep(block: Block, engine: Engine, by_kind: dict[str, list[Rewrite]]) -> bool:
    """Try every rewrite on every op, in program order; whether one was done."""
    changed = False
    for op in list(block.ops):
        if not isinstance(op, ValueOp):
            continue
        for rewrite in by_kind.get(op.name if isinstance(op, SpmdOp) else "", ()):
            if op.parent is not block:
                break
            changed |= engine.rewrite(op, rewrite)
    return changed


def _merge_duplicates(block: Block) -> bool:
    """Let the first of several equal collectives of one value serve for all; whether there were any."""
    first: dict[Any, ValueOp] = {}
    changed = False
    for op in list(block.ops):
        if not isinstance(op, SpmdOp):
            continue
        same = first.setdefault((op.name, op.operands[0], op.arguments, op.sharding), op)
        if same is not op:
            op.results[0].replace_all_uses_with(same.results[0])
            Rewriter.erase_op(op)
            changed = True
    return changed


def _erase_unused(block: Block) -> bool:
    """Remove the collectives that nothing uses; whether there were any."""
    unused = 0
    for op in reversed(list(block.ops)):
        if isinstance(op, SpmdOp) and not any(op.results[0].uses):
            Rewriter.erase_op(op)
            unused += 1
    return unused > 0
