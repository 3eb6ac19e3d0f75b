"""Process one input of `spmd-opt`: parse its parts, run the pipeline, and print or check the result."""

from __future__ import annotations

import argparse
from itertools import zip_longest
from typing import TYPE_CHECKING

from spmdir.core.errors import SpmdirError, SpmdirErrors, SpmdirWarning, flat
from spmdir.core.input_parts import SPLIT, parts_of
from spmdir.pipeline.pipeline import Pipeline, run_passes
from spmdir.tools.command import shown_warnings
from spmdir.tools.diagnostics import expectations, mismatches
from spmdir.tools.pass_instrumentation import Instrumentation, Stopwatch

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def process(text: str, file: str, pipeline: Pipeline, options: argparse.Namespace) -> str:
    """Return the output for one input file.

    Raises:
        SpmdirErrors: all errors of all parts of the input.
    """
    process_part = _check_expectations if options.verify_diagnostics else _transform
    outputs, errors = [], []
    for first_line, part in parts_of(text) if options.split_input_file else [(1, text)]:
        try:
            outputs.append(process_part(part, file, first_line, pipeline, options))
        except SpmdirError as error:
            errors += flat(error)
    if errors:
        raise SpmdirErrors(errors)
    return "" if options.verify_diagnostics else SPLIT.join(outputs)


def _check_expectations(text: str, file: str, first_line: int, pipeline: Pipeline, options: argparse.Namespace) -> str:
    """Run the pipeline on one part of the input, and compare the errors and warnings with its comments."""
    expected = list(expectations(text, file, first_line))
    issued: list[SpmdirError | SpmdirWarning] = []
    try:
        with shown_warnings(issued.append):
            _transform(text, file, first_line, pipeline, options)
    except SpmdirError as error:
        issued += flat(error)
    errors = mismatches(expected, issued)
    if errors:
        raise SpmdirErrors(errors)
    return ""


def _transform(text: str, file: str, first_line: int, pipeline: Pipeline, options: argparse.Namespace) -> str:
    """Run the pipeline on one part of the input, and return the IR."""
    from spmdir.dialects import ir

    def print_ir(module: ModuleOp) -> str:
        return ir.print_ir(module, generic=options.print_op_generic, debuginfo=options.debuginfo)

    watch = Stopwatch(options.timing)
    module = ir.parse(text, file, first_line)
    watch.lap("parse")
    if options.verify_roundtrip:
        check_roundtrip(module)
    context = pipeline.context() if pipeline.steps else None  # context() loads the rules
    trials = [] if context is None else context.trials
    with Instrumentation(pipeline.steps, options, watch, print_ir, trials).around(module) as after:
        run_passes(module, pipeline, options.verify_each, context=context, after=after)
    if options.only:
        from spmdir.explanation.excerpt import excerpt

        output = print_ir(excerpt(module, options.only))
    else:
        output = print_ir(module)
    watch.lap("print")
    if options.timing and pipeline.rules.instances:
        rules = pipeline.rules
        watch.print_part(rules.clock.seconds, f"rules of {rules.instances} different calls")
    if options.verify_roundtrip:
        check_roundtrip(module)
    return output


def check_roundtrip(module: ModuleOp) -> None:
    """Raise SpmdirError unless the custom and the generic form of `module` parse to an equal module."""
    from spmdir.dialects import ir

    expected = ir.print_ir(module)
    for form, generic in (("custom", False), ("generic", True)):
        try:
            reread = ir.print_ir(ir.parse(ir.print_ir(module, generic=generic), f"<{form} form>"))
        except SpmdirError as error:
            raise error.at(None, f"the {form} form cannot be parsed") from None
        if reread != expected:
            number, before, after = _first_difference(expected, reread)
            difference = f"line {number} is '{before}' before and '{after}' after"
            raise SpmdirError(
                f"the {form} form parses to another module: {difference}; expected an equal module: please "
                "report this bug with the input"
            )


def _first_difference(before: str, after: str) -> tuple[int, str, str]:
    """Return the number of the first line in which two texts differ, and both lines."""
    lines = zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
    return next((number, left, right) for number, (left, right) in enumerate(lines, 1) if left != right)
