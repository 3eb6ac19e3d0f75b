"""The names of tensors that have several, as tied parameters have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def tied_names(named: Iterable[tuple[str, Any]]) -> list[tuple[str, ...]]:
    """Return all names of each object, of objects and names in the order in which they come."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for name, one in named:
        found.setdefault(id(one), (one, []))[1].append(name)
    return [tuple(names) for _, names in found.values()]
