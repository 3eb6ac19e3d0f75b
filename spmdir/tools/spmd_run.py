"""`spmd-run`: simulate a program on all ranks of its mesh, and compare it with one device."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import SpmdirError, SpmdirErrors, UnsupportedError, shown
from spmdir.core.number_text import integer, real
from spmdir.dialects.values import is_call_input, signature_kind, signature_name
from spmdir.pipeline.pipeline import Pipeline
from spmdir.tools.argument_parser import ArgumentParser, number_parser, parse_sizes, pipeline_of
from spmdir.tools.command import read_text, run_tool

if TYPE_CHECKING:
    import torch
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.core.placement.base import Placement
    from spmdir.core.placement.sharding import Sharding
    from spmdir.simulator.measured_errors import MeasuredError

_DESCRIPTION = "Run a program on random inputs, simulating all ranks of its mesh in one process."
_EXAMPLES = """\
examples:
  spmd-run in.mlir                      print the outputs
  spmd-run in.mlir --check              compare them with those of one device; the exit status is 1 if they differ
  spmd-run in.mlir --check --dtype f64  compare in double precision, with a tolerance to match
  spmd-run in.mlir --check=all          compare every value, and name the first op whose result differs

The program may be at any stage: its remaining passes run first. The error of an output is the largest
difference of an element, divided by the largest element of the output. Integer inputs are 0 and 1, which are valid
as indices and as masks. If a placement is lossy, such as Quantised, the error of each of its steps is compared with
the bound of the placement. The outputs that are compared with one device then have exact steps instead.
"""
_FLOATS = ("f64", "f32", "f16", "bf16")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv`, by default the arguments of the process, and return the exit status."""
    return run_tool(_main, argv)


def _main(argv: Sequence[str]) -> int:
    """Run the program that `argv` names."""
    options = argument_parser().parse(argv)
    text, file = read_text(options.input)
    pipeline = pipeline_of(options)
    with pipeline.rules:
        return _run(options, text, file, pipeline)


def _run(options: argparse.Namespace, text: str, file: str, pipeline: Pipeline) -> int:
    """Simulate a program on random inputs, and print the outputs, or compare them with those of one device."""
    from spmdir.dialects import ir
    from spmdir.dialects.size_ops import open_sizes
    from spmdir.pipeline.remaining_passes import bind_sizes, localize
    from spmdir.simulator.simulate import measure_errors, run_single, simulate

    module = ir.parse(text, file)
    if options.sizes or open_sizes(module).symbols:
        module = bind_sizes(module, options.sizes, pipeline)
    inputs, state_dict = random_inputs(module, options.seed, options.dtype)
    if options.check_values:
        return _check_values(options, module, inputs, state_dict, pipeline)
    local_module = localize(module, pipeline)
    arguments = {"state_dict": state_dict, "seed": options.seed, "pipeline": pipeline}
    outputs = simulate(local_module, inputs, interleavings=options.interleavings, **arguments)
    if not options.check:
        print(*outputs, sep="\n")
        return 0
    rounded_inputs, rounded_state = _rounded_arguments(module, inputs), _rounded_arguments(module, state_dict)
    expected = run_single(module, rounded_inputs, rounded_state, options.seed)
    check_element_types(outputs, expected, options.dtype)
    lossy, exact = lossy_placements(module), None
    if lossy:
        measured = measure_errors(local_module, inputs, **arguments)
        report_steps(measured.errors, [placement for placement in lossy if placement not in measured.used])
        exact = measured.outputs
    report(outputs, expected, options.tolerance, exact)
    return 0


def _check_values(
    options: argparse.Namespace,
    module: ModuleOp,
    inputs: dict[str, torch.Tensor],
    state_dict: dict[str, torch.Tensor],
    pipeline: Pipeline,
) -> int:
    """Compare every value with that of one device; print how many, or raise SpmdirError for the first that differs."""
    from spmdir.simulator.value_check import check_values

    if options.interleavings:
        raise UnsupportedError(
            "found --interleavings with --check=all, which runs ranks in one order; expected --check: leave out =all"
        )
    if lossy := lossy_placements(module):
        raise UnsupportedError(
            f"found --check=all with {lossy[0]}, whose values are not those of one device; expected exact "
            "placements: use --check without =all"
        )
    count, skipped = check_values(module, inputs, state_dict, options.seed, pipeline, options.tolerance)
    not_compared = f"; {skipped} values whose rows a router places were not compared" if skipped else ""
    print(f"{count} values are those of one device{not_compared}")
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-run", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_input(is_optional=True)
    parser.add_pipeline()
    parser.add_argument("--check", action="store_true", help="Compare the outputs with those of one device.")
    every = "Compare every value with that of one device, and name the first op whose result differs."
    parser.add_argument("--check=all", action="store_true", dest="check_values", help=every)
    seed = "Seed the random inputs and random ops with N (default: 0)."
    parser.add_argument("--seed", type=_parse_seed, default=0, metavar="N", help=seed)
    orders = "Run N more times, in random orders of the ranks with collectives in flight; all runs must agree exactly."
    parser.add_argument("--interleavings", type=number_parser("orders", 0, 10**9), default=0, metavar="N", help=orders)
    dtype = "Use this element type for floating-point inputs (default: that of the program)."
    parser.add_argument("--dtype", choices=_FLOATS, help=dtype)
    sizes = "Use these numbers for symbolic sizes, as in s0=8,s1=5."
    parser.add_argument("--sizes", type=parse_sizes, default={}, metavar="SIZES", help=sizes)
    tolerance = "Accept errors up to X (default: by element type)."
    parser.add_argument("--tolerance", type=_parse_tolerance, metavar="X", help=tolerance)
    return parser


def _parse_seed(text: str) -> int:
    """Parse a seed, for argparse."""
    try:
        seed = integer(text)
    except ValueError:
        seed = None
    if seed is None or not -(2**63) <= seed < 2**64:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a seed; expected an integer of 64 bits")
    return seed


def _parse_tolerance(text: str) -> float:
    """Parse a tolerance, for argparse."""
    try:
        tolerance = real(text)
    except ValueError:
        tolerance = math.nan
    if not tolerance >= 0:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a tolerance; expected a number from 0 on")
    return tolerance


def random_inputs(
    module: ModuleOp, seed: int, dtype: str | None
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return (inputs by name, parameters and buffers by name) of a program, as random global tensors.

    Args:
        dtype: the element type of floating-point tensors; None for that of the program.

    Raises:
        SpmdirError: there is not enough memory for a tensor.
    """
    import torch

    from spmdir.dialects import ir
    from spmdir.dialects.locations import location_of
    from spmdir.dialects.values import global_type
    from spmdir.torch_interop.dtypes import TORCH_DTYPES

    generator = torch.Generator().manual_seed(seed)
    mesh, function = ir.mesh(module), ir.main_function(module)
    inputs: dict[str, torch.Tensor] = {}
    state_dict: dict[str, torch.Tensor] = {}
    for argument in function.args:
        meta = global_type(argument, mesh)
        if signature_kind(function, "arg_attrs", argument.index) == "state":
            continue
        assert meta is not None  # a verified function has only tensor arguments
        shape = meta.shape
        try:
            if meta.dtype.is_inexact:
                value = torch.randn(shape, generator=generator, dtype=torch.float64)
            else:
                value = torch.randint(0, 2, shape, generator=generator)
        except (RuntimeError, TypeError):
            message = f"not enough memory for argument {argument.index} of shape {list(shape)}; expected smaller sizes"
            raise SpmdirError(message, location_of(function)) from None
        # `dtype` applies to floating-point arguments, and to the parts of complex ones.
        element_type = DTYPES[dtype] if dtype and meta.dtype.name in _FLOATS else meta.dtype
        if dtype in ("f64", "f32") and meta.dtype.is_complex:
            element_type = DTYPES[dtype].complex
        name = signature_name(function, "arg_attrs", argument.index)
        tensors = inputs if is_call_input(function, argument.index) else state_dict
        tensors[name] = value.to(TORCH_DTYPES[element_type])
    return inputs, state_dict


def _rounded_arguments(module: ModuleOp, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the arguments by name, rounded as on the ranks if a placement has a lower precision."""
    from spmdir.dialects import ir
    from spmdir.dialects.values import sharding_of
    from spmdir.simulator.distribution import collect, distribute

    mesh, function = ir.mesh(module), ir.main_function(module)
    rounded = dict(tensors)
    for argument in function.args:
        name, sharding = signature_name(function, "arg_attrs", argument.index), sharding_of(argument)
        if name in rounded and sharding is not None and sharding.has_own_type:
            value = rounded[name]
            shards = distribute(value, sharding, mesh, lambda like: like.new_zeros(like.shape))
            rounded[name] = collect(shards, sharding, mesh, tuple(value.shape), value.dtype)
    return rounded


def lossy_placements(module: ModuleOp) -> list[Placement]:
    """Return the lossy placements in the shardings of a program. Passes do not add others."""
    from spmdir.dialects import ir
    from spmdir.dialects.values import function_attrs, sharding_of

    shardings: list[Sharding | None] = []
    for function in ir.functions(module):
        values = [*function.args, *(result for op in function.body.block.ops for result in op.results)]
        results = range(len(function.function_type.outputs.data))
        annotations = [function_attrs(function, "res_attrs", index).get("spmd.sharding") for index in results]
        shardings += [*map(sharding_of, values), *(getattr(attribute, "data", None) for attribute in annotations)]
    entries = (entry for sharding in shardings if sharding is not None for entry in sharding.entries)
    return list(dict.fromkeys(placement for _, placement in entries if placement.error))


def report(
    outputs: Sequence[Any], expected: Sequence[Any], tolerance: float | None, exact: Sequence[Any] | None = None
) -> None:
    """Print the error of each output.

    Args:
        tolerance: the largest error, including lossy steps; None for that of the element type, without lossy steps.
        exact: the outputs with exact instead of lossy steps; None if there are no lossy steps.

    Raises:
        SpmdirErrors: outputs with larger errors.
    """
    from spmdir.simulator.output_error import relative_error, tolerance_of

    differences: list[SpmdirError] = []
    for index, (output, reference, compared) in enumerate(zip(outputs, expected, exact or outputs, strict=True)):
        compared = compared if tolerance is None else output
        error, limit = relative_error(compared, reference), tolerance_of(reference) if tolerance is None else tolerance
        if math.isnan(error):
            print(f"output {index}: no finite element, infinities and NaN agree")
            continue
        lossy_text = "" if output is compared else f"{relative_error(output, reference):.1e}, without lossy steps "
        print(f"output {index}: max relative error {lossy_text}{error:.1e}, tolerance {limit:.0e}")
        if error > limit:
            differences.append(
                SpmdirError(
                    f"output {index} differs from one device by {error:.1e}; expected at most {limit:.0e}: find "
                    "the first op that differs with --check=all"
                )
            )
    if differences:
        raise SpmdirErrors(differences)


def report_steps(errors: Sequence[MeasuredError], unused: Sequence[Placement]) -> None:
    """Print the error of each lossy step, and the lossy placements that no step uses.

    Args:
        unused: placements that no step enters or leaves.

    Raises:
        SpmdirErrors: steps with a larger error than their placement declares.
    """
    lines = [*map(str, errors), *(f"{placement}: no step enters or leaves it" for placement in unused)]
    print("\n".join(lines) + "\n" * bool(lines), end="")
    violations = [error for error in errors if not error.is_within]
    if violations:
        raise SpmdirErrors(
            [
                SpmdirError(f"{error}; expected at most the declared error: correct `error` of the placement")
                for error in violations
            ]
        )


def check_element_types(outputs: Sequence[Any], expected: Sequence[Any], dtype: str | None) -> None:
    """Raise UnsupportedError if `--dtype` leads to other element types of outputs on the ranks than on one device.

    An op or a local form with an explicit element type, such as `dtype = f32`, does not follow its operands.
    """
    for number, (output, reference) in enumerate(zip(outputs, expected, strict=True)):
        types = [getattr(value, "dtype", None) for value in (output, reference)]
        if dtype and types[0] != types[1]:
            raise UnsupportedError(
                f"output {number} has type {types[0]} on ranks and {types[1]} on one device with --dtype "
                f"{dtype}, since the program of a rank has explicit element types; expected equal types: "
                "omit --dtype, or write the program for this type"
            )


if __name__ == "__main__":
    raise SystemExit(main())
