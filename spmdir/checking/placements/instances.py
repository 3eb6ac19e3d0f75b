"""The placements of a class that laws are tried on: its `examples`, else some that follow from its fields."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from random import Random
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.base import Placement, ShardPlacement, parse_placement

VALUES: dict[Any, tuple[Any, ...]] = {
    int: (0, 1, 2),
    float: (2.0, 1.0, 0.5),
    str: ("a", "b"),
    tuple[int, ...]: ((2, 1), (1, 0, 3), (4,), (2, 2, 2, 2)),
}
"""Type of a field → values to try; those that the class rejects are left out."""

DRAWN: dict[Any, tuple[tuple[int, ...], ...]] = {int: ((3,), (4, 9), (10, 40))}
"""Type of a field → from what to what its drawn values are, one of each."""


def instances(kind: type[Placement]) -> tuple[Placement, ...]:
    """Placements of the class `kind`: first one with the least values that it takes, then others a field at a time.

    Raises:
        SpmdirError: the class takes none of the values, or an example of its own is not text of it.
    """
    given = getattr(kind, "examples", None)
    if given is not None:
        return tuple(map(parse_placement, given))
    if issubclass(kind, ShardPlacement) and "dim" not in {field.name for field in attrs.fields(kind)}:  # type: ignore
        raise SpmdirError(f"{kind.__name__} has no field `dim: int`, the dimension that a ShardPlacement shards")
    found: list[Placement] = []
    # They may have no hash, which a law says.
    for made in _varied(kind):
        if made not in found:
            found.append(made)
    if not found:
        raise SpmdirError(
            f"{kind.__name__} takes none of the values that were tried for its fields; "
            f"give it some: `examples: ClassVar[tuple[str, ...]] = ('{kind.__name__}(…)',)`"
        )
    return tuple(found)


def drawn_instances(kind: type[Placement]) -> tuple[Placement, ...]:
    """Return the first of `instances` with other numbers in its fields, a field at a time: 3, and some that are drawn.

    What is wrong with a class for these numbers alone is found too; the same ones are drawn for a class each time.
    """
    usual, random = instances(kind), Random(kind.text)
    types = typing.get_type_hints(kind)
    found: list[Placement] = []
    for field in attrs.fields(kind):  # pyright: ignore[reportArgumentType]
        for ends in DRAWN.get(types[field.name], ()) if field.init and field.name != "dim" else ():
            made = _made(kind, {**_values(usual[0]), field.name: random.randint(ends[0], ends[-1])})
            if made is not None and made not in usual and made not in found:
                found.append(made)
    return tuple(found)


def _values(placement: Placement) -> dict[str, Any]:
    fields = (field.name for field in attrs.fields(type(placement)) if field.init)
    return {name: getattr(placement, name) for name in fields}


def _varied(kind: Any) -> Iterator[Placement]:
    types = typing.get_type_hints(kind)
    fields = [field for field in attrs.fields(kind) if field.init]
    names = [field.name for field in fields]
    tried = {f.name: (*_default(f), *VALUES.get(types[f.name], ())) for f in fields}
    if "dim" in tried:
        tried["dim"] = (0, 1, 2)
    base = _first(kind, tried)
    if base is None:
        return
    yield kind(**base)
    for name in names:
        for value in tried[name]:
            if (made := _made(kind, {**base, name: value})) is not None:
                yield made


def _first(kind: Any, tried: dict[str, tuple[Any, ...]]) -> dict[str, Any] | None:
    """Return the first values that the class takes, all fields but `dim` having the same place in the lists."""
    for at in range(max(map(len, tried.values()), default=1)):
        chosen = {
            name: values[0 if name == "dim" else min(at, len(values) - 1)] for name, values in tried.items() if values
        }
        if len(chosen) == len(tried) and _made(kind, chosen) is not None:
            return chosen
    return None


def _default(field: Any) -> tuple[Any, ...]:
    return (field.default,) if isinstance(field.default, (int, float, str, tuple)) else ()


def _made(kind: Any, values: dict[str, Any]) -> Placement | None:
    try:
        return kind(**values)
    except Exception:  # a validator may raise anything to reject a value
        return None
