"""The op that declares the device mesh of a module, and its attribute."""

from __future__ import annotations

import re

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint
from xdsl.ir import Data
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, prop_def, traits_def
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface
from xdsl.utils.exceptions import VerifyException

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.dialects.bracketed_text import take_balanced
from spmdir.dialects.op_lookup import load_named_ops
from spmdir.dialects.parser_declarations import declare_mesh

AXIS_SIZE = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*([0-9]{1,18})\s*")
_ATTRIBUTE = re.compile(r"<\s*@([^,<>]*),?([^\[\]]*?)(?:,\s*intra\s*\[([^\[\]]*)\]\s*)?>")


@irdl_attr_definition
class MeshAttr(Data[Mesh]):
    """`#spmd.mesh<@mesh, dp = 2, tp = 4, intra [tp]>`: a device mesh, outermost axis first."""

    name = "spmd.mesh"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Mesh:
        text, start = take_balanced(parser)
        match = _ATTRIBUTE.fullmatch(text)
        if match is None:
            parser.raise_error(f"found '{text}', expected a mesh, as in <@mesh, dp = 2>", start, start + len(text))
        intra = None if match[3] is None else tuple(axis.strip() for axis in match[3].split(","))
        return _read_mesh(parser, match[1], match[2], intra, start, start + len(text))

    def print_parameter(self, printer: Printer) -> None:
        mesh = self.data
        intra = [] if mesh.intra_node is None else [f"intra [{', '.join(mesh.intra_node)}]"]
        printer.print_string(
            f"<{', '.join([f'@{mesh.name}', *(f'{axis} = {size}' for axis, size in mesh.axes), *intra])}>"
        )


@irdl_op_definition
class MeshOp(IRDLOperation):
    """`spmd.mesh @mesh <dp = 2, tp = 4> intra [tp]`: the device mesh of the module, outermost axis first.

    `intra` lists the axes inside one node; by default all axes are.
    """

    name = "spmd.mesh"
    sym_name = prop_def(SymbolNameConstraint())
    declared = prop_def(MeshAttr, prop_name="mesh")
    traits = traits_def(SymbolOpInterface())

    @classmethod
    def build(cls, mesh: Mesh) -> MeshOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the op that declares `mesh`."""
        return cls.create(properties={"sym_name": StringAttr(mesh.name), "mesh": MeshAttr(mesh)})

    @property
    def mesh(self) -> Mesh:
        """Return the declared mesh."""
        return self.declared.data

    def verify_(self) -> None:
        if self.sym_name.data != self.mesh.name:
            raise VerifyException(
                f"declares mesh @{self.mesh.name} under the symbol @{self.sym_name.data}; expected one name: rename one"
            )

    @classmethod
    def parse(cls, parser: Parser) -> MeshOp:
        """Parse the op after its name, and declare the mesh for the ops that follow."""
        name = parser.parse_symbol_name().data
        text, start = take_balanced(parser)
        end = start + len(text)
        intra = None
        if parser.parse_optional_keyword("intra"):
            intra = tuple(parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_identifier))
        return cls.build(_read_mesh(parser, name, text[1:-1], intra, start, end))

    def print(self, printer: Printer) -> None:
        printer.print_string(f" @{self.sym_name.data} {self.mesh}")
        if self.mesh.intra_node is not None:
            printer.print_string(f" intra [{', '.join(self.mesh.intra_node)}]")


def _read_mesh(parser: AttrParser, name: str, axes: str, intra: tuple[str, ...] | None, start: int, end: int) -> Mesh:
    """Parse the axes `dp = 2, tp = 4` of a mesh and declare the mesh; errors have the span `start` to `end`."""
    sizes = []
    for part in filter(str.strip, axes.split(",")):
        match = AXIS_SIZE.fullmatch(part)
        if match is None:
            parser.raise_error(f"found '{part.strip()}', expected an axis: `name = size`", start, end)
        sizes.append((match[1], int(match[2])))
    try:
        mesh = Mesh(tuple(sizes), name, intra)
    except SpmdirError as error:
        parser.raise_error(error.message, start, end)
    declare_mesh(parser, mesh)
    load_named_ops(parser)  # the mesh is declared first, so no op that it loads has been read yet
    return mesh
