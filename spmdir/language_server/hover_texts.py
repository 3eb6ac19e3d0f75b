"""Hover texts: the meaning of a word, as Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from xdsl.ir import SSAValue

from spmdir.analysis.sent_messages import SentMessages
from spmdir.analysis.type_check import rule_of
from spmdir.core.byte_size import size_text
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import placement_type
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.text import head_of
from spmdir.dialects.attributes import print_type
from spmdir.dialects.locations import location_of
from spmdir.dialects.op_lookup import class_of
from spmdir.dialects.spmd import find_spmd_op
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.language_server.document import Document
from spmdir.language_server.line_costs import cost_text
from spmdir.language_server.local_types import mesh_at, shards_of
from spmdir.language_server.scan import NameScope, TextSpan
from spmdir.pipeline.recorded_options import machine_of
from spmdir.report.collective_costs import collective_costs
from spmdir.rules.language.functions import FUNCTIONS
from spmdir.rules.rule_set import RuleSet
from spmdir.rules.shapes.dimension_maps import MAPS

_RESULT = re.compile(r"\s*(%[\w$.-]+(?:\s*,\s*%[\w$.-]+)*)\s*=")


def meaning(document: Document, offset: int) -> tuple[str, TextSpan] | None:
    """Return the meaning of the word at `offset`, as Markdown, and its span; None if it is unknown."""
    match = document.scan.word_at(offset)
    if match is None or document.scan.is_in(offset, document.scan.comments):
        return None
    word, span = match
    with document.pipeline.rules:
        texts = list(_meaning_texts(document, word, span))
    return ("\n\n".join(texts), span) if texts else None


def _meaning_texts(document: Document, word: str, span: TextSpan) -> Iterator[str]:
    """Yield the paragraphs of the meaning of a word; none if the word has no meaning here."""
    if document.language == "program":
        scope = document.scan.scope_at(span.start)
        mesh = mesh_at(document, scope)
        if word.startswith(("%", "@")) or (mesh is not None and word in mesh.axis_names):
            yield from _name_texts(document, scope, word, mesh)
            return
        if "." in word:
            yield from _op_texts(document, scope, word, span)
            return
    elif "." in word:
        yield from rule_texts(document.pipeline.rules, word)
        return
    elif document.language == "rewrites":
        yield from _collective_texts(f"spmd.{word}")
        return
    if word[0].isupper():
        try:
            kind = placement_type(head_of(word))
        except SpmdirError:
            return
        yield f"placement `{head_of(kind.text)}`: {_first_lines(kind.__doc__)}"
    elif document.language == "rules" and word in FUNCTIONS:
        yield _first_lines(FUNCTIONS[word].__doc__)
    elif document.language == "rules" and word in MAPS:
        yield f"`{word}`: {_first_lines(MAPS[word].build.__doc__)}"


def _name_texts(document: Document, scope: NameScope, word: str, mesh: Mesh | None) -> Iterator[str]:
    """Yield the meaning of a name in a program: of a value, the mesh, or one of its axes."""
    if word.startswith("%"):
        value = document.value(scope, word[1:])
        if value is not None:
            yield from _value_texts(document, scope, word, value, mesh)
    elif mesh is None:
        return
    elif word == f"@{mesh.name}":
        yield f"mesh `@{mesh.name} {mesh}`: {mesh.world_size} ranks"
    elif word in mesh.axis_names:
        nodes = " inside a node" if mesh.intra_node is None or word in mesh.intra_node else " across nodes"
        yield f"axis `{word}` of mesh `@{mesh.name}`: {mesh.sizes[word]} ranks{nodes}"


def _value_texts(document: Document, scope: NameScope, name: str, value: SSAValue, mesh: Mesh | None) -> Iterator[str]:
    """Yield the type and sharding of a value, its shards, the cost of its collective, and its source."""
    sharding = sharding_of(value)
    suffix = f" <{sharding_text(sharding)}>" if sharding is not None else ""
    yield f"```spmdir\n{name} : {print_type(value.type)}{suffix}\n```"
    if mesh is not None:
        yield from _shard_texts(value, mesh)
    yield from _price_texts(document, scope, name)
    owner = value.owner
    if isinstance(owner, ValueOp):
        location = location_of(owner)
        if location is not None and location.file != document.file:
            yield f"from `{location.file}:{location.line}`"


def sharding_text(sharding: Sharding) -> str:
    """Return the text of a sharding without brackets."""
    return str(sharding).strip("<>")


def _shard_texts(value: SSAValue, mesh: Mesh) -> Iterator[str]:
    """Yield the local type of a value, and the smallest one if ranks differ."""
    types = shards_of(value, mesh)
    if types is not None:
        meta, shards = types
        smallest = f", others from {shards[-1]}" if len(shards) > 1 else ""
        yield f"a rank has `{shards[0]}`{smallest}: {size_text(shards[0].bytes)} of {size_text(meta.bytes)}"


def _price_texts(document: Document, scope: NameScope, name: str) -> Iterator[str]:
    """Yield the bytes and the time of the collective that produces the value `name`.

    Nothing if the value is of another op, if the program has errors, or if the machine is unknown.
    """
    module, function, pipeline = document.module(scope), document.function(scope), document.pipeline
    mesh = mesh_at(document, scope)
    if module is None or function is None or mesh is None or not document.parts[scope.part].is_verified:
        return
    value = document.value(scope, name[1:])
    if not value or not getattr(value.owner, "name", "").startswith("spmd."):
        return
    try:
        machine = machine_of(function, pipeline, pipeline.topology or "auto", str(pipeline.costs or "")).topology
        costs = {cost.name: cost for cost in collective_costs(function, SentMessages(mesh, machine))}
    except SpmdirError:
        return
    if name in costs:
        yield f"{cost_text(costs[name])}, on {machine.name}"


def _op_texts(document: Document, scope: NameScope, word: str, span: TextSpan) -> Iterator[str]:
    """Yield the meaning of the name of an op: of a collective with its cost, of a torch op with its rule here."""
    line = document.scan.line_span(document.scan.line(span.start))
    results = _RESULT.match(document.text, line.start, line.end)
    first_result = results[1].partition(",")[0].strip() if results else None
    if word.startswith("spmd."):
        yield from _collective_texts(word)
        if first_result is not None:
            yield from _price_texts(document, scope, first_result)
        return
    yield from rule_texts(document.pipeline.rules, word)
    value = document.value(scope, first_result[1:]) if first_result is not None else None
    is_verified = document.parts[scope.part].is_verified
    if is_verified and value is not None and isinstance(value.owner, ValueOp) and value.owner.name == word:
        try:
            rule = rule_of(value.owner, document.pipeline.rules)
        except SpmdirError:
            rule = None
        if rule is not None:
            yield f"here\n```rules\n{rule.text()}\n```"


def rule_texts(rules: RuleSet, name: str) -> Iterator[str]:
    """Yield the source text of the rules and strategies of an op, with their locations."""
    records = (*rules.records.get(name, ()), *rules.declared.get(name, ()))
    for record in records:
        yield f"```rules\n{record.text}\n```\n{record.file}:{record.line}"
    if not records and class_of(name) is not None:
        yield f"`{name}` has no rule: it runs replicated"


def _collective_texts(name: str) -> Iterator[str]:
    """Yield the documentation of an `spmd` op."""
    kind = find_spmd_op(name)
    if kind is not None and kind.__doc__:
        yield _first_lines(kind.__doc__)


def _first_lines(doc: str | None) -> str:
    """Return the first paragraph of a docstring."""
    return inspect.cleandoc(doc or "").partition("\n\n")[0]
