"""The costs of the lines of a decided program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import SpmdirError
from spmdir.core.time_text import time_text
from spmdir.dialects import ir
from spmdir.dialects.stage_inference import is_undecided
from spmdir.language_server.document import Document
from spmdir.language_server.scan import NameScope, TextSpan
from spmdir.report.communication import comm_report
from spmdir.report.op_costs import INPUTS, OpCost

MIN_SECONDS = 1e-9
"""The minimum seconds of an op whose cost is shown."""

_NUMBERED_NAME = re.compile(r"_([0-9]+)")


@attrs.frozen
class LineCost:
    """The cost of a line: the span of the word above which it is shown, and its text."""

    span: TextSpan
    text: str


def line_costs(document: Document) -> list[LineCost]:
    """Return the cost of each line that takes time, in order; empty for undecided and broken programs."""
    if document.mistakes:
        return []
    with document.pipeline.rules:
        return [cost for number in range(len(document.parts)) for cost in _part_costs(document, number)]


def cost_text(op: OpCost) -> str:
    """Return the time of an op, with its bound or the bytes that it sends."""
    if op.axes:
        return f"{op.kind} on [{', '.join(op.axes)}] {time_text(op.seconds)}, {size_text(op.share.wire_bytes)} sent"
    if op.share.wire_bytes:
        return f"{op.kind} {time_text(op.seconds)}, {size_text(op.share.wire_bytes)} sent"
    return f"{time_text(op.seconds)}, bound by {op.bound}"


def _part_costs(document: Document, number: int) -> Iterator[LineCost]:
    """Yield the costs of the lines of one part of a text, in order. Equal costs of a line are counted.

    Nothing if the part is not decided, or if the report rejects it. In a part with several functions, costs are found
    by the locations of ops, because the report inlines calls.
    """
    module = document.parts[number].module
    functions = [] if module is None else ir.functions(module)
    if module is None or not functions or (len(functions) == 1 and is_undecided(functions[0])):
        return
    try:
        report = comm_report(module, pipeline=document.pipeline)
    except SpmdirError:  # for example, a pass that lowers reshards fails
        return
    if not report.decided:
        return
    texts: dict[TextSpan, Counter[str]] = {}
    for op in sorted(report.ops, key=lambda op: op.share.wire_bytes != 0):
        if len(functions) == 1:
            span = _defining_span(document, NameScope(number, 0), op.name[1:])
        else:
            span = _span_at_location(document, op)
        if span is not None and op.kind != INPUTS and op.seconds >= MIN_SECONDS:
            texts.setdefault(span, Counter())[cost_text(op)] += 1
    for span, counts in sorted(texts.items(), key=lambda entry: entry[0].start):
        yield LineCost(span, "; ".join(text if times == 1 else f"{text}, x {times}" for text, times in counts.items()))


def _span_at_location(document: Document, op: OpCost) -> TextSpan | None:
    """Return the span of the value that is defined at the location of an op; None if it is in the source of a model."""
    if op.location is None or op.location.file != document.file:
        return None
    start = document.scan.offset(op.location.line - 1, op.location.column - 1)
    word = document.scan.word_at(start)
    return word[1] if word is not None and word[0].startswith("%") else None


def _defining_span(document: Document, scope: NameScope, name: str) -> TextSpan | None:
    """Return the span that defines a value, or the value it was lowered from: `%2` for `%_2.all_gather`."""
    span = document.scan.definition(scope, name)
    while span is None and "." in name:
        name = name.rpartition(".")[0]
        span = document.scan.definition(scope, name)
        match = _NUMBERED_NAME.fullmatch(name)
        if span is None and match:
            span = document.scan.definition(scope, match[1])
    return span
