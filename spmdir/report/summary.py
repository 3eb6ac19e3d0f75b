"""Summarise a program on one screen: arguments, results, ops, layers, collectives and their costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.byte_size import size_text
from spmdir.core.equal_layers import of_any_layer
from spmdir.core.html_text import ShownAsText
from spmdir.core.time_text import milliseconds
from spmdir.dialects import ir
from spmdir.dialects.attributes import print_type
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of, signature_kind, signature_name
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.remaining_passes import inline_layers
from spmdir.report.communication import CommReport, comm_report
from spmdir.report.lower_for_report import with_collectives
from spmdir.report.op_costs import shares_by
from spmdir.report.op_sums import Share, table
from spmdir.transforms.layers.outline import layers_of

MAX_ROWS = 12
"""The number of rows of a table. One more line counts the rows that are left out."""


@attrs.frozen
class Summary(ShownAsText):
    """The summary of a program.

    Attributes:
        mesh: its mesh, as text.
        arguments: kind of argument → number of arguments.
        results: kind of result → number of results.
        ops: kind of op → number of ops, the most frequent first.
        layers: name of a group of equal layers → (number of layers, ops of each layer).
        patterns: (name of an argument with `*` for numbers, type, sharding) → number of arguments.
        collectives: (name of a group of equal layers, or "" outside layers; kind; axes) → their share.
        report: the costs of the program.
    """

    mesh: str
    arguments: Mapping[str, int]
    results: Mapping[str, int]
    ops: Mapping[str, int]
    layers: Mapping[str, tuple[int, int]]
    patterns: Mapping[tuple[str, str, str], int]
    collectives: Mapping[tuple[str, str, str], Share]
    report: CommReport

    def __str__(self) -> str:
        """Return the counts of the program, then the tables of arguments and of collectives, then the totals."""
        lines = [
            f"mesh        {self.mesh}",
            f"arguments   {sum(self.arguments.values())}: {_list_counts(self.arguments)}",
            f"results     {sum(self.results.values())}: {_list_counts(self.results)}",
            f"ops         {sum(self.ops.values())}: {_list_counts(self.ops)}",
        ]
        layers = [f"@{name} x {count}, {ops} ops each" for name, (count, ops) in self.layers.items()]
        lines += [f"{'' if index else 'layers':<12}{text}" for index, text in enumerate(layers[:MAX_ROWS])]
        patterns = sorted(self.patterns.items(), key=lambda entry: -entry[1])
        arguments = [(f"{count} x", *key) for key, count in patterns]
        lines += ["", *_table(("", "arguments", "type", "sharding"), arguments, range(1))] if arguments else []
        shares = sorted(self.collectives.items(), key=lambda entry: -entry[1].seconds)
        rows = [(kind, axes, layer and f"@{layer}", *share.cells[:3]) for (layer, kind, axes), share in shares]
        header = ("collective", "axes", "in", "count", "sent", "ms")
        lines += ["", *_table(header, rows, range(3, 6))] if rows else []
        return "\n".join([*lines, "", self._totals()])

    def _totals(self) -> str:
        """Return the last line: what a rank sends and computes."""
        if not self.report.decided:
            return "not decided: some values have no sharding; run propagate"
        computing = sum(share.seconds for share in self.report.compute.values())
        sent = f"a rank sends {size_text(self.report.wire_bytes)} in {milliseconds(self.report.seconds)} ms"
        return f"{sent}, computing takes {milliseconds(computing)} ms" if computing else sent


def summary(module: ModuleOp, pipeline: Pipeline) -> Summary:
    """Summarise a program at any stage. The costs require a decided program.

    Raises:
        SpmdirError: one of the remaining passes rejects the module.
    """
    whole, _ = with_collectives(inline_layers(module), pipeline)
    function = ir.main_function(whole)
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    groups = layers_of(function, pipeline.rules, in_flight=True)
    layer_of_value: dict[str, str] = {}
    for group in groups:
        for segment in group.segments:
            for op in segment.ops:
                if op.results:
                    layer_of_value[text_name(op.results[0])] = group.name
    report = comm_report(whole, pipeline=pipeline)
    sent = (op for op in report.ops if op.axes)
    collectives = shares_by(sent, lambda op: (layer_of_value.get(op.name, ""), op.kind, f"[{', '.join(op.axes)}]"))
    result_indices = range(len(function.function_type.outputs))
    return Summary(
        mesh=", ".join(f"{axis} = {size}" for axis, size in ir.mesh(whole).axes),
        arguments=Counter(signature_kind(function, "arg_attrs", index) for index in range(len(function.args))),
        results=Counter(signature_kind(function, "res_attrs", index) for index in result_indices),
        ops=dict(Counter(op.name.partition(".")[2] for op in ops).most_common()),
        layers={group.name: (len(group.segments), len(group.segments[0].ops)) for group in groups},
        patterns=Counter(_patterns(function)),
        collectives=collectives,
        report=report,
    )


def _patterns(function: FuncOp) -> Iterable[tuple[str, str, str]]:
    """Yield (name with `*` for numbers of layers, type, sharding) of each argument."""
    for index, argument in enumerate(function.args):
        name, sharding = signature_name(function, "arg_attrs", index), sharding_of(argument)
        yield of_any_layer(name), print_type(argument.type), "" if sharding is None else f"<{sharding}>"


def _list_counts(counts: Mapping[str, int]) -> str:
    """Return the number of entries of each kind, as text; kinds after the first `MAX_ROWS` are counted together."""
    shown = [f"{count} {name}" for name, count in list(counts.items())[:MAX_ROWS]]
    return ", ".join([*shown, *([f"{len(counts) - MAX_ROWS} more kinds"] if len(counts) > MAX_ROWS else [])])


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], numbers: range) -> list[str]:
    """Return the lines of a table with at most MAX_ROWS rows."""
    remaining = len(rows) - MAX_ROWS
    last_row = [(f"and {remaining} more", *[""] * (len(header) - 1))] if remaining > 0 else []
    return table([header, *rows[:MAX_ROWS], *last_row], numbers)
