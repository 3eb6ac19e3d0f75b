"""`spmd report`: print where a rank spends time and memory in one step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING

from spmdir import report
from spmdir.core.errors import SpmdirError, did_you_mean, shown
from spmdir.tools.argument_parser import ArgumentParser, number_parser, pipeline_of
from spmdir.tools.command import in_colour, read_text, write_text

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.pipeline.pipeline import Pipeline
    from spmdir.report.grouped_costs import CostTable
    from spmdir.report.schedule import ScheduleReport

EXAMPLES = """\
examples:
  spmd report decided.mlir                             a table with a row for each module
  spmd report decided.mlir --by line --sort exposed    the source lines with the most exposed communication
  spmd report decided.mlir --by memory,layer --sort held -o held.csv
  spmd report decided.mlir --view cost                 bytes and time of collectives and of compute
  spmd report step.mlir --view schedule,timeline       the exposed communication, and when each op runs
  spmd report step.mlir --measured trace*.json         measured times beside modelled ones, from torch.profiler
  spmd report step.mlir -o report.html                 a page with graph, timeline, memory and explanations
  spmd report step.mlir --format perfetto -o step.trace

The program may be at any stage: the passes that it still needs run first, on a copy. Equal layers share one row.
"""


def add_options(parser: ArgumentParser) -> None:
    """Add the options of the subcommand."""
    parser.add_input(is_optional=True)
    views = f"Print these views, a list with commas of {', '.join(_VIEWS)} (default: table)."
    parser.add_argument("--view", type=_parse_views, default=("table",), metavar="VIEWS", help=views)
    keys = "Group the rows of the table by op, line, module, layer, kind, axis, phase or memory, or by several of them "
    parser.add_argument("--by", default="module", metavar="KEYS", help=f"{keys}with commas (default: module).")
    columns = "Sort the rows by time, exposed, sent, held, flops, traffic, count, waste or misfit, the largest first "
    parser.add_argument("--sort", default="time", metavar="COLUMN", help=f"{columns}(default: time).")
    rows = "Print the first N rows of the table, or all (default: 20)."
    parser.add_argument("--rows", type=_parse_rows, default=20, metavar="N", help=rows)
    parser.add_argument("--no-fold", action="store_true", help="Print a separate row for each of several equal layers.")
    formats = "Write this format (default: chosen by the extension of the output file)."
    parser.add_argument("--format", choices=_FORMATS, help=formats)
    reasons = "Explain the shardings of N values on the HTML page (default: as many as take 4 s)."
    parser.add_argument("--reasons", type=number_parser("values", 0, 100), metavar="N", help=reasons)
    traces = "Add measured times from traces of torch.profiler, one for each measured rank."
    parser.add_argument("--measured", nargs="+", action="extend", default=[], metavar="TRACE", help=traces)
    refit = "Write the measured times to FILE in the form of --costs; for a .toml file, constants of a topology."
    parser.add_argument("--refit", metavar="FILE", help=refit)
    parser.add_output()
    parser.add_color()
    parser.add_machine()
    parser.add_pipeline()


def run(options: argparse.Namespace) -> int:
    """Write the report."""
    format = options.format or format_of(options.output or "")
    _check_options(options, format)
    text, file = read_text(options.input)
    from spmdir.dialects import ir

    pipeline = pipeline_of(options)
    with pipeline.rules:
        source = _Report(ir.parse(text, file), pipeline, options)
        output = _FORMATS[format](source)
        if options.refit:
            write_text(options.refit, source.refitted(), options.input)
    write_text(options.output, output, options.input)
    return 0


def _check_options(options: argparse.Namespace, format: str) -> None:
    """Raise SpmdirError for options that contradict each other."""
    if options.view != ("table",) and format != "text":
        views = ",".join(options.view)
        raise SpmdirError(
            f"found --view {views} with --format {format}; expected --format text: leave out --view, or use "
            "--format text"
        )
    if options.refit and not options.measured:
        raise SpmdirError(
            "found --refit without --measured; expected measured times: add traces of torch.profiler, as in "
            "--measured trace.json"
        )
    if options.input == "-" and (program := next((path for path in options.measured if path.endswith(".mlir")), None)):
        raise SpmdirError(
            f"--measured takes all names after it as traces, also '{program}'; expected a program: give it "
            "before --measured"
        )
    if options.measured and (format not in ("text", "json", "csv") or "table" not in options.view):
        raise SpmdirError(
            "found --measured without the view table; expected the table, to which it adds columns: use --view "
            "table, as text, JSON or CSV"
        )
    if options.sort == "misfit" and not options.measured:
        raise SpmdirError(
            "found --sort misfit without --measured; expected measured times: add traces, as in --measured trace.json"
        )
    if "table" not in options.view:
        unused = [name for name, value in (("by", "module"), ("sort", "time")) if getattr(options, name) != value]
        if unused:
            raise SpmdirError(
                f"found --{unused[0]} without the view table; expected this view: add it, as in --view "
                f"{options.view[0]},table"
            )


class _Report:
    """The views and formats of one program, each computed on demand."""

    def __init__(self, module: ModuleOp, pipeline: Pipeline, options: argparse.Namespace):
        self.module, self.pipeline, self._options = module, pipeline, options
        self.title = "stdin" if options.input == "-" else PurePath(options.input).name

    @cached_property
    def table(self) -> CostTable:
        """The cost table."""
        options = self._options
        return report.cost_table(
            self.module, options.by, options.sort, options.rows,
            fold=not options.no_fold, pipeline=self.pipeline, measured=options.measured,
        )  # fmt: skip

    @cached_property
    def schedule(self) -> ScheduleReport:
        """The report on the schedule."""
        return report.schedule_report(self.module, pipeline=self.pipeline)

    def text(self) -> str:
        """Return the requested views as text."""
        return "\n".join(f"{_VIEWS[view](self).rstrip()}\n" for view in self._options.view)

    def refitted(self) -> str:
        """Return the measured times: as constants of a topology for a .toml file, else as a table of costs."""
        measured = self.table.measured
        assert measured is not None  # --refit requires --measured
        if not self._options.refit.lower().endswith(".toml"):
            return str(measured.refitted)
        from spmdir.report.refit import fit_topology
        from spmdir.reshard.topology import topology_text

        machine = fit_topology(self.module, measured, self.pipeline)
        return topology_text(machine, f"{machine.name}, fitted to measured steps; SI units, all per rank")

    def table_text(self) -> str:
        """Return the cost table as text, coloured on a terminal."""
        if self._options.output in (None, "-") and in_colour(self._options.color, sys.stdout):
            from spmdir.tools.terminal import table_in_colour

            return f"{table_in_colour(*self.table.cells(), self.table.axes)}{self.table.totals()}"
        return str(self.table)

    def summary(self) -> str:
        """Return the summary of the program."""
        from spmdir.report.summary import summary

        return str(summary(self.module, self.pipeline))

    def html(self) -> str:
        """Return the HTML page with all reports."""
        from spmdir.pictures.report_page import write_html

        return write_html(self.module, self.pipeline, self.title, self._options.reasons)

    def model_explorer(self) -> str:
        """Return the program as JSON for Model Explorer."""
        from spmdir.pictures.model_explorer import write_model_explorer

        return write_model_explorer(self.module, self.pipeline, self.title)

    def perfetto(self) -> str:
        """Return the timeline as JSON for Perfetto."""
        from spmdir.report.chrome_trace import chrome_trace

        return chrome_trace(self.schedule.execution)


_Writer = Callable[[_Report], str]

_VIEWS: Mapping[str, _Writer] = MappingProxyType(
    {
        "table": _Report.table_text,
        "summary": _Report.summary,
        "cost": lambda source: str(report.comm_report(source.module, pipeline=source.pipeline)),
        "memory": lambda source: str(report.memory_report(source.module, pipeline=source.pipeline)),
        "experts": lambda source: str(report.expert_report(source.module, pipeline=source.pipeline)),
        "serving": lambda source: str(report.serving_report(source.module, pipeline=source.pipeline)),
        "schedule": lambda source: str(source.schedule),
        "timeline": lambda source: source.schedule.timeline(),
    }
)
"""View → the function that returns its text."""

_FORMATS: Mapping[str, _Writer] = MappingProxyType(
    {
        "text": _Report.text,
        "json": lambda source: source.table.json(),
        "csv": lambda source: source.table.csv(),
        "html": _Report.html,
        "model-explorer": _Report.model_explorer,
        "perfetto": _Report.perfetto,
    }
)
"""Output format → the function that returns its text."""

_EXTENSIONS: Mapping[str, str] = MappingProxyType(
    {
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
        ".txt": "text",
    }
)
"""Extension of a file name → format. The first match counts. A name without an extension means text."""


def format_of(output: str) -> str:
    """Return the format for the name of an output file.

    Raises:
        SpmdirError: no format has this extension.
    """
    format = next((format for extension, format in _EXTENSIONS.items() if output.lower().endswith(extension)), None)
    stem, dot, extension = PurePath(output).name.rpartition(".")
    if format is None and stem and dot:
        hint = did_you_mean(dot + extension, _EXTENSIONS)
        expected = f"expected {', '.join(_EXTENSIONS)}, or --format"
        raise SpmdirError(f"no format has the extension of '{output}'; {expected}{hint}")
    return format or "text"


def _parse_views(text: str) -> tuple[str, ...]:
    """Parse views such as `schedule,timeline`, for argparse."""
    views = tuple(text.split(","))
    for view in views:
        if view not in _VIEWS:
            expected = f"expected {', '.join(_VIEWS)}, or several of them with commas"
            raise argparse.ArgumentTypeError(f"unknown view {shown(view)}; {expected}{did_you_mean(view, _VIEWS)}")
    return views


def _parse_rows(text: str) -> int | None:
    """Parse a number of rows for argparse. None stands for `all`."""
    return None if text == "all" else number_parser("rows", 1, 10**9)(text)
