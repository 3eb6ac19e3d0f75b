"""Laws of the value that a placement is: its declaration, its text, and that nothing changes it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs

from spmdir.checking.placements.examples import held_types
from spmdir.checking.placements.instances import instances
from spmdir.checking.placements.law import Example, Law, no_examples
from spmdir.checking.placements.layouts import layouts
from spmdir.core.dtype import F32
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import TRAITS, PartialPlacement, Placement, ShardPlacement, parse_placement
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.error_bound import ErrorBound
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.reshard.collectives import collective, collectives
from spmdir.reshard.topology import FLAT

BASES: dict[str, type[Placement]] = {"shard": ShardPlacement, "partial": PartialPlacement}
"""Trait → the class that a placement with it derives from."""


SHARDED = "S(0)"
"""What stands for "shard" as the other end of an edge."""

SOME_SHAPES = 4
"""For how many tensors the costs of an edge are computed."""

_KEPT = {"dim": "shard", "op": "partial"}
"""Field → the only trait that may have it; by its being None stages know that others neither shard nor reduce."""


def _declaration(placement: Placement, example: Example) -> str | None:
    kind, trait = type(placement), placement.trait
    if trait not in TRAITS:
        return f"the trait is '{trait}'; expected one of {', '.join(TRAITS)}"
    for name, base in BASES.items():
        if isinstance(placement, base) != (trait == name):
            return f"{kind.__name__} has the trait '{trait}'; expected '{name}' of what derives from {base.__name__}"
    for field in attrs.fields(kind) if attrs.has(kind) else ():
        if _KEPT.get(field.name, trait) != trait:
            return f"its field '{field.name}' is one of the trait '{_KEPT[field.name]}'; expected another name"
    if trait == "shard" and (type(placement.dim) is not int or placement.dim < 0):
        return f"`dim` is {placement.dim!r}; expected a dimension, counted from 0"
    if isinstance(placement, PartialPlacement) and placement.reduce not in REDUCTIONS:
        return f"`reduce` is {placement.reduce!r}; expected one of {', '.join(REDUCTIONS)}"
    if not isinstance(placement.error, ErrorBound):
        return f"`error` is {placement.error!r}; expected an ErrorBound, as in ErrorBound(1 / 256), or UNKNOWN"
    return None


def _frozen(placement: Any, example: Example) -> str | None:
    kind = type(placement)
    if not attrs.has(kind):
        return f"{kind.__name__} is not an attrs class; decorate it with @attrs.frozen"
    for field in attrs.fields(kind):
        try:
            setattr(placement, field.name, getattr(placement, field.name))
        except attrs.exceptions.FrozenInstanceError:
            continue
        return f"its field '{field.name}' can be set; decorate the class with @attrs.frozen"
    copy = attrs.evolve(placement)
    if copy != placement:
        return f"two of the same fields are not equal: {placement!r}"
    if kind.__hash__ is None or hash(copy) != hash(placement):
        return "equal ones have no equal hashes; decorate the class with @attrs.frozen"
    return None


def _text(placement: Placement, example: Example) -> str | None:
    text = str(placement)
    found = parse_placement(text)
    if found != placement:
        return f"'{text}' is read as {found!r}; expected {placement!r}"
    for other in instances(type(placement)):
        if other != placement and str(other) == text:
            return f"'{text}' is the text of {other!r} and of {placement!r}; expected a text for each"
    sharding = Sharding((("dp", parse_placement("S(0)")), ("tp", placement)))
    if parse_sharding(str(sharding)) != sharding:
        return f"<{sharding}> is read as <{parse_sharding(str(sharding))}>; expected it to be the same"
    return None


def _edges(placement: Placement) -> list[str]:
    return [f"edge {number}" for number, _ in enumerate(placement.edges())]


def _ends(placement: Placement) -> Iterator[Example]:
    yield from (Example(about=edge, subject=edge) for edge in _edges(placement))


def _edge(placement: Placement, example: Example) -> str | None:
    number = int(example.subject.split()[1])
    *before, edge = list(placement.edges())[: number + 1]
    if not isinstance(edge, Edge):
        return f"`edges` gives {edge!r}; expected Edges"
    if any((edge.source, edge.target) == (other.source, other.target) for other in before):
        return "it has the ends of an edge before it, which is taken; expected one edge between two ends"
    ends = [end for end in (edge.source, edge.target) if end is not None]
    if len(ends) != 1:
        return f"it names {len(ends)} of source and target; expected one, the other is {placement}"
    if ends[0] not in TRAITS:
        try:
            parse_placement(ends[0])
        except SpmdirError as error:
            return f"its end is '{ends[0]}': {error.message}"
    names = [spec.name for spec in collectives() if spec.moves != "edge"]
    for name in edge.collectives:
        if name not in names:
            return f"it costs as '{name}'; expected None or some of {', '.join(names)}"
        if collective(name).loads is not None and edge.bytes is None:
            return f"it costs as '{name}', which finds out what is sent rank by rank; give the edge `bytes`"
    if edge.itemsize is not None and not 0 < edge.itemsize < math.inf:
        return f"its elements have {edge.itemsize} bytes on the wire; expected a number above 0"
    try:
        for shape, count in _before(placement, edge):
            if edge.bytes is not None:
                edge.sent(shape, 4, count)
            if edge.seconds is not None:
                edge.time(FLAT, shape, 4, count)
    except SpmdirError as error:
        return error.message
    return None if callable(edge.lower) else f"`lower` is {edge.lower!r}; expected a function of (tensor, group)"


def _before(placement: Placement, edge: Edge) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the largest shape that ranks hold before an edge, and their number, for some tensors that it takes."""
    dtype = next(iter(held_types(placement)), F32)
    for example in layouts(placement)[-SOME_SHAPES:]:
        assert example.shape is not None
        other = parse_placement(SHARDED if edge.source in TRAITS else edge.source) if edge.source else placement
        try:
            other.check(example.shape, example.ranks)
            local = other.local_types(example.shape, dtype, example.ranks)
        except (SpmdirError, IndexError):  # the other end does not take this tensor
            continue
        yield max((shape for shape, _ in local), key=math.prod), example.ranks


TEXT_LAWS = (
    Law(
        "declaration",
        "trait, base class and numbers are of those that there are",
        no_examples,
        _declaration,
        ("trait", "reduce", "error", "dim"),
    ),
    Law("frozen", "it never changes, and equal ones have equal hashes", no_examples, _frozen),
    Law(
        "text",
        "what is printed is read back as the same, and no other prints the same",
        no_examples,
        _text,
        ("__str__", "text"),
    ),
    Law("edges", "an edge names one other end and what it costs", _ends, _edge, ("edges",), subjects=_edges),
)
