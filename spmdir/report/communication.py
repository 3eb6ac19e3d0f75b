"""The communication of a program: collectives, wire bytes and modelled time, and the lower bound of the bytes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from spmdir.core.arguments import accepts
from spmdir.core.byte_size import size_text
from spmdir.core.html_text import ShownAsText
from spmdir.core.mesh import Mesh
from spmdir.core.time_text import milliseconds
from spmdir.dialects.arguments import MODULE
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.report.op_costs import OpCost, shares_by
from spmdir.report.op_sums import Share, table
from spmdir.reshard.topology import Topology

MAX_KINDS = 12
"""The number of kinds of ops that the compute table lists."""

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from spmdir.report.output_errors import OutputError
    from spmdir.search.certificate.certificate import Certificate


@attrs.frozen
class CommReport(ShownAsText):
    """The communication of a program. Local steps such as slice, partition and rearrange do not count.

    Halo exchanges of windows (halo, halo_reduce) count only after localize, which inserts them. Rows of experts
    (exchange_rows) count with the assumed imbalance of `propagate`.

    Attributes:
        count: the number of collectives.
        wire_bytes: the bytes that a rank sends, if collectives use ring algorithms.
        by_kind: kind of collective → its share.
        by_axis: mesh axes of the group, in mesh order → their share; a sub-axis counts as its axis.
        lower_bound: the fewest bytes that the busiest rank can send for these reshards. A value that is resharded to
            several shardings counts once, with the largest bound. None if a bound is unknown.
        seconds: the modelled time of all collectives, one after the other.
        compute: kind of op → the share of its ops, longest first: torch ops, the reading of inputs, and local steps, of
            all functions. Empty for a local program, and for an undecided one.
        lowered: the passes that were run on a copy, because reshards had no collectives yet.
        decided: whether every value has a sharding. Otherwise nothing is counted, and propagate has to run first.
        minimised: the objective in seconds that the program states, if it was decided with overlap.
        certificate: the certificate of propagate, if it was requested and the module has one function.
        errors: the error bounds of the results that depend on lossy steps.
        ops: the cost of each op that takes time, the longest first.
    """

    count: int
    wire_bytes: float
    by_kind: dict[str, Share]
    by_axis: dict[tuple[str, ...], Share]
    lower_bound: float | None
    seconds: float
    compute: dict[str, Share] = attrs.field(factory=dict, eq=False)
    lowered: tuple[str, ...] = attrs.field(default=(), eq=False)
    decided: bool = True
    minimised: float | None = attrs.field(default=None, eq=False)
    errors: tuple[OutputError, ...] = ()
    certificate: Certificate | None = attrs.field(default=None, eq=False)
    ops: tuple[OpCost, ...] = attrs.field(default=(), eq=False)

    def __str__(self) -> str:
        """Return the table of collectives by kind and by axes, the table of compute, and the totals."""
        rows = [("collective", "axes", "count", "sent", "ms", "time from")]
        rows += [(kind, "", *share.cells) for kind, share in self.by_kind.items()]
        rows += [("", ", ".join(axes), *share.cells) for axes, share in self.by_axis.items()]
        prices = dict.fromkeys(price for share in self.by_kind.values() for price in share.prices)
        rows.append(("total", "", *Share(self.count, self.wire_bytes, self.seconds, tuple(prices)).cells))
        ratio = f", {self.wire_bytes / self.lower_bound:.2f}x" if self.lower_bound else ""
        lines = [*table(rows, range(2, 5)), f"lower bound for these reshards {bound_text(self.lower_bound)}{ratio}"]
        lines += self._compute_lines()
        if self.objective is not None:
            total = "" if self.minimised is None else f", total of both tables {milliseconds(self._total_seconds)} ms"
            lines.append(f"objective {milliseconds(self.objective)} ms{total}")
        if self.certificate is not None:
            lines.append(self.certificate.bound_text)
        if self.lowered:
            lines.append(f"counted after {', '.join(self.lowered)} on a copy of the program")
        if not self.decided:
            lines.append("not counted: some values have no sharding; run propagate")
        lines += map(str, self.errors)
        return "\n".join(lines)

    @property
    def objective(self) -> float | None:
        """The modelled seconds of one step of a rank, which propagate minimises.

        It is the number that the program states, else the total of both tables. None for a local program, and for an
        undecided one.
        """
        if not self.compute:
            return None
        return self._total_seconds if self.minimised is None else self.minimised

    @property
    def _total_seconds(self) -> float:
        return self.seconds + sum(share.seconds for share in self.compute.values())

    def _compute_lines(self) -> list[str]:
        """Return the lines of the compute table; [] without compute costs.

        Kinds after the first `MAX_KINDS` share the row `others`. Shares are fractions of the total of both tables.
        """
        if not self.compute:
            return []
        total = sum(self.compute.values(), Share())
        listed = dict(list(self.compute.items())[:MAX_KINDS])
        remaining = sum(list(self.compute.values())[MAX_KINDS:], Share())
        rows = [("compute", "count", "ms", "share", "time from")]
        for kind, share in (*listed.items(), *([("others", remaining)] if remaining.count else []), ("total", total)):
            count, _, ms, prices = share.cells
            rows.append((kind, count, ms, f"{share.seconds / self._total_seconds:.1%}", prices))
        return table(rows, range(1, 4))


def bound_text(bound: float | None) -> str:
    """Return a lower bound with its unit, or `unknown`."""
    return "unknown" if bound is None else size_text(bound)


@accepts(module=MODULE, pipeline=PIPELINE)
def comm_report(
    module: ModuleOp, topology: Topology | str | None = None, *, pipeline: Pipeline | str | None = None
) -> CommReport:
    """Report the communication of a module, and the compute time of a program before localize.

    Symbolic sizes have the values of their examples.

    Args:
        module: a program at any stage after propagate. If it has no collectives yet, a copy is lowered.
        topology: the hardware, as a `Topology`, the name of a preset or a TOML file; if None the topology of the
            pipeline, else the one that propagate decided for, else h100x8.
        pipeline: the pipeline that lowers reshards to collectives; the standard one if None.

    Raises:
        UnsupportedError, ParseError: the topology does not exist or is invalid.
        ShardingError: a collective has no shardings.

    Example:
        >>> spmdir.report.comm_report(module, "h100x8").wire_bytes
    """
    from spmdir.analysis.sent_messages import SentMessages
    from spmdir.dialects import ir
    from spmdir.dialects.machine_attribute import recorded_certificate, recorded_objective
    from spmdir.dialects.stage import is_local
    from spmdir.dialects.stage_inference import is_undecided
    from spmdir.pipeline.recorded_options import machine_of, remark_noted_costs
    from spmdir.report.collective_costs import collective_costs, inner_costs
    from spmdir.report.compute import compute_costs
    from spmdir.report.lower_for_report import with_collectives
    from spmdir.report.output_errors import output_errors
    from spmdir.report.send_bounds import send_bounds

    pipeline = as_pipeline(pipeline)
    module, lowered = with_collectives(module, pipeline)
    mesh, chosen_topology = ir.mesh(module), (pipeline.topology or "auto") if topology is None else topology
    functions = ir.functions(module)
    is_decided = all(is_local(function) or not is_undecided(function) for function in functions)
    collectives: list[OpCost] = []
    compute: list[OpCost] = []
    bounds: list[float | None] = []
    errors: list[OutputError] = []
    for function in functions:
        machine = machine_of(function, pipeline, chosen_topology, os.fspath(pipeline.costs or "")).topology
        remark_noted_costs(function, machine, "the cost report", pipeline)
        collectives += collective_costs(function, SentMessages(mesh, machine))
        bounds += [bound for _, bound in send_bounds(function, mesh)]
        with pipeline.rules:
            if is_decided and not is_local(function):
                compute += compute_costs(function, mesh, pipeline.rules, machine)
                collectives += inner_costs(function, mesh, pipeline.rules, machine)
                # A lower bound must hold for any routes, so it assumes a balanced router.
                balanced = attrs.evolve(machine, imbalance=1.0)
                bounds += [cost.share.wire_bytes for cost in inner_costs(function, mesh, pipeline.rules, balanced)]
            errors += output_errors(function, mesh, pipeline.rules)
    total = sum((op.share for op in collectives), Share())
    compute_by_kind = shares_by(compute, lambda op: op.kind)
    return CommReport(
        count=total.count,
        wire_bytes=total.wire_bytes,
        by_kind=dict(sorted(shares_by(collectives, lambda op: op.kind).items())),
        by_axis=_by_axis(collectives, mesh),
        lower_bound=_sum_or_none(bounds),
        seconds=total.seconds,
        compute=dict(sorted(compute_by_kind.items(), key=lambda entry: -entry[1].seconds)),
        lowered=lowered,
        decided=is_decided,
        minimised=_sum_or_none([recorded_objective(function) for function in functions]),
        errors=tuple(errors),
        certificate=recorded_certificate(functions[0]) if len(functions) == 1 else None,
        ops=tuple(sorted((*collectives, *compute), key=lambda op: -op.seconds)),
    )


def _sum_or_none(values: Sequence[float | None]) -> float | None:
    """Return the sum of `values`; None if one of them is None."""
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) if len(numbers) == len(values) else None


def _by_axis(ops: Iterable[OpCost], mesh: Mesh) -> dict[tuple[str, ...], Share]:
    """Return mesh axes → the share of the ops with groups along them; a sub-axis counts as its axis."""

    def axis_indices(op: OpCost) -> tuple[int, ...]:
        whole = {mesh.root_axis(axis) for axis in op.axes}
        return tuple(index for index, axis in enumerate(mesh.axis_names) if axis in whole)

    shares = sorted(shares_by(ops, axis_indices).items())
    return {tuple(mesh.axis_names[index] for index in indices): share for indices, share in shares}
