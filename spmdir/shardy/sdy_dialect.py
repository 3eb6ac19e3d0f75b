"""The ops and attributes of `sdy` and `stablehlo` that a translated program has.

sdy.mesh @mesh = <["dp"=2, "tp"=4]>
%0 = stablehlo.custom_call @aten.mm(%x, %w) {backend_config = ""} : (tensor<4x8xf32>, …) -> tensor<4x6xf32>
%1 = sdy.sharding_constraint %0 <@mesh, [{"dp"}, {?}]> : tensor<4x6xf32>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr, FunctionType, StringAttr
from xdsl.ir import Attribute, Data, Dialect, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.dialects.bracketed_text import take_balanced
from spmdir.shardy.tensor_sharding import TensorSharding, parse_tensor_sharding

_MESH = re.compile(r'<\s*\[((?:[\s,]*+"[^"\\]*"\s*=\s*[0-9]{1,18})*)\s*\]\s*(,\s*device_ids[^>]*)?>')
_MESH_AXIS = re.compile(r'"([^"\\]*)"\s*=\s*([0-9]+)')
_RULE = re.compile(r"<[^<>]*->[^<>]*>")


def _read(parser: AttrParser, text: str, start: int) -> TensorSharding:
    """Parse the text of a sharding, which begins at position `start`; raise errors of the parser."""
    try:
        return parse_tensor_sharding(text)
    except SpmdirError as error:
        parser.raise_error(error.message, start, start + len(text))


@irdl_attr_definition
class TensorShardingAttr(Data[TensorSharding]):
    """`#sdy.sharding<@mesh, [{"dp"}, {?}]>`: the sharding of one tensor."""

    name = "sdy.sharding"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TensorSharding:
        return _read(parser, *take_balanced(parser))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(str(self.data))


@irdl_attr_definition
class TensorShardingPerValueAttr(Data[tuple[TensorSharding, ...]]):
    """`#sdy.sharding_per_value<[<@mesh, [{"dp"}]>]>`: the shardings of the results of an op."""

    name = "sdy.sharding_per_value"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[TensorSharding, ...]:
        text, start = take_balanced(parser)
        entries = re.split(r">\s*,\s*(?=<)", text[1:-1].strip()[1:-1])
        return tuple(_read(parser, entry.strip().removesuffix(">") + ">", start) for entry in entries if entry.strip())

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<[{', '.join(map(str, self.data))}]>")


@irdl_attr_definition
class OpShardingRuleAttr(Data[str]):
    """`#sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=4, j=6, k=8} reduction={k}, custom>`, as text."""

    name = "sdy.op_sharding_rule"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        match = _RULE.match(parser.lexer.input.content, parser.pos)
        if match is None:
            parser.raise_error("expected a rule, as in <([i])->([i]) {i=8}>")
        parser._resume_from(match.end())  # pyright: ignore[reportPrivateUsage]
        return match[0]

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(self.data)


@irdl_op_definition
class SdyMeshOp(IRDLOperation):
    """`sdy.mesh @mesh = <["dp"=2, "tp"=4]>`: a device mesh, outermost axis first."""

    name = "sdy.mesh"
    sym_name = prop_def(StringAttr)
    axes = prop_def(StringAttr)
    traits = traits_def(SymbolOpInterface())

    @classmethod
    def build(cls, mesh: Mesh) -> SdyMeshOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the op that declares the axes of `mesh`."""
        text = ", ".join(f'"{axis}"={size}' for axis, size in mesh.axes)
        return cls.create(properties={"sym_name": StringAttr(mesh.name), "axes": StringAttr(f"<[{text}]>")})

    @classmethod
    def parse(cls, parser: Parser) -> SdyMeshOp:
        """Parse the op after its name. A mesh with `device_ids` is an error: spmdir numbers ranks row-major."""
        name = parser.parse_symbol_name()
        parser.parse_punctuation("=")
        text, start = take_balanced(parser)
        match = _MESH.fullmatch(text)
        if match is None:
            parser.raise_error(f"found '{text}'; expected axes, as in <[\"dp\"=2]>", start, start + len(text))
        if match[2]:
            message = "the mesh has device_ids; expected none, since spmdir numbers ranks row-major: remove them"
            parser.raise_error(message, start, start + len(text))
        attributes = parser.parse_optional_attr_dict()
        return cls.create(properties={"sym_name": name, "axes": StringAttr(text)}, attributes=attributes)

    def mesh(self, intra_node: tuple[str, ...] | None) -> Mesh:
        """Return the mesh, with the axes inside one node."""
        axes = tuple((axis, int(size)) for axis, size in _MESH_AXIS.findall(self.axes.data))
        return Mesh(axes, self.sym_name.data, intra_node)

    def print(self, printer: Printer) -> None:
        printer.print_string(f" @{self.sym_name.data} = {self.axes.data}")
        if self.attributes:
            printer.print_string(" ")
            printer.print_attr_dict(self.attributes)


class SdyLayoutOp(IRDLOperation):
    """Base class of the ops that return their operand in a sharding."""

    source = operand_def()
    output = result_def()
    sharding = prop_def(TensorShardingAttr)

    @classmethod
    def parse(cls, parser: Parser) -> SdyLayoutOp:
        """Parse the op after its name: the operand, its sharding, attributes if any, and the type."""
        operand = parser.parse_unresolved_operand()
        sharding = TensorShardingAttr(TensorShardingAttr.parse_parameter(parser))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        operands = [parser.resolve_operand(operand, type_)]
        properties = {"sharding": sharding}
        return cls.create(operands=operands, result_types=[type_], properties=properties, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        printer.print_string(f" {self.sharding.data} : ")
        printer.print_attribute(self.output.type)


@irdl_op_definition
class ShardingConstraintOp(SdyLayoutOp):
    """`sdy.sharding_constraint %x <@mesh, [{"dp"}, {?}]> : tensor<4x8xf32>`."""

    name = "sdy.sharding_constraint"


@irdl_op_definition
class SdyReshardOp(SdyLayoutOp):
    """`sdy.reshard %x <@mesh, [{"dp"}, {}]> : tensor<4x8xf32>`."""

    name = "sdy.reshard"


@irdl_op_definition
class CustomCallOp(IRDLOperation):
    """`stablehlo.custom_call @aten.mm(%x, %w) {…} : (…) -> tensor<4x6xf32>`: an op by its name."""

    name = "stablehlo.custom_call"
    inputs = var_operand_def()
    outputs = var_result_def()
    callee = prop_def(StringAttr)

    @classmethod
    def parse(cls, parser: Parser) -> CustomCallOp:
        """Parse the op after its name. The operands must be defined before."""
        callee = parser.parse_symbol_name()
        operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        start = parser.pos
        type_ = parser.parse_type()
        if not isinstance(type_, FunctionType):
            parser.raise_error(
                f"found {type_}; expected a function type, as in (tensor<4xf32>) -> tensor<4xf32>", start
            )
        values: Sequence[SSAValue] = parser.resolve_operands(operands, type_.inputs.data, start)
        properties: dict[str, Attribute] = {"callee": callee}
        return cls.create(
            operands=values, result_types=type_.outputs.data, properties=properties, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(f" @{self.callee.data}(")
        printer.print_list(self.inputs, printer.print_ssa_value)
        printer.print_string(") ")
        printer.print_attribute(DictionaryAttr(self.attributes))
        printer.print_string(" : ")
        printer.print_attribute(FunctionType.from_lists(self.operand_types, self.result_types))


Sdy = Dialect(
    "sdy",
    [SdyMeshOp, ShardingConstraintOp, SdyReshardOp],
    [TensorShardingAttr, TensorShardingPerValueAttr, OpShardingRuleAttr],
)
StableHLO = Dialect("stablehlo", [CustomCallOp])
