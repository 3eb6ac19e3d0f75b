"""The names of tensors that have several, as tied parameters have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def tied_names(named: Iterable[tuple[str, Any]]) -> list[tuple[str, ...]]:
    """Return all names of each object, in order."""
    names_by_id: dict[int, tuple[Any, list[str]]] = {}
    for name, value in named:
        names_by_id.setdefault(id(value), (value, []))[1].append(name)
    return [tuple(names) for _, names in names_by_id.values()]
