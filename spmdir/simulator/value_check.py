"""Compare every value of a simulated program with one device, to find the first op whose result differs.

The program is changed to return all its values, so that they are distributed and collected as results are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs
import torch
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, FunctionType, ModuleOp
from xdsl.ir import Operation, SSAValue

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of, sharding_attr
from spmdir.dialects.locations import location_of, places_of
from spmdir.dialects.names import text_name
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.pipeline.remaining_passes import add_reshard_passes, inline_calls, inline_layers, remaining_passes
from spmdir.simulator.distribution import local_tensor
from spmdir.simulator.output_error import relative_error, tolerance_of
from spmdir.simulator.simulate import run_single, simulate

_ADDING = re.compile(
    r"spmd\..*|aten\..*_backward.*|aten\.(r?sub|add|sum|mean|mm|bmm|addmm|baddbmm|einsum|cumsum|convolution)(\..*)?"
)
"""The ops that add operands, so that the rounding errors of large terms may remain in a small result."""

_ROUNDING = 100.0
"""How many times the rounding error of its operands a result may differ, if the operands cancel."""


@torch.no_grad()
def check_values(
    module: ModuleOp,
    inputs: Mapping[str, torch.Tensor],
    state_dict: Mapping[str, torch.Tensor],
    seed: int,
    pipeline: Pipeline,
    tolerance: float | None = None,
) -> tuple[int, int]:
    """Run a program on simulated ranks and on one device, and compare all values.

    Returns: how many values were compared, and how many were not, because a router places their rows.

    Args:
        module: a program before localize.
        inputs, state_dict, seed: as in `simulate`.
        pipeline: the pipeline whose remaining passes run.
        tolerance: the largest difference of an element, relative to the largest element of the value; by default by
            element type. If operands cancel, rounding errors of the operands are accepted too.

    Raises:
        UnsupportedError: the module is localized.
        SpmdirError: a value differs from that of one device. The error is about the first such value, and located.
    """
    module, values, skipped = returning_all_values(module, pipeline)
    outputs = simulate(module, inputs, state_dict, seed, pipeline=pipeline)
    references = run_single(module, inputs, state_dict, seed)
    mesh = ir.mesh(module)
    reference_of = dict(zip(values, references, strict=True))
    for value, output, reference in zip(values, outputs, references, strict=True):
        terms = [reference_of[operand] for operand in terms_of(value) if operand in reference_of]
        if output.dtype != reference.dtype:
            raise UnsupportedError(
                f"{text_name(value)} has type {output.dtype} on ranks and {reference.dtype} on one device, "
                "since the program of a rank has explicit element types; expected equal types: omit "
                "--dtype, or write the program for this type",
                location_of(value.owner) if isinstance(value.owner, Operation) else None,
            )
        difference = find_difference(output, reference, terms, tolerance)
        if difference is not None:
            ranks = _differing_ranks(output, reference, sharding_of(value), difference.limit, mesh)
            raise difference.error(value, f", first on rank {ranks[0]} of {len(ranks)} ranks" if ranks else "")
    return len(values), skipped


@attrs.frozen
class ValueDifference:
    """The relative error of a value, and the largest one that was expected; see `relative_error`."""

    size: float
    limit: float

    def error(self, value: SSAValue, ranks: str) -> SpmdirError:
        """Return the error about `value`; `ranks` is the text about the ranks that differ."""
        op = value.owner
        if not isinstance(op, ValueOp):
            return SpmdirError(
                f"argument {text_name(value)} differs from the value of one device by "
                f"{self.size:.1e}{ranks}; expected equal copies on all ranks: pass the same value on each"
            )
        paths = places_of(op.location).paths
        where = f" in {paths[0]}" if paths else ""
        return SpmdirError(
            f"{text_name(value)} = {op.name}{where} differs from one device by {self.size:.1e}{ranks}; "
            f"expected at most {self.limit:.0e}: its operands are right, so check the rule or the "
            "placements of this op",
            location_of(op),
        )


def find_difference(
    output: torch.Tensor, reference: torch.Tensor, terms: Sequence[torch.Tensor], tolerance: float | None = None
) -> ValueDifference | None:
    """Return the difference of a value from one device; None if it is as small as rounding errors.

    Args:
        terms: the operands on one device that its op adds. If they cancel, their rounding errors remain.
        tolerance: as in `check_values`.
    """
    limit = tolerance_of(reference) if tolerance is None else tolerance
    size = relative_error(output, reference)
    if not size > limit:  # NaN means that infinities and NaNs agree
        return None
    floats = [term[term.isfinite()] for term in terms if term.is_floating_point()]
    sizes = [term.abs().max().item() for term in floats if term.numel()]
    if sizes and output.shape == reference.shape and output.is_floating_point():
        rounding = _ROUNDING * torch.finfo(output.dtype).eps * max(sizes)
        if (output - reference).abs().max().item() <= rounding:
            return None
    return ValueDifference(size, limit)


def terms_of(value: SSAValue) -> Sequence[SSAValue]:
    """Return the operands of the op that computes a value, if it is an op of `_ADDING`."""
    op = value.owner
    return op.operands if isinstance(op, Operation) and _ADDING.fullmatch(op.name) else ()


def returning_all_values(module: ModuleOp, pipeline: Pipeline) -> tuple[ModuleOp, list[SSAValue], int]:
    """Return a copy of a program with collectives that returns each value that it computes, in program order.

    Args:
        module: a program before localize.
        pipeline: the pipeline whose remaining passes before localize run.

    Returns: the copy, its values, and the number of values that cannot be collected, because a router places their
    rows.

    Raises:
        UnsupportedError: the module is localized.
    """
    if is_local(ir.main_function(module)):
        raise UnsupportedError(
            "a localized program has no values of one device to compare with; expected global types: pass "
            "the program before localize"
        )
    module = inline_calls(inline_layers(module))
    steps = remaining_passes(add_reshard_passes(pipeline), ir.main_function(module)).before("localize")
    module = run_passes(module.clone(), steps)
    return (module, *_return_all_values(module))


def _return_all_values(module: ModuleOp) -> tuple[list[SSAValue], int]:
    """Let the main function return each value that it computes, in program order, in place of its results.

    Returns: these values, and the number of values that cannot be collected, because a router places their rows.
    """
    function = ir.main_function(module)
    values: list[SSAValue] = []
    skipped = 0
    attributes = []
    for op in function.body.block.ops:
        for value in op.results if isinstance(op, ValueOp) else ():
            sharding = sharding_of(value)
            if meta_of(value.type) is None or sharding is None:
                continue
            if any(placement.is_opaque or placement.is_routed for _, placement in sharding.entries):
                skipped += 1
            else:
                values.append(value)
                attributes.append({"spmd.sharding": sharding_attr(sharding)})
    ir.terminator(function).operands = values
    function.properties["function_type"] = FunctionType.from_lists(
        [argument.type for argument in function.args], [value.type for value in values]
    )
    function.properties["res_attrs"] = ArrayAttr(map(DictionaryAttr, attributes))
    function.attributes.pop("spmd.outputs", None)
    return values, skipped


def _differing_ranks(
    output: torch.Tensor, reference: torch.Tensor, sharding: Sharding | None, limit: float, mesh: Mesh
) -> Sequence[int]:
    """Return the ranks whose shards differ; none for a value with partial values, of which ranks have only a part."""
    if sharding is None or output.shape != reference.shape:
        return []
    if any(placement.trait == "partial" for _, placement in sharding.entries):
        return []
    if not output.is_floating_point():  # complex numbers also hold integers and Booleans, and have an `abs`
        output, reference = output.to(torch.complex128), reference.to(torch.complex128)
    finite = reference[reference.isfinite()].abs()
    largest = limit * (finite.max().item() if finite.numel() else 0.0)
    difference = (output - reference).abs().nan_to_num(0.0)
    return [
        rank
        for rank in range(mesh.world_size)
        if (shard := local_tensor(difference, sharding, mesh, rank)).numel() and shard.max().item() > largest
    ]
