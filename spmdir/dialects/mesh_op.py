"""The op that declares the device mesh of a module."""

from __future__ import annotations

import re
from functools import lru_cache

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr, SymbolNameConstraint, i64
from xdsl.irdl import IRDLOperation, irdl_op_definition, opt_prop_def, prop_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.dialects.named import load_named_ops
from spmdir.dialects.syntax.bracketed import take_balanced
from spmdir.dialects.syntax.declared import declare_mesh

_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,18})\s*")


@irdl_op_definition
class MeshOp(IRDLOperation):
    """`spmd.mesh @mesh <dp = 2, tp = 4> intra [tp]`: the device mesh of the module, outermost axis first.

    `intra` lists the axes whose ranks sit inside one node; all do if it is left out.
    """

    name = "spmd.mesh"
    sym_name = prop_def(SymbolNameConstraint())
    axis_names = prop_def(ArrayAttr[StringAttr])
    axis_sizes = prop_def(ArrayAttr[IntegerAttr])
    intra_node = opt_prop_def(ArrayAttr[StringAttr])
    traits = traits_def(SymbolOpInterface())

    @classmethod
    def of(cls, mesh: Mesh) -> MeshOp:
        """The op that declares `mesh`."""
        properties = {
            "sym_name": StringAttr(mesh.name),
            "axis_names": ArrayAttr([StringAttr(axis) for axis, _ in mesh.axes]),
            "axis_sizes": ArrayAttr([IntegerAttr(size, i64) for _, size in mesh.axes]),
        }
        if mesh.intra_node is not None:
            properties["intra_node"] = ArrayAttr([StringAttr(axis) for axis in mesh.intra_node])
        return cls.create(properties=properties)

    @property
    def mesh(self) -> Mesh:
        """The declared mesh."""
        names = [name.data for name in self.axis_names]
        sizes = [size.value.data for size in self.axis_sizes]
        intra = None if self.intra_node is None else tuple(name.data for name in self.intra_node)
        return _mesh(tuple(zip(names, sizes, strict=True)), self.sym_name.data, intra)

    def verify_(self) -> None:
        if len(self.axis_names) != len(self.axis_sizes):
            raise VerifyException(f"has {len(self.axis_names)} axis names for {len(self.axis_sizes)} sizes")
        try:
            _ = self.mesh
        except SpmdirError as error:
            raise VerifyException(error.message) from None

    @classmethod
    def parse(cls, parser: Parser) -> MeshOp:
        name = parser.parse_symbol_name().data
        text, start = take_balanced(parser)
        axes = []
        for part in filter(str.strip, text[1:-1].split(",")):
            match = _AXIS.fullmatch(part)
            if match is None:
                parser.raise_error(f"found '{part.strip()}', expected an axis: `name = size`", start, start + len(text))
            axes.append((match[1], int(match[2])))
        intra = None
        if parser.parse_optional_keyword("intra"):
            listed = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_identifier)
            intra = tuple(listed)
        try:
            mesh = Mesh(tuple(axes), name, intra)
        except SpmdirError as error:
            parser.raise_error(error.message, start, start + len(text))
        declare_mesh(parser, mesh)
        load_named_ops(parser)
        return cls.of(mesh)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" @{self.sym_name.data} {self.mesh}")
        if self.intra_node is not None:
            printer.print_string(f" intra [{', '.join(name.data for name in self.intra_node)}]")


@lru_cache
def _mesh(axes: tuple[tuple[str, int], ...], name: str, intra_node: tuple[str, ...] | None) -> Mesh:
    return Mesh(axes, name, intra_node)
