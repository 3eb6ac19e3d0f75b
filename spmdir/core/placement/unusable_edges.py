"""Find edges of a placement that no reshard can use."""

from __future__ import annotations

from collections.abc import Iterator

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import TRAITS, Edge, Placement, parse_placement
from spmdir.core.placement.text import field_types

EXAMPLE_VALUES = {int: 1, float: 1.0, str: "a", tuple[int, ...]: (2, 1)}
"""Type of a field → an example value, for classes without `examples`."""


def instance_of(kind: type[Placement]) -> Placement | None:
    """Return an example of the placement class `kind`; None if it accepts none of the example values."""
    try:
        examples = getattr(kind, "examples", ())
        if examples:
            return parse_placement(examples[0])
        return kind(**{name: EXAMPLE_VALUES[field_type] for name, field_type in field_types(kind).items()})
    except (SpmdirError, TypeError, ValueError):
        return None


def unusable_edges(placement: Placement) -> Iterator[tuple[Edge, str]]:
    """Yield (edge, reason) for each edge of `placement` that no reshard can use.

    An edge is unusable if it names no other end, if the end is not a placement or is `placement` itself, or if an
    earlier edge always takes precedence.
    """
    earlier_edges: list[Edge] = []
    for edge in placement.edges():
        if not isinstance(edge, Edge):  # a law reports it
            continue
        end = edge.target or edge.source
        if end is None:
            yield edge, "it has neither a `target` nor a `source`; expected the text of the other end in one of them"
            continue
        try:
            end_placement = None if end in TRAITS else parse_placement(end)
        except SpmdirError as error:
            yield edge, f"its end '{end}' is not a placement: {error.message}"
            continue
        if end_placement == placement:
            yield edge, f"both its ends are {placement}"
        # A reshard uses the first edge that fits: one with the same end, or with the trait of the end.
        ends = {end} if end_placement is None else {end, end_placement.trait}
        for earlier in earlier_edges:
            has_same_direction = (earlier.target is None) == (edge.target is None)
            if has_same_direction and earlier.when is None and (earlier.target or earlier.source) in ends:
                earlier_end = f"{'to' if edge.target else 'from'} '{earlier.target or earlier.source}'"
                earlier_location = f" ({earlier.place})" if earlier.place else ""
                yield (
                    edge,
                    f"the earlier edge {earlier_end}{earlier_location} always takes precedence; put the more "
                    "specific edge first",
                )
                break
        earlier_edges.append(edge)
