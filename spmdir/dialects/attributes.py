"""The attributes of the IR: plain frozen values wrapped for xDSL, and the tensor types."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
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
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from spmdir.core import dtype as dt
from spmdir.core.brackets import split_entries
from spmdir.core.dtype import DType
from spmdir.core.errors import SpmdirError
from spmdir.core.limits import check_shape
from spmdir.core.placement.call import Literal, Structure
from spmdir.core.placement.literals import LiteralError, parse_arguments, print_arguments
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.tensor import SizedMeta, TensorMeta
from spmdir.core.symbolic.expressions import Size
from spmdir.dialects.bracketed import take_balanced
from spmdir.dialects.declared import declared_mesh
from spmdir.dialects.size_types import DimsAttr, dims_text

_ELEMENT_TYPES: dict[DType, Attribute] = {
    dt.F64: Float64Type(),
    dt.F32: Float32Type(),
    dt.F16: Float16Type(),
    dt.BF16: BFloat16Type(),
    dt.F8E4M3FN: Float8E4M3FNType(),
    dt.F8E5M2: Float8E5M2Type(),
    dt.I64: IntegerType(64),
    dt.I32: IntegerType(32),
    dt.I16: IntegerType(16),
    dt.I8: IntegerType(8),
    dt.UI8: IntegerType(8, Signedness.UNSIGNED),
    dt.I1: IntegerType(1),
    dt.COMPLEX_F32: ComplexType(Float32Type()),
    dt.COMPLEX_F64: ComplexType(Float64Type()),
}
"""Element type → xDSL type."""

_DTYPES = {element: dtype for dtype, element in _ELEMENT_TYPES.items()}
DYNAMIC = DYNAMIC_INDEX
"""The size of a dimension that differs between ranks, printed `?`; only after localize."""


@lru_cache(maxsize=65536)
def type_of(meta: TensorMeta | None) -> Attribute:
    """Return the IR type of a tensor; `none` for a missing result."""
    if meta is None:
        return NoneType()
    sizes = DimsAttr(meta.sizes) if isinstance(meta, SizedMeta) else NoneAttr()
    return TensorType(_ELEMENT_TYPES[meta.dtype], meta.shape, sizes)


@irdl_attr_definition
class HostType(ParametrizedAttribute, TypeAttribute):
    """`!spmd.host<tensor<4x8xf32>>`: a tensor in the memory of the host, which `spmd.reload` brings back."""

    name = "spmd.host"
    tensor: TensorType


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """`!spmd.pending<tensor<4x8xf32>>`: what a collective or a copy has started to make; `spmd.wait` gives it."""

    name = "spmd.pending"
    tensor: TensorType | HostType


def host_type(type_: Attribute) -> HostType:
    """Return the type of a tensor of type `type_` in the memory of the host."""
    assert isinstance(type_, TensorType)
    return HostType(type_)


def pending(type_: Attribute) -> PendingType:
    """Return the type of what has been started to be made, and will be of type `type_`."""
    assert isinstance(type_, (TensorType, HostType))
    return PendingType(type_)


@lru_cache(maxsize=65536)
def pending_type(meta: TensorMeta) -> PendingType:
    """Return the IR type of a tensor that a collective has started to make."""
    return pending(type_of(meta))


def retyped(type_: Attribute, meta: TensorMeta) -> Attribute:
    """Return the type of another tensor, pending or in the memory of the host if `type_` is."""
    if isinstance(type_, PendingType):
        return pending(retyped(type_.tensor, meta))
    return host_type(type_of(meta)) if isinstance(type_, HostType) else type_of(meta)


_METAS: dict[int, tuple[TensorMeta | None, weakref.ref[Attribute]]] = {}
"""Identity of a type → what `meta_of` returns, as long as the type is alive: a key by value would hash all of it."""


def meta_of(type_: Attribute) -> TensorMeta | None:
    """Return the inverse of `type_of`, with example sizes, of a pending tensor and one on the host too; None for
    anything that is not a tensor of a known element type."""
    known = _METAS.get(id(type_))
    if known is None:
        key = id(type_)
        known = _METAS[key] = _read_type(type_), weakref.ref(type_, lambda _: _METAS.pop(key, None))
    return known[0]


def _read_type(type_: Attribute) -> TensorMeta | None:
    if isinstance(type_, (PendingType, HostType)):
        return meta_of(type_.tensor)
    if not isinstance(type_, TensorType) or type_.element_type not in _DTYPES:
        return None
    if not isinstance(type_.encoding, (NoneAttr, DimsAttr)):
        return None
    check_shape(type_.get_shape())
    return TensorMeta(tuple(type_.get_shape()), _DTYPES[type_.element_type])


Of = tuple[Any, ...]
"""The global type of a value, where that of a rank does not tell it: sizes, then an element type if that is another."""


def of_type(meta: TensorMeta, local: TensorMeta) -> Of:
    """Return what `of` says of a tensor of type `meta` of which a rank holds `local`."""
    return meta.shape if meta.dtype == local.dtype else (*meta.shape, meta.dtype)


def global_meta(of: Of | None, local: TensorMeta) -> TensorMeta:
    """Return the inverse of `of_type`; None stands for the type of a rank."""
    if of is None:
        return local
    return TensorMeta(of[:-1], of[-1]) if of and isinstance(of[-1], DType) else TensorMeta(of, local.dtype)


def sizes_of(type_: Attribute) -> tuple[int | Size, ...]:
    """Return the sizes of a tensor type, pending or on the host too, symbolic ones as they are written."""
    while isinstance(type_, (PendingType, HostType)):
        type_ = type_.tensor
    assert isinstance(type_, TensorType)
    return type_.encoding.data if isinstance(type_.encoding, DimsAttr) else type_.get_shape()


def is_sized(type_: Attribute) -> bool:
    """Return whether a type is that of a tensor with symbolic sizes."""
    return isinstance(type_, TensorType) and isinstance(type_.encoding, DimsAttr)


@lru_cache(maxsize=65536)
def print_type(type_: Attribute) -> str:
    """Return the text of a type."""
    if isinstance(type_, (PendingType, HostType)):
        return f"!{type_.name}<{print_type(type_.tensor)}>"
    meta = meta_of(type_)
    if meta is None:
        return str(type_)
    sizes = ("?" if size == DYNAMIC else dims_text(size) for size in sizes_of(type_))
    return "tensor<" + "".join(f"{size}x" for size in sizes) + f"{meta.dtype}>"


_MESH = re.compile(r"@[^\s:<>]+")


def _read_shardings(parser: AttrParser, read: Callable[[str], Sequence[str | None]]) -> tuple[Sharding | None, ...]:
    """Consume `<@mesh, …>` and return the shardings whose texts `read` finds behind the mesh."""
    text, start = take_balanced(parser)
    head, _, rest = text[1:-1].partition(",")
    if _MESH.fullmatch(head.strip()) is None:
        parser.raise_error(f"found '{head.strip()}', expected the mesh, as in <@mesh, dp: S(0)>", start, start + 1)
    name, mesh = head.strip()[1:], declared_mesh(parser)
    try:
        shardings = [None if entry is None else parse_sharding(entry, name) for entry in read(rest)]
    except SpmdirError as error:
        parser.raise_error(error.message, start, start + 1)
    if mesh is None or mesh.name != name:
        return tuple(shardings)
    return tuple(sharding and sharding.merged(mesh) for sharding in shardings)


@irdl_attr_definition
class ShardingAttr(Data[Sharding]):
    """`#spmd.sharding<@mesh, dp: S(0), tp: P(sum)>`: the sharding of one tensor."""

    name = "spmd.sharding"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Sharding:
        (sharding,) = _read_shardings(parser, lambda text: [text])
        assert sharding is not None
        return sharding

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<@{self.data.mesh}{', ' if self.data.entries else ''}{self.data}>")


@irdl_attr_definition
class ShardingsAttr(Data[tuple[Sharding | None, ...]]):
    """`#spmd.shardings<@mesh, <dp: S(0)>, none>`: one sharding a value, `none` where undecided."""

    name = "spmd.shardings"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Sharding | None, ...]:
        return _read_shardings(parser, lambda text: [None if e == "none" else e[1:-1] for e in split_entries(text)])

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
        """Return the canonical text."""
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
class ShapesAttr(Data[tuple[Of | None, ...]]):
    """`#spmd.shapes<{of = [[10, 4], none]}>`: global types of values that those of a rank do not tell."""

    name = "spmd.shapes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Of | None, ...]:
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
    """Return the attribute of a sharding, one object for equal shardings."""
    return ShardingAttr(sharding)


@lru_cache(maxsize=65536)
def shardings_attr(shardings: tuple[Sharding | None, ...]) -> ShardingsAttr:
    """Return the attribute of several shardings, one object for equal ones."""
    return ShardingsAttr(shardings)
