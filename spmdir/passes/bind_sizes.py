"""bind-sizes: replace the symbolic sizes of a program by numbers, in types and in arguments of ops.

The shardings of propagate are kept if the rules accept all of them at these sizes. A sharding may be invalid at some
sizes, for example if a dimension is too short for it. Then propagate decides the function again, with the same options.
It keeps the shardings of arguments, results and constraints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import FunctionType, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from spmdir.core.errors import RuleError, ShardingError, SpmdirError, UnsupportedError
from spmdir.core.placement.call import Literal, with_sizes
from spmdir.core.placement.tensor import TensorMeta
from spmdir.core.symbolic.expressions import evaluate
from spmdir.core.symbolic.parser import parse_number
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import ArgumentsAttr, is_sized, meta_of, sizes_of, type_of
from spmdir.dialects.context import IRContext
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.size_ops import SizeOp, open_sizes, sizes_op
from spmdir.dialects.value_op import DECIDED, ValueOp
from spmdir.passes.expand import expansion_of
from spmdir.pipeline.base_passes import global_functions
from spmdir.pipeline.pipeline import as_pipeline
from spmdir.pipeline.recorded_options import deciding_pass, note_options


@dataclass(frozen=True)
class BindSizesPass(ModulePass):
    """Replaces symbolic sizes by numbers, e.g. bind-sizes{s0=8 s1=128}. Valid decisions are kept."""

    name = "bind-sizes"

    sizes: dict[str, int] = field(default_factory=dict)
    """The number of each size, by name."""
    examples: bool = False
    """Whether other sizes get the example values of the module."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Bind all symbolic sizes of the module. A module without symbolic sizes is not changed.

        Raises:
            SpmdirError: a size has no number, a number is out of range, or `sizes` has an unknown name; located.
        """
        assert isinstance(ctx, IRContext)
        functions = global_functions(op, self.name)
        declared = sizes_op(op)
        if declared is None and not self.sizes:
            return
        symbolic_sizes = open_sizes(op)
        numbers = {**(symbolic_sizes.hints if self.examples else {}), **self.sizes}
        try:
            symbolic_sizes.check(numbers)
        except SpmdirError as error:
            raise error.at(location_of(declared or op)) from None
        assert declared is not None  # check() rejects sizes without a declaration
        for function in functions:
            _bind_function(function, numbers)
        Rewriter.erase_op(declared)
        for function in functions:
            if any(isinstance(child, AtenOp) and child.sharding for child in function.body.block.ops):
                _decide_again_if_invalid(op, function, ctx)


def _bind_function(function: FuncOp, numbers: Mapping[str, int]) -> None:
    """Replace the symbolic sizes in types, arguments of ops and `spmd.outputs`, and erase the ops that define sizes.

    Args:
        numbers: size → its number, here and in the functions below.
    """
    block = function.body.block
    for argument in block.args:
        _bind_type(argument, numbers)
    for op in list(block.ops):
        if isinstance(op, ValueOp) and not isinstance(op, SizeOp):
            with errors_at(op):
                _bind_op(op, numbers)
    for op in reversed(list(block.ops)):
        if isinstance(op, SizeOp):
            Rewriter.erase_op(op)
    returned = ir.terminator(function).operand_types
    function.properties["function_type"] = FunctionType.from_lists([arg.type for arg in block.args], returned)
    outputs = function.attributes.get("spmd.outputs")
    if isinstance(outputs, ArgumentsAttr):
        function.attributes["spmd.outputs"] = ArgumentsAttr(
            tuple((name, _bind_output_literal(value, numbers)) for name, value in outputs.data)
        )


def _bind_op(op: ValueOp, numbers: Mapping[str, int]) -> None:
    """Replace the symbolic sizes in the arguments and the result types of an op. Its size operands are removed."""
    if op.sizes and op.arguments:
        operand_sizes = [evaluate(size.type.data.size, numbers) for size in op.sizes]  # type: ignore
        op.properties["arguments"] = ArgumentsAttr(with_sizes(op.arguments.data, operand_sizes))
        op.operands = list(op.tensors)
    for result in op.results:
        _bind_type(result, numbers)


def _bind_type(value: SSAValue, numbers: Mapping[str, int]) -> None:
    """Replace the symbolic sizes in the type of a value."""
    if is_sized(value.type):
        value._type = bind_tensor_type(value.type, numbers)  # pyright: ignore[reportPrivateUsage]  # keeps its name


def bind_tensor_type(type_: Attribute, numbers: Mapping[str, int]) -> Attribute:
    """Return the tensor type `type_` with numbers for its symbolic sizes.

    Raises:
        ShardingError: a size is negative.
    """
    meta, sizes = meta_of(type_), sizes_of(type_)
    assert meta is not None
    shape = tuple(evaluate(size, numbers) for size in sizes)
    for size, number in zip(sizes, shape, strict=True):
        if number < 0:
            raise ShardingError(
                f"the size {size} is {number} where {_assignments_text(numbers)}; expected at least 0: give "
                "larger sizes"
            )
    return type_of(TensorMeta(shape, meta.dtype))


def _bind_output_literal(value: Literal, numbers: Mapping[str, int]) -> Literal:
    """Return an entry of `spmd.outputs` with numbers for its symbolic sizes: 16 for the text `"=2*s0"` where s0 = 8."""
    if isinstance(value, tuple):
        return tuple(_bind_output_literal(entry, numbers) for entry in value)
    if isinstance(value, str) and value.startswith("="):
        return evaluate(parse_number(value[1:]), numbers)
    return value


def _decide_again_if_invalid(module: ModuleOp, function: FuncOp, ctx: IRContext) -> None:
    """Run propagate on `function` with its recorded options, if the rules reject a sharding at the new sizes.

    The decisions of torch ops are removed before. The shardings of arguments, results and constraints stay.
    """
    mesh, decided_by = ir.mesh(module), deciding_pass(function, as_pipeline(ctx.pipeline))
    note_options(function, decided_by, has_open_sizes=False)
    try:
        for op in function.body.block.ops:
            if isinstance(op, AtenOp):
                expansion_of(op, mesh, ctx.rules)  # for its type check
    except (ShardingError, RuleError, UnsupportedError):
        for op in function.body.block.ops:
            if isinstance(op, AtenOp):
                for name in DECIDED:
                    op.properties.pop(name, None)
        decided_by.apply(ctx, module)


def _assignments_text(numbers: Mapping[str, int]) -> str:
    """Return text such as `s0 = 8, s1 = 128`."""
    return ", ".join(f"{name} = {number}" for name, number in numbers.items())
