"""Caches that a forward fills, from which the fake tensors of a trace are removed."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from spmdir.runtime.state_walk import StateWalk
from spmdir.torch_interop.fake_tensors import FakeTensor


@attrs.frozen(eq=False)
class Caches:
    """What keeps results of executed code for later calls.

    Attributes:
        functions: those under `functools.cache` and the like.
        dicts: path → dict with fake tensors in it.
    """

    functions: Sequence[Any]
    dicts: Mapping[str, dict[Any, Any]]

    @classmethod
    def of(cls, walk: StateWalk) -> Caches:
        return cls(walk.functions, walk.dicts)

    def remove_fakes(self) -> None:
        """Remove the fake tensors that a trace has left; what has none keeps its results."""
        for function in self.functions:
            if _holds_fakes(gc.get_referents(function), 4):
                function.cache_clear()
        for table in self.dicts.values():
            for key in [key for key, value in table.items() if _holds_fakes([value], 4)]:
                del table[key]


def _holds_fakes(values: Sequence[Any], depth: int) -> bool:
    inner = [value for value in values if isinstance(value, (dict, list, tuple, set))] if depth else []
    return any(isinstance(value, FakeTensor) for value in values) or (
        bool(inner) and _holds_fakes(gc.get_referents(*inner), depth - 1)
    )
