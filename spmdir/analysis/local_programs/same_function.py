"""Comparison of a program of one rank with what localize makes of the global program that it claims to be."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.analysis.local_forms import NOTE
from spmdir.core.errors import ShardingError, SpmdirError, raise_all
from spmdir.dialects.attributes import print_type
from spmdir.dialects.locations import location_of
from spmdir.dialects.op_printer import print_tail
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs


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
