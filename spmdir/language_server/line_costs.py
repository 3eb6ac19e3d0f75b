"""What the lines of a decided program cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.errors import SpmdirError
from spmdir.core.time_text import time_text
from spmdir.dialects import ir
from spmdir.dialects.observed_stage import is_undecided
from spmdir.language_server.document import Document
from spmdir.language_server.scan import NameScope, TextSpan
from spmdir.report.communication import comm_report
from spmdir.report.op_costs import INPUTS, OpCost

LEAST = 1e-9
"""Seconds of an op whose cost is shown."""

_MADE_OF_NUMBER = re.compile(r"_([0-9]+)")


@attrs.frozen
class LineCost:
    """What a line costs: the word that it is shown above, and what is shown."""

    span: TextSpan
    text: str


def line_costs(document: Document) -> list[LineCost]:
    """Return what each line costs that takes time, in order; nothing of a program that is not decided or is broken."""
    if document.mistakes:
        return []
    with document.pipeline.rules:
        return [cost for number in range(len(document.parts)) for cost in _of_part(document, number)]


def cost_text(op: OpCost) -> str:
    """Return the time of an op, with what bounds it or with what it sends."""
    if op.axes:
        return f"{op.kind} on [{', '.join(op.axes)}] {time_text(op.seconds)}, {size_text(op.share.wire_bytes)} sent"
    if op.share.wire_bytes:
        return f"{op.kind} {time_text(op.seconds)}, {size_text(op.share.wire_bytes)} sent"
    return f"{time_text(op.seconds)}, bound by {op.bound}"


def _of_part(document: Document, number: int) -> Iterator[LineCost]:
    module = document.parts[number].module
    if module is None or not (functions := ir.functions(module)):
        return
    if len(functions) == 1 and is_undecided(functions[0]):
        return
    try:
        report = comm_report(module, pipeline=document.pipeline)
    except SpmdirError:  # as of a pass that would lower its reshards
        return
    if not report.decided:
        return
    texts: dict[TextSpan, Counter[str]] = {}
    for op in sorted(report.ops, key=lambda op: op.share.wire_bytes != 0):
        # Calls are inlined in what the report is about, so names of several functions are not those of the text.
        span = _place(document, NameScope(number, 0), op.name[1:]) if len(functions) == 1 else _defined_at(document, op)
        if span is not None and op.kind != INPUTS and op.seconds >= LEAST:
            texts.setdefault(span, Counter())[cost_text(op)] += 1
    for span, found in sorted(texts.items(), key=lambda one: one[0].start):
        yield LineCost(span, "; ".join(text if times == 1 else f"{text}, x {times}" for text, times in found.items()))


def _defined_at(document: Document, op: OpCost) -> TextSpan | None:
    """Return the value that is defined where an op stands; None where its location is in the source of a model."""
    if op.location is None or op.location.file != document.file:
        return None
    start = document.scan.offset(op.location.line - 1, op.location.column - 1)
    word = document.scan.word_at(start)
    return word[1] if word is not None and word[0].startswith("%") else None


def _place(document: Document, scope: NameScope, name: str) -> TextSpan | None:
    """Return where a value is defined, or the one that it is made of: `%_2.all_gather` is made of `%2`."""
    while (span := document.scan.definition(scope, name)) is None and "." in name:
        name = name.rpartition(".")[0]
        if (number := _MADE_OF_NUMBER.fullmatch(name)) and document.scan.definition(scope, name) is None:
            name = number[1]
    return span
