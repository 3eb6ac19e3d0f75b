"""A step of a rank as tables by place: module, line, axis, kind, phase, and what memory is held for."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from spmdir.core.arguments import accepts, instance
from spmdir.core.byte_size import size_text
from spmdir.core.errors import printable
from spmdir.core.html_text import ShownAsText
from spmdir.core.time_text import milliseconds
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.report.cost_rows import LABELS, ROWS, CostRow, check_rows, check_sort, checked_keys, cost_rows, table_cells
from spmdir.report.op_costs import OpCost
from spmdir.report.shares import table
from spmdir.reshard.topology import Topology

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


@attrs.frozen
class CostTable(ShownAsText):
    """What a rank spends in a step, in rows.

    Attributes:
        by: what the ops of a row have in common.
        rows: sorted; equal layers are one.
        total: the row of all ops.
        at: what is computed where the rank holds most, as its name in the text.
        machine: what prices are of.
        axes: of the mesh.
        shown: how many rows are printed; None for all.
    """

    by: tuple[str, ...]
    rows: tuple[CostRow, ...]
    total: CostRow
    at: str
    machine: str
    axes: tuple[str, ...]
    shown: int | None = ROWS

    @property
    def ops(self) -> tuple[OpCost, ...]:
        """What each op costs, in program order, and each input."""
        return self.total.ops

    @property
    def heads(self) -> tuple[str, ...]:
        """The columns of the labels of rows."""
        return tuple(label for key in self.by for label in LABELS.get(key, (key,)))

    def cells(self) -> tuple[list[tuple[str, ...]], range]:
        """Return the texts of the printed rows, the head first, and which columns are numbers."""
        return table_cells(self.rows, self.total, self.by, self.shown)

    def totals(self) -> str:
        """Return a line that says what all rows add up to."""
        row = self.total
        exposed, held = row.total("exposed"), row.total("held")
        return (
            f"step of a rank {milliseconds(row.seconds)} ms on {self.machine}: exposed {milliseconds(exposed)} ms, "
            f"sent {size_text(row.share.wire_bytes)}, peak of live memory {size_text(held)} at "
            f"{self.at or 'the arguments'}"
        )

    def __str__(self) -> str:
        return "\n".join([*table(*self.cells()), self.totals()])

    def records(self) -> list[dict[str, Any]]:
        """Return all rows as dicts: labels, `layers`, which is how many equal ones a row is, and numbers with units."""
        return [
            {**dict(zip(self.heads, row.labels, strict=True)), "layers": row.layers, **row.numbers, "bound": row.bound}
            for row in self.rows
        ]

    def json(self) -> str:
        """Return rows and totals as JSON."""
        said = {"by": self.by, "machine": self.machine, "peak_at": self.at}
        return json.dumps({**said, "rows": self.records(), "total": self.total.numbers}, indent=1) + "\n"

    def csv(self) -> str:
        """Return rows as CSV with a head; a text that a spreadsheet would run as a formula has a `'` before it."""
        text = io.StringIO()
        fields = [*self.heads, "layers", *self.total.numbers, "bound"]
        writer = csv.DictWriter(text, fields, lineterminator="\n")
        writer.writeheader()
        for record in self.records():
            writer.writerow({key: _cell(value) if isinstance(value, str) else value for key, value in record.items()})
        return text.getvalue()


def _cell(text: str) -> str:
    return "'" * text.startswith(("=", "+", "-", "@")) + printable(text)


@accepts(module=MODULE, pipeline=PIPELINE, fold=instance(bool, expected="True or False"))
def cost_table(
    module: ModuleOp,
    by: str | Sequence[str] = "module",
    sort: str = "time",
    rows: int | None = ROWS,
    topology: Topology | str | None = None,
    *,
    fold: bool = True,
    pipeline: Pipeline | str | None = None,
) -> CostTable:
    """Return what a rank spends in a step of `module`, by where it is spent; at the examples of symbolic sizes.

    The passes that the module still needs are run on a copy. All rows together are the step of `schedule_report` and
    the peak of `memory_report`.

    Args:
        module: at any stage after import.
        by: what rows are of, one key or several: op, line, module, layer, kind, axis, phase or memory.
        sort: time, exposed, sent, held, flops, traffic, count or waste, the largest first.
        rows: how many are printed; None for all.
        topology: what the mesh runs on, as in `comm_report`.
        fold: whether equal layers are one row.
        pipeline: whose remaining passes are run; the standard one if None.

    Raises:
        UnsupportedError, ParseError: there is no such table or topology.
        SpmdirError: the module cannot be partitioned.

    Example:
        >>> print(spmdir.report.cost_table(module, by=("module", "phase"), sort="exposed"))
    """
    from spmdir.analysis.phases import phases
    from spmdir.report.rank_ops import rank_ops
    from spmdir.report.rank_step import rank_step
    from spmdir.schedule.memory import find_peak

    keys = checked_keys(by)
    check_rows(rows)
    check_sort(sort)
    step = rank_step(module, topology, as_pipeline(pipeline))
    told = phases(step.function, step.kinds)
    ops = tuple(rank_ops(step, told))
    at = find_peak(step.execution.program)[1]
    name = "" if at is None else step.execution.program.tasks[at].name
    total, found = CostRow((), ops), tuple(cost_rows(ops, keys, sort, fold))
    return CostTable(keys, found, total, name, step.machine.name, step.mesh.axis_names, rows)
