"""The attributes and types of the IR: xDSL wrappers of the frozen values of `core`."""

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
from spmdir.core.errors import SpmdirError, shown
from spmdir.core.limits import check_shape
from spmdir.core.placement.call import Literal, Structure
from spmdir.core.placement.literals import LiteralError, parse_arguments, print_arguments
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.tensor import SizedMeta, TensorMeta
from spmdir.core.symbolic.expressions import Size
from spmdir.dialects.bracketed_text import take_balanced
from spmdir.dialects.parser_declarations import declared_mesh
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
    """Return the IR type of a tensor; `none` for a result that the op does not return."""
    if meta is None:
        return NoneType()
    sizes = DimsAttr(meta.sizes) if isinstance(meta, SizedMeta) else NoneAttr()
    return TensorType(_ELEMENT_TYPES[meta.dtype], meta.shape, sizes)


@irdl_attr_definition
class HostType(ParametrizedAttribute, TypeAttribute):
    """`!spmd.host<tensor<4x8xf32>>`: a tensor in host memory; `spmd.reload` copies it back."""

    name = "spmd.host"
    tensor: TensorType


@irdl_attr_definition
class PendingType(ParametrizedAttribute, TypeAttribute):
    """`!spmd.pending<tensor<4x8xf32>>`: the result of a started collective or copy; `spmd.wait` returns its tensor."""

    name = "spmd.pending"
    tensor: TensorType | HostType


def host_type(type_: Attribute) -> HostType:
    """Return the type of a copy in host memory of a tensor of type `type_`."""
    assert isinstance(type_, TensorType)
    return HostType(type_)


def pending(type_: Attribute) -> PendingType:
    """Return the pending type from which `spmd.wait` returns a value of type `type_`."""
    assert isinstance(type_, (TensorType, HostType))
    return PendingType(type_)


@lru_cache(maxsize=65536)
def pending_type(meta: TensorMeta) -> PendingType:
    """Return the pending type of a tensor."""
    return pending(type_of(meta))


def retyped(type_: Attribute, meta: TensorMeta) -> Attribute:
    """Return the type of another tensor, with the same `pending` and `host` wrappers as `type_`."""
    if isinstance(type_, PendingType):
        return pending(retyped(type_.tensor, meta))
    return host_type(type_of(meta)) if isinstance(type_, HostType) else type_of(meta)


_METAS: dict[int, tuple[TensorMeta | None, weakref.ref[Attribute]]] = {}
"""Id of a live type → result of `meta_of`. Ids are used as keys because hashing a type is slow."""


def meta_of(type_: Attribute) -> TensorMeta | None:
    """Return shape and element type of a tensor type, also inside `pending` and `host`; symbolic sizes as examples.

    Returns None for a type that is not a tensor of a known element type. Otherwise it is the inverse of `type_of`.
    """
    cached = _METAS.get(id(type_))
    if cached is None:
        key = id(type_)
        # The callback removes the entry of a deleted type, because a new object may get the same id.
        cached = _METAS[key] = _read_type(type_), weakref.ref(type_, lambda _: _METAS.pop(key, None))
    return cached[0]


def _read_type(type_: Attribute) -> TensorMeta | None:
    """Compute the result of `meta_of`, which stores it."""
    if isinstance(type_, (PendingType, HostType)):
        return meta_of(type_.tensor)
    if not isinstance(type_, TensorType) or type_.element_type not in _DTYPES:
        return None
    if not isinstance(type_.encoding, (NoneAttr, DimsAttr)):
        return None
    check_shape(type_.get_shape())
    return TensorMeta(tuple(type_.get_shape()), _DTYPES[type_.element_type])


Of = tuple[Any, ...]
"""The attribute `of`: the global sizes of a value, followed by its element type if the local one differs."""


def of_type(meta: TensorMeta, local: TensorMeta) -> Of:
    """Return the attribute `of` for a tensor of global type `meta` with local type `local`."""
    return meta.shape if meta.dtype == local.dtype else (*meta.shape, meta.dtype)


def global_meta(of: Of | None, local: TensorMeta) -> TensorMeta:
    """Return the global type from the attribute `of`: the inverse of `of_type`. Without `of`, it is the local type."""
    if of is None:
        return local
    has_dtype = bool(of) and isinstance(of[-1], DType)
    return TensorMeta(of[:-1], of[-1]) if has_dtype else TensorMeta(of, local.dtype)


def sizes_of(type_: Attribute) -> tuple[int | Size, ...]:
    """Return the sizes of a tensor type, also inside `pending` and `host`; symbolic sizes as expressions."""
    while isinstance(type_, (PendingType, HostType)):
        type_ = type_.tensor
    assert isinstance(type_, TensorType)
    return type_.encoding.data if isinstance(type_.encoding, DimsAttr) else type_.get_shape()


def is_sized(type_: Attribute) -> bool:
    """Return whether a type is a tensor type with symbolic sizes."""
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


def _read_shardings(parser: AttrParser, split: Callable[[str], Sequence[str | None]]) -> tuple[Sharding | None, ...]:
    """Parse `<@mesh, …>`. Sub-axes are merged if the text has declared the mesh before.

    Args:
        split: splits the text after the mesh into the texts of shardings. None is a sharding that is not decided.
    """
    text, start = take_balanced(parser)
    mesh_text, _, entries = text[1:-1].partition(",")
    if _MESH.fullmatch(mesh_text.strip()) is None:
        parser.raise_error(f"found '{mesh_text.strip()}', expected the mesh, as in <@mesh, dp: S(0)>", start, start + 1)
    name, mesh = mesh_text.strip()[1:], declared_mesh(parser)
    try:
        shardings = [None if entry is None else parse_sharding(entry, name) for entry in split(entries)]
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
    """`#spmd.shardings<@mesh, <dp: S(0)>, none>`: one sharding per value, `none` if it is not decided."""

    name = "spmd.shardings"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Sharding | None, ...]:
        def split(text: str) -> list[str | None]:
            return [None if entry == "none" else entry[1:-1] for entry in split_entries(text)]

        return _read_shardings(parser, split)

    def print_parameter(self, printer: Printer) -> None:
        mesh = next((sharding.mesh for sharding in self.data if sharding), "mesh")
        entries = ["none" if sharding is None else f"<{sharding}>" for sharding in self.data]
        printer.print_string(f"<{', '.join([f'@{mesh}', *entries])}>")


@irdl_attr_definition
class ArgumentsAttr(Data[tuple[tuple[str, Literal], ...]]):
    """`#spmd.arguments<{dim = 1}>`: the literal arguments of an op, sorted by name.

    Attributes are equal if their texts are. Python's 1, 1.0 and True are equal, but are different arguments.
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
            return as_structure(dict(parse_arguments(text[1:-1]))["slots"])
        except (LiteralError, KeyError, TypeError):
            parser.raise_error(f"found {shown(text)}, expected <{{slots = [1, [0, 1]]}}>", start, start + 1)

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{print_arguments([('slots', self.data)])}>")


@irdl_attr_definition
class ShapesAttr(Data[tuple[Of | None, ...]]):
    """`#spmd.shapes<{of = [[10, 4], none]}>`: global types of values, if their local types do not determine them."""

    name = "spmd.shapes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Of | None, ...]:
        text, start = take_balanced(parser)
        try:
            shapes: Any = dict(parse_arguments(text[1:-1]))["of"]
        except (LiteralError, KeyError):
            parser.raise_error(f"found {shown(text)}, expected <{{of = [[10, 4], none]}}>", start, start + 1)
        return shapes

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{print_arguments([('of', self.data)])}>")


def as_structure(value: Literal) -> Structure:
    """Return the structure for a literal such as `[1, [0, 1]]`.

    Raises:
        TypeError, ValueError: the literal is not a structure.
    """
    if not isinstance(value, tuple):
        raise TypeError
    return tuple(as_structure(entry) if isinstance(entry, tuple) else int(entry) for entry in value)  # type: ignore


@lru_cache(maxsize=65536)
def sharding_attr(sharding: Sharding) -> ShardingAttr:
    """Return the attribute of a sharding, one object for equal shardings."""
    return ShardingAttr(sharding)


@lru_cache(maxsize=65536)
def shardings_attr(shardings: tuple[Sharding | None, ...]) -> ShardingsAttr:
    """Return the attribute of several shardings, one object for equal ones."""
    return ShardingsAttr(shardings)
