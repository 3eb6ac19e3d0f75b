"""The one way in which tables of costs are made: ops in groups by any keys, sorted, equal layers as one row."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterable, Sequence

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.equal_layers import equal_layers, numbered_modules, rounded
from spmdir.core.errors import UnsupportedError, did_you_mean, shown
from spmdir.core.time_text import milliseconds
from spmdir.report.op_costs import OpCost
from spmdir.report.shares import Share

ROWS = 20
"""How many rows a table has unless all are asked for."""

KEYS: dict[str, Callable[[OpCost], tuple[str, ...]]] = {
    "op": lambda op: (op.name, op.kind, op.line),
    "line": lambda op: (op.line,),
    "module": lambda op: (op.module,),
    "layer": lambda op: (op.layer,),
    "kind": lambda op: (op.kind,),
    "axis": lambda op: (", ".join(op.axes),),
    "phase": lambda op: (op.phase,),
    "memory": lambda op: (op.held_for,),
}
"""What rows may be of → what is equal for the ops of a row."""

LABELS = {"op": ("op", "kind", "line")}
"""The columns of a key, where these are not the key alone."""

PATHS = ("module", "layer")
"""The keys whose labels are module paths."""


@attrs.frozen
class CostRow:
    """What the ops of a group add up to.

    Attributes:
        labels: what is equal for them, column by column; equal layers have `*` for their number.
        layers: how many equal groups are in this row.
        ops: all of them.
    """

    labels: tuple[str, ...]
    ops: tuple[OpCost, ...] = attrs.field(repr=False)
    layers: int = 1

    @property
    def share(self) -> Share:
        """What they send and take, and how many they are."""
        return sum((op.share for op in self.ops), Share())

    def total(self, of: str) -> float:
        """Return the sum over one of the numbers of ops."""
        return math.fsum(getattr(op, of) for op in self.ops)

    @property
    def seconds(self) -> float:
        """What they add to a step."""
        return self.total("seconds")

    @property
    def alone(self) -> float:
        """The time of their kernels and of what they send, each alone."""
        return self.seconds - self.total("exposed") + self.total("transfer")

    @property
    def bound(self) -> str:
        """What bounds most of their time."""
        bounds: dict[str, float] = {}
        for op in self.ops:
            bounds[op.bound] = bounds.get(op.bound, 0.0) + op.seconds
        return max(bounds, key=bounds.__getitem__, default="")

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of a row by the names that scripts read, with units."""
        share = self.share
        return {
            "count": share.count,
            "seconds": self.seconds,
            "exposed_seconds": self.total("exposed"),
            "transfer_seconds": self.total("transfer"),
            "bound_seconds": self.total("least"),
            "sent_bytes": share.wire_bytes,
            "held_bytes": self.total("held"),
            "flops": self.total("flops"),
            "traffic_bytes": self.total("traffic"),
        }


SORTS: dict[str, Callable[[CostRow], float]] = {
    "time": lambda row: row.seconds,
    "exposed": lambda row: row.total("exposed"),
    "sent": lambda row: row.share.wire_bytes,
    "held": lambda row: row.total("held"),
    "flops": lambda row: row.total("flops"),
    "traffic": lambda row: row.total("traffic"),
    "count": lambda row: row.share.count,
    "waste": lambda row: row.alone - row.total("least"),
}
"""What rows may be sorted by, the largest first."""

COLUMNS: dict[str, Callable[[CostRow, CostRow], str]] = {
    "count": lambda row, _: str(row.share.count),
    "ms": lambda row, _: milliseconds(row.seconds),
    "share": lambda row, every: f"{row.seconds / every.seconds:.1%}" if every.seconds else "",
    "exposed": lambda row, _: milliseconds(row.total("exposed")),
    "sent": lambda row, _: size_text(row.share.wire_bytes),
    "held": lambda row, _: size_text(row.total("held")),
    "Gflop": lambda row, _: f"{row.total('flops') / 1e9:.4g}",
    "of bound": lambda row, _: f"{row.total('least') / row.alone:.0%}" if row.alone else "",
    "bound by": lambda row, _: row.bound,
}
"""The columns that follow the labels: each is a function of the row and of the row of all ops. All but the last one
are numbers."""


def checked_keys(by: str | Iterable[str]) -> tuple[str, ...]:
    """Return the keys of `by`, one or several.

    Raises:
        UnsupportedError: there is no such key, or one stands twice.
    """
    keys = tuple(by.split(",")) if isinstance(by, str) else tuple(by) if isinstance(by, (list, tuple)) else (by,)
    for key in keys:
        if not isinstance(key, str) or key not in KEYS:
            near = did_you_mean(key, KEYS) if isinstance(key, str) else ""
            raise UnsupportedError(f"a table of costs is by {shown(key)}; expected one of {', '.join(KEYS)}{near}")
    if len({*keys}) < len(keys) or not keys:
        raise UnsupportedError(f"a table of costs is by {shown(by)}; expected different keys")
    return keys  # type: ignore  # they are texts, being known


def check_rows(most: int | None) -> None:
    """Raise UnsupportedError unless a table can have so many rows at most; None is all."""
    if most is not None and (not isinstance(most, int) or most < 1):
        raise UnsupportedError(f"a table of costs has {shown(most)} rows; expected an int from 1 on, or None for all")


def check_sort(sort: str) -> None:
    """Raise UnsupportedError unless rows can be sorted so."""
    if not isinstance(sort, str) or sort not in SORTS:
        near = did_you_mean(sort, SORTS) if isinstance(sort, str) else ""
        raise UnsupportedError(f"a table of costs is sorted by {shown(sort)}; expected one of {', '.join(SORTS)}{near}")


def cost_rows(ops: Sequence[OpCost], by: Sequence[str], sort: str = "time", fold: bool = True) -> list[CostRow]:
    """Return the groups of ops that are equal in all of `by`, sorted.

    Args:
        by: of KEYS.
        sort: of SORTS.
        fold: whether groups are one row that differ in the number of a layer alone, and whose numbers are equal up to
            rounding.

    Raises:
        UnsupportedError: there is no such order.
    """
    check_sort(sort)
    groups: dict[tuple[str, ...], list[OpCost]] = {}
    for op in ops:
        groups.setdefault(tuple(label for key in by for label in KEYS[key](op)), []).append(op)
    rows = [CostRow(labels, tuple(found)) for labels, found in groups.items()]
    columns = [key for key in by for _ in LABELS.get(key, (key,))]
    paths = {at for at, key in enumerate(columns) if key in PATHS}
    return sorted(_folded(rows, paths) if fold else rows, key=lambda row: -SORTS[sort](row))


def equal_modules(ops: Iterable[OpCost]) -> list[list[str]]:
    """Return the paths of modules whose names have a number, equal ones together as in the rows of tables by layer."""
    inside: dict[str, list[OpCost]] = {}
    for op in ops:
        for path in numbered_modules(op.module):
            inside.setdefault(path, []).append(op)
    rows = [CostRow((path,), tuple(found)) for path, found in inside.items()]
    return [[row.labels[0] for row in equal] for _, equal in equal_layers(rows, lambda row: row.labels, _look, (0,))]


def _folded(rows: Sequence[CostRow], paths: Container[int]) -> list[CostRow]:
    """Return `rows` with those of equal layers as one; `paths` are the labels that are module paths."""
    return [
        CostRow(labels, tuple(op for row in equal for op in row.ops), len(equal))
        for labels, equal in equal_layers(rows, lambda row: row.labels, _look, paths)
    ]


def _look(row: CostRow) -> Hashable:
    """Return the numbers of a row up to rounding, which equal layers share."""
    return (*rounded(row.numbers.values()), row.bound)


def table_cells(
    rows: Sequence[CostRow], every: CostRow, by: Sequence[str], most: int | None
) -> tuple[list[tuple[str, ...]], range]:
    """Return the cells of a table with its head, and which of its columns are numbers.

    Args:
        every: the row of all ops.
        most: how many rows there are at most; what is left out is one row together; None for all.

    Raises:
        UnsupportedError: `most` is no such number.
    """
    check_rows(most)
    heads = [label for key in by for label in LABELS.get(key, (key,))]
    dearest = list(rows if most is None else rows[:most])
    if left := [op for row in rows[len(dearest) :] for op in row.ops]:
        dearest.append(CostRow(("others", *[""] * (len(heads) - 1)), tuple(left)))
    folded = [""] if any(row.layers > 1 for row in dearest) else []
    cells = [
        (
            row.labels[0] or "-",
            *row.labels[1:],
            *(f"x {row.layers}" if row.layers > 1 else "" for _ in folded),
            *(column(row, every) for column in COLUMNS.values()),
        )
        for row in dearest
    ]
    first = len(heads) + len(folded)
    return [(*heads, *folded, *COLUMNS), *cells], range(first, first + len(COLUMNS) - 1)
