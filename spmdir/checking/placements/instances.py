"""Choose the placements of a class to check: its `examples`, or placements with usual values of its fields."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from random import Random
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import Placement, parse_placement
from spmdir.core.placement.shards import ShardPlacement

VALUES: dict[Any, tuple[Any, ...]] = {
    int: (0, 1, 2),
    float: (2.0, 1.0, 0.5),
    str: ("a", "b"),
    tuple[int, ...]: ((2, 1), (1, 0, 3), (4,), (2, 2, 2, 2)),
}
"""Type of a field → usual values. Values that the class rejects are skipped."""

RANGES: dict[Any, tuple[tuple[int, ...], ...]] = {int: ((3,), (4, 9), (10, 40))}
"""Type of a field → (least, greatest) numbers of ranges, or one number. One value is drawn from each range."""


def instances(kind: type[Placement]) -> tuple[Placement, ...]:
    """Return placements of the class `kind`: one with the first accepted values, then variants in one field each.

    Raises:
        SpmdirError: the class accepts none of the values, or one of its `examples` cannot be parsed.
    """
    examples = getattr(kind, "examples", None)
    if examples is not None:
        return tuple(map(parse_placement, examples))
    if issubclass(kind, ShardPlacement) and "dim" not in {field.name for field in attrs.fields(kind)}:  # type: ignore
        raise SpmdirError(
            f"{kind.__name__} has no field `dim`; expected the dimension that a ShardPlacement shards: add the "
            "field `dim: int`"
        )
    placements: list[Placement] = []
    # A set requires hashes, which the law "frozen" checks later.
    for placement in _variants(kind):
        if placement not in placements:
            placements.append(placement)
    if not placements:
        raise SpmdirError(
            f"{kind.__name__} rejects all usual values of its fields; expected values that it accepts: "
            f"declare some, as in `examples: ClassVar[tuple[str, ...]] = ('{kind.__name__}(…)',)`"
        )
    return tuple(placements)


def drawn_instances(kind: type[Placement]) -> tuple[Placement, ...]:
    """Return copies of the first of `instances`, each with 3 or a larger random number in one field.

    They find faults that occur only for larger numbers. Each call draws the same numbers.
    """
    usual, random = instances(kind), Random(kind.text)
    types = typing.get_type_hints(kind)
    drawn: list[Placement] = []
    for field in attrs.fields(kind):  # pyright: ignore[reportArgumentType]
        if not field.init or field.name == "dim":
            continue
        for bounds in RANGES.get(types[field.name], ()):
            placement = _create(kind, {**_values(usual[0]), field.name: random.randint(bounds[0], bounds[-1])})
            if placement is not None and placement not in usual and placement not in drawn:
                drawn.append(placement)
    return tuple(drawn)


def _values(placement: Placement) -> dict[str, Any]:
    """Return field → value, for the fields that the constructor takes."""
    fields = (field.name for field in attrs.fields(type(placement)) if field.init)
    return {name: getattr(placement, name) for name in fields}


def _variants(kind: Any) -> Iterator[Placement]:
    """Yield a placement with the first accepted values, and variants with another value in one field."""
    types = typing.get_type_hints(kind)
    candidates = {
        field.name: (*_default(field), *VALUES.get(types[field.name], ())) for field in attrs.fields(kind) if field.init
    }
    if "dim" in candidates:
        candidates["dim"] = (0, 1, 2)
    base = _first_accepted(kind, candidates)
    if base is None:
        return
    yield kind(**base)
    for name, values in candidates.items():
        for value in values:
            placement = _create(kind, {**base, name: value})
            if placement is not None:
                yield placement


def _first_accepted(kind: Any, candidates: dict[str, tuple[Any, ...]]) -> dict[str, Any] | None:
    """Return the first accepted fields: `dim` has its first candidate, all other fields the candidate of one index.

    A field with fewer candidates has its last one. None is returned if the class accepts no such fields, or if a field
    has no candidates.
    """
    for index in range(max(map(len, candidates.values()), default=1)):
        fields = {
            name: values[0 if name == "dim" else min(index, len(values) - 1)]
            for name, values in candidates.items()
            if values
        }
        if len(fields) == len(candidates) and _create(kind, fields) is not None:
            return fields
    return None


def _default(field: Any) -> tuple[Any, ...]:
    """Return the default of a field as a tuple of one; () if it has no default of a usual type."""
    return (field.default,) if isinstance(field.default, (int, float, str, tuple)) else ()


def _create(kind: Any, values: dict[str, Any]) -> Placement | None:
    """Return the placement with these fields; None if its class rejects them."""
    try:
        return kind(**values)
    except Exception:  # a validator may raise anything to reject a value
        return None
