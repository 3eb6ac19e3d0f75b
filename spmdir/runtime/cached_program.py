"""Compare a decided program from a file with the program imported from the model."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.core.errors import ShardingError, SpmdirError
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import name_of
from spmdir.dialects.reshard_ops import ConstraintOp
from spmdir.dialects.size_ops import SizeOp, sizes_op
from spmdir.dialects.value_op import DECIDED, ValueOp
from spmdir.dialects.values import function_attrs, layout_sources, sharding_of, signature_name

_RESTORE = "expected the ops and types of the model: undo the edit, or delete the file to decide the program again"


def check_and_locate(decided: ModuleOp, imported: ModuleOp) -> None:
    """Check that `decided` is a decided form of `imported`, and give its ops the source locations of `imported`.

    Raises:
        SpmdirError: located in `decided`: its ops differ from those of `imported`, or its shardings from the
            annotations. Reshards between ops are allowed.
    """
    function, imported_function = ir.main_function(decided), ir.main_function(imported)
    _check_declared(decided, imported)
    _check_signature(function, imported_function)
    op_pairs: list[tuple[Operation, Operation]] = [
        (ir.mesh_op(decided), ir.mesh_op(imported)),
        (function, imported_function),
    ]
    imported_of: dict[SSAValue, SSAValue] = dict(zip(function.args, imported_function.args, strict=True))
    for op, expected in zip_longest(_computing_ops(function, imported_of), imported_function.body.block.ops):
        if op is None or expected is None or _computation(op) != _computation(expected):
            raise _difference_error(op, expected, function)
        if [imported_of[operand] for operand in op.operands] != list(expected.operands):
            raise SpmdirError(f"'{op.name}' takes other operands than in the model; {_RESTORE}", location_of(op))
        for result, expected_result in zip(op.results, expected.results, strict=True):
            _check_sharding(
                name_of(result) or op.name, sharding_of(result), sharding_of(expected_result), location_of(op)
            )
        imported_of.update(zip(op.results, expected.results, strict=True))
        op_pairs.append((op, expected))
    for op, expected in op_pairs:
        op.location = expected.location


def _computing_ops(function: FuncOp, imported_of: dict[SSAValue, SSAValue]) -> Any:
    """Yield the ops that compute or constrain, and skip reshards.

    A reshard changes the layout of a value, not its elements. So its result gets the same entry in `imported_of` as
    its operand.

    Args:
        imported_of: value of the decided program → value of the imported program with the same elements.
    """
    for op in function.body.block.ops:
        if isinstance(op, SpmdOp) and not isinstance(op, ConstraintOp):
            imported_of.update(
                (result, imported_of[operand]) for result, operand in zip(op.results, op.operands, strict=True)
            )
        else:
            yield op


def _computation(op: Operation) -> tuple[Any, ...]:
    """Return (name, properties, result types) of an op, which a decision must not change.

    The shardings that a decision adds are left out. So are the types of sizes, which depend on the decision.
    """
    properties = {name: value for name, value in op.properties.items() if name not in DECIDED}
    return op.name, properties, [] if isinstance(op, SizeOp) else list(op.result_types)


def _difference_error(op: Operation | None, expected: Operation | None, function: FuncOp) -> SpmdirError:
    """Return the error for an op of the decided program that differs from that of the model.

    Args:
        op, expected: the op of the decided program and that of the model; None if the program has no further op.
        function: the function of the decided program.
    """
    message = f"found {_op_text(op)} where the model has {_op_text(expected)}; {_RESTORE}"
    return SpmdirError(message, location_of(op or function))


def _op_text(op: Operation | None) -> str:
    """Return an op as text, in backquotes; `the end` for None."""
    if op is None:
        return "the end"
    return f"`{ir.print_ir(op).strip() if isinstance(op, ValueOp) else op.name}`"


def _check_declared(decided: ModuleOp, imported: ModuleOp) -> None:
    """Raise SpmdirError unless both programs declare the same mesh and symbolic sizes."""
    if ir.mesh(decided) != ir.mesh(imported):
        message = f"the program is for the mesh {ir.mesh(decided)}; expected {ir.mesh(imported)}"
        raise SpmdirError(message, location_of(ir.mesh_op(decided)))
    declared, expected = sizes_op(decided), sizes_op(imported)
    if (declared and declared.sizes) != (expected and expected.sizes):
        raise SpmdirError(
            f"the program declares other symbolic sizes than the model has; {_RESTORE}",
            location_of(declared or decided),
        )


def _check_signature(function: FuncOp, model: FuncOp) -> None:
    """Raise SpmdirError unless arguments and results have the names, types and annotations of the model."""
    location = location_of(function)
    if function.function_type != model.function_type:
        raise SpmdirError(f"the arguments or results have other types than in the model; {_RESTORE}", location)
    for argument, model_argument in zip(function.args, model.args, strict=True):
        subject = f"argument {argument.index}"
        if name_of(argument) != name_of(model_argument):
            raise _restore_error(subject, location)
        _check_attributes(subject, function, model, "arg_attrs", argument.index)
    argument_of_result = layout_sources(model)  # the argument whose sharding a result must have
    for index in range(len(model.function_type.outputs.data)):
        subject = f"result {index}"
        _check_attributes(subject, function, model, "res_attrs", index)
        argument_index = argument_of_result.get(index)
        if argument_index is not None:
            argument_attributes = function_attrs(function, "arg_attrs", argument_index)
            result_attributes = function_attrs(function, "res_attrs", index)
            if result_attributes.get("spmd.sharding") != argument_attributes.get("spmd.sharding"):
                name = signature_name(function, "arg_attrs", argument_index)
                raise ShardingError(
                    f"{subject} and '{name}' have different shardings; expected the same one: correct one of them",
                    location,
                )


def _check_attributes(subject: str, function: FuncOp, model: FuncOp, attrs_name: str, index: int) -> None:
    """Raise SpmdirError unless an argument or result has the attributes of the model, and a sharding that it allows.

    Args:
        subject: the argument or result in errors.
        attrs_name: `arg_attrs` for arguments, `res_attrs` for results.
    """
    attributes = dict(function_attrs(function, attrs_name, index))
    model_attributes = dict(function_attrs(model, attrs_name, index))
    decided, required = attributes.pop("spmd.sharding", None), model_attributes.pop("spmd.sharding", None)
    model_attributes.pop("spmd.like", None)  # a decided program has equal shardings instead
    if attributes != model_attributes:
        raise _restore_error(subject, location_of(function))
    _check_sharding(subject, decided and decided.data, required and required.data, location_of(function))


def _restore_error(subject: str, location: Any) -> SpmdirError:
    """Return the error of an argument or result that was edited."""
    return SpmdirError(f"{subject} differs in name or kind from the model; {_RESTORE}", location)


def _check_sharding(subject: str, decided: Sharding | None, required: Sharding | None, location: Any) -> None:
    """Raise ShardingError if the sharding `decided` differs from the annotation `required`.

    Nothing is checked without an annotation, or if the annotation has open axes.
    """
    if required is not None and not required.open_axes and decided != required:
        raise ShardingError(
            f"{subject} has the sharding <{decided or ''}>; expected <{required}>, its annotation", location
        )
