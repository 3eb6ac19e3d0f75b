"""Compare two partitioned programs: time, bytes sent, peak memory, collectives and shardings, in total and by layer."""

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
from spmdir.explanation.explanation_results import percent_text
from spmdir.explanation.same_values import match_names, program_values
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.pipeline.recorded_options import machine_of
from spmdir.report.communication import comm_report
from spmdir.report.grouped_costs import cost_table
from spmdir.report.lower_for_report import with_collectives
from spmdir.report.op_costs import shares_by
from spmdir.report.op_sums import Share, table
from spmdir.reshard.topology import Topology

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.dialects.func import FuncOp

_NO_COSTS = (0.0, 0.0, 0.0)


@attrs.frozen
class Figures:
    """The costs and shardings of a partitioned program.

    Attributes:
        objective: the objective of propagate, in seconds; None for a local program.
        seconds: the time of a step of a rank, in program order.
        wire_bytes: the bytes that a rank sends.
        count: the number of collectives.
        peak_bytes: the peak of live memory of a rank.
        layers: module path up to its first number, empty for ops outside modules → (seconds of the step, bytes sent,
            live bytes at the peak).
        collectives: (name of the value that is sent, kind, axes) → the share of these collectives.
        shardings: name of a value → its sharding. Results of the function are named `result 0`, or `result` and their
            name.
        modules: name of a value → the module that produces it, with `*` for numbers of layers; empty if unknown.
        mesh: the mesh of the program.
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
    """A constraint, and its reshard.

    Attributes:
        name: the constrained value.
        produced: the sharding of its producer.
        for_users: the sharding that the constraint requires for its users.
        steps: the steps of the reshard from `produced` to `for_users`.
        seconds: their time.
    """

    name: str
    produced: Sharding
    for_users: Sharding
    steps: tuple[str, ...]
    seconds: float


@attrs.frozen
class Difference(ShownAsText):
    """The comparison of two partitioned programs.

    Attributes:
        before, after: the costs of each; values have their names in the first program.
        changed: (module, sharding before, sharding after) → names of the values. A sharding is empty if its program has
            no such value.
        constraints: the constraints that `what_if` added or changed.
    """

    before: Figures
    after: Figures
    changed: Mapping[tuple[str, str, str], tuple[str, ...]]
    constraints: tuple[Constrained, ...] = ()

    def __str__(self) -> str:
        tables = [self._layers(), self._collectives(), self._constraints(), self._values()]
        if not any(tables):
            tables.append(["all shardings and collectives are equal"])
        return "\n\n".join("\n".join(lines) for lines in (self._totals(), *tables) if lines)

    def _totals(self) -> list[str]:
        """Return the table of the totals of both programs."""
        before, after = self.before, self.after
        rows = [
            ("step of a rank", before.seconds, after.seconds, time_text),
            ("sent", before.wire_bytes, after.wire_bytes, size_text),
            ("collectives", before.count, after.count, str),
            ("peak of a rank", before.peak_bytes, after.peak_bytes, size_text),
        ]
        if before.objective is not None and after.objective is not None:
            rows.insert(0, ("objective", before.objective, after.objective, time_text))
        texts = [(name, to_text(old), to_text(new), _percent(old, new)) for name, old, new, to_text in rows]
        return table([("", "before", "after", ""), *texts], range(1, 4))

    def _layers(self) -> list[str]:
        """Return the table of the layers whose costs differ, the largest difference first. Equal layers share a row.

        There is no table if only one of the programs has module paths, because its layers could not be matched.
        """
        if any(self.before.modules.values()) != any(self.after.modules.values()):
            return []
        before, after = self.before.layers, self.after.layers
        if not any((*before, *after)):
            return []
        # (name of a layer, its three costs before, followed by those after)
        costs = [(name, (*before.get(name, _NO_COSTS), *after.get(name, _NO_COSTS))) for name in {**before, **after}]
        groups = equal_layers(costs, lambda row: (row[0],), lambda row: rounded(row[1]), (0,))
        rows: list[tuple[float, tuple[str, ...]]] = []  # (sort key, cells)
        for (label,), equal in groups:
            costs_of_layers = zip(*(numbers for _, numbers in equal), strict=True)
            old_seconds, old_sent, old_held, new_seconds, new_sent, new_held = map(math.fsum, costs_of_layers)
            old = milliseconds(old_seconds), size_text(old_sent), size_text(old_held)
            new = milliseconds(new_seconds), size_text(new_sent), size_text(new_held)
            if old != new:
                times = f"x {len(equal)}" if len(equal) > 1 else ""
                rows.append((-abs(new_seconds - old_seconds), (label or "-", times, *old, *new)))
        header = ("layers", "", "ms before", "sent", "held", "ms after", "sent", "held")
        return table([header, *(cells for _, cells in sorted(rows))], range(2, 8)) if rows else []

    def _collectives(self) -> list[str]:
        """Return the table of the collectives whose share differs, by module, kind and axes."""
        shares_of: dict[tuple[str, str, str], list[Share]] = {}  # (module, kind, axes) → the shares before and after
        for side, figures in enumerate((self.before, self.after)):
            for (name, kind, axes), share in figures.collectives.items():
                shares = shares_of.setdefault((self._module(name), kind, axes), [Share(), Share()])
                shares[side] += share
        changed = [(key, old, new) for key, (old, new) in shares_of.items() if old != new]
        changed.sort(key=lambda row: -abs(row[2].seconds - row[1].seconds))  # the largest change of time first
        rows = [(*key, *old.cells[:3], *new.cells[:3]) for key, old, new in changed]
        header = ("collectives", "", "", "before", "sent", "ms", "after", "sent", "ms")
        return table([header, *rows], range(3, 9)) if rows else []

    def _constraints(self) -> list[str]:
        """Return the table of the added and changed constraints; equal ones share a row."""
        groups: dict[tuple[object, ...], list[Constrained]] = {}
        for constraint in self.constraints:
            key = self._module(constraint.name), constraint.produced, constraint.for_users, constraint.steps
            groups.setdefault(key, []).append(constraint)
        rows = [("constraints", "produced", "for users", "reshard", "ms")]
        for equal in groups.values():
            first = equal[0]
            name = _group_text([constraint.name for constraint in equal])
            time = milliseconds(math.fsum(constraint.seconds for constraint in equal))
            steps = ", ".join(first.steps) or "none"
            rows.append((name, f"<{first.produced}>", f"<{first.for_users}>", steps, time))
        return table(rows, range(4, 5)) if self.constraints else []

    def _values(self) -> list[str]:
        """Return the table of the values whose sharding differs, and of the meshes if they differ."""
        rows = [("values", "before", "after")]
        for (_, old, new), names in self.changed.items():
            rows.append((_group_text(names), old or "none", new or "none"))
        if self.before.mesh != self.after.mesh:
            old, new = (f"@{figures.mesh.name} {figures.mesh}" for figures in (self.before, self.after))
            rows.insert(1, ("mesh", old, new))
        return table(rows, range(0)) if len(rows) > 1 else []

    def _module(self, name: str) -> str:
        """Return the module of a value, as in the function of this name."""
        return _module(name, self.before, self.after)


@accepts(before=MODULE, after=MODULE, pipeline=PIPELINE)
def diff(before: ModuleOp, after: ModuleOp, pipeline: Pipeline | str | None = None) -> Difference:
    """Compare two programs, each at any stage from propagate to localize.

    Arguments correspond by name. Other values correspond if the same op computes them from corresponding values, else
    by name. So outlined layers make no difference.

    Args:
        before, after: the programs. The machine of `before` gives the times of both.
        pipeline: its remaining passes run on copies of the programs; the standard pipeline if None.

    Raises:
        SpmdirError: a program is not decided, or cannot be partitioned.

    Example:
        >>> print(spmdir.report.diff(before, after))
    """
    pipeline = as_pipeline(pipeline)
    machine = machine_of(
        ir.main_function(before), pipeline, pipeline.topology or "auto", os.fspath(pipeline.costs or "")
    )
    partitioned_before, partitioned_after = (with_collectives(module, pipeline)[0] for module in (before, after))
    function_before, function_after = map(ir.main_function, (partitioned_before, partitioned_after))
    names_before = {value: text_name(value) for value in program_values(function_before)}
    names_after = match_names(function_before, function_after)
    figures_before = _figures(partitioned_before, pipeline, machine.topology, names_before)
    figures_after = _figures(partitioned_after, pipeline, machine.topology, names_after)
    changed: dict[tuple[str, str, str], list[str]] = {}
    for name in {**figures_before.shardings, **figures_after.shardings}:
        shardings = [figures.shardings.get(name) for figures in (figures_before, figures_after)]
        is_changed = len({sharding and sharding.entries for sharding in shardings}) > 1
        if is_changed:
            before_text, after_text = ("" if sharding is None else f"<{sharding}>" for sharding in shardings)
            changed.setdefault((_module(name, figures_before, figures_after), before_text, after_text), []).append(name)
    return Difference(figures_before, figures_after, {key: tuple(names) for key, names in changed.items()})


def _figures(module: ModuleOp, pipeline: Pipeline, topology: Topology, names: Mapping[SSAValue, str]) -> Figures:
    """Return the costs and shardings of a program with collectives.

    Args:
        names: value → its name in the comparison.

    Raises:
        SpmdirError: the program is not decided, or cannot be partitioned.
    """
    report = comm_report(module, topology, pipeline=pipeline)
    if not report.decided:
        raise UnsupportedError(
            "the program has values without a sharding; expected a sharding for each value: run propagate on it first"
        )
    step = cost_table(module, "layer", topology=topology, fold=False, pipeline=pipeline)
    function = ir.main_function(module)
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    # text name of a value, such as a resharded copy → the name of the value that it is a copy of
    names_of_sources = {text_name(value): names[unresharded(value)] for op in ops for value in op.results}
    collectives = (op for op in report.ops if op.axes)
    objective = report.seconds + sum(cost.seconds for cost in report.compute.values())
    return Figures(
        objective=None if is_local(function) else objective,
        seconds=step.total.seconds,
        wire_bytes=report.wire_bytes,
        count=report.count,
        peak_bytes=step.total.total("held_bytes"),
        layers={row.labels[0]: (row.seconds, row.share.wire_bytes, row.total("held_bytes")) for row in step.rows},
        collectives=shares_by(collectives, lambda op: (names_of_sources[op.name], op.kind, f"[{', '.join(op.axes)}]")),
        shardings=_shardings(function, names),
        modules={name: _module_of(value) for value, name in names.items()},
        mesh=ir.mesh(module),
    )


def _shardings(function: FuncOp, names: Mapping[SSAValue, str]) -> dict[str, Sharding]:
    """Return name → sharding of the values of a function, and of its annotated results.

    Args:
        names: value → its name in the comparison. Results of the function are named as in `Figures`.
    """
    shardings = {name: sharding_of(value) for value, name in names.items()}
    for index in range(len(function.function_type.outputs)):
        attributes = function_attrs(function, "res_attrs", index)
        annotation, label = attributes.get("spmd.sharding"), attributes.get("spmd.name")
        name = f"result {label.data}" if isinstance(label, StringAttr) else ""
        if not name or name in shardings:
            name = f"result {index}"
        shardings[name] = annotation.data if isinstance(annotation, ShardingAttr) else None
    return {name: sharding for name, sharding in shardings.items() if sharding is not None}


def _module_of(value: SSAValue) -> str:
    """Return the path of the module whose op produces a value, such as `layers.*.mlp`; empty if unknown."""
    paths = places_of(value.op.location).paths if isinstance(value, OpResult) else ()
    return of_any_layer(paths[0] if paths else "", is_path=True)


def _module(name: str, before: Figures, after: Figures) -> str:
    """Return the module of a value, else its name, with `*` for numbers of layers."""
    return before.modules.get(name) or after.modules.get(name) or of_any_layer(name)


def _group_text(names: Sequence[str]) -> str:
    """Return `%a and 3 equal` for the names of four equal values."""
    return f"{names[0]} and {len(names) - 1} equal" if len(names) > 1 else names[0]


def _percent(before: float, after: float) -> str:
    """Return the change in percent; empty if it starts from 0."""
    return percent_text(before, after) if before else ""
