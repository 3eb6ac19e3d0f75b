"""The op of a pipelined step: which function each stage runs, and one global order of actions and messages."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import StringAttr, SymbolNameConstraint
from xdsl.ir import Data
from xdsl.irdl import IRDLOperation, irdl_attr_definition, irdl_op_definition, prop_def, traits_def
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import SymbolOpInterface

from spmdir.core.errors import Location
from spmdir.dialects.locations import location_of
from spmdir.pipelined.step import PipelinedStep, StepTextError, parse_step, print_step


class EntryPlaces:
    """The locations of the parts of a step in its text. All are equal, so they do not affect equality of attributes."""

    def __init__(self, entries: tuple[Location, ...] = (), stages: tuple[Location, ...] = ()):
        self.entries, self.stages = entries, stages

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntryPlaces)

    def __hash__(self) -> int:
        return 0


@irdl_attr_definition
class StepAttr(Data[tuple[PipelinedStep, EntryPlaces]]):
    """`#spmd.step<"over pp = 2 micro 4 { … }">`: a pipelined step."""

    name = "spmd.step"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[PipelinedStep, EntryPlaces]:
        with parser.in_angle_brackets():
            start, text = parser.pos, parser.parse_str_literal()
        try:
            return parse_step(text).step, EntryPlaces()
        except StepTextError as error:
            parser.raise_error(error.message, start, start + 1)

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(print_step(self.data[0]))


@irdl_op_definition
class PipelineOp(IRDLOperation):
    """`spmd.pipeline @step over pp = 2 micro 4 { … }`: a training step on the coordinates of a pipeline axis."""

    name = "spmd.pipeline"
    sym_name = prop_def(SymbolNameConstraint())
    declared = prop_def(StepAttr, prop_name="step")
    traits = traits_def(SymbolOpInterface())

    @classmethod
    def build(cls, step: PipelinedStep, name: str = "step", places: EntryPlaces | None = None) -> PipelineOp:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the op of a step."""
        return cls.create(properties={"sym_name": StringAttr(name), "step": StepAttr((step, places or EntryPlaces()))})

    @property
    def step(self) -> PipelinedStep:
        """Return the step."""
        return self.declared.data[0]

    def set_step(self, step: PipelinedStep) -> None:
        """Replace the step."""
        self.properties["step"] = StepAttr((step, EntryPlaces()))

    def entry_location(self, position: int | None) -> Location | None:
        """Return the location of an entry of the order; that of the op if it is unknown."""
        entries = self.declared.data[1].entries
        return entries[position] if position is not None and position < len(entries) else location_of(self)

    def stage_location(self, stage: int) -> Location | None:
        """Return the location of the line of a stage; that of the op if it is unknown."""
        stages = self.declared.data[1].stages
        return stages[stage] if stage < len(stages) else location_of(self)

    @classmethod
    def parse(cls, parser: Parser) -> PipelineOp:
        """Parse the op after its name: the name of the step, then its stages and entries with their locations."""
        name = parser.parse_symbol_name().data
        text, start = parser.lexer.input.content, parser.pos
        try:
            parsed = parse_step(text, start)
        except StepTextError as error:
            parser.raise_error(error.message, error.offset, error.offset + 1)
        parser._resume_from(parsed.end)  # pyright: ignore[reportPrivateUsage]
        place = getattr(parser, "place", None)
        if place is None:  # a parser of xDSL, which does not know lines
            return cls.build(parsed.step, name)
        file = parser.lexer.input.name
        entries, stages = (
            tuple(Location(file, *place(offset)) for offset in offsets) for offsets in (parsed.entries, parsed.stages)
        )
        return cls.build(parsed.step, name, EntryPlaces(entries, stages))

    def print(self, printer: Printer) -> None:
        printer.print_string(f" @{self.sym_name.data} {print_step(self.step)}")


def pipeline_op(module: Any) -> PipelineOp | None:
    """Return the op of the pipelined step of a module; None if the module has none."""
    return next((op for op in module.body.block.ops if isinstance(op, PipelineOp)), None)
