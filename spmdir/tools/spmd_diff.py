"""`spmd diff`: compare two partitioned programs by their values, costs and collectives."""

from __future__ import annotations

import argparse

from spmdir.core.errors import SpmdirError
from spmdir.tools.argument_parser import ArgumentParser, pipeline_of
from spmdir.tools.command import print_with_axes, read_text

EXAMPLES = """\
examples:
  spmd diff before.mlir after.mlir

Values are matched by name. Each program may be at any stage from propagate to localize.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    parser.add_input("before", about=" to compare with")
    parser.add_input("after", about=" to compare")
    parser.add_color()
    parser.add_machine()
    parser.add_pipeline()


def run(options: argparse.Namespace) -> int:
    """Print the differences."""
    if options.before == options.after == "-":
        raise SpmdirError("both programs are `-`, but stdin contains one program; expected a file for one of them")
    texts = [read_text(path) for path in (options.before, options.after)]
    from spmdir.dialects import ir
    from spmdir.explanation.difference import diff

    pipeline = pipeline_of(options)
    with pipeline.rules:
        before, after = (ir.parse(*text) for text in texts)
        print_with_axes(str(diff(before, after, pipeline)), ir.mesh(before).axis_names, options.color)
    return 0
