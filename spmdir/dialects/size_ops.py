"""Ops on symbolic sizes: the declaration of the sizes, the dimensions of tensors, and arithmetic on sizes.
    spmd.sizes {s0 = 8 in 2..64, s1 = 5 in 2.., s0 % 4 == 0}
    %n = aten.sym_size.int(%x, 0) : !spmd.size<s0, dp>
    %m = operator.mul(%n, 2) : !spmd.size<2*s0, dp>

The ops have the names and arguments of torch.fx. Other ops refer to a size in their arguments, as in
`{size = [%m, 8]}`. The type of a size contains its expression, so each rank can compute the global size and the size of
its shard. Therefore sizes are never resharded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
from xdsl.dialects.builtin import UNKNOWN_LOC, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.rewriter import Rewriter
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Literal, SizeOperand, with_sizes
from spmdir.core.placement.literals import LiteralError, parse_arguments, print_literal
from spmdir.core.symbolic.expressions import Number, Real, apply, is_symbolic, product
from spmdir.core.symbolic.symbols import Sizes
from spmdir.dialects.attributes import ArgumentsAttr, is_sized, meta_of, sizes_of
from spmdir.dialects.names import copy_name
from spmdir.dialects.op_parser import parse_type, replace_size_operands
from spmdir.dialects.op_printer import print_with_sizes
from spmdir.dialects.parser_declarations import declare_hints, declared_hints
from spmdir.dialects.sharding_checks import declaration
from spmdir.dialects.size_types import Measure, SizesAttr, SizeType, hint_of, read_sizes
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of

_ARGUMENTS = re.compile(r"\s*\(([^()]*)\)\s*:\s*(!spmd\.size<[^<>]*>)")


@irdl_op_definition
class SizesOp(IRDLOperation):
    """`spmd.sizes {s0 = 8 in 2..64, s0 % 4 == 0}`: the symbolic sizes of the program.

    Each has an example, for which the compiler decides shardings, and a range. The program is only correct if the
    conditions hold.
    """

    name = "spmd.sizes"
    sizes = prop_def(SizesAttr)

    @classmethod
    def build(cls, sizes: Sizes) -> SizesOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the op that declares `sizes`."""
        return cls.create(properties={"sizes": SizesAttr(sizes)})

    @classmethod
    def parse(cls, parser: Parser) -> SizesOp:
        """Parse `{s0 = 8 in 2..64}` after the name of the op, and declare these sizes for the types that follow."""
        text, start = parser.lexer.input.content, parser.pos
        end = text.find("}", start) + 1
        if not text.startswith("{", start) or not end:
            parser.raise_error("expected sizes, as in `spmd.sizes {s0 = 8 in 2..64}`", start, start + 1)
        try:
            sizes = read_sizes(text[start:end])
        except SpmdirError as error:
            parser.raise_error(error.message, start, end)
        parser._resume_from(end)  # pyright: ignore[reportPrivateUsage]
        declare_hints(parser, tuple(sizes.hints.items()))
        return cls.build(sizes)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.sizes.data}")


class SizeOp(ValueOp):
    """Base class of the ops whose result is a size."""

    traits = traits_def(Pure())

    @classmethod
    def make(cls, arguments: Sequence[Any], size: Number, hint: int | float, location: Any = None) -> SizeOp:
        """Return an op whose result is `size`.

        Args:
            arguments: SSA values and literals. A tensor operand comes first.
            hint: the example of `size`.
        """
        tensors = [value for value in arguments if isinstance(value, SSAValue) and meta_of(value.type) is not None]
        sizes: list[SSAValue] = []

        def to_literal(value: Any) -> Literal:
            """Return a literal itself, and for a size the `SizeOperand` that refers to it; add it to `sizes`."""
            if not isinstance(value, SSAValue):
                return value
            if value not in sizes:
                sizes.append(value)
            return SizeOperand(sizes.index(value))

        literals = tuple(to_literal(value) for value in arguments if value not in tensors)
        return cls.create(
            operands=[*tensors, *sizes],
            result_types=[SizeType(Measure(size, hint))],
            properties={"arguments": ArgumentsAttr((("args", literals),))} if literals else {},
            location=location or UNKNOWN_LOC,
        )  # type: ignore[return-value]

    @property
    def measure(self) -> Measure:
        """Return the size that is the result."""
        return self.results[0].type.data  # type: ignore

    @property
    def argument_values(self) -> tuple[Any, ...]:
        """Return the arguments without the tensor, with the expressions of size operands."""
        sizes = [size.type.data.size for size in self.sizes]  # type: ignore
        return dict(with_sizes(self.arguments.data, sizes))["args"] if self.arguments else ()  # type: ignore

    def inferred_size(self) -> Number | None:
        """Return the size computed from the operands; None if only the type of the result contains it."""
        return apply(FUNCTIONS[self.name], *self.argument_values) if self.name in FUNCTIONS else None

    def axes(self) -> tuple[str, ...]:
        """Return the axes of the types of all size operands, each once; () if the result is not an integer."""
        if isinstance(self.measure.size, (float, Real)):
            return ()
        return tuple(dict.fromkeys(axis for size in self.sizes for axis in size.type.data.axes))  # type: ignore

    def update_axes(self) -> None:
        """Write the result of `axes()` into the type of the result, after shardings have changed."""
        self.results[0]._type = SizeType(attrs.evolve(self.measure, axes=self.axes()))  # pyright: ignore[reportPrivateUsage]

    def check_counts(self) -> None:
        """Raise VerifyException unless the only result is a size, whose type follows from the operands."""
        if len(self.results) != 1 or type(self.results[0].type) is not SizeType:
            raise VerifyException("expected one result, of a type such as !spmd.size<s0>")
        self.check_operands()
        declaration_op = sizes_op(self)
        measure = self.measure
        declared_examples = tuple(declaration_op.sizes.data.hints.items()) if declaration_op else ()
        if hint_of(measure.size, declared_examples) != measure.hint:
            raise VerifyException(
                f"has the example {measure.hint} for {measure.size}; expected the example in `spmd.sizes`: use it"
            )
        inferred_size = self.inferred_size()
        if inferred_size is not None and inferred_size != measure.size:
            raise VerifyException(f"has the result type !spmd.size<{measure}>; expected !spmd.size<{inferred_size}>")
        if measure.axes and measure.axes != self.axes():
            expected = ", ".join(self.axes()) or "none"
            raise VerifyException(
                f"has the result type !spmd.size<{measure}>; expected the axes that shard what it measures: {expected}"
            )

    def check(self, mesh: Mesh | None) -> None:
        """Check nothing: a size has no sharding."""

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_list(self.tensors, printer.print_ssa_value)
        arguments = self.argument.get("args", ())
        text = ", ".join(map(print_literal, arguments)) if isinstance(arguments, tuple) else ""
        print_with_sizes(printer, ", " + text if self.tensors and text else text, self.sizes)
        printer.print_string(f") : !spmd.size<{self.measure}>")

    @classmethod
    def parse_from(cls, parser: Parser, start: int) -> SizeOp:
        """Return the op whose name ends at `start` of the text, such as `operator.mul(%n, 2) : !spmd.size<2*s0>`."""
        text = parser.lexer.input.content
        match = _ARGUMENTS.match(text, start)
        if match is None:
            parser.raise_error(f"expected {cls.name}(…) : !spmd.size<s0>", start, start + 1)
        operands, arguments_text = cls._read_operands(parser, match[1], match.start(1))
        arguments_text, sizes = replace_size_operands(parser, arguments_text, match.start(1))
        try:
            arguments = parse_arguments("{args = [" + arguments_text + "]}")
            result_type = parse_type(match[2], 0, declared_hints(parser))
        except LiteralError as error:
            parser.raise_error(str(error), match.start(1), match.end(2))
        parser._resume_from(match.end())  # pyright: ignore[reportPrivateUsage]
        properties: dict[str, Attribute] = {"arguments": ArgumentsAttr(arguments)} if arguments_text.strip() else {}
        return cls.create(operands=[*operands, *sizes], result_types=[result_type], properties=properties)  # type: ignore

    @classmethod
    def _read_operands(cls, parser: Parser, text: str, offset: int) -> tuple[list[SSAValue], str]:
        """Return the leading tensor operands, and the text of the other arguments."""
        return [], text


class MeasureOp(SizeOp):
    """Base class of the ops that measure a tensor."""

    def axes(self) -> tuple[str, ...]:
        """Return the axes that shard the measured dimensions, each once; () if the tensor has no sharding."""
        sharding = sharding_of(self.operands[0])
        dims = self._measured_dims()
        return tuple(dict.fromkeys(axis for dim in dims for axis in sharding.dim_axes(dim))) if sharding else ()

    def _measured_dims(self) -> Iterable[int]:
        """Return the dimensions of the tensor whose sizes determine the result."""
        return range(len(sizes_of(self.operands[0].type)))

    def check_counts(self) -> None:
        if len(self.operands) != 1 or meta_of(self.operands[0].type) is None:
            raise VerifyException("expected one tensor as operand")
        super().check_counts()

    @classmethod
    def _read_operands(cls, parser: Parser, text: str, offset: int) -> tuple[list[SSAValue], str]:
        """Read the tensor `%x` in `%x, 0`. Return it, and the text after the comma with its columns unchanged.

        Args:
            offset: the position of the text, for errors.
        """
        tensor_text, _, arguments_text = text.partition(",")
        name = tensor_text.strip()
        values = parser.ssa_values.get(name.removeprefix("%")) if name.startswith("%") else None
        if values is None or len(values) != 1:
            parser.raise_error(
                f"found '{name}', expected a tensor that is defined before this op", offset, offset + len(tensor_text)
            )
        return [values[0]], arguments_text.strip().rjust(len(arguments_text))


@irdl_op_definition
class SymSizeOp(MeasureOp):
    """`aten.sym_size.int(%x, 0)`: the length of a dimension."""

    name = "aten.sym_size.int"

    def _measured_dims(self) -> Iterable[int]:
        """Return the dimension that the argument names, from 0 on; raise VerifyException if there is none."""
        rank, dims = len(sizes_of(self.operands[0].type)), self.argument_values
        if len(dims) != 1 or type(dims[0]) is not int or not -rank <= dims[0] < rank:
            raise VerifyException(
                f"has the arguments {list(dims)}; expected one of the {rank} dimensions of its tensor"
            )
        return (dims[0] % rank,)

    def inferred_size(self) -> Number:
        (dim,) = self._measured_dims()
        return sizes_of(self.operands[0].type)[dim]


@irdl_op_definition
class SymNumelOp(MeasureOp):
    """`aten.sym_numel(%x)`: the number of elements."""

    name = "aten.sym_numel"

    def inferred_size(self) -> Number:
        return product(sizes_of(self.operands[0].type))


@irdl_op_definition
class SizeOfOp(SizeOp):
    """`spmd.size() : !spmd.size<s0*s1>`: the size in its type."""

    name = "spmd.size"


@irdl_op_definition
class SizeFunctionOp(SizeOp):
    """A function of sizes that torch.fx calls. Each function has a subclass that only sets the name."""

    name = "spmd.size_function"


FUNCTIONS = {
    **{f"operator.{name}": name for name in ("add", "sub", "mul", "neg", "pow", "floordiv", "mod", "truediv")},
    **{f"torch.sym_{name}": name for name in ("max", "min", "float")},
    "torch.sym_int": "trunc",
    "torch._sym_sqrt": "sqrt",
    **{f"math.{name}": name for name in ("floor", "ceil", "trunc", "sqrt")},
    "builtins.round": "round",
}
"""Function that torch.fx calls → the function of numbers, as `symbolic.expressions.apply` takes it."""

SIZE_OPS: dict[str, type[SizeOp]] = {
    "aten.sym_size.int": SymSizeOp,
    "aten.sym_numel": SymNumelOp,
    "spmd.size": SizeOfOp,
    **{
        name: type("SizeFunctionOp", (SizeFunctionOp,), {"name": name, "__doc__": f"{name} of sizes."})
        for name in FUNCTIONS
    },
}
"""Op name → its class."""


def sizes_op(op: Operation) -> SizesOp | None:
    """Return the `spmd.sizes` op of the module that contains `op` or is `op`; None if there is none."""
    sizes_declaration = declaration(op, SizesOp.name)
    assert sizes_declaration is None or isinstance(sizes_declaration, SizesOp)
    return sizes_declaration


def open_sizes(module: ModuleOp) -> Sizes:
    """Return the symbolic sizes of a module, with their ranges and conditions."""
    sizes_declaration = sizes_op(module)
    return sizes_declaration.sizes.data if sizes_declaration else Sizes()


def check_sizes(op: Operation, sizes: Sizes) -> None:
    """Raise VerifyException unless the types of `op` have the declared examples.

    The types of an op are those of its results, and the types of a function are those of its arguments.
    """
    types = op.function_type.inputs if isinstance(op, FuncOp) else op.result_types
    hints = tuple(sizes.hints.items())
    for value_type in types:
        if not is_sized(value_type):
            continue
        expected = tuple(hint_of(size, hints) for size in sizes_of(value_type))
        if meta_of(value_type).shape != expected or min(expected, default=0) < 0:  # type: ignore[union-attr]
            raise VerifyException(f"{value_type} has other examples than `spmd.sizes`; expected those: use them")


class SizeValues:
    """The SSA values of sizes in one function. Each size has one value, which all users share.

    Args:
        arguments: the arguments of the function. A size that is one of their dimensions is measured there.
        hint: size → its example.
        insert: inserts a new op before all of its users.

    Attributes:
        values: size → its value.
    """

    def __init__(
        self,
        arguments: Iterable[SSAValue],
        hint: Callable[[Number], int | float],
        insert: Callable[[Operation], Any],
    ):
        self._hint, self._insert = hint, insert
        self._measured: dict[Number, tuple[SSAValue, int]] = {}
        for argument in arguments:
            for dim, size in enumerate(sizes_of(argument.type)):
                self._measured.setdefault(size, (argument, dim))
        self.values: dict[Number, SSAValue] = {}

    def value(self, size: Number) -> SSAValue:
        """Return the value of `size`; insert an op for it if there is none."""
        if size not in self.values:
            source: Any = self._measured.get(size)
            op = (SizeOfOp if source is None else SymSizeOp).make(source or [], size, self._hint(size))
            self._insert(op)
            self.values[size] = op.results[0]
        return self.values[size]

    def operands(self, arguments: Any) -> tuple[Any, list[SSAValue]]:
        """Replace the symbolic sizes in `arguments` by `SizeOperand`s; return the arguments and the operands."""
        if not arguments:
            return (), []
        size_operands: list[SSAValue] = []

        def to_literal(literal: Any) -> Literal:
            """Return a literal with its symbolic sizes replaced; add their values to `size_operands`."""
            if isinstance(literal, tuple):
                return tuple(map(to_literal, literal))
            if not is_symbolic(literal):
                return literal
            value = self.value(literal)
            if value not in size_operands:
                size_operands.append(value)
            return SizeOperand(size_operands.index(value))

        return tuple((name, to_literal(literal)) for name, literal in arguments), size_operands


def merge_sizes(block: Block) -> None:
    """Merge the ops of `block` that compute equal sizes, and erase those without users."""
    value_of_size: dict[Number, SSAValue] = {}
    ops = [op for op in block.ops if isinstance(op, SizeOp)]
    for op in ops:
        value = value_of_size.setdefault(op.measure.size, op.results[0])
        if value is not op.results[0]:
            if value.name_hint is None:
                copy_name(value, op.results[0])
            op.results[0].replace_all_uses_with(value)
    for op in reversed(ops):
        if not op.results[0].uses:
            Rewriter.erase_op(op)


def drop_unused_sizes(ops: Iterable[Operation]) -> list[Operation]:
    """Return `ops` without unused size ops. A size op whose users are all dropped is dropped too.

    Args:
        ops: producers come before users.
    """
    used_ops: list[Operation] = []
    for op in reversed(list(ops)):
        if isinstance(op, SizeOp) and not op.results[0].uses:
            op.drop_all_references()
        else:
            used_ops.append(op)
    return used_ops[::-1]
