"""The attributes of the IR: plain frozen values wrapped for xDSL, and the tensor types."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    ComplexType,
    Float8E4M3FNType,
    Float8E5M2Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    NoneAttr,
    NoneType,
    Signedness,
    TensorType,
)
from xdsl.ir import Attribute, Data
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from spmdir.call import Literal, Structure, TensorMeta
from spmdir.dialects.literals import LiteralError, parse_arguments, print_arguments
from spmdir.errors import SpmdirError
from spmdir.sharding import Sharding, parse_sharding

ELEMENT_TYPES: dict[str, Attribute] = {
    "f64": Float64Type(),
    "f32": Float32Type(),
    "f16": Float16Type(),
    "bf16": BFloat16Type(),
    "f8E4M3FN": Float8E4M3FNType(),
    "f8E5M2": Float8E5M2Type(),
    "i64": IntegerType(64),
    "i32": IntegerType(32),
    "i16": IntegerType(16),
    "i8": IntegerType(8),
    "ui8": IntegerType(8, Signedness.UNSIGNED),
    "i1": IntegerType(1),
    "complex<f32>": ComplexType(Float32Type()),
    "complex<f64>": ComplexType(Float64Type()),
}
"""Element type name → xDSL type."""

_ELEMENT_NAMES = {element: name for name, element in ELEMENT_TYPES.items()}
DYNAMIC = DYNAMIC_INDEX
"""The size of a dimension that differs between ranks, printed `?`; only after localize."""


@lru_cache(maxsize=65536)
def type_of(meta: TensorMeta | None) -> Attribute:
    """The IR type of a tensor; `none` for a missing result."""
    return NoneType() if meta is None else TensorType(ELEMENT_TYPES[meta.dtype], meta.shape)


def meta_of(type_: Attribute) -> TensorMeta | None:
    """The inverse of `type_of`; None for anything that is no tensor of a known element type."""
    known = type_.__dict__
    if "_meta" not in known:
        # Kept in the object, which is frozen: to look it up by value would hash the whole type each time.
        object.__setattr__(type_, "_meta", _read_type(type_))
    return known["_meta"]


def _read_type(type_: Attribute) -> TensorMeta | None:
    if not isinstance(type_, TensorType) or type_.element_type not in _ELEMENT_NAMES or type_.encoding != NoneAttr():
        return None
    return TensorMeta(tuple(type_.get_shape()), _ELEMENT_NAMES[type_.element_type])


@lru_cache(maxsize=65536)
def print_type(type_: Attribute) -> str:
    """The text of a type."""
    meta = meta_of(type_)
    if meta is None:
        return str(type_)
    return "tensor<" + "".join("?x" if size == DYNAMIC else f"{size}x" for size in meta.shape) + f"{meta.dtype}>"


def scan_balanced(text: str, start: int) -> int:
    """The end of the bracketed text that opens at `start`, strings skipped; -1 if it never closes."""
    pairs, stack, position = {"<": ">", "{": "}", "(": ")", "[": "]"}, [], start
    while position < len(text):
        character = text[position]
        if character == '"':
            position += 1
            while position < len(text) and text[position] != '"':
                position += 2 if text[position] == "\\" else 1
        elif character in pairs:
            stack.append(pairs[character])
        elif stack and character == stack[-1]:
            stack.pop()
            if not stack:
                return position + 1
        position += 1
    return -1


def take_balanced(parser: AttrParser) -> tuple[str, int]:
    """Consume the bracketed text at the parser's current token; its text and position."""
    start = parser.pos
    end = scan_balanced(parser.lexer.input.content, start)
    if end < 0:
        parser.raise_error("bracket is never closed")
    parser._resume_from(end)  # pyright: ignore[reportPrivateUsage]
    return parser.lexer.input.content[start:end], start


def _split_entries(text: str) -> list[str]:
    """Top-level parts of `a, <b, c>, d`."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "<(") - (character in ">)")
        if character == "," and not depth:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _mesh_and_rest(parser: AttrParser) -> tuple[str, str, int]:
    text, start = take_balanced(parser)
    head, _, rest = text[1:-1].partition(",")
    if not head.strip().startswith("@"):
        parser.raise_error(f"found '{head.strip()}', expected the mesh, as in <@mesh, dp: S(0)>", start, start + 1)
    return head.strip()[1:], rest, start


@irdl_attr_definition
class ShardingAttr(Data[Sharding]):
    """`#spmd.sharding<@mesh, dp: S(0), tp: P(sum)>`: the sharding of one tensor."""

    name = "spmd.sharding"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Sharding:
        mesh, rest, start = _mesh_and_rest(parser)
        try:
            return parse_sharding(rest, mesh)
        except SpmdirError as error:
            parser.raise_error(error.message, start, start + 1)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<@{self.data.mesh}{', ' if self.data.entries else ''}{self.data}>")


@irdl_attr_definition
class ShardingsAttr(Data[tuple[Sharding | None, ...]]):
    """`#spmd.shardings<@mesh, <dp: S(0)>, none>`: one sharding a value, `none` where undecided."""

    name = "spmd.shardings"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Sharding | None, ...]:
        mesh, rest, start = _mesh_and_rest(parser)
        try:
            return tuple(None if e == "none" else parse_sharding(e[1:-1], mesh) for e in _split_entries(rest))
        except SpmdirError as error:
            parser.raise_error(error.message, start, start + 1)

    def print_parameter(self, printer: Printer) -> None:
        mesh = next((sharding.mesh for sharding in self.data if sharding), "mesh")
        entries = ["none" if sharding is None else f"<{sharding}>" for sharding in self.data]
        printer.print_string(f"<{', '.join([f'@{mesh}', *entries])}>")


@irdl_attr_definition
class ArgumentsAttr(Data[tuple[tuple[str, Literal], ...]]):
    """`#spmd.arguments<{dim = 1}>`: the literal arguments of an op, sorted by name.

    Equal are those of one text: in Python 1, 1.0 and True are equal, and whatever is memoised would mix them up.
    """

    name = "spmd.arguments"

    @cached_property
    def text(self) -> str:
        """The canonical text."""
        return print_arguments(self.data)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ArgumentsAttr) and self.text == other.text)

    def __hash__(self) -> int:
        return hash(self.text)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[str, Literal], ...]:
        text, start = take_balanced(parser)
        try:
            return parse_arguments(text[1:-1])
        except LiteralError as error:
            parser.raise_error(str(error), start + 1 + error.offset, start + 2 + error.offset)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.text}>")


@irdl_attr_definition
class StructureAttr(Data[Structure]):
    """`#spmd.structure<{slots = [1, [0, 1]]}>`: how operands fill tensor arguments (see `call.Structure`)."""

    name = "spmd.structure"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Structure:
        text, start = take_balanced(parser)
        try:
            return _as_structure(dict(parse_arguments(text[1:-1]))["slots"])
        except (LiteralError, KeyError, TypeError):
            parser.raise_error("expected <{slots = [1, [0, 1]]}>", start, start + 1)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{print_arguments([('slots', self.data)])}>")


@irdl_attr_definition
class ShapesAttr(Data[tuple[tuple[int, ...] | None, ...]]):
    """`#spmd.shapes<{of = [[10, 4], none]}>`: global shapes of localized values whose pieces differ between ranks."""

    name = "spmd.shapes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[tuple[int, ...] | None, ...]:
        text, start = take_balanced(parser)
        try:
            shapes: Any = dict(parse_arguments(text[1:-1]))["of"]
        except (LiteralError, KeyError):
            parser.raise_error("expected <{of = [[10, 4], none]}>", start, start + 1)
        return shapes

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{print_arguments([('of', self.data)])}>")


def _as_structure(value: Literal) -> Structure:
    if not isinstance(value, tuple):
        raise TypeError
    return tuple(_as_structure(v) if isinstance(v, tuple) else int(v) for v in value)  # type: ignore


@lru_cache(maxsize=65536)
def sharding_attr(sharding: Sharding) -> ShardingAttr:
    """The attribute of a sharding, one object for equal shardings."""
    return ShardingAttr(sharding)


@lru_cache(maxsize=65536)
def shardings_attr(shardings: tuple[Sharding | None, ...]) -> ShardingsAttr:
    """The attribute of several shardings, one object for equal ones."""
    return ShardingsAttr(shardings)
