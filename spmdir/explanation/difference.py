"""What differs between two partitioned programs, by meaning: time, bytes, memory, collectives by layer, shardings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
from xdsl.ir import OpResult, SSAValue

from spmdir.core.arguments import accepts
from spmdir.core.byte_size import size_text
from spmdir.core.equal_layers import of_any_layer
from spmdir.core.errors import UnsupportedError
from spmdir.core.html_text import ShownAsText
from spmdir.core.sharding import Sharding
from spmdir.core.time_text import time_text
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import LayoutOp
from spmdir.dialects.source_places import places_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.explanation.explained import percent_text
from spmdir.passes.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.passes.propagation.noted_options import machine_of
from spmdir.report.communication import comm_report
from spmdir.report.memory import memory_report
from spmdir.report.op_costs import shares_by
from spmdir.report.shares import Share, table
from spmdir.report.with_collectives import with_collectives
from spmdir.reshard.topology import Topology

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

_FORMS = (Collective, WaitOp, LayoutOp)
"""The ops whose result is their operand, elsewhere."""


@attrs.frozen
class Figures:
    """What a partitioned program takes.

    Attributes:
        seconds: of a step of a rank, its ops one after the other.
        wire_bytes: bytes that a rank sends.
        count: the number of collectives.
        peak_bytes: the most that a rank holds at once.
        collectives: (name of the value that is sent, kind, axes) → their share.
        shardings: name of each value → its sharding.
        layers: name of each value → the module that makes it, or else its name; numbers of layers as `*`.
    """

    seconds: float
    wire_bytes: float
    count: int
    peak_bytes: float
    collectives: Mapping[tuple[str, str, str], Share]
    shardings: Mapping[str, Sharding]
    layers: Mapping[str, str]


@attrs.frozen
class Difference(ShownAsText):
    """Two partitioned programs, side by side.

    Attributes:
        before, after: what each takes.
        changed: (layer, sharding before, sharding after) → names of the values; a text is empty where there is no such
            value.
    """

    before: Figures
    after: Figures
    changed: Mapping[tuple[str, str, str], tuple[str, ...]]

    def __str__(self) -> str:
        parts = [self._totals(), self._collectives(), self._values()]
        if not any(parts[1:]):
            parts.append(["no sharding and no collective differs"])
        return "\n\n".join("\n".join(part) for part in parts if part)

    def _totals(self) -> list[str]:
        one, other = self.before, self.after
        rows = [
            ("a step takes", one.seconds, other.seconds, time_text),
            ("sent", one.wire_bytes, other.wire_bytes, size_text),
            ("collectives", one.count, other.count, str),
            ("peak of a rank", one.peak_bytes, other.peak_bytes, size_text),
        ]
        texts = [(name, text(was), text(now), _percent(was, now)) for name, was, now, text in rows]
        return table([("", "before", "after", ""), *texts], range(1, 4))

    def _collectives(self) -> list[str]:
        found: dict[tuple[str, str, str], list[Share]] = {}
        for at, figures in enumerate((self.before, self.after)):
            for (name, kind, axes), share in figures.collectives.items():
                layer = self.before.layers.get(name) or self.after.layers[name]
                shares = found.setdefault((layer, kind, axes), [Share(), Share()])
                shares[at] += share
        moved = [(key, was, now) for key, (was, now) in found.items() if was != now]
        moved.sort(key=lambda row: -abs(row[2].seconds - row[1].seconds))
        rows = [(*key, *was.cells[:3], *now.cells[:3]) for key, was, now in moved]
        head = ("collectives", "", "", "before", "sent", "ms", "after", "sent", "ms")
        return table([head, *rows], range(3, 9)) if rows else []

    def _values(self) -> list[str]:
        rows = [("values", "before", "after")]
        for (_, was, now), (first, *others) in self.changed.items():
            rows.append((f"{first} and {len(others)} alike" if others else first, was or "none", now or "none"))
        return table(rows, range(0)) if self.changed else []


@accepts(before=MODULE, after=MODULE, pipeline=PIPELINE)
def compare(before: ModuleOp, after: ModuleOp, pipeline: Pipeline | str | None = None) -> Difference:
    """Return what differs between two programs, at any stage between propagate and localize; values go by their names.

    Args:
        before, after: on one mesh; both take the times of the machine that the first was decided for.
        pipeline: by which they go on; the standard one if None.

    Raises:
        SpmdirError: a program is not decided, or cannot be partitioned.

    Example:
        >>> print(spmdir.compare(before, after))
    """
    pipeline = as_pipeline(pipeline)
    machine = machine_of(
        ir.main_function(before), pipeline, pipeline.topology or "auto", os.fspath(pipeline.costs or "")
    )
    one, other = (figures(module, pipeline, machine.topology) for module in (before, after))
    changed: dict[tuple[str, str, str], list[str]] = {}
    for name in {**one.shardings, **other.shardings}:
        was, now = (figure.shardings.get(name) for figure in (one, other))
        if was != now:
            layer = one.layers.get(name) or other.layers[name]
            one_text, other_text = ("" if sharding is None else f"<{sharding}>" for sharding in (was, now))
            changed.setdefault((layer, one_text, other_text), []).append(name)
    return Difference(one, other, {key: tuple(names) for key, names in changed.items()})


def figures(module: ModuleOp, pipeline: Pipeline, topology: Topology) -> Figures:
    """Return what a partitioned program takes on a machine.

    Raises:
        SpmdirError: it is not decided, or cannot be partitioned.
    """
    lowered, _ = with_collectives(module, pipeline)
    report = comm_report(lowered, topology, pipeline=pipeline)
    if not report.decided:
        raise UnsupportedError("the program has values without a sharding; run propagate on it first")
    function = ir.main_function(lowered)
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    sources = {text_name(value): text_name(_source(value)) for op in ops for value in op.results}
    sent = (op for op in report.ops if op.axes)
    collectives = shares_by(sent, lambda op: (sources[op.name], op.kind, f"[{', '.join(op.axes)}]"))
    made = (op for op in ops if not isinstance(op, _FORMS))
    values = {text_name(value): value for value in (*function.args, *(value for op in made for value in op.results))}
    placed = {name: sharding_of(value) for name, value in values.items()}
    return Figures(
        report.seconds + sum(share.seconds for share in report.compute.values()),
        report.wire_bytes,
        report.count,
        memory_report(module, pipeline=pipeline).peak_bytes,
        collectives,
        {name: sharding for name, sharding in placed.items() if sharding is not None},
        {name: _layer(name, value) for name, value in values.items()},
    )


def _source(value: SSAValue) -> SSAValue:
    """Return the value that `value` is a form of."""
    while isinstance(value, OpResult) and isinstance(value.op, _FORMS):
        value = value.op.operands[value.index]
    return value


def _layer(name: str, value: SSAValue) -> str:
    paths = places_of(value.op.location).paths if isinstance(value, OpResult) else ()
    return of_any_layer(paths[0] if paths else name)


def _percent(before: float, after: float) -> str:
    return percent_text(before, after) if before else ""
