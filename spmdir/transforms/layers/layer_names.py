"""Which layer an op is of: by the path of its module, or else by the names of the parameters that it takes.

Names are labels: `segments.py` finds equal layers by what their ops compute, since some models name none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import CallSiteLoc, FusedLoc, NameLoc, StringAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.core.equal_layers import numbered_layer
from spmdir.dialects.locations import places_of
from spmdir.dialects.names import name_of


def layer_of(ops: Iterable[Operation], taken: Iterable[SSAValue]) -> tuple[str, int] | None:
    """Return the prefix and the number of the layer that most ops are of, as ("model.layers.", 3); None if none says.

    Args:
        taken: arguments of the function that name the layer where no path does; those of the ops are looked at too.
    """
    ops = list(ops)
    found = Counter(filter(None, [_first(places_of(op.location).paths) for op in ops]))
    if not found:
        values = [*taken, *(operand for op in ops for operand in op.operands)]
        arguments = {value for value in values if type(value) is BlockArgument}
        names = map(name_of, arguments)
        found = Counter(filter(None, [_layer(name) for name in names if name and "." in name]))
    return most_frequent(found)


def most_frequent(layers: Mapping[tuple[str, int], int]) -> tuple[str, int] | None:
    """Return the layer that is counted most often, by shorter prefixes first; None if there is none."""
    return max(layers, key=lambda layer: (layers[layer], -len(layer[0]), layer), default=None)


def function_name(prefix: str | None, which: int | None, does: str, taken: Collection[str]) -> str:
    """Return the name of a function of layers, as `layers_forward`, or `layers_5_forward` of those that differ.

    Args:
        prefix: that of the layers; None if they have no name.
        which: the first of the layers that differ from most; None of most.
        does: what the function does.
        taken: names that others have.
    """
    words = re.findall(r"[A-Za-z_]+", prefix or "")
    parts = [words[-1] if words else "layer" if prefix is None else "layers", which, does]
    name = first = "_".join(str(part).strip("_") for part in parts if part is not None)
    number = 0
    while name in taken:
        number += 1
        name = f"{first}_{number}"
    return name


def _first(paths: Iterable[str]) -> tuple[str, int] | None:
    return next(filter(None, map(_layer, paths)), None)


@lru_cache(maxsize=65536)
def _layer(name: str) -> tuple[str, int] | None:
    """Return the layer in a path or a name; a training step says of its state what it is first."""
    return numbered_layer(name.removeprefix("parameters.").removeprefix("buffers."))


def of_layer(location: Any, old: str, new: str) -> Any:
    """Return the location in the layer `new` of an op that has `location` in the layer `old`, as "layers.0"."""
    return _renumbered(location, old, new) if _has_path(location) else NameLoc(_string(new), location)


def _has_path(location: Any) -> bool:
    """Return whether a location names a module."""
    if isinstance(location, FusedLoc):
        return any(map(_has_path, location.locations))  # type: ignore[arg-type]
    if isinstance(location, CallSiteLoc):
        return _has_path(location.callee) or _has_path(location.caller)
    return isinstance(location, NameLoc)


@lru_cache(maxsize=4096)
def _string(text: str) -> StringAttr:
    return StringAttr(text)


def _renumbered(location: Any, old: str, new: str) -> Any:
    """Return a location in which the paths of the layer `old`, as "layers.0", are those of `new`."""
    if isinstance(location, NameLoc):
        path = location.desc.data
        inside = _renumbered(location.location, old, new)
        if path == old or path.startswith(f"{old}."):
            path = new + path[len(old) :]
        return NameLoc(_string(path), inside)
    if isinstance(location, FusedLoc):
        members = [_renumbered(one, old, new) for one in location.locations]  # type: ignore
        return FusedLoc(members, location.metadata)  # type: ignore[arg-type]
    return location
