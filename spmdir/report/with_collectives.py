"""The program that a report of communication is about: with numbers for its sizes, and collectives for its reshards."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.verification import is_local
from spmdir.passes.executed import executed
from spmdir.passes.finish import bound, copied, is_undecided, rest, without_layers
from spmdir.passes.pipeline import Pipeline, run_passes

_LOWERED = frozenset(("lower-reshard", "fuse-collectives"))
"""The passes after which reshards have their collectives, if they needed some."""


def with_collectives(module: ModuleOp, pipeline: Pipeline) -> tuple[ModuleOp, tuple[str, ...]]:
    """Return `module` with collectives, and the passes that put them in: on a copy, if there are reshards to lower.

    Outlined layers are in the places of their calls then, and symbolic sizes have the numbers of their examples. What
    is not decided stays as it is.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    module = without_layers(module)
    if examples := open_sizes(module).hints:
        sized = bound(module, examples, pipeline)
        return run_passes(sized, rest(pipeline, sized).before("localize")), ()
    functions = ir.functions(module)
    is_done = _has_collectives(functions) or not _LOWERED.isdisjoint(executed(module))
    if (is_done and not _has_reshards(functions)) or any(is_undecided(one) or is_local(one) for one in functions):
        return module, ()
    needed = rest(pipeline, module).through("lower-reshard")
    lowered = run_passes(copied(module), needed)
    found = _has_collectives(ir.functions(lowered))
    return lowered, tuple(step.name for step in needed.steps) if found else ()


def _has_collectives(functions: Sequence[FuncOp]) -> bool:
    return any(isinstance(op, Collective) for function in functions for op in function.body.block.ops)


def _has_reshards(functions: Sequence[FuncOp]) -> bool:
    """Return whether some value is not yet what a user needs."""
    ops = (op for function in functions for op in function.body.block.ops if isinstance(op, ValueOp))
    return any(isinstance(op, (ReshardOp, ConstraintOp)) or op.needs is not None for op in ops)
