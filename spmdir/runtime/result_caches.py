"""Remove the fake tensors of a trace from caches that a forward fills."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from spmdir.runtime.state_walk import StateWalk
from spmdir.torch_interop.fake_tensors import FakeTensor


@attrs.frozen(eq=False)
class Caches:
    """The caches of executed code, which keep results for later calls.

    Attributes:
        functions: functions with `functools.cache` and similar decorators.
        dicts: path → dict that contains fake tensors.
    """

    functions: Sequence[Any]
    dicts: Mapping[str, dict[Any, Any]]

    @classmethod
    def of(cls, walk: StateWalk) -> Caches:
        """Return the caches that a walk over the state of executed code has found."""
        return cls(walk.functions, walk.dicts)

    def remove_fakes(self) -> None:
        """Remove the fake tensors of a trace, and clear each cached function that holds one.

        A cached function cannot drop single results. Caches without fake tensors do not change.
        """
        for function in self.functions:
            if _holds_fakes(gc.get_referents(function), 4):
                function.cache_clear()
        for table in self.dicts.values():
            for key in [key for key, value in table.items() if _holds_fakes([value], 4)]:
                del table[key]


def _holds_fakes(values: Sequence[Any], depth: int) -> bool:
    """Return whether there is a fake tensor among `values`, or in containers among them up to `depth` levels deep."""
    if any(isinstance(value, FakeTensor) for value in values):
        return True
    containers = [value for value in values if isinstance(value, (dict, list, tuple, set))]
    return bool(depth and containers) and _holds_fakes(gc.get_referents(*containers), depth - 1)
