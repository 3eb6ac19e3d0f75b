"""Ops on symbolic sizes: what a tensor measures, arithmetic on that, and what a program leaves open.

    spmd.sizes {s0 = 8 in 2..64, s1 = 5 in 2.., s0 % 4 == 0}
    %n = aten.sym_size.int(%x, 0) : !spmd.size<s0, dp>
    %m = operator.mul(%n, 2) : !spmd.size<2*s0, dp>

They are called as in torch.fx. An op that takes a size has it among its arguments, as `{size = [%m, 8]}`. The type says
what number it is; every rank knows a size, of the global tensor and of its own shard, so a size is never resharded.
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
from spmdir.dialects.names import take_name
from spmdir.dialects.op_parser import parse_type, take_sizes
from spmdir.dialects.op_printer import print_with_sizes
from spmdir.dialects.parser_declarations import declare_hints, declared_hints
from spmdir.dialects.sharding_checks import declaration
from spmdir.dialects.size_types import Measure, SizesAttr, SizeType, hint_of, read_sizes
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of

_ARGUMENTS = re.compile(r"\s*\(([^()]*)\)\s*:\s*(!spmd\.size<[^<>]*>)")


@irdl_op_definition
class SizesOp(IRDLOperation):
    """`spmd.sizes {s0 = 8 in 2..64, s0 % 4 == 0}`: the sizes that the program leaves open.

    Each has an example, for which decisions are made, and a range; conditions are what the program relies on.
    """

    name = "spmd.sizes"
    sizes = prop_def(SizesAttr)

    @classmethod
    def build(cls, sizes: Sizes) -> SizesOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the op that declares `sizes`."""
        return cls.create(properties={"sizes": SizesAttr(sizes)})

    @classmethod
    def parse(cls, parser: Parser) -> SizesOp:
        text, start = parser.lexer.input.content, parser.pos
        end = text.find("}", start) + 1
        if not text.startswith("{", start) or not end:
            parser.raise_error("expected sizes, as in `spmd.sizes {s0 = 8 in 2..64}`", start, start + 1)
        try:
            declared = read_sizes(text[start:end])
        except SpmdirError as error:
            parser.raise_error(error.message, start, end)
        parser._resume_from(end)  # pyright: ignore[reportPrivateUsage]
        declare_hints(parser, tuple(declared.hints.items()))
        return cls.build(declared)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.sizes.data}")


class SizeOp(ValueOp):
    """Base of the ops that give a size."""

    traits = traits_def(Pure())

    @classmethod
    def make(cls, arguments: Sequence[Any], size: Number, hint: int | float, location: Any = None) -> SizeOp:
        """Return an op that gives `size`; `arguments` are SSA values, first a tensor if it takes one, and literals."""
        tensors = [value for value in arguments if isinstance(value, SSAValue) and meta_of(value.type) is not None]
        sizes: list[SSAValue] = []

        def literal(value: Any) -> Literal:
            if not isinstance(value, SSAValue):
                return value
            if value not in sizes:
                sizes.append(value)
            return SizeOperand(sizes.index(value))

        given = tuple(literal(value) for value in arguments if value not in tensors)
        return cls.create(
            operands=[*tensors, *sizes],
            result_types=[SizeType(Measure(size, hint))],
            properties={"arguments": ArgumentsAttr((("args", given),))} if given else {},
            location=location or UNKNOWN_LOC,
        )  # type: ignore[return-value]

    @property
    def measure(self) -> Measure:
        """Return what the result measures."""
        return self.results[0].type.data  # type: ignore

    @property
    def given(self) -> tuple[Any, ...]:
        """Return the arguments behind the tensor; sizes as they are known."""
        sizes = [size.type.data.size for size in self.sizes]  # type: ignore
        return dict(with_sizes(self.arguments.data, sizes))["args"] if self.arguments else ()  # type: ignore

    def number(self) -> Number | None:
        """Return what the op gives, as its operands say; None for one that only its type knows."""
        return apply(FUNCTIONS[self.name], *self.given) if self.name in FUNCTIONS else None

    def axes(self) -> tuple[str, ...]:
        """Return the axes that shard what the operands measure; none for a float, which is not a length."""
        if isinstance(self.measure.size, (float, Real)):
            return ()
        return tuple(dict.fromkeys(axis for size in self.sizes for axis in size.type.data.axes))  # type: ignore

    def tell_axes(self) -> None:
        """Write into the type of the result which axes shard what the operands measure."""
        self.results[0]._type = SizeType(attrs.evolve(self.measure, axes=self.axes()))  # pyright: ignore[reportPrivateUsage]

    def check_counts(self) -> None:
        if len(self.results) != 1 or type(self.results[0].type) is not SizeType:
            raise VerifyException("gives one size, as in !spmd.size<s0>")
        self.check_operands()
        declared = sizes_op(self)
        measure = self.measure
        if hint_of(measure.size, tuple(declared.sizes.data.hints.items()) if declared else ()) != measure.hint:
            raise VerifyException(f"has {measure.hint} as the example of {measure.size}; the module declares another")
        number = self.number()
        if number is not None and number != measure.size:
            raise VerifyException(f"gives {number}, found !spmd.size<{measure}>")
        if measure.axes and measure.axes != self.axes():
            expected = ", ".join(self.axes()) or "none"
            raise VerifyException(f"measures what is sharded by {expected}, found !spmd.size<{measure}>")

    def check(self, mesh: Mesh | None) -> None:
        """Nothing: a size has no sharding."""

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_list(self.tensors, printer.print_ssa_value)
        given = self.argument.get("args", ())
        text = ", ".join(map(print_literal, given)) if isinstance(given, tuple) else ""
        print_with_sizes(printer, ", " + text if self.tensors and text else text, self.sizes)
        printer.print_string(f") : !spmd.size<{self.measure}>")

    @classmethod
    def parse_from(cls, parser: Parser, start: int) -> SizeOp:
        text = parser.lexer.input.content
        match = _ARGUMENTS.match(text, start)
        if match is None:
            parser.raise_error(f"expected {cls.name}(…) : !spmd.size<s0>", start, start + 1)
        operands, given = cls._read_operands(parser, match[1], match.start(1))
        given, sizes = take_sizes(parser, given, match.start(1))
        try:
            arguments = parse_arguments("{args = [" + given + "]}")
            type_ = parse_type(match[2], 0, declared_hints(parser))
        except LiteralError as error:
            parser.raise_error(str(error), match.start(1), match.end(2))
        parser._resume_from(match.end())  # pyright: ignore[reportPrivateUsage]
        properties: dict[str, Attribute] = {"arguments": ArgumentsAttr(arguments)} if given.strip() else {}
        return cls.create(operands=[*operands, *sizes], result_types=[type_], properties=properties)  # type: ignore

    @classmethod
    def _read_operands(cls, parser: Parser, text: str, offset: int) -> tuple[list[SSAValue], str]:
        """Return the tensors in front, and the text behind them."""
        return [], text


class MeasureOp(SizeOp):
    """Base of the ops that measure a tensor."""

    def axes(self) -> tuple[str, ...]:
        sharding = sharding_of(self.operands[0])
        dims = self._dims()
        return tuple(dict.fromkeys(a for dim in dims for a in sharding.dim_axes(dim))) if sharding else ()

    def _dims(self) -> Iterable[int]:
        return range(len(sizes_of(self.operands[0].type)))

    def check_counts(self) -> None:
        if len(self.operands) != 1 or meta_of(self.operands[0].type) is None:
            raise VerifyException("measures one tensor")
        super().check_counts()

    @classmethod
    def _read_operands(cls, parser: Parser, text: str, offset: int) -> tuple[list[SSAValue], str]:
        first, _, rest = text.partition(",")
        name = first.strip()
        values = parser.ssa_values.get(name.removeprefix("%")) if name.startswith("%") else None
        if values is None or len(values) != 1:
            parser.raise_error(f"found '{name}', expected a tensor that is defined above", offset, offset + len(first))
        return [values[0]], rest.strip().rjust(len(rest))


@irdl_op_definition
class SymSizeOp(MeasureOp):
    """`aten.sym_size.int(%x, 0)`: the length of a dimension."""

    name = "aten.sym_size.int"

    def _dims(self) -> Iterable[int]:
        rank, given = len(sizes_of(self.operands[0].type)), self.given
        if len(given) != 1 or type(given[0]) is not int or not -rank <= given[0] < rank:
            raise VerifyException(f"names one of the {rank} dimensions of its tensor, found {list(given)}")
        return (given[0] % rank,)

    def number(self) -> Number:
        (dim,) = self._dims()
        return sizes_of(self.operands[0].type)[dim]


@irdl_op_definition
class SymNumelOp(MeasureOp):
    """`aten.sym_numel(%x)`: the number of elements."""

    name = "aten.sym_numel"

    def number(self) -> Number:
        return product(sizes_of(self.operands[0].type))


@irdl_op_definition
class SizeOfOp(SizeOp):
    """`spmd.size() : !spmd.size<s0*s1>`: the number that the type says."""

    name = "spmd.size"


@irdl_op_definition
class SizeFunctionOp(SizeOp):
    """A function of sizes, as torch.fx calls it; each has a subclass that differs in its name alone."""

    name = "spmd.size_function"


FUNCTIONS = {
    **{f"operator.{name}": name for name in ("add", "sub", "mul", "neg", "pow", "floordiv", "mod", "truediv")},
    **{f"torch.sym_{name}": name for name in ("max", "min", "float")},
    "torch.sym_int": "trunc",
    "torch._sym_sqrt": "sqrt",
    **{f"math.{name}": name for name in ("floor", "ceil", "trunc", "sqrt")},
    "builtins.round": "round",
}
"""Function as torch.fx calls it → the function of numbers."""

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
    """Return the declaration of sizes in the module around `op`, or in `op` itself; None if there is none."""
    found = declaration(op, SizesOp.name)
    assert found is None or isinstance(found, SizesOp)
    return found


def open_sizes(module: ModuleOp) -> Sizes:
    """Return the sizes that a module leaves open; none where all are bound."""
    found = sizes_op(module)
    return found.sizes.data if found else Sizes()


def check_sizes(op: Operation, declared: Sizes) -> None:
    """Raise VerifyException unless the examples in the types of the results, or of a function's arguments, are those
    that the module declares."""
    types = op.function_type.inputs if isinstance(op, FuncOp) else op.result_types
    hints = tuple(declared.hints.items())
    for type_ in types:
        if not is_sized(type_):
            continue
        expected = tuple(hint_of(size, hints) for size in sizes_of(type_))
        if meta_of(type_).shape != expected or min(expected, default=0) < 0:  # type: ignore[union-attr]
            raise VerifyException(f"{type_} has other examples than the module declares")


class SizeValues:
    """The SSA values that are sizes, in one function; one value serves all that need the number.

    Args:
        arguments: the arguments of the function, whose dimensions are measured where that gives the number.
        hint: the example of a number.
        add: puts a new op where all that need it come after it.

    Attributes:
        known: number → its value.
    """

    def __init__(
        self,
        arguments: Iterable[SSAValue],
        hint: Callable[[Number], int | float],
        add: Callable[[Operation], Any],
    ):
        self._hint, self._add = hint, add
        self._measured: dict[Number, tuple[SSAValue, int]] = {}
        for argument in arguments:
            for dim, size in enumerate(sizes_of(argument.type)):
                self._measured.setdefault(size, (argument, dim))
        self.known: dict[Number, SSAValue] = {}

    def value(self, size: Number) -> SSAValue:
        """Return the value that is `size`, of a new op if there is none yet."""
        if size not in self.known:
            source: Any = self._measured.get(size)
            op = (SizeOfOp if source is None else SymSizeOp).make(source or [], size, self._hint(size))
            self._add(op)
            self.known[size] = op.results[0]
        return self.known[size]

    def operands(self, arguments: Any) -> tuple[Any, list[SSAValue]]:
        """Return `arguments`, literals in which sizes stand as they are, with references to operands; these
        operands."""
        if not arguments:
            return (), []
        found: list[SSAValue] = []

        def literal(given: Any) -> Literal:
            if isinstance(given, tuple):
                return tuple(map(literal, given))
            if not is_symbolic(given):
                return given
            value = self.value(given)
            if value not in found:
                found.append(value)
            return SizeOperand(found.index(value))

        return tuple((name, literal(given)) for name, given in arguments), found


def merge_sizes(block: Block) -> None:
    """Let one op give each size of `block`, and none a size that nothing uses."""
    first: dict[Number, SSAValue] = {}
    ops = [op for op in block.ops if isinstance(op, SizeOp)]
    for op in ops:
        value = first.setdefault(op.measure.size, op.results[0])
        if value is not op.results[0]:
            if value.name_hint is None:
                take_name(value, op.results[0])
            op.results[0].replace_all_uses_with(value)
    for op in reversed(ops):
        if not op.results[0].uses:
            Rewriter.erase_op(op)


def drop_unused(ops: Iterable[Operation]) -> list[Operation]:
    """Return the ops without sizes that nothing uses."""
    kept: list[Operation] = []
    for op in reversed(list(ops)):
        if isinstance(op, SizeOp) and not op.results[0].uses:
            op.drop_all_references()
        else:
            kept.append(op)
    return kept[::-1]
