"""Find the undecided program that explanations start from."""

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
from spmdir.dialects.machine_attribute import recorded_topology
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import ReshardOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.dialects.verifier import verify
from spmdir.pipeline.options import changed_options
from spmdir.pipeline.pipeline import Pipeline, Step, as_pipeline
from spmdir.pipeline.recorded_options import MACHINE, deciding_pass
from spmdir.pipeline.remaining_passes import inline_layers
from spmdir.transforms.user_annotations import open_decided


class KeepsSource(Protocol):
    """A result of `parallelize` or `rank_programs` that keeps the imported program."""

    @property
    def undecided(self) -> ModuleOp:
        """The imported program."""
        ...

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that partitioned it."""
        ...


PROGRAM = Kind(
    lambda value: MODULE.holds(value) or (hasattr(value, "undecided") and hasattr(value, "pipeline")),
    f"{MODULE.expected}, a result of parallelize, or an entry of report.rank_programs(model)",
)
"""The kind of argument that public functions take as the program to explain."""


def resolve_program(program: ModuleOp | KeepsSource, pipeline: Pipeline | str | None) -> tuple[ModuleOp, Pipeline]:
    """Return the program to explain and the pipeline that decides it.

    The pipeline is the given one, else that of `program`, else the standard one.
    """
    if isinstance(program, ModuleOp):
        return program, as_pipeline(pipeline)
    return program.undecided, program.pipeline if pipeline is None else as_pipeline(pipeline)


def undecided_copy(module: ModuleOp, pipeline: Pipeline) -> tuple[ModuleOp, Pipeline]:
    """Return an undecided copy of a program, and the pipeline that decides it.

    A decided program may keep its user annotations (`spmd.given`). All other values of the copy are open then, and the
    pipeline has the machine of the program.

    Raises:
        SpmdirError: the program is decided and keeps no user annotations, or a kept annotation is invalid.
    """
    copy = inline_layers(module).clone()
    function = ir.main_function(copy)
    if GIVEN not in function.attributes:
        _require_undecided(function)
        return copy, pipeline
    noted = [option for option in changed_options(deciding_pass(function, pipeline)) if option[0] in MACHINE]
    steps = tuple(_set_machine_options(step, noted if step.name == "propagate" else None) for step in pipeline.steps)
    open_decided(function)
    verify(copy)
    return copy, attrs.evolve(pipeline, steps=steps, topology=recorded_topology(function), costs=None)


def _set_machine_options(step: Step, machine_options: Sequence[tuple[str, str]] | None) -> Step:
    """Return a step with the machine options of the program instead of those of the pipeline.

    Args:
        machine_options: the options of propagate that differ from the defaults; None if the step is another pass, which
            takes the machine of the pipeline.
    """
    dropped = ("topology", "costs") if machine_options is None else MACHINE
    options = (option for option in step.options if option[0] not in dropped)
    return Step(step.name, (*options, *(machine_options or ())))


def shardings_by_name(module: ModuleOp) -> dict[str, Sharding | None]:
    """Return name → sharding of each argument and result of an op."""
    function = ir.main_function(module)
    results = (value for op in function.body.block.ops if isinstance(op, ValueOp) for value in op.results)
    return {text_name(value): sharding_of(value) for value in (*function.args, *results)}


def _require_undecided(function: FuncOp) -> None:
    """Raise if the ops of a function show that it was decided already."""
    for op in function.body.block.ops:
        if isinstance(op, (ReshardOp, Collective)) or (isinstance(op, ValueOp) and op.needs is not None):
            raise UnsupportedError(
                f"'{op.name}': the program is decided and does not contain the user annotations; expected a program "
                "before propagate, or one decided by 'propagate{origins=true}'",
                location_of(op),
            )
