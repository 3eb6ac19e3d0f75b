"""The type check of the distributed program: a program that passes computes what its single-device form computes.

The program of one rank passes if the global one that it says it is passes, and localize makes it of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from spmdir.analysis.local_forms import NOTE
from spmdir.analysis.local_programs.globalize import globalize
from spmdir.analysis.local_programs.promises import argument_errors, result_errors
from spmdir.analysis.local_programs.trusted import trust
from spmdir.analysis.type_check import strategies_of
from spmdir.core.errors import ShardingError, SpmdirError, raise_all
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of, print_type
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.op_printer import print_tail
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs
from spmdir.dialects.verifier import verify
from spmdir.passes.localize import LocalizePass
from spmdir.pipeline.base_passes import flat_functions, reject_open_sizes
from spmdir.reshard.plan import plan_reshard


def compare(found: FuncOp, made: FuncOp) -> None:
    """Raise SpmdirError, located, unless `found` is `made`, which may have further arguments."""
    errors = [*_arguments(found, made)]
    values: dict[SSAValue, SSAValue] = dict(zip(found.args, made.args, strict=False))
    for op, expected in zip_longest(found.body.block.ops, made.body.block.ops):
        message = _difference(op, expected, values)
        if message:
            errors.append(ShardingError(message, location_of(op or found)))
            break  # what follows would differ because of this
        values.update(zip(op.results, expected.results, strict=True))
    raise_all(errors)


def _arguments(found: FuncOp, made: FuncOp) -> list[SpmdirError]:
    errors: list[SpmdirError] = []
    for index, (argument, expected) in enumerate(zip(found.args, made.args, strict=False)):
        has, wanted = (function_attrs(function, "arg_attrs", index) for function in (found, made))
        if argument.type != expected.type or has != wanted:
            texts = (_argument(a.type, attributes) for a, attributes in ((expected, wanted), (argument, has)))
            errors.append(
                ShardingError("argument {} is {} by its sharding, found {}".format(index, *texts), location_of(found))
            )
    return errors


def _argument(type_: Any, attributes: dict[str, Any]) -> str:
    return f"{print_type(type_)} of {attributes['spmd.of']}" if "spmd.of" in attributes else print_type(type_)


def _difference(op: Operation | None, expected: Operation | None, values: dict[SSAValue, SSAValue]) -> str | None:
    """Return how `op` differs from `expected`, where `values` maps its values to the expected ones; None if not."""
    if op is None or expected is None:
        return f"the function has {'fewer' if op is None else 'more'} ops than localize gives it; run localize again"
    if tuple(map(values.get, op.operands)) != tuple(expected.operands):
        return f"'{op.name}' takes other operands than localize gives '{expected.name}' here; run localize again"
    kept = [(type(o), o.properties, o.result_types, o.attributes.get(NOTE)) for o in (op, expected)]
    if kept[0] == kept[1]:
        return None
    return f"found `{_text(op)}` where localize makes `{_text(expected)}` of the program; run localize again"


def _text(op: Operation) -> str:
    if not isinstance(op, ValueOp):
        return op.name
    return op.name + print_tail((), op.arguments, op.sharding, op.needs, op.of, tuple(op.result_types))


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
        verify(op)
        for function in flat_functions(op):
            if is_local(function):
                self._check_local(ctx, op, function)
            else:
                _check(function, ir.mesh(op), ctx, results=not self.before_reshard)

    def _check_local(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Raise SpmdirError unless `function` is what localize makes of the global function that it stands for."""
        reject_open_sizes(module, self.name)
        restored = globalize(module, function, ctx)
        verify(restored)
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
