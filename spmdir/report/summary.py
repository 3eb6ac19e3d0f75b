"""A program on one screen: what it takes and gives, what it is made of, its layers, and what it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from spmdir.core.byte_size import size_text
from spmdir.core.equal_layers import of_any_layer
from spmdir.core.html_text import ShownAsText
from spmdir.core.time_text import milliseconds
from spmdir.dialects import ir
from spmdir.dialects.attributes import print_type
from spmdir.dialects.names import text_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of, signature_kind, signature_name
from spmdir.pipeline.finish import inline_layers
from spmdir.pipeline.pipeline import Pipeline
from spmdir.report.communication import CommReport, comm_report
from spmdir.report.op_costs import shares_by
from spmdir.report.shares import Share, table
from spmdir.report.with_collectives import with_collectives
from spmdir.transforms.layers.outline import layers_of

ROWS = 12
"""How many rows a table has; the last one says how many others there are."""


@attrs.frozen
class Summary(ShownAsText):
    """What a program is.

    Attributes:
        mesh: its mesh, as text.
        arguments: kind of argument → how many there are.
        results: kind of result → how many there are.
        ops: kind of op → how many there are, the most first.
        layers: name of equal layers → how many there are, and how many ops each has.
        patterns: (name with `*` for numbers, type, sharding) of arguments → how many there are.
        collectives: (equal layers, or "" outside of them; kind; axes) → what they add up to.
        report: what the program sends and computes.
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
        lines = [
            f"mesh        {self.mesh}",
            f"arguments   {sum(self.arguments.values())}: {_counted(self.arguments)}",
            f"results     {sum(self.results.values())}: {_counted(self.results)}",
            f"ops         {sum(self.ops.values())}: {_counted(self.ops)}",
        ]
        layers = [f"@{name} x {count}, {ops} ops each" for name, (count, ops) in self.layers.items()]
        lines += [f"{'' if at else 'layers':<12}{text}" for at, text in enumerate(layers[:ROWS])]
        found = sorted(self.patterns.items(), key=lambda entry: -entry[1])
        arguments = [(f"{count} x", *key) for key, count in found]
        lines += ["", *_table(("", "arguments", "type", "sharding"), arguments, range(1))] if arguments else []
        found = sorted(self.collectives.items(), key=lambda entry: -entry[1].seconds)
        rows = [(kind, axes, layer and f"@{layer}", *share.cells[:3]) for (layer, kind, axes), share in found]
        head = ("collective", "axes", "in", "count", "sent", "ms")
        lines += ["", *_table(head, rows, range(3, 6))] if rows else []
        return "\n".join([*lines, "", self._totals()])

    def _totals(self) -> str:
        if not self.report.decided:
            return "not decided: values without a sharding; run propagate"
        computing = sum(share.seconds for share in self.report.compute.values())
        sent = f"a rank sends {size_text(self.report.wire_bytes)} in {milliseconds(self.report.seconds)} ms"
        return f"{sent}, computing takes {milliseconds(computing)} ms" if computing else sent


def summary(module: ModuleOp, pipeline: Pipeline) -> Summary:
    """Return what a program is, at any stage, with what it sends once it is decided.

    Raises:
        SpmdirError: a pass that the module still needs for collectives rejects it.
    """
    whole, _ = with_collectives(inline_layers(module), pipeline)
    function = ir.main_function(whole)
    ops = [op for op in function.body.block.ops if isinstance(op, ValueOp)]
    groups = layers_of(function, pipeline.rules, in_flight=True)
    inside = {text_name(op.results[0]): one.name for one in groups for part in one.segments for op in _giving(part.ops)}
    report = comm_report(whole, pipeline=pipeline)
    sent = (op for op in report.ops if op.axes)
    collectives = shares_by(sent, lambda op: (inside.get(op.name, ""), op.kind, f"[{', '.join(op.axes)}]"))
    return Summary(
        ", ".join(f"{axis} = {size}" for axis, size in ir.mesh(whole).axes),
        Counter(signature_kind(function, "arg_attrs", index) for index in range(len(function.args))),
        Counter(signature_kind(function, "res_attrs", index) for index in range(len(function.function_type.outputs))),
        dict(Counter(op.name.partition(".")[2] for op in ops).most_common()),
        {one.name: (len(one.segments), len(one.segments[0].ops)) for one in groups},
        Counter(_patterns(function)),
        collectives,
        report,
    )


def _giving(ops: Sequence[Operation]) -> Iterable[Operation]:
    return (op for op in ops if op.results)


def _patterns(function: FuncOp) -> Iterable[tuple[str, str, str]]:
    for index, argument in enumerate(function.args):
        name, sharding = signature_name(function, "arg_attrs", index), sharding_of(argument)
        yield of_any_layer(name), print_type(argument.type), "" if sharding is None else f"<{sharding}>"


def _counted(counts: Mapping[str, int]) -> str:
    """Return how many there are of each kind, the first kinds by name."""
    shown = [f"{count} {name}" for name, count in list(counts.items())[:ROWS]]
    return ", ".join([*shown, *([f"{len(counts) - ROWS} kinds more"] if len(counts) > ROWS else [])])


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], numbers: range) -> list[str]:
    left = len(rows) - ROWS
    more = [(f"and {left} more", *[""] * (len(head) - 1))] if left > 0 else []
    return table([head, *rows[:ROWS], *more], numbers)
