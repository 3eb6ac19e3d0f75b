"""`spmd-run`: simulate a program on all ranks of its mesh, and compare it with one device."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import SpmdirError, SpmdirErrors, UnsupportedError, shown
from spmdir.core.number_text import integer, real
from spmdir.dialects.values import is_given, signature_kind, signature_name
from spmdir.pipeline.pipeline import Pipeline
from spmdir.tools.argument_parser import ArgumentParser, count, parse_sizes, pipeline_of
from spmdir.tools.command import guarded, read_text

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

The program may be at any stage; the passes that it still needs run first. The error of an output is the largest
difference of an element, divided by the largest element of the output. Integer inputs are 0 and 1, which are valid
as indices and as masks. If a placement is lossy, such as Quantised, the error of each of its steps is compared with
the bound that the placement declares. The outputs are then compared with one device as if these steps were exact.
"""
TOLERANCES = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 5e-2, "complex<f64>": 1e-9, "complex<f32>": 1e-4}
"""Element type → the error that a check lets pass: sums of a few thousand terms in another order; others are exact."""
_FLOATS = ("f64", "f32", "f16", "bf16")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    text, file = read_text(options.input)
    pipeline = pipeline_of(options)
    with pipeline.rules:
        return _run(options, text, file, pipeline)


def _run(options: argparse.Namespace, text: str, file: str, pipeline: Pipeline) -> int:
    from spmdir.dialects import ir
    from spmdir.dialects.sizes import open_sizes
    from spmdir.pipeline.finish import bind_sizes, localize
    from spmdir.simulator.simulate import measure_errors, run_single, simulate

    module = ir.parse(text, file)
    if options.sizes or open_sizes(module).symbols:
        module = bind_sizes(module, options.sizes, pipeline)
    inputs, state_dict = random_inputs(module, options.seed, options.dtype)
    placed = localize(module, pipeline)
    given = {"state_dict": state_dict, "seed": options.seed, "pipeline": pipeline}
    outputs = simulate(placed, inputs, interleavings=options.interleavings, **given)
    if not options.check:
        print(*outputs, sep="\n")
        return 0
    expected = run_single(module, _held(module, inputs), _held(module, state_dict), options.seed)
    check_element_types(outputs, expected, options.dtype)
    lossy, exact = lossy_placements(module), None
    if lossy:
        measured = measure_errors(placed, inputs, **given)
        report_steps(measured.errors, [placement for placement in lossy if placement not in measured.used])
        exact = measured.outputs
    report(outputs, expected, options.tolerance, exact)
    return 0


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-run", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_input(is_optional=True)
    parser.add_pipeline()
    parser.add_argument("--check", action="store_true", help="Compare the outputs with those of one device.")
    seed = "Seed the random inputs and random ops with N (default: 0)."
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help=seed)
    orders = "Run N more times, in random orders of the ranks with collectives in flight; all runs must agree exactly."
    parser.add_argument("--interleavings", type=count("orders", 0, 10**9), default=0, metavar="N", help=orders)
    dtype = "Use this element type for floating-point inputs (default: that of the program)."
    parser.add_argument("--dtype", choices=_FLOATS, help=dtype)
    sizes = "Use these numbers for symbolic sizes, as in s0=8,s1=5."
    parser.add_argument("--sizes", type=parse_sizes, default={}, metavar="SIZES", help=sizes)
    tolerance = "Accept errors up to X (default: by element type)."
    parser.add_argument("--tolerance", type=_tolerance, metavar="X", help=tolerance)
    return parser


def _seed(text: str) -> int:
    try:
        seed = integer(text)
    except ValueError:
        seed = None
    if seed is None or not -(2**63) <= seed < 2**64:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a seed; expected an integer of 64 bits")
    return seed


def _tolerance(text: str) -> float:
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
    """Return random global tensors for the arguments of a program: its inputs, and its parameters and buffers.

    Args:
        dtype: element type of the floating ones; None takes the program's.

    Raises:
        SpmdirError: there is no memory for a tensor of such a size.
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
        assert meta is not None  # a verified function has tensor arguments alone
        shape = meta.shape
        try:
            if meta.dtype.is_inexact:
                value = torch.randn(shape, generator=generator, dtype=torch.float64)
            else:
                value = torch.randint(0, 2, shape, generator=generator)
        except (RuntimeError, TypeError):
            message = f"argument {argument.index} has the shape {list(shape)}, for which there is no memory"
            raise SpmdirError(message, location_of(function)) from None
        wanted = DTYPES[dtype] if dtype and meta.dtype.name in _FLOATS else meta.dtype
        if dtype in ("f64", "f32") and meta.dtype.is_complex:
            wanted = DTYPES[dtype].complex
        name = signature_name(function, "arg_attrs", argument.index)
        target = inputs if is_given(function, argument.index) else state_dict
        target[name] = value.to(TORCH_DTYPES[wanted])
    return inputs, state_dict


def _held(module: ModuleOp, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the arguments `tensors`, by name, as ranks hold them: some have placements of lower precision."""
    from spmdir.dialects import ir
    from spmdir.dialects.values import sharding_of
    from spmdir.simulator.distribution import collect, distribute

    mesh, function = ir.mesh(module), ir.main_function(module)
    held = dict(tensors)
    for argument in function.args:
        name, sharding = signature_name(function, "arg_attrs", argument.index), sharding_of(argument)
        if name in held and sharding is not None and sharding.has_own_type:
            value = held[name]
            shards = distribute(value, sharding, mesh, lambda like: like.new_zeros(like.shape))
            held[name] = collect(shards, sharding, mesh, tuple(value.shape), value.dtype)
    return held


def lossy_placements(module: ModuleOp) -> list[Placement]:
    """Return the lossy placements in the shardings of a program, each once; the passes add no others."""
    from spmdir.dialects import ir
    from spmdir.dialects.values import function_attrs, sharding_of

    shardings: list[Sharding | None] = []
    for function in ir.functions(module):
        values = [*function.args, *(result for op in function.body.block.ops for result in op.results)]
        results = range(len(function.function_type.outputs.data))
        wanted = [function_attrs(function, "res_attrs", index).get("spmd.sharding") for index in results]
        shardings += [*map(sharding_of, values), *(getattr(attribute, "data", None) for attribute in wanted)]
    entries = (entry for sharding in shardings if sharding is not None for entry in sharding.entries)
    return list(dict.fromkeys(placement for _, placement in entries if placement.error))


def report(
    outputs: Sequence[Any], expected: Sequence[Any], tolerance: float | None, exact: Sequence[Any] | None = None
) -> None:
    """Print the error of each output.

    Args:
        tolerance: what passes, lossy steps included; None for that of the element type, without them.
        exact: the outputs if lossy steps are exact; those that were found if None.

    Raises:
        SpmdirErrors: outputs that differ by more.
    """
    differences: list[SpmdirError] = []
    for index, (found, right, compared) in enumerate(zip(outputs, expected, exact or outputs, strict=True)):
        compared = compared if tolerance is None else found
        error, limit = relative_error(compared, right), tolerance_of(right) if tolerance is None else tolerance
        if math.isnan(error):
            print(f"output {index}: no finite element, infinities and NaN agree")
            continue
        whole = "" if found is compared else f"{relative_error(found, right):.1e}, without lossy steps "
        print(f"output {index}: max relative error {whole}{error:.1e}, tolerance {limit:.0e}")
        if error > limit:
            differences.append(
                SpmdirError(f"output {index} differs from one device by {error:.1e}; expected {limit:.0e}")
            )
    if differences:
        raise SpmdirErrors(differences)


def report_steps(errors: Sequence[MeasuredError], unused: Sequence[Placement]) -> None:
    """Print how far each lossy step is off, and the lossy placements of the program that lose nothing.

    Args:
        unused: those that no step enters or leaves.

    Raises:
        SpmdirErrors: steps that are off by more than their placement declares.
    """
    lines = [*map(str, errors), *(f"{one}: no step enters or leaves it, so nothing is lost by it" for one in unused)]
    print("\n".join(lines) + "\n" * bool(lines), end="")
    if beyond := [error for error in errors if not error.is_within]:
        raise SpmdirErrors(
            [SpmdirError(f"{error}; expected no more: correct `error` of the placement") for error in beyond]
        )


def check_element_types(outputs: Sequence[Any], expected: Sequence[Any], dtype: str | None) -> None:
    """Raise UnsupportedError if outputs have another element type than one device's, by what `--dtype` replaced.

    An op or a local form that names an element type, as `dtype = f32` does, keeps it whatever its operands have.
    """
    for number, (found, right) in enumerate(zip(outputs, expected, strict=True)):
        types = [getattr(value, "dtype", None) for value in (found, right)]
        if dtype and types[0] != types[1]:
            raise UnsupportedError(
                f"output {number} is of {types[0]} on ranks and of {types[1]} on one device with --dtype {dtype}: the "
                "program of a rank names element types; leave out --dtype, or write the program for this type"
            )


def relative_error(found: Any, right: Any) -> float:
    """Return the largest difference of an element over the largest element of `right`.

    It is infinite for outputs of different kinds or infinities elsewhere, and NaN if `right` has no finite element and
    infinities and NaN agree.
    """
    import torch

    if not isinstance(found, torch.Tensor) or not isinstance(right, torch.Tensor):
        return 0.0 if found == right else float("inf")
    if found.shape != right.shape or found.dtype != right.dtype:
        return float("inf")
    wide = torch.complex128 if right.is_complex() else torch.float64
    found, right = found.to(wide), right.to(wide)
    finite = torch.isfinite(right)
    same = torch.equal(found[~finite].nan_to_num(1), right[~finite].nan_to_num(1))
    if not same or not found[finite].isfinite().all():
        return float("inf")
    if not finite.any():
        return float("nan") if right.numel() else 0.0
    difference, size = (found - right)[finite].abs().max().item(), right[finite].abs().max().item()
    return difference / size if size else float("inf") if difference else 0.0


def tolerance_of(value: Any) -> float:
    """Return the default tolerance for an output."""
    from spmdir.torch_interop.dtypes import TORCH_DTYPES

    found = getattr(value, "dtype", None)
    return next((limit for name, limit in TOLERANCES.items() if TORCH_DTYPES[DTYPES[name]] == found), 0.0)


if __name__ == "__main__":
    raise SystemExit(main())
