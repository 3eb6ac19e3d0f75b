"""verify-spmd: type-check the distributed program. A well-typed program computes the same values as on one device.

The program of one rank is well typed if its global program is, and if localize converts that into the same ops.
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

from spmdir.analysis.local_forms import LOCAL_FORM
from spmdir.analysis.local_programs.globalize import globalize
from spmdir.analysis.local_programs.signature_checks import argument_errors, result_errors
from spmdir.analysis.local_programs.type_check_cache import trust
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
from spmdir.dialects.row_exchanges import is_exchange_start
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs
from spmdir.dialects.verifier import verify
from spmdir.passes.localize import LocalizePass
from spmdir.pipeline.base_passes import flat_functions, reject_open_sizes
from spmdir.reshard.plan import plan_reshard
from spmdir.transforms.join_exchanges import join_exchanges


def check_equal(function: FuncOp, expected_function: FuncOp) -> None:
    """Raise a located SpmdirError unless the functions are equal. One of them may have further arguments."""
    errors = [*_argument_differences(function, expected_function)]
    values: dict[SSAValue, SSAValue] = dict(zip(function.args, expected_function.args, strict=False))
    for op, expected in zip_longest(function.body.block.ops, expected_function.body.block.ops):
        message = _difference(op, expected, values)
        if message:
            # Without an op, the function has too few ops.
            errors.append(ShardingError(message, location_of(op or function)))
            break  # further differences may be consequences of this one
        values.update(zip(op.results, expected.results, strict=True))
    raise_all(errors)


def _argument_differences(function: FuncOp, expected_function: FuncOp) -> list[SpmdirError]:
    """Return an error for each argument that differs in its type or attributes."""
    errors: list[SpmdirError] = []
    for index, (argument, expected) in enumerate(zip(function.args, expected_function.args, strict=False)):
        argument_attributes, expected_attributes = (
            function_attrs(checked, "arg_attrs", index) for checked in (function, expected_function)
        )
        if argument.type != expected.type or argument_attributes != expected_attributes:
            expected_text = _argument_text(expected.type, expected_attributes)
            text = _argument_text(argument.type, argument_attributes)
            errors.append(
                ShardingError(
                    f"argument {index} has type {text}; expected {expected_text} according to its sharding: "
                    "correct one of them",
                    location_of(function),
                )
            )
    return errors


def _argument_text(type_: Any, attributes: dict[str, Any]) -> str:
    """Return the text of the type of an argument, with its global type if that is an attribute."""
    return f"{print_type(type_)} of {attributes['spmd.of']}" if "spmd.of" in attributes else print_type(type_)


def _difference(op: Operation | None, expected: Operation | None, values: dict[SSAValue, SSAValue]) -> str | None:
    """Return how `op` differs from `expected`; None if it does not. `values` maps values to expected ones."""
    if op is None or expected is None:
        return (
            f"the function has {'fewer' if op is None else 'more'} ops than the output of localize; expected "
            "equal ops: undo the edit, or run localize again"
        )
    if tuple(map(values.get, op.operands)) != tuple(expected.operands):
        return (
            f"'{op.name}' has other operands than '{expected.name}' in the output of localize; expected equal "
            "operands: undo the edit, or run localize again"
        )
    actual_parts, expected_parts = (
        (type(compared), compared.properties, compared.result_types, compared.attributes.get(LOCAL_FORM))
        for compared in (op, expected)
    )
    if actual_parts == expected_parts:
        return None
    return f"found `{_op_text(op)}`; expected `{_op_text(expected)}`, the output of localize; run localize again"


def _op_text(op: Operation) -> str:
    """Return the text of an op without its operands and results."""
    if not isinstance(op, ValueOp):
        return op.name
    return op.name + print_tail((), op.arguments, op.sharding, op.needs, op.of, tuple(op.result_types))


@dataclass(frozen=True)
class VerifySpmdPass(ModulePass):
    """Rejects a program if an op, a collective or a function result has invalid shardings.

    Options:
        before-reshard: accept results in another sharding than declared, as before insert-reshard.
    """

    name = "verify-spmd"
    before_reshard: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Raise SpmdirErrors unless the module verifies and each of its functions is well typed; located."""
        assert isinstance(ctx, IRContext)
        verify(op)
        for function in flat_functions(op):
            if is_local(function):
                self._check_local(ctx, op, function)
            else:
                _check(function, ir.mesh(op), ctx, results=not self.before_reshard)

    def _check_local(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Raise SpmdirError unless localize converts the global program of `function` to `function`."""
        reject_open_sizes(module, self.name)
        # Only a copy is changed: its exchanges of rows are joined, as localize emits them.
        local = function.clone() if any(map(is_exchange_start, function.body.block.ops)) else function
        if local is not function:
            join_exchanges(local)
        restored = globalize(module, local, ctx)
        verify(restored)
        _check(ir.main_function(restored), ir.mesh(restored), ctx)
        LocalizePass().apply(ctx, restored)
        check_equal(local, ir.main_function(restored))
        trust(function)


def _check(function: FuncOp, mesh: Mesh, ctx: IRContext, results: bool = True) -> None:
    """Raise SpmdirError unless a function with global types is well typed.

    Args:
        results: whether results must have their declared shardings. If an op has `needs`, insert-reshard has not run
            yet, so results are not checked.
    """
    errors: list[SpmdirError] = [*argument_errors(function)]
    for child in function.body.block.ops:
        try:
            _check_op(child, mesh, ctx)
        except SpmdirError as error:
            errors.append(error.at(location_of(child)))
    needs = any(isinstance(child, ValueOp) and child.needs for child in function.body.block.ops)
    if results and not needs:
        errors += result_errors(function, mesh)
    raise_all(errors)


def _check_op(op: Operation, mesh: Mesh, ctx: IRContext) -> None:
    """Raise a located SpmdirError unless `op` is well typed. The verifier checks collectives."""
    location = location_of(op)
    if isinstance(op, AtenOp):
        strategies_of(op, mesh, ctx.rules)
    elif isinstance(op, (ReshardOp, ConstraintOp)):
        source, target, meta = op.source, op.target, meta_of(op.operands[0].type)
        if source is None or target is None or meta is None or source.open_axes or target.open_axes:
            raise ShardingError(
                f"'{op.name}' has an open axis; expected a placement on each axis: run propagate first", location
            )
        with errors_at(op):
            plan_reshard(meta.shape, meta.dtype, source, target, mesh)
    elif isinstance(op, ConstantOp):
        sharding = op.shardings[0]
        if sharding is None or sharding.entries:
            raise ShardingError(
                f"a constant has the sharding <{sharding}>; expected <>, since each rank has the whole "
                "constant: reshard its result instead",
                location,
            )
