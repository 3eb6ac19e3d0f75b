"""What each op of a program costs, and where: tables of the dearest ops, and of the dearest lines of source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import Location, UnsupportedError, shown
from spmdir.report.shares import Share, table

Grouping = Literal["op", "line"]
"""What each row of a table is of."""

ROWS = 20
"""How many rows a table has unless all are asked for."""

LABELS: dict[Grouping, tuple[str, ...]] = {"op": ("op", "kind", "line"), "line": ("line",)}
"""The first columns of a table."""

COLUMNS = ("count", "ms", "share", "Gflop", "memory", "sent", "bound by", "price of")
"""The others: of what bounds the ops of a row stands what bounds most of their time."""

INPUTS = "inputs"
"""What the reading of inputs is called among the kinds of ops."""

MEASURED = "measured"
"""What bounds an op whose time is from a table of costs."""


@attrs.frozen
class OpCost:
    """What one op costs on the busiest rank: a torch op, a collective, a step that sends nothing, or reading an input.

    Attributes:
        name: of its first result, as in the text.
        kind: the name of a torch op, or of a step that sends nothing; the kind of a collective; or `inputs`.
        location: where the text, or the model's source, has it; None if that is not known.
        share: the bytes that it sends, its time, and where that is from.
        flops: floating-point operations.
        traffic: bytes that it reads and writes in memory; 0 for a collective.
        bound: what takes most of the time: "compute", "memory", "launch" or "network"; "measured" where a table of
            costs has the time.
        axes: of the groups of a collective.
    """

    name: str
    kind: str
    location: Location | None
    share: Share
    flops: float
    traffic: float
    bound: str
    axes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Return its modelled or measured time."""
        return self.share.seconds

    @property
    def line(self) -> str:
        """Return its file and line; `unknown` if there is none."""
        return f"{self.location.file}:{self.location.line}" if self.location is not None else "unknown"


def cost_table(ops: Sequence[OpCost], by: Grouping, rows: int | None = ROWS) -> list[str]:
    """Return the lines of a table of what takes longest, ops or lines of source; what is left out is one row together.

    Args:
        rows: the most that there are; None for all.

    Raises:
        UnsupportedError: there is no such table.
    """
    if by not in LABELS:
        raise UnsupportedError(f"a table of costs is by {shown(by)}; expected one of {', '.join(LABELS)}")
    if rows is not None and (not isinstance(rows, int) or rows < 1):
        raise UnsupportedError(f"a table of costs has {shown(rows)} rows; expected an int from 1 on, or None for all")
    groups: dict[object, list[OpCost]] = {}
    for at, op in enumerate(ops):
        groups.setdefault(op.line if by == "line" else at, []).append(op)
    ordered = sorted(groups.values(), key=lambda group: -_seconds(group))
    dearest = ordered if rows is None else ordered[:rows]
    cells = [(*_labels(group[0], by), *_cells(group, ops)) for group in dearest]
    if others := [op for group in ordered[len(dearest) :] for op in group]:
        cells.append(("others", *[""] * (len(LABELS[by]) - 1), *_cells(others, ops)))
    return table([(*LABELS[by], *COLUMNS), *cells], range(len(LABELS[by]), len(LABELS[by]) + 6))


def _labels(op: OpCost, by: Grouping) -> tuple[str, ...]:
    return (op.name, op.kind, op.line) if by == "op" else (op.line,)


def _cells(ops: Sequence[OpCost], among: Sequence[OpCost]) -> tuple[str, ...]:
    share, total = sum((op.share for op in ops), Share()), _seconds(among)
    count, sent, ms, prices = share.cells
    part = f"{share.seconds / total:.1%}" if total else ""
    flops = f"{math.fsum(op.flops for op in ops) / 1e9:.4g}"
    memory = size_text(math.fsum(op.traffic for op in ops))
    bounds: dict[str, float] = {}
    for op in ops:
        bounds[op.bound] = bounds.get(op.bound, 0.0) + op.seconds
    return count, ms, part, flops, memory, sent, max(bounds, key=bounds.__getitem__), prices


def _seconds(ops: Sequence[OpCost]) -> float:
    return math.fsum(op.seconds for op in ops)
