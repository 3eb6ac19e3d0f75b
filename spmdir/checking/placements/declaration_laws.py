"""Laws of the declaration of a placement: its trait, its text, its edges, and its immutable fields.

In this file and the other files of laws, a function `_find_…` returns the violation as text, or None if the law holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs

from spmdir.checking.placements.instances import instances
from spmdir.checking.placements.law import Example, Law, empty_example
from spmdir.checking.placements.layouts import layouts
from spmdir.checking.placements.tensor_examples import supported_types
from spmdir.core.dtype import F32
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import TRAITS, PartialPlacement, Placement, parse_placement
from spmdir.core.placement.edge import Edge
from spmdir.core.placement.error_bound import ErrorBound
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.sharding import Sharding, parse_sharding
from spmdir.core.placement.shards import ShardPlacement
from spmdir.reshard.collectives import collective, collectives
from spmdir.reshard.topology import FLAT

BASES: dict[str, type[Placement]] = {"shard": ShardPlacement, "partial": PartialPlacement}
"""Trait → the base class of placements with this trait, and of no others."""

SHARDED = "S(0)"
"""The placement that represents the trait "shard" at the other end of an edge."""

COSTED_SHAPES = 4
"""The number of tensors for which the costs of an edge are computed."""

RESERVED_FIELDS = {"dim": "shard", "op": "partial"}
"""Field → the only trait that may declare it. Passes rely on it being None for other traits."""


def _find_declaration_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault of the trait, base class, fields, reduction or error of a placement, else None."""
    kind, trait = type(placement), placement.trait
    if trait not in TRAITS:
        return f"the trait is '{trait}'; expected one of {', '.join(TRAITS)}"
    for base_trait, base in BASES.items():
        if trait == base_trait and not isinstance(placement, base):
            return f"the trait of {kind.__name__} is '{trait}'; expected that it derives from {base.__name__}"
        if trait != base_trait and isinstance(placement, base):
            return f"the trait of {kind.__name__} is '{trait}'; expected '{base_trait}', as of its base {base.__name__}"
    for field in attrs.fields(kind) if attrs.has(kind) else ():
        if RESERVED_FIELDS.get(field.name, trait) != trait:
            reserved = f"which is reserved for the trait '{RESERVED_FIELDS[field.name]}'"
            return f"the class has a field '{field.name}', {reserved}; expected another name"
    if trait == "shard" and (type(placement.dim) is not int or placement.dim < 0):
        return f"`dim` is {placement.dim!r}; expected a dimension, counted from 0"
    if isinstance(placement, PartialPlacement) and placement.reduce not in REDUCTIONS:
        return f"`reduce` is {placement.reduce!r}; expected one of {', '.join(REDUCTIONS)}"
    if not isinstance(placement.error, ErrorBound):
        return f"`error` is {placement.error!r}; expected an ErrorBound, as in ErrorBound(1 / 256), or UNKNOWN"
    return None


def _find_mutability(placement: Any, example: Example) -> str | None:
    """Return a fault if a field can be set, or if a copy compares or hashes differently; else None."""
    kind = type(placement)
    if not attrs.has(kind):
        return f"{kind.__name__} is not an attrs class; decorate it with @attrs.frozen"
    for field in attrs.fields(kind):
        try:
            setattr(placement, field.name, getattr(placement, field.name))
        except attrs.exceptions.FrozenInstanceError:
            continue
        return f"the field '{field.name}' can be set; decorate the class with @attrs.frozen"
    copy = attrs.evolve(placement)
    if copy != placement:
        return f"two placements {placement!r} are not equal; decorate the class with @attrs.frozen"
    if kind.__hash__ is None or hash(copy) != hash(placement):
        return "equal placements have different hashes or none; decorate the class with @attrs.frozen"
    return None


def _find_text_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault if the text of a placement is read as another one, or if two placements have it; else None."""
    text = str(placement)
    parsed = parse_placement(text)
    if parsed != placement:
        return f"'{text}' is read as {parsed!r}; expected {placement!r}"
    for instance in instances(type(placement)):
        if instance != placement and str(instance) == text:
            return f"'{text}' is the text of {instance!r} and of {placement!r}; expected a different text for each"
    sharding = Sharding((("dp", parse_placement("S(0)")), ("tp", placement)))
    if parse_sharding(str(sharding)) != sharding:
        return f"<{sharding}> is read as <{parse_sharding(str(sharding))}>; expected the same sharding"
    return None


def _edge_subjects(placement: Placement) -> list[str]:
    """Return a name for each edge, such as "edge 0"."""
    return [f"edge {number}" for number, _ in enumerate(placement.edges())]


def _edge_examples(placement: Placement) -> Iterator[Example]:
    """Yield one example without a tensor for each edge."""
    yield from (Example(note=edge, subject=edge) for edge in _edge_subjects(placement))


def _find_edge_fault(placement: Placement, example: Example) -> str | None:
    """Return a fault of the ends, collectives, declared costs or lowering of the edge of `example`, else None."""
    number = int(example.subject.split()[1])
    *earlier_edges, edge = list(placement.edges())[: number + 1]
    if not isinstance(edge, Edge):
        return f"`edges` returns {edge!r}; expected Edges"
    if any((edge.source, edge.target) == (earlier.source, earlier.target) for earlier in earlier_edges):
        return "an earlier edge has the same ends, so this edge is never used; expected one edge for each pair of ends"
    ends = [end for end in (edge.source, edge.target) if end is not None]
    if len(ends) != 1:
        declared_ends = "both `source` and `target`" if ends else "neither `source` nor `target`"
        return f"the edge has {declared_ends}; expected one of them, because the other end is {placement}"
    if ends[0] not in TRAITS:
        try:
            parse_placement(ends[0])
        except SpmdirError as error:
            return f"the end of the edge is '{ends[0]}': {error.message}"
    names = [spec.name for spec in collectives() if spec.moves != "edge"]
    for name in edge.collectives:
        if name not in names:
            return f"`by` names the collective '{name}'; expected None, or some of {', '.join(names)}"
        if collective(name).loads is not None and edge.bytes is None:
            return f"`by` names '{name}', whose bytes depend on the ranks; declare the `bytes` of the edge"
    if edge.itemsize is not None and not 0 < edge.itemsize < math.inf:
        return f"`itemsize` is {edge.itemsize} bytes; expected a finite number above 0"
    try:
        for shape, count in _source_shapes(placement, edge):
            # The costs are evaluated for elements of 4 bytes, only to find invalid ones.
            if edge.bytes is not None:
                edge.sent(shape, 4, count)
            if edge.seconds is not None:
                edge.time(FLAT, shape, 4, count)
    except SpmdirError as error:
        return error.message
    return None if callable(edge.lower) else f"`lower` is {edge.lower!r}; expected a function of (tensor, group)"


def _source_shapes(placement: Placement, edge: Edge) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the largest local shape before an edge and the number of ranks, for COSTED_SHAPES tensors.

    Tensors that the placement before the edge rejects are left out.
    """
    dtype = next(iter(supported_types(placement)), F32)
    for example in layouts(placement)[-COSTED_SHAPES:]:
        assert example.shape is not None
        source = placement
        if edge.source:
            source = parse_placement(SHARDED if edge.source in TRAITS else edge.source)
        try:
            source.check(example.shape, example.ranks)
            local_types = source.local_types(example.shape, dtype, example.ranks)
        except (SpmdirError, IndexError):  # the source does not accept this tensor
            continue
        yield max((shape for shape, _ in local_types), key=math.prod), example.ranks


DECLARATION_LAWS = (
    Law(
        "declaration",
        "trait, base class, dimension, reduction and error are valid",
        empty_example,
        _find_declaration_fault,
        ("trait", "reduce", "error", "dim"),
    ),
    Law(
        "frozen",
        "its fields cannot be set, and equal placements have equal hashes",
        empty_example,
        _find_mutability,
    ),
    Law(
        "text",
        "its text is unique, and is read back as an equal placement",
        empty_example,
        _find_text_fault,
        ("__str__", "text"),
    ),
    Law(
        "edges",
        "each edge has exactly one other end, and a valid cost",
        _edge_examples,
        _find_edge_fault,
        ("edges",),
        subjects=_edge_subjects,
    ),
)
