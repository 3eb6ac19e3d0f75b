"""Find normalizations that write running statistics. The schemas of these ops do not declare the writes."""

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
    """Return whether a call of `target` writes its running statistics.

    A normalization writes them if it has running statistics, and the argument that switches training on is true.
    """
    if op_name(target) not in STATISTICS:
        return False
    _, training_argument = STATISTICS[op_name(target)]  # None for an op that always trains
    arguments = _arguments_by_name(target, args, kwargs)
    if arguments.get("running_mean") is None:
        return False
    return training_argument is None or bool(arguments[training_argument])


def written_leaves(target: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yield the leaves of the arguments that a call writes to, including running statistics."""
    if schema_or_none(target) is None:
        return
    for position, name in _written_arguments(target):
        yield from pytree.tree_leaves(args[position] if position < len(args) else kwargs.get(name))
    if writes_statistics(target, args, kwargs):
        arguments = _arguments_by_name(target, args, kwargs)
        yield from (arguments["running_mean"], arguments["running_var"])


def _arguments_by_name(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return name of an argument of the op's schema → the value in this call."""
    names = (argument.name for argument in schema_of(target).arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


@lru_cache(maxsize=65536)
def _written_arguments(target: Any) -> tuple[tuple[int, str], ...]:
    """Return (position, name) of each argument that the schema of an op declares as written."""
    written = []
    for position, argument in enumerate(schema_of(target).arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append((position, argument.name))
    return tuple(written)


class StatisticsDeclarer(fx.Interpreter):
    """Runs a graph with each batch norm replaced by one whose schema declares its writes."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a call. A batch norm that writes statistics runs as `_native_batch_norm_legit`."""
        if not writes_statistics(target, args, kwargs):
            return super().call_function(target, args, kwargs)
        if target is _aten.batch_norm.default:
            # Without `cudnn_enabled`, the last argument, and without the saved statistics, which batch_norm lacks.
            return _aten._native_batch_norm_legit(*args[:8])[0]
        if target is _aten.native_batch_norm.default:
            return _aten._native_batch_norm_legit(*args)
        return super().call_function(target, args, kwargs)
