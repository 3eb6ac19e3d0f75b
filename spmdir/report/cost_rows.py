"""Build the rows of cost tables: group ops by keys, sort the groups, and merge equal layers into one row."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import Any

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.equal_layers import equal_layers, numbered_modules, rounded
from spmdir.core.errors import UnsupportedError, did_you_mean, shown
from spmdir.core.time_text import milliseconds
from spmdir.report.op_costs import OpCost
from spmdir.report.op_sums import Share

DEFAULT_ROWS = 20
"""The number of rows that a table has by default."""

KEYS: dict[str, Callable[[OpCost], tuple[str, ...]]] = {
    "op": lambda op: (op.name, op.kind, op.line),
    "line": lambda op: (op.line,),
    "module": lambda op: (op.module,),
    "layer": lambda op: (op.layer,),
    "kind": lambda op: (op.kind,),
    "axis": lambda op: (", ".join(op.axes),),
    "phase": lambda op: (op.phase,),
    "memory": lambda op: (op.memory_class,),
}
"""Key → the labels that the ops of one row share."""

LABELS = {"op": ("op", "kind", "line")}
"""Key → its columns, if it has several."""

PATHS = ("module", "layer")
"""The keys whose labels are module paths."""


@attrs.frozen
class CostRow:
    """One row of a cost table: a group of ops.

    Attributes:
        labels: the labels that the ops share, one for each column; the number of merged layers is `*`.
        layers: the number of merged layers.
        ops: the ops of the group.
    """

    labels: tuple[str, ...]
    ops: tuple[OpCost, ...] = attrs.field(repr=False)
    layers: int = 1

    @property
    def share(self) -> Share:
        """The count, bytes and seconds of the ops."""
        return sum((op.share for op in self.ops), Share())

    def total(self, attribute: str) -> float:
        """Return the sum over the ops of an attribute of `OpCost`."""
        return math.fsum(getattr(op, attribute) for op in self.ops)

    @property
    def seconds(self) -> float:
        """The seconds that the ops add to a step."""
        return self.total("seconds")

    @property
    def alone(self) -> float:
        """The seconds of the kernels and transfers of the ops, without overlap."""
        return self.seconds - self.total("exposed") + self.total("transfer")

    @property
    def bound(self) -> str:
        """The limit that holds for most of the ops' time: compute, memory, launch, network or measured."""
        seconds_of_bound: dict[str, float] = {}
        for op in self.ops:
            seconds_of_bound[op.bound] = seconds_of_bound.get(op.bound, 0.0) + op.seconds
        return max(seconds_of_bound, key=seconds_of_bound.__getitem__, default="")

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the row, by the names in JSON and CSV. `measured_seconds` is left out if it is 0."""
        measured = self.total("measured")
        return {**self.modelled_numbers, **({"measured_seconds": measured} if measured else {})}

    @property
    def modelled_numbers(self) -> dict[str, float]:
        """The numbers of the row that are not measured."""
        share = self.share
        return {
            "count": share.count,
            "seconds": self.seconds,
            "exposed_seconds": self.total("exposed"),
            "transfer_seconds": self.total("transfer"),
            "bound_seconds": self.total("least"),
            "sent_bytes": share.wire_bytes,
            "held_bytes": self.total("held_bytes"),
            "flops": self.total("flops"),
            "traffic_bytes": self.total("traffic"),
        }


SORTS: dict[str, Callable[[CostRow], float]] = {
    "time": lambda row: row.seconds,
    "exposed": lambda row: row.total("exposed"),
    "sent": lambda row: row.share.wire_bytes,
    "held": lambda row: row.total("held_bytes"),
    "flops": lambda row: row.total("flops"),
    "traffic": lambda row: row.total("traffic"),
    "count": lambda row: row.share.count,
    "waste": lambda row: row.alone - row.total("least"),
    "misfit": lambda row: abs(row.total("measured") - row.seconds),
}
"""Sort order → the number that rows are sorted by, the largest first."""

COLUMNS: dict[str, Callable[[CostRow, CostRow], str]] = {
    "count": lambda row, _: str(row.share.count),
    "ms": lambda row, _: milliseconds(row.seconds),
    "share": lambda row, every: f"{row.seconds / every.seconds:.1%}" if every.seconds else "",
    "exposed": lambda row, _: milliseconds(row.total("exposed")),
    "sent": lambda row, _: size_text(row.share.wire_bytes),
    "held": lambda row, _: size_text(row.total("held_bytes")),
    "Gflop": lambda row, _: f"{row.total('flops') / 1e9:.4g}",
    "of bound": lambda row, _: f"{row.total('least') / row.alone:.0%}" if row.alone else "",
    "bound by": lambda row, _: row.bound,
}
"""Column → its text, from the row and the row of all ops. The columns follow the labels, and all but the last are
numbers."""

MEASURED_COLUMNS: dict[str, Callable[[CostRow, CostRow], str]] = {
    "measured": lambda row, _: milliseconds(row.total("measured")),
    "of model": lambda row, _: f"{row.total('measured') / row.seconds:.2f}" if row.seconds else "",
}
"""The columns that follow `ms` if the step was measured."""


def checked_keys(by: str | Iterable[str]) -> tuple[str, ...]:
    """Return the keys in `by`, a comma-separated text or a sequence.

    Raises:
        UnsupportedError: a key is unknown or repeated.
    """
    if isinstance(by, str):
        keys: tuple[Any, ...] = tuple(by.split(","))
    else:
        keys = tuple(by) if isinstance(by, (list, tuple)) else (by,)
    for key in keys:
        if not isinstance(key, str) or key not in KEYS:
            hint = did_you_mean(key, KEYS) if isinstance(key, str) else ""
            raise UnsupportedError(f"unknown key {shown(key)} of a cost table; expected one of {', '.join(KEYS)}{hint}")
    if len({*keys}) < len(keys) or not keys:
        raise UnsupportedError(f"invalid keys {shown(by)} of a cost table; expected at least one key, each once")
    return keys


def check_rows(most: int | None) -> None:
    """Raise UnsupportedError unless `most` is a positive int, or None for all rows."""
    if most is not None and (not isinstance(most, int) or most < 1):
        raise UnsupportedError(
            f"invalid number of rows {shown(most)}; expected an int of at least 1, or None for all rows"
        )


def check_sort(sort: str) -> None:
    """Raise UnsupportedError unless `sort` is a key of `SORTS`."""
    if not isinstance(sort, str) or sort not in SORTS:
        hint = did_you_mean(sort, SORTS) if isinstance(sort, str) else ""
        raise UnsupportedError(
            f"unknown sort order {shown(sort)} of a cost table; expected one of {', '.join(SORTS)}{hint}"
        )


def cost_rows(ops: Sequence[OpCost], by: Sequence[str], sort: str = "time", fold: bool = True) -> list[CostRow]:
    """Group ops by keys, and return the sorted rows.

    Args:
        by: keys of `KEYS`.
        sort: a key of `SORTS`.
        fold: whether to merge groups that differ only in the number of a layer, if their numbers are equal up to
            rounding.

    Raises:
        UnsupportedError: the sort order is unknown.
    """
    check_sort(sort)
    groups: dict[tuple[str, ...], list[OpCost]] = {}
    for op in ops:
        labels = tuple(label for key in by for label in KEYS[key](op))
        groups.setdefault(labels, []).append(op)
    rows = [CostRow(labels, tuple(members)) for labels, members in groups.items()]
    if fold:
        key_of_column = [key for key in by for _ in LABELS.get(key, (key,))]  # a key may have several columns
        path_columns = {index for index, key in enumerate(key_of_column) if key in PATHS}
        rows = _merge_equal_layers(rows, path_columns)
    return sorted(rows, key=lambda row: -SORTS[sort](row))


def equal_modules(ops: Iterable[OpCost]) -> list[list[str]]:
    """Return the paths of numbered modules, in groups of equal modules as in tables by layer."""
    ops_of_module: dict[str, list[OpCost]] = {}
    for op in ops:
        for path in numbered_modules(op.module):
            ops_of_module.setdefault(path, []).append(op)
    rows = [CostRow((path,), tuple(members)) for path, members in ops_of_module.items()]
    groups = equal_layers(rows, lambda row: row.labels, _equality_key, (0,))
    return [[row.labels[0] for row in equal_rows] for _, equal_rows in groups]


def _merge_equal_layers(rows: Sequence[CostRow], paths: Container[int]) -> list[CostRow]:
    """Merge the rows of equal layers; `paths` are the indices of the labels that are module paths."""
    merged_rows = []
    for labels, equal_rows in equal_layers(rows, lambda row: row.labels, _equality_key, paths):
        ops = tuple(op for row in equal_rows for op in row.ops)
        merged_rows.append(CostRow(labels, ops, len(equal_rows)))
    return merged_rows


def _equality_key(row: CostRow) -> Hashable:
    """Return the rounded modelled numbers of a row, which equal layers share."""
    return (*rounded(row.modelled_numbers.values()), row.bound)


def table_cells(
    rows: Sequence[CostRow], total: CostRow, by: Sequence[str], most: int | None
) -> tuple[list[tuple[str, ...]], range]:
    """Return the cells of a table with its header, and the indices of its number columns.

    Args:
        total: the row of all ops.
        most: the number of rows, None for all. All further rows are merged into the row `others`.

    Raises:
        UnsupportedError: `most` is not a positive int.
    """
    check_rows(most)
    labels = [label for key in by for label in LABELS.get(key, (key,))]
    shown = list(rows if most is None else rows[:most])
    remaining = [op for row in rows[len(shown) :] for op in row.ops]
    if remaining:
        shown.append(CostRow(("others", *[""] * (len(labels) - 1)), tuple(remaining)))
    columns = {}
    for name, column in COLUMNS.items():
        columns[name] = column
        if name == "ms" and total.total("measured"):
            columns |= MEASURED_COLUMNS
    layers_column = [""] if any(row.layers > 1 for row in shown) else []
    cells = []  # of each row: its labels, the number of merged layers if any row has several, and its numbers
    for row in shown:
        layers = [f"x {row.layers}" if row.layers > 1 else ""] if layers_column else []
        numbers = [column(row, total) for column in columns.values()]
        cells.append((row.labels[0] or "-", *row.labels[1:], *layers, *numbers))
    first_number = len(labels) + len(layers_column)
    return [(*labels, *layers_column, *columns), *cells], range(first_number, first_number + len(columns) - 1)
