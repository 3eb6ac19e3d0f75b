"""What differs between two partitioned programs, by meaning: time, bytes, memory, collectives by layer, shardings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import OpResult, SSAValue

from spmdir.core.arguments import accepts
from spmdir.core.byte_size import size_text
from spmdir.core.equal_layers import equal_layers, of_any_layer, rounded
from spmdir.core.errors import UnsupportedError
from spmdir.core.html_text import ShownAsText
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.time_text import milliseconds, time_text
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.attributes import ShardingAttr
from spmdir.dialects.locations import places_of
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import unresharded
from spmdir.dialects.stage import is_local
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.explanation.explained import percent_text
from spmdir.explanation.same_values import made_values, names_in
from spmdir.pipeline.noted_options import machine_of
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.report.communication import comm_report
from spmdir.report.grouped_costs import cost_table
from spmdir.report.op_costs import shares_by
from spmdir.report.shares import Share, table
from spmdir.report.with_collectives import with_collectives
from spmdir.reshard.topology import Topology

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

_NOTHING = (0.0, 0.0, 0.0)


@attrs.frozen
class Figures:
    """What a partitioned program takes.

    Attributes:
        objective: what propagate minimises, in seconds: the ops of a step one after the other; None if it is localized.
        seconds: of a step of a rank in its order.
        wire_bytes: bytes that a rank sends.
        count: the number of collectives.
        peak_bytes: the most that a rank holds at once.
        layers: path of a module up to its first number, empty for what is of none → seconds of the step, bytes that are
            sent for it, and bytes that it holds where the rank holds most.
        collectives: (name of the value that is sent, kind, axes) → their share.
        shardings: name of each value, and of each result, as `result 0` or `result` and its name → its sharding.
        modules: name of each value → the module that makes it, empty if that is not known; numbers of layers as `*`.
        mesh: over whose axes it is partitioned.
    """

    objective: float | None
    seconds: float
    wire_bytes: float
    count: int
    peak_bytes: float
    layers: Mapping[str, tuple[float, float, float]]
    collectives: Mapping[tuple[str, str, str], Share]
    shardings: Mapping[str, Sharding]
    modules: Mapping[str, str]
    mesh: Mesh


@attrs.frozen
class Constrained:
    """A constraint, and what it takes.

    Attributes:
        name: of the value that it is on.
        made: the sharding that this is made in.
        given: the sharding that its users are given.
        steps: collectives by which the value gets there, and from there to its users.
        seconds: what these take.
    """

    name: str
    made: Sharding
    given: Sharding
    steps: tuple[str, ...]
    seconds: float


@attrs.frozen
class Difference(ShownAsText):
    """Two partitioned programs, side by side.

    Attributes:
        before, after: what each takes; values are named as in the first.
        changed: (module, sharding before, sharding after) → names of the values; a text is empty where there is no such
            value.
        constraints: those that `what_if` was asked for.
    """

    before: Figures
    after: Figures
    changed: Mapping[tuple[str, str, str], tuple[str, ...]]
    constraints: tuple[Constrained, ...] = ()

    def __str__(self) -> str:
        parts = [self._layers(), self._collectives(), self._constraints(), self._values()]
        if not any(parts):
            parts.append(["no sharding and no collective differs"])
        return "\n\n".join("\n".join(part) for part in (self._totals(), *parts) if part)

    def _totals(self) -> list[str]:
        one, other = self.before, self.after
        rows = [
            ("step of a rank", one.seconds, other.seconds, time_text),
            ("sent", one.wire_bytes, other.wire_bytes, size_text),
            ("collectives", one.count, other.count, str),
            ("peak of a rank", one.peak_bytes, other.peak_bytes, size_text),
        ]
        if one.objective is not None and other.objective is not None:
            rows.insert(0, ("objective", one.objective, other.objective, time_text))
        texts = [(name, text(was), text(now), _percent(was, now)) for name, was, now, text in rows]
        return table([("", "before", "after", ""), *texts], range(1, 4))

    def _layers(self) -> list[str]:
        if any(self.before.modules.values()) != any(self.after.modules.values()):
            return []  # one of them has no module paths
        one, other = self.before.layers, self.after.layers
        if not any((*one, *other)):
            return []
        found = [(name, (*one.get(name, _NOTHING), *other.get(name, _NOTHING))) for name in {**one, **other}]
        groups = equal_layers(found, lambda row: (row[0],), lambda row: rounded(row[1]), (0,))
        rows: list[tuple[float, tuple[str, ...]]] = []
        for (label,), equal in groups:
            sums = [math.fsum(numbers) for numbers in zip(*(numbers for _, numbers in equal), strict=True)]
            was, now = ((milliseconds(ms), *map(size_text, sizes)) for ms, *sizes in (sums[:3], sums[3:]))
            if was != now:
                times = f"x {len(equal)}" if len(equal) > 1 else ""
                rows.append((-abs(sums[3] - sums[0]), (label or "-", times, *was, *now)))
        head = ("layers", "", "ms before", "sent", "held", "ms after", "sent", "held")
        return table([head, *(cells for _, cells in sorted(rows))], range(2, 8)) if rows else []

    def _collectives(self) -> list[str]:
        found: dict[tuple[str, str, str], list[Share]] = {}
        for at, figures in enumerate((self.before, self.after)):
            for (name, kind, axes), share in figures.collectives.items():
                shares = found.setdefault((self._module(name), kind, axes), [Share(), Share()])
                shares[at] += share
        moved = [(key, was, now) for key, (was, now) in found.items() if was != now]
        moved.sort(key=lambda row: -abs(row[2].seconds - row[1].seconds))
        rows = [(*key, *was.cells[:3], *now.cells[:3]) for key, was, now in moved]
        head = ("collectives", "", "", "before", "sent", "ms", "after", "sent", "ms")
        return table([head, *rows], range(3, 9)) if rows else []

    def _constraints(self) -> list[str]:
        alike: dict[tuple[object, ...], list[Constrained]] = {}
        for one in self.constraints:
            alike.setdefault((self._module(one.name), one.made, one.given, one.steps), []).append(one)
        rows = [("constraints", "made", "for users", "by", "ms")]
        for found in alike.values():
            one, milli = found[0], milliseconds(math.fsum(one.seconds for one in found))
            name, by = _alike([one.name for one in found]), ", ".join(one.steps) or "as it is"
            rows.append((name, f"<{one.made}>", f"<{one.given}>", by, milli))
        return table(rows, range(4, 5)) if self.constraints else []

    def _values(self) -> list[str]:
        rows = [("values", "before", "after")]
        for (_, was, now), names in self.changed.items():
            rows.append((_alike(names), was or "none", now or "none"))
        if self.before.mesh != self.after.mesh:
            was, now = (f"@{figures.mesh.name} {figures.mesh}" for figures in (self.before, self.after))
            rows.insert(1, ("mesh", was, now))
        return table(rows, range(0)) if len(rows) > 1 else []

    def _module(self, name: str) -> str:
        return _module(name, self.before, self.after)


@accepts(before=MODULE, after=MODULE, pipeline=PIPELINE)
def diff(before: ModuleOp, after: ModuleOp, pipeline: Pipeline | str | None = None) -> Difference:
    """Return what differs between two programs, at any stage between propagate and localize.

    Arguments are the same by name, other values if the same op makes them of the same values, else by name; so a
    program and what it is with its layers as functions do not differ.

    Args:
        before, after: both take the times of the machine that the first was decided for.
        pipeline: by which they go on; the standard one if None.

    Raises:
        SpmdirError: a program is not decided, or cannot be partitioned.

    Example:
        >>> print(spmdir.report.diff(before, after))
    """
    pipeline = as_pipeline(pipeline)
    machine = machine_of(
        ir.main_function(before), pipeline, pipeline.topology or "auto", os.fspath(pipeline.costs or "")
    )
    one, other = (with_collectives(module, pipeline)[0] for module in (before, after))
    first, second = map(ir.main_function, (one, other))
    was = _figures(one, pipeline, machine.topology, {value: text_name(value) for value in made_values(first)})
    now = _figures(other, pipeline, machine.topology, names_in(first, second))
    changed: dict[tuple[str, str, str], list[str]] = {}
    for name in {**was.shardings, **now.shardings}:
        shardings = [figures.shardings.get(name) for figures in (was, now)]
        if len({sharding and sharding.entries for sharding in shardings}) > 1:
            before_text, after_text = ("" if sharding is None else f"<{sharding}>" for sharding in shardings)
            changed.setdefault((_module(name, was, now), before_text, after_text), []).append(name)
    return Difference(was, now, {key: tuple(names) for key, names in changed.items()})


def _figures(module: ModuleOp, pipeline: Pipeline, topology: Topology, names: Mapping[SSAValue, str]) -> Figures:
    """Return what a program with collectives takes on a machine.

    Args:
        names: of its values.

    Raises:
        SpmdirError: it is not decided, or cannot be partitioned.
    """
    report = comm_report(module, topology, pipeline=pipeline)
    if not report.decided:
        raise UnsupportedError("the program has values without a sharding; run propagate on it first")
    step = cost_table(module, "layer", topology=topology, fold=False, pipeline=pipeline)
    ops = [op for op in ir.main_function(module).body.block.ops if isinstance(op, ValueOp)]
    sources = {text_name(value): names[unresharded(value)] for op in ops for value in op.results}
    sent = (op for op in report.ops if op.axes)
    placed = {name: sharding_of(value) for value, name in names.items()}
    function = ir.main_function(module)
    for index in range(len(function.function_type.outputs)):
        given = function_attrs(function, "res_attrs", index)
        wanted, said = given.get("spmd.sharding"), given.get("spmd.name")
        name = f"result {said.data}" if isinstance(said, StringAttr) else ""
        name = f"result {index}" if not name or name in placed else name
        placed[name] = wanted.data if isinstance(wanted, ShardingAttr) else None
    return Figures(
        objective=None if is_local(function) else report.seconds + sum(one.seconds for one in report.compute.values()),
        seconds=step.total.seconds,
        wire_bytes=report.wire_bytes,
        count=report.count,
        peak_bytes=step.total.total("held"),
        layers={row.labels[0]: (row.seconds, row.share.wire_bytes, row.total("held")) for row in step.rows},
        collectives=shares_by(sent, lambda op: (sources[op.name], op.kind, f"[{', '.join(op.axes)}]")),
        shardings={name: sharding for name, sharding in placed.items() if sharding is not None},
        modules={name: _module_of(value) for value, name in names.items()},
        mesh=ir.mesh(module),
    )


def _module_of(value: SSAValue) -> str:
    paths = places_of(value.op.location).paths if isinstance(value, OpResult) else ()
    return of_any_layer(paths[0] if paths else "", is_path=True)


def _module(name: str, before: Figures, after: Figures) -> str:
    """Return the module of a value, or else its name, with numbers of layers as `*`."""
    return before.modules.get(name) or after.modules.get(name) or of_any_layer(name)


def _alike(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} alike" if len(names) > 1 else names[0]


def _percent(before: float, after: float) -> str:
    return percent_text(before, after) if before else ""
