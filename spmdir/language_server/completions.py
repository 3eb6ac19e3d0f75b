"""Completions at a position of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Literal

import attrs

from spmdir.core.admitted_ops import listed, why_not
from spmdir.core.dtype import DTYPES
from spmdir.core.placement.base import placement_classes
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.dialects.attributes import print_type
from spmdir.dialects.spmd import Spmd, find_spmd_op
from spmdir.dialects.value_op import ValueOp
from spmdir.language_server.document import Document
from spmdir.language_server.keywords import REWRITE_WORDS, RULE_CLAUSES, RULE_CONTROL
from spmdir.language_server.renaming import axes_of
from spmdir.language_server.scan import NameScope, TextSpan
from spmdir.reshard.collectives import collectives
from spmdir.rules.language.functions import FUNCTIONS
from spmdir.rules.rule_set import RuleSet
from spmdir.rules.shapes.dimension_maps import MAPS

CompletionKind = Literal["op", "value", "symbol", "axis", "placement", "argument", "type", "keyword", "function"]
"""The kind of a completion."""

_TYPED_WORD = re.compile(r"[%@]?[\w$.?-]*$", re.ASCII)
_OP = re.compile(r"(?:=\s*|^\s*)[a-z_]\w*(?:\.[\w.]*)?$|=\s*$", re.ASCII)
_AXIS_LIST = re.compile(r"\b(?:on|intra)\s*\[[^\[\]]*$")
_SHARDING = re.compile(r"(?:<\s*(?:@\w+\s*,)?|[<,][^<>]*,)\s*\w*$")
_PLACEMENT = re.compile(r"[<,]\s*(?:\w+(?:\([0-9]+\)[0-9]+)?)\s*:\s*\w*$")
_TENSOR = re.compile(r"tensor<[^<>]*x\w*$|dtype\s*=\s*\w*$")
_ARGUMENT = re.compile(r"(?:\"?)([a-z_]\w*(?:\.\w+)+)\"?\s*(?:\([^()]*\)|[^(){}=]*)\s*\{(?:[^{}]*,)?\s*\w*$")
_CLAUSE = re.compile(r"\b(spmd\.\w+)\s[^:{}]*\s\w*$")
_REDUCTION = re.compile(r"\bop\s+\w*$|\bP\(\w*$")
MAX_COMPLETIONS = 500
"""The largest number of completions. With more letters, fewer candidates match."""


@attrs.frozen
class Completion:
    """A completion.

    Attributes:
        text: the text that replaces the typed word.
        kind: its kind.
        detail: a description for the list of the editor.
    """

    text: str
    kind: CompletionKind
    detail: str = ""


def completions(document: Document, offset: int) -> tuple[TextSpan, list[Completion]]:
    """Return the span of the word before `offset`, and its completions."""
    line = document.scan.line_span(document.scan.line(offset))
    before = document.text[line.start : offset]
    match = _TYPED_WORD.search(before)
    start = line.start + (match.start() if match else len(before))
    span = TextSpan(start, offset)
    word = document.text[start:offset]
    if document.scan.is_in(offset - 1, document.scan.comments):
        return span, []
    with document.pipeline.rules:
        all_completions = _COMPLETE[document.language](document, offset, before, word)
        candidates = [completion for completion in all_completions if completion.text.startswith(word)]
    return span, list(dict.fromkeys(candidates))[:MAX_COMPLETIONS]


def _complete_program(document: Document, offset: int, before: str, word: str) -> Iterator[Completion]:
    """Yield the completions in a program: by the first letter of the word, else by what precedes it on its line."""
    scope = document.scan.scope_at(offset)
    rules = document.pipeline.rules
    if word.startswith("%"):
        yield from _values(document, scope, offset)
    elif word.startswith("@"):
        yield from (Completion(f"@{name}", "symbol") for name in document.scan.symbols.get(scope.part, ()))
    elif _REDUCTION.search(before):
        yield from (Completion(name, "keyword", "reduction") for name in REDUCTIONS)
    elif _TENSOR.search(before):
        size = word.rpartition("x")[0] + "x" if "tensor<" in before and "x" in word else ""
        yield from (Completion(f"{size}{name}", "type") for name in DTYPES)
    elif _PLACEMENT.search(before):
        yield from (Completion(name, "placement", description) for name, description in _placements())
    elif (argument := _ARGUMENT.search(before)) is not None:
        yield from _arguments(rules, argument[1])
    elif _AXIS_LIST.search(before) or _SHARDING.search(before):
        yield from (Completion(axis, "axis") for axis in axes_of(document, scope.part))
    elif _OP.search(before):
        yield from (Completion(name, "op") for name in sorted(_ops(rules)) if name.startswith(word))
    elif (clause := _CLAUSE.search(before)) is not None:
        yield from (Completion(keyword, "keyword") for keyword in _clauses(clause[1]))


def _values(document: Document, scope: NameScope, offset: int) -> Iterator[Completion]:
    """Yield the values of a scope that are defined before the line of `offset`, with their types."""
    line = document.scan.line_span(document.scan.line(offset))
    for name, places in document.scan.values[scope].items():
        if places[0].end < line.start:
            value = document.value(scope, name)
            yield Completion(f"%{name}", "value", print_type(value.type) if value is not None else "")


def _ops(rules: RuleSet) -> set[str]:
    """Return the names of all ops that a program may contain."""
    spmd_ops = {op.name for op in Spmd.operations} | {f"spmd.{spec.name}" for spec in collectives()}
    return spmd_ops | set(rules.names) | set(_torch_ops())


@cache
def _torch_ops() -> tuple[str, ...]:
    """Return the names of the torch ops that the IR can express."""
    return tuple(name for name in listed("aten") if why_not(name) is None)


def _arguments(rules: RuleSet, op: str) -> Iterable[Completion]:
    """Return the names of the literal arguments in the rules of an op."""
    parameters = [parameter for rule in rules.alternatives(op) for parameter in rule.parameters]
    tensors = {parameter.name for parameter in parameters if parameter.is_tensor}
    names = dict.fromkeys(parameter.name for parameter in parameters)
    return (Completion(name, "argument") for name in names if name not in tensors)


def _placements() -> Iterator[tuple[str, str]]:
    """Yield the name of each placement, with the first line of its documentation."""
    for name, placement_class in placement_classes().items():
        yield name, (placement_class.__doc__ or "").strip().partition("\n")[0]


def _clauses(op: str) -> list[str]:
    """Return the keywords of the clauses of an `spmd` op, such as `dim` and `on`."""
    op_class = find_spmd_op(op)
    if op_class is None or not issubclass(op_class, ValueOp):
        return []
    return [keyword for keyword, _ in op_class.CLAUSES]


def _complete_rules(document: Document, offset: int, before: str, word: str) -> Iterator[Completion]:
    """Yield the completions in rules: names of ops at the start of a line, else keywords, functions and placements."""
    rules = document.pipeline.rules
    if not before.strip(word + " \t") and (before == word):
        yield from (Completion(name, "op") for name in sorted(_ops(rules)) if not name.startswith("spmd."))
        return
    yield from (Completion(name, "keyword") for name in (*RULE_CLAUSES, *RULE_CONTROL, *REDUCTIONS))
    for name, function in FUNCTIONS.items():
        yield Completion(name, "function", (function.__doc__ or "").partition("\n")[0])
    for name, mapping in MAPS.items():
        yield Completion(name, "function", (mapping.build.__doc__ or "").partition("\n")[0])
    yield from (Completion(name, "placement", description) for name, description in _placements())


def _complete_rewrites(document: Document, offset: int, before: str, word: str) -> Iterator[Completion]:
    """Yield the completions in rewrites: collectives and keywords."""
    yield from (Completion(spec.name, "op") for spec in collectives())
    yield from (Completion(name, "keyword") for name in REWRITE_WORDS)


_COMPLETE = {"program": _complete_program, "rules": _complete_rules, "rewrites": _complete_rewrites}
"""Language → its completions, from (document, offset, line before the word's end, word)."""
