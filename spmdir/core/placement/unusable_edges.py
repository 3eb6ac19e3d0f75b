"""Edges that a placement declares and that are never taken."""

from __future__ import annotations

from collections.abc import Iterator

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import TRAITS, Edge, Placement, parse_placement
from spmdir.core.placement.text import field_types

FIELDS = {int: 1, float: 1.0, str: "a", tuple[int, ...]: (2, 1)}
"""Type of a field → a value with which a class may be made; its `examples` come first."""


def instance_of(kind: type[Placement]) -> Placement | None:
    """Return some placement of the class `kind`; None if it takes none of the usual values."""
    try:
        examples = getattr(kind, "examples", ())
        if examples:
            return parse_placement(examples[0])
        return kind(**{name: FIELDS[of] for name, of in field_types(kind).items()})
    except (SpmdirError, TypeError, ValueError):
        return None


def unusable_edges(placement: Placement) -> Iterator[tuple[Edge, str]]:
    """Yield the edges of `placement` that no step takes, each with why."""
    before: list[Edge] = []
    for edge in placement.edges():
        if not isinstance(edge, Edge):  # which a law says
            continue
        end = edge.target or edge.source
        if end is None:
            yield edge, "it has neither a `target` nor a `source`; expected the text of the other end in one of them"
            continue
        try:
            other = None if end in TRAITS else parse_placement(end)
        except SpmdirError as error:
            yield edge, f"it leads to '{end}', which is no placement: {error.message}"
            continue
        if other == placement:
            yield edge, f"it leads from {placement} to itself"
        ends = {end} if other is None else {end, other.trait}
        alike = [one for one in before if (one.target is None) == (edge.target is None) and one.when is None]
        earlier = next((one for one in alike if (one.target or one.source) in ends), None)
        if earlier is not None:
            there = f"{'to' if edge.target else 'from'} '{earlier.target or earlier.source}'"
            at = f" ({earlier.place})" if earlier.place else ""
            yield edge, f"the edge {there} before it{at} is taken in its place; put the more special one first"
        before.append(edge)
