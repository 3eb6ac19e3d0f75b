"""Normalizations that write running statistics, of which torch's schemas of them say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from spmdir.core.admitted_ops import STATISTICS
from spmdir.importer.fx_arguments import op_name
from spmdir.torch_interop import pytree
from spmdir.torch_interop.ops import schema_of, schema_or_none

_aten = torch.ops.aten


def writes_statistics(target: Any, args: Any, kwargs: Any) -> bool:
    """Return whether this call changes its running statistics in place."""
    _, switch = STATISTICS.get(op_name(target), (0, ""))
    if switch == "":
        return False
    names = [argument.name for argument in schema_of(target).arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return given.get("running_mean") is not None and (switch is None or bool(given[switch]))


def written(target: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the leaves of the arguments that a call writes to, running statistics among them."""
    if schema_or_none(target) is None:
        return
    for place, name in _written_arguments(target):
        yield from pytree.tree_leaves(args[place] if place < len(args) else kwargs.get(name))
    if writes_statistics(target, args, kwargs):
        given = {**dict(zip((a.name for a in schema_of(target).arguments), args, strict=False)), **kwargs}
        yield from (given["running_mean"], given["running_var"])


@lru_cache(maxsize=65536)
def _written_arguments(target: Any) -> tuple[tuple[int, str], ...]:
    """Return the places and names of the arguments that an op writes to, as its schema says."""
    arguments = enumerate(schema_of(target).arguments)
    return tuple((place, a.name) for place, a in arguments if a.alias_info is not None and a.alias_info.is_write)


class Declaring(fx.Interpreter):
    """Runs a graph with batch norms replaced by the one whose schema says what it writes."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if not writes_statistics(target, args, kwargs):
            return super().call_function(target, args, kwargs)
        if target is _aten.batch_norm.default:
            return _aten._native_batch_norm_legit(*args[:8])[0]
        if target is _aten.native_batch_norm.default:
            return _aten._native_batch_norm_legit(*args)
        return super().call_function(target, args, kwargs)
