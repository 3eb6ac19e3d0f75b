"""The program that is asked about, as it was before it was decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.arguments import Kind
from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.collectives import Collective
from spmdir.dialects.function_checks import GIVEN
from spmdir.dialects.locations import location_of
from spmdir.dialects.machine_attribute import written_topology
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import ReshardOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.dialects.verifier import verify
from spmdir.pipeline.finish import inline_layers
from spmdir.pipeline.noted_options import MACHINE, deciding_pass
from spmdir.pipeline.options import changed_options
from spmdir.pipeline.pipeline import Pipeline, Step, as_pipeline
from spmdir.transforms.given import open_decided


class KeepsSource(Protocol):
    """What `parallelize`, `shard_module` and `rank_programs` made of a program."""

    @property
    def undecided(self) -> ModuleOp:
        """The program as it was imported."""
        ...

    @property
    def pipeline(self) -> Pipeline:
        """What was run on it."""
        ...


PROGRAM = Kind(
    lambda value: MODULE.holds(value) or (hasattr(value, "undecided") and hasattr(value, "pipeline")),
    f"{MODULE.expected}, what parallelize returned, or an entry of report.rank_programs(model)",
)
"""What an argument of a public function may be that is decided again."""


def asked_about(program: ModuleOp | KeepsSource, pipeline: Pipeline | str | None) -> tuple[ModuleOp, Pipeline]:
    """Return a program as it is before propagate, and what decides it: what is given, or else what decided it."""
    if isinstance(program, ModuleOp):
        return program, as_pipeline(pipeline)
    return program.undecided, program.pipeline if pipeline is None else as_pipeline(pipeline)


def opened(module: ModuleOp, pipeline: Pipeline) -> tuple[ModuleOp, Pipeline]:
    """Return a copy of a program as it is before propagate, and what decides it.

    Of one that was decided, and keeps what was annotated, that is what the user annotated, and the machine that it was
    decided for.

    Raises:
        SpmdirError: it was decided, and does not keep what was annotated; or what it keeps is not there.
    """
    copy = inline_layers(module).clone()
    function = ir.main_function(copy)
    if GIVEN not in function.attributes:
        _reject_decided(function)
        return copy, pipeline
    noted = [option for option in changed_options(deciding_pass(function, pipeline)) if option[0] in MACHINE]
    steps = tuple(_on_noted_machine(step, noted if step.name == "propagate" else None) for step in pipeline.steps)
    open_decided(function)
    verify(copy)
    return copy, attrs.evolve(pipeline, steps=steps, topology=written_topology(function), costs=None)


def _on_noted_machine(step: Step, noted: Sequence[tuple[str, str]] | None) -> Step:
    """Return a step without a machine of its own, since the pipeline may be for another than the program.

    Args:
        noted: the options of propagate that differ from the default machine; None of another pass.
    """
    dropped = ("topology", "costs") if noted is None else MACHINE
    kept = (option for option in step.options if option[0] not in dropped)
    return Step(step.name, (*kept, *(noted or ())))


def shardings_of_all(module: ModuleOp) -> dict[str, Sharding | None]:
    """Return the name of each value → its sharding."""
    function = ir.main_function(module)
    results = (value for op in function.body.block.ops if isinstance(op, ValueOp) for value in op.results)
    return {text_name(value): sharding_of(value) for value in (*function.args, *results)}


def _reject_decided(function: FuncOp) -> None:
    """Raise unless a function is as the user annotated it, as far as can be told."""
    for op in function.body.block.ops:
        if isinstance(op, (ReshardOp, Collective)) or (isinstance(op, ValueOp) and op.needs is not None):
            raise UnsupportedError(
                f"'{op.name}': the program is decided, and does not say what was annotated; expected the text before "
                "propagate, or the one that 'propagate{origins=true}' gives",
                location_of(op),
            )
