"""The type check of the distributed program: a program that passes computes what its single-device form computes.

The program of one rank passes if the global one that it says it is passes, and localize makes it of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from spmdir.analysis.local_programs.globalize import globalized
from spmdir.analysis.local_programs.promises import argument_errors, result_errors
from spmdir.analysis.local_programs.same_function import compare
from spmdir.analysis.local_programs.trusted import trust
from spmdir.analysis.type_check import strategies_of
from spmdir.core.errors import ShardingError, SpmdirError, raise_all
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.passes.localize import LocalizePass
from spmdir.pipeline.preconditions import flat_functions, reject_open_sizes
from spmdir.reshard.plan import plan_reshard


@dataclass(frozen=True)
class VerifySpmdPass(ModulePass):
    """Rejects a program in which an op, a collective or a function result has shardings that it cannot have.

    Options:
        before-reshard: results may still be in another sharding than the function promises; insert-reshard is to come.
    """

    name = "verify-spmd"
    before_reshard: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        assert isinstance(ctx, IRContext)
        ir.verify(op)
        for function in flat_functions(op):
            if is_local(function):
                self._check_local(ctx, op, function)
            else:
                _check(function, ir.mesh(op), ctx, results=not self.before_reshard)

    def _check_local(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Raise SpmdirError unless `function` is what localize makes of the global function that it stands for."""
        reject_open_sizes(module, self.name)
        restored = globalized(module, function, ctx)
        ir.verify(restored)
        _check(ir.main_function(restored), ir.mesh(restored), ctx)
        LocalizePass().apply(ctx, restored)
        compare(function, ir.main_function(restored))
        trust(function)


def _check(function: FuncOp, mesh: Mesh, ctx: IRContext, results: bool = True) -> None:
    """Raise SpmdirError unless a function with global types is well typed.

    Args:
        results: whether results must have the shardings that the function promises, unless operands are still to be
            resharded.
    """
    errors: list[SpmdirError] = [*argument_errors(function)]
    for child in function.body.block.ops:
        try:
            _check_op(child, mesh, ctx)
        except SpmdirError as error:
            errors.append(error.at(location_of(child)))
    needs = any(isinstance(child, ValueOp) and child.needs for child in function.body.block.ops)
    errors += () if not results or needs else result_errors(function, mesh)
    raise_all(errors)


def _check_op(op: Operation, mesh: Mesh, ctx: IRContext) -> None:
    """Raise a located SpmdirError unless `op` is well typed; collectives are so if the module verifies."""
    location = location_of(op)
    if isinstance(op, AtenOp):
        strategies_of(op, mesh, ctx.rules)
    elif isinstance(op, (ReshardOp, ConstraintOp)):
        source, target, meta = op.source, op.target, meta_of(op.operands[0].type)
        if source is None or target is None or meta is None or source.open_axes or target.open_axes:
            raise ShardingError(f"'{op.name}' has an axis that is still open; run propagate first", location)
        with errors_at(op):
            plan_reshard(meta.shape, meta.dtype, source, target, mesh)
    elif isinstance(op, ConstantOp):
        sharding = op.shardings[0]
        if sharding is None or sharding.entries:
            raise ShardingError(f"every rank holds all of a constant; expected <>, found <{sharding}>", location)
