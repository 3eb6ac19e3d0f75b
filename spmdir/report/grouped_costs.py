"""Cost tables of a step of a rank, by module, line, axis, kind, phase or kind of memory."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from spmdir.core.arguments import accepts, instance
from spmdir.core.byte_size import size_text
from spmdir.core.errors import printable, require_type
from spmdir.core.html_text import ShownAsText
from spmdir.core.time_text import milliseconds
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.report.cost_rows import (
    DEFAULT_ROWS,
    LABELS,
    CostRow,
    check_rows,
    check_sort,
    checked_keys,
    cost_rows,
    table_cells,
)
from spmdir.report.op_costs import OpCost
from spmdir.report.op_sums import table
from spmdir.reshard.topology import Topology

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.report.measured_step import MeasuredStep


@attrs.frozen
class CostTable(ShownAsText):
    """The costs of a step of a rank, in rows.

    Attributes:
        by: the keys that the ops of a row share.
        rows: the sorted rows; equal layers are merged.
        total: the row of all ops.
        peak_value: the name of the value that is computed at the peak of live memory; empty for the arguments.
        machine: the name of the topology that times are modelled for.
        axes: the names of the mesh axes.
        shown: the number of printed rows; None for all.
        measured: the measured step; None without traces.
    """

    by: tuple[str, ...]
    rows: tuple[CostRow, ...]
    total: CostRow
    peak_value: str
    machine: str
    axes: tuple[str, ...]
    shown: int | None = DEFAULT_ROWS
    measured: MeasuredStep | None = None

    @property
    def ops(self) -> tuple[OpCost, ...]:
        """The cost of each op in program order, and of each input."""
        return self.total.ops

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the label columns."""
        return tuple(label for key in self.by for label in LABELS.get(key, (key,)))

    def cells(self) -> tuple[list[tuple[str, ...]], range]:
        """Return the texts of the header and the printed rows, and the indices of the number columns."""
        return table_cells(self.rows, self.total, self.by, self.shown)

    def totals(self) -> str:
        """Return the line with the totals of all rows."""
        row = self.total
        measured = "" if self.measured is None else f"\n{self.measured}"
        exposed, peak = row.total("exposed"), row.total("held_bytes")
        return (
            f"step of a rank {milliseconds(row.seconds)} ms on {self.machine}: exposed {milliseconds(exposed)} ms, "
            f"sent {size_text(row.share.wire_bytes)}, peak of live memory {size_text(peak)} at "
            f"{self.peak_value or 'the arguments'}{measured}"
        )

    def __str__(self) -> str:
        return "\n".join([*table(*self.cells()), self.totals()])

    def records(self) -> list[dict[str, Any]]:
        """Return all rows as dicts: labels, `layers` (the number of merged layers), and numbers with units."""
        return [
            {**dict(zip(self.heads, row.labels, strict=True)), "layers": row.layers, **row.numbers, "bound": row.bound}
            for row in self.rows
        ]

    def json(self) -> str:
        """Return the rows and totals as JSON."""
        metadata = {"by": self.by, "machine": self.machine, "peak_at": self.peak_value}
        return json.dumps({**metadata, "rows": self.records(), "total": self.total.numbers}, indent=1) + "\n"

    def csv(self) -> str:
        """Return the rows as CSV with a header. A `'` precedes any text that a spreadsheet would run as a formula."""
        text = io.StringIO()
        fields = [*self.heads, "layers", *self.total.numbers, "bound"]
        writer = csv.DictWriter(text, fields, lineterminator="\n")
        writer.writeheader()
        for record in self.records():
            writer.writerow({key: _cell(value) if isinstance(value, str) else value for key, value in record.items()})
        return text.getvalue()


def _cell(text: str) -> str:
    """Return text for a cell of a table. A quote keeps spreadsheets from reading it as a formula."""
    return "'" * text.startswith(("=", "+", "-", "@")) + printable(text)


@accepts(module=MODULE, pipeline=PIPELINE, fold=instance(bool, expected="True or False"))
def cost_table(
    module: ModuleOp,
    by: str | Sequence[str] = "module",
    sort: str = "time",
    rows: int | None = DEFAULT_ROWS,
    topology: Topology | str | None = None,
    *,
    fold: bool = True,
    pipeline: Pipeline | str | None = None,
    measured: Sequence[str | os.PathLike[str]] = (),
) -> CostTable:
    """Report the time, the messages and the memory of a step of a rank, grouped by keys.

    The remaining passes run on a copy of the module. Symbolic sizes have the values of their examples. The rows add up
    to the step of `schedule_report` and to the peak of `memory_report`.

    Args:
        module: a program at any stage after import.
        by: one key or several: op, line, module, layer, kind, axis, phase or memory.
        sort: time, exposed, sent, held, flops, traffic, count, waste or misfit; the largest first.
        rows: the number of printed rows; None for all.
        topology: the hardware, as in `comm_report`.
        fold: whether to merge equal layers into one row.
        pipeline: the pipeline whose remaining passes run; the standard one if None.
        measured: the paths of traces of torch.profiler, one for each measured rank; see `MeasuredStep`.

    Raises:
        UnsupportedError, ParseError: a key, the sort order or the topology is unknown, or a trace cannot be read.
        SpmdirError: the module cannot be partitioned, or a trace is of another program.

    Example:
        >>> print(spmdir.report.cost_table(module, by=("module", "phase"), sort="exposed"))
    """
    from spmdir.analysis.phases import phases
    from spmdir.report.measured_step import measured_step
    from spmdir.report.profiler_trace import read_trace
    from spmdir.report.rank_ops import rank_ops
    from spmdir.report.rank_step import rank_step
    from spmdir.schedule.memory import find_peak

    keys = checked_keys(by)
    check_rows(rows)
    check_sort(sort)
    require_type("measured", measured, (list, tuple), "a list of paths of traces")
    for path in measured:
        require_type("a trace", path, (str, os.PathLike), "the path of a file that torch.profiler exported")
    step = rank_step(module, topology, as_pipeline(pipeline))
    phase_of = phases(step.function, step.kinds)
    timed = measured_step(step, [read_trace(path) for path in measured]) if measured else None
    ops = tuple(rank_ops(step, phase_of, timed.seconds if timed else None))
    peak_index = find_peak(step.execution.program)[1]
    name = "" if peak_index is None else step.execution.program.tasks[peak_index].name
    total, table_rows = CostRow((), ops), tuple(cost_rows(ops, keys, sort, fold))
    return CostTable(keys, table_rows, total, name, step.machine.name, step.mesh.axis_names, rows, timed)
