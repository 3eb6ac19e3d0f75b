"""Whether a decided program fits into the memory that its machine has, and the undoing of one that does not."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.rewriter import Rewriter

from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.passes.finish import copied
from spmdir.passes.live_memory import buffers_of
from spmdir.passes.pipeline import Pipeline, parse_steps, run_passes
from spmdir.reshard.buffers import BUFFERS
from spmdir.reshard.cost import local_bytes
from spmdir.search.timeline import live_bytes

_LOCALIZING = "expand,insert-reshard,lower-reshard,localize"
"""The passes that take a decided program to that of one rank."""

MOST_BUFFERS = max(map(len, BUFFERS.values()))
"""The most buffers that a collective allocates."""


def most_bytes(function: FuncOp, mesh: Mesh) -> float:
    """Return a bound on what a rank holds at once that is quick to find: nothing is freed."""
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    values = [*function.args, *(result for op in ops for result in op.results)]
    moved = [value for op in ops if isinstance(op, SpmdOp) for value in (*op.operands, *op.results)]
    sizes = {value: _bytes(value, mesh) for value in values}
    return sum(sizes.values()) + MOST_BUFFERS * sum(sizes[value] for value in moved)


def _bytes(value: object, mesh: Mesh) -> float:
    meta, sharding = meta_of(value.type), sharding_of(value)  # type: ignore  # an SSA value
    return local_bytes(sharding, meta.shape, meta.dtype.itemsize, mesh) if meta and sharding else 0.0


def peak_bytes(module: ModuleOp, pipeline: Pipeline) -> float:
    """Return the most bytes that a rank holds at once in a decided program, which is localized on a copy.

    Raises:
        SpmdirError: it cannot be partitioned.
    """
    local = run_passes(copied(module), pipeline.with_steps(parse_steps(_LOCALIZING)))
    buffers = [buffers_of(one, ir.mesh(local), pipeline.rules, {})[0] for one in ir.functions(local)]
    return max(max(live_bytes(of_function)) for of_function in buffers)


def restore(module: ModuleOp, original: ModuleOp) -> None:
    """Put copies of the functions of `original` in the place of those of `module`."""
    for old, new in zip(ir.functions(module), ir.functions(copied(original)), strict=True):
        new.detach()
        block = old.parent
        assert block is not None  # that of the module
        block.insert_op_before(new, old)
        Rewriter.erase_op(old)
