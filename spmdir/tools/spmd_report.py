"""`spmd-report`: what a rank spends in a step, and where."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from spmdir.core.errors import SpmdirError, did_you_mean
from spmdir.tools.command import ArgumentParser, count, guarded, in_colour, read_text, rows, write_text

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.pipeline.pipeline import Pipeline
    from spmdir.report.grouped_costs import CostTable

_DESCRIPTION = "Print what a rank spends in a step, by module, source line, axis, kind, phase or purpose of memory."
_EXAMPLES = """\
examples:
  spmd-report decided.mlir --by module
  spmd-report decided.mlir --by phase,axis
  spmd-report decided.mlir --by line --sort exposed --rows 20
  spmd-report decided.mlir --by memory,layer --sort held -o held.csv
  spmd-report step.mlir -o report.html                 a page with graph, timeline, memory and reasons
  spmd-report step.mlir --format perfetto -o step.trace

The program may be at any stage; what it still needs is run on a copy. Equal layers are one row.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool on `argv` (the process's arguments when None) and return its exit status."""
    return guarded(_main, argv)


def _main(argv: Sequence[str]) -> int:
    options = argument_parser().parse(argv)
    written = options.format or format_of(options.output or "")
    text, name = read_text(options.input)
    from spmdir.dialects import ir
    from spmdir.pipeline.pipeline import STANDARD, Pipeline

    machine = {"topology": options.topology, "costs": options.costs}
    pipeline = Pipeline(options.pass_pipeline or STANDARD, plugins=options.load_plugin, **machine)
    with pipeline.rules:
        found = FORMATS[written](ir.parse(text, name), pipeline, options)
    write_text(options.output, found, options.input)
    return 0


def _table(module: ModuleOp, pipeline: Pipeline, options: argparse.Namespace) -> CostTable:
    from spmdir.report.grouped_costs import cost_table

    return cost_table(module, options.by, options.sort, options.rows, fold=not options.no_fold, pipeline=pipeline)


def _printed(table: CostTable, options: argparse.Namespace) -> str:
    if options.output is None and in_colour(options.color, sys.stdout):
        from spmdir.tools.terminal import table_in_colour

        return f"{table_in_colour(*table.cells(), table.axes)}{table.totals()}\n"
    return f"{table}\n"


def _html(module: ModuleOp, pipeline: Pipeline, options: argparse.Namespace) -> str:
    from spmdir.pictures.report_page import write_html

    return write_html(module, pipeline, _title(options), options.explain)


def _model_explorer(module: ModuleOp, pipeline: Pipeline, options: argparse.Namespace) -> str:
    from spmdir.pictures.model_explorer import write_model_explorer

    return write_model_explorer(module, pipeline, _title(options))


def _perfetto(module: ModuleOp, pipeline: Pipeline, options: argparse.Namespace) -> str:
    from spmdir.report.chrome_trace import chrome_trace
    from spmdir.report.schedule import schedule_report

    return chrome_trace(schedule_report(module, pipeline=pipeline).execution)


def _title(options: argparse.Namespace) -> str:
    return "stdin" if options.input == "-" else PurePath(options.input).name


FORMATS: dict[str, Callable[[ModuleOp, Pipeline, argparse.Namespace], str]] = {
    "table": lambda module, pipeline, options: _printed(_table(module, pipeline, options), options),
    "json": lambda module, pipeline, options: _table(module, pipeline, options).json(),
    "csv": lambda module, pipeline, options: _table(module, pipeline, options).csv(),
    "html": _html,
    "model-explorer": _model_explorer,
    "perfetto": _perfetto,
}
"""Each format with what writes it."""

ENDINGS = {
    "trace.json": "perfetto",
    "perfetto.json": "perfetto",
    ".perfetto-trace": "perfetto",
    ".trace": "perfetto",
    ".pftrace": "perfetto",
    "explorer.json": "model-explorer",
    ".json": "json",
    ".csv": "csv",
    ".html": "html",
    ".htm": "html",
    ".txt": "table",
}
"""The endings of file names that choose a format, the first that fits; a name without an ending is a table."""


def format_of(output: str) -> str:
    """Return the format that the name of an output file stands for.

    Raises:
        SpmdirError: no format has its ending.
    """
    found = next((format for ending, format in ENDINGS.items() if output.lower().endswith(ending)), None)
    stem, dot, ending = PurePath(output).name.rpartition(".")
    if found is None and stem and dot:
        hint = did_you_mean(dot + ending, ENDINGS)
        raise SpmdirError(f"'{output}' has an ending of no format; expected {', '.join(ENDINGS)}, or --format{hint}")
    return found or "table"


def argument_parser() -> ArgumentParser:
    """Return the options of the tool."""
    parser = ArgumentParser("spmd-report", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("input", help="file of textual IR; - is stdin")
    keys = "what rows are of: op, line, module, layer, kind, axis, phase, memory, or several of them (default: module)"
    parser.add_argument("--by", default="module", metavar="KEYS", help=keys)
    sorts = "time, exposed, sent, held, flops, traffic, count or waste, the largest first (default: time)"
    parser.add_argument("--sort", default="time", metavar="COLUMN", help=sorts)
    parser.add_argument(
        "--rows", type=rows, default=20, metavar="N", help="how many rows are printed, or all (default 20)"
    )
    parser.add_argument("--no-fold", action="store_true", help="print equal layers one by one")
    parser.add_argument("--format", choices=tuple(FORMATS), help="output format (default: from the file extension)")
    explained = "how many values a page explains, of a program that is not decided (default: as many as take 4 s)"
    parser.add_argument("--explain", type=count("values", 0, 100), metavar="N", help=explained)
    parser.add_argument("-o", dest="output", metavar="FILE", help="write there instead of stdout")
    parser.add_color()
    parser.add_machine()
    parser.add_pipeline()
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
