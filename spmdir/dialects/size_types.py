"""Types and attributes of symbolic sizes: `tensor<[s0]x16xf32>`, `!spmd.size<s0, dp>`, `{s0 = 8 in 2..64}`."""

from __future__ import annotations

import re

import attrs
from xdsl.ir import Data, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from spmdir.core.brackets import split_entries
from spmdir.core.errors import SpmdirError
from spmdir.core.symbolic.expressions import Number, Real, Size, evaluate
from spmdir.core.symbolic.parser import parse_condition, parse_number
from spmdir.core.symbolic.symbols import Sizes, Symbol
from spmdir.dialects.bracketed_text import take_balanced
from spmdir.dialects.parser_declarations import Hints, declare_hints, declared_hints

_SYMBOL = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([0-9]+)\s+in\s+([0-9]+)\s*\.\.\s*([0-9]+)?\s*")

_RELATION = re.compile(r"[=!<>]=|[<>]")
_COMMA = re.compile(r",(?![^()]*\))")


@irdl_attr_definition
class DimsAttr(Data[tuple[int | Size, ...]]):
    """`#spmd.dims<s0, 16>`: the sizes of a tensor type, some of them symbolic. The shape of the type is the example.

    It is the encoding of the type: `tensor<8x16xf32, #spmd.dims<s0, 16>>`. In results of ops, the type is printed as
    `tensor<[s0]x16xf32>`.
    """

    name = "spmd.dims"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[int | Size, ...]:
        text, start = take_balanced(parser)
        hints = declared_hints(parser)
        try:
            return tuple(read_size(size, hints) for size in split_entries(text[1:-1]))
        except SpmdirError as error:
            parser.raise_error(error.message, start, start + len(text))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{', '.join(map(str, self.data))}>")


def dims_text(size: int | Size) -> str:
    """Return the text of a size in a tensor type."""
    return f"[{size}]" if isinstance(size, Size) else str(size)


@attrs.frozen(cache_hash=True)
class Measure:
    """A size, with its example and the axes that shard its dimensions.

    Attributes:
        size: the expression in symbolic sizes.
        hint: its example.
        axes: the mesh axes that shard the dimensions that it measures, major first.
    """

    size: Number
    hint: int | float
    axes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join([str(self.size), *self.axes])


@irdl_attr_definition
class SizeType(Data[Measure], TypeAttribute):
    """`!spmd.size<s0, dp>`: the type of a size, with the axes that shard the dimensions that it measures.

    It determines two numbers: the global size s0, and the length of the rank's shard of s0 elements sharded by dp.
    """

    name = "spmd.size"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Measure:
        text, start = take_balanced(parser)
        try:
            return read_measure(text[1:-1], declared_hints(parser))
        except SpmdirError as error:
            parser.raise_error(error.message, start, start + len(text))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


def read_measure(text: str, hints: Hints) -> Measure:
    """Parse `s0*s1, dp`.

    Raises:
        SpmdirError: the text is malformed, or contains an undeclared size.
    """
    parts = split_entries(text)
    size = parse_number(parts[0] if parts else "")
    return Measure(size, hint_of(size, hints), tuple(parts[1:]))


def read_size(text: str, hints: Hints) -> int | Size:
    """Parse `2*s0`.

    Raises:
        SpmdirError: the text is malformed, contains an undeclared size, or is not an integer.
    """
    size = parse_number(text)
    hint_of(size, hints)
    if isinstance(size, (float, Real)):
        raise SpmdirError(f"the size [{text}] is not an integer; expected an integer expression, as in [2*s0]")
    return size


def hint_of(size: Number, hints: Hints) -> int | float:
    """Return the example of `size`, computed from the examples of its symbols.

    Raises:
        SpmdirError: `size` contains an undeclared symbol.
    """
    hint_by_name = dict(hints)
    hint = evaluate(size, hint_by_name)
    if not isinstance(hint, (int, float)):
        names = ", ".join(hint_by_name) or "none"
        raise SpmdirError(
            f"'{size}' contains an undeclared size; expected sizes of {names}: declare it in `spmd.sizes`"
        )
    return hint


@irdl_attr_definition
class SizesAttr(Data[Sizes]):
    """`#spmd.sizes<{s0 = 8 in 2..64, s0 % 4 == 0}>`: the symbolic sizes of a program."""

    name = "spmd.sizes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Sizes:
        text, start = take_balanced(parser)
        try:
            sizes = read_sizes(text[1:-1])
        except SpmdirError as error:
            parser.raise_error(error.message, start, start + len(text))
        declare_hints(parser, tuple(sizes.hints.items()))
        return sizes

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


def read_sizes(text: str) -> Sizes:
    """Parse `{s0 = 8 in 2..64, s0 % 4 == 0}`.

    Raises:
        SpmdirError: the text is malformed, or an example is outside of its range or violates a condition.
    """
    symbols: list[Symbol] = []
    conditions = []
    entries = text.strip().removeprefix("{").removesuffix("}")
    for part in filter(str.strip, _COMMA.split(entries)):
        match = _SYMBOL.fullmatch(part)
        if match:
            symbols.append(Symbol(match[1], int(match[2]), int(match[3]), int(match[4]) if match[4] else None))
        elif _RELATION.search(part):
            conditions.append(parse_condition(part))
        else:
            raise SpmdirError(f"'{part.strip()}' is not a declaration of a size; expected one, as in s0 = 8 in 2..64")
    if not symbols:
        raise SpmdirError("no size is declared; expected a declaration, as in s0 = 8 in 2..64")
    return Sizes(tuple(symbols), tuple(conditions))
