"""Find the layer of ops by the paths of their modules, or by the names of the parameters that they use.

Names are only labels. `segments.py` finds equal layers by comparing ops, because models need not name layers.
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


def layer_of(ops: Iterable[Operation], inputs: Iterable[SSAValue]) -> tuple[str, int] | None:
    """Return the prefix and the number of the layer of most ops, such as ("model.layers.", 3); None if unknown.

    Args:
        inputs: values whose names are used, in addition to the operands of `ops`, if no op has a path with a layer.
    """
    ops = list(ops)
    counts = Counter(filter(None, [_first_layer(places_of(op.location).paths) for op in ops]))
    if not counts:
        values = [*inputs, *(operand for op in ops for operand in op.operands)]
        arguments = {value for value in values if type(value) is BlockArgument}
        names = map(name_of, arguments)
        counts = Counter(filter(None, [_parse_layer(name) for name in names if name and "." in name]))
    return most_frequent(counts)


def most_frequent(layers: Mapping[tuple[str, int], int]) -> tuple[str, int] | None:
    """Return the layer with the largest count, then the shortest prefix; None if `layers` is empty."""
    return max(layers, key=lambda layer: (layers[layer], -len(layer[0]), layer), default=None)


def function_name(prefix: str | None, layer_number: int | None, purpose: str, used_names: Collection[str]) -> str:
    """Return the name of a function of layers, such as `layers_forward`, or `layers_5_forward` for an exception.

    Args:
        prefix: the prefix of the layers; None if they have no name.
        layer_number: the first of the layers, if they differ from most layers; None for the most common layers.
        purpose: the phase of the layers, such as "forward".
        used_names: the names of other functions.
    """
    words = re.findall(r"[A-Za-z_]+", prefix or "")  # "model.layers." has the words model and layers
    if words:
        noun = words[-1]
    else:
        noun = "layer" if prefix is None else "layers"
    parts = [noun, layer_number, purpose]
    name = base = "_".join(str(part).strip("_") for part in parts if part is not None)
    number = 0
    while name in used_names:
        number += 1
        name = f"{base}_{number}"
    return name


def _first_layer(paths: Iterable[str]) -> tuple[str, int] | None:
    """Return the layer in the first path that has one; None if there is none."""
    return next(filter(None, map(_parse_layer, paths)), None)


@lru_cache(maxsize=65536)
def _parse_layer(name: str) -> tuple[str, int] | None:
    """Return the layer in a path or a name. Names of state in a training step begin with the kind of state."""
    return numbered_layer(name.removeprefix("parameters.").removeprefix("buffers."))


def of_layer(location: Any, old: str, new: str) -> Any:
    """Return `location` with the layer `old`, such as "layers.0", replaced by the layer `new` in all paths of modules.

    A location without paths gets the path `new`.
    """
    return _rename_layer(location, old, new) if _has_path(location) else NameLoc(_string(new), location)


def _has_path(location: Any) -> bool:
    """Return whether a location contains the path of a module."""
    if isinstance(location, FusedLoc):
        return any(map(_has_path, location.locations))  # type: ignore[arg-type]
    if isinstance(location, CallSiteLoc):
        return _has_path(location.callee) or _has_path(location.caller)
    return isinstance(location, NameLoc)


@lru_cache(maxsize=4096)
def _string(text: str) -> StringAttr:
    return StringAttr(text)


def _rename_layer(location: Any, old: str, new: str) -> Any:
    """Return the location with the layer `old` replaced by `new` in all its paths."""
    if isinstance(location, NameLoc):
        path = location.desc.data
        inside = _rename_layer(location.location, old, new)
        if path == old or path.startswith(f"{old}."):
            path = new + path[len(old) :]
        return NameLoc(_string(path), inside)
    if isinstance(location, FusedLoc):
        members = [_rename_layer(member, old, new) for member in location.locations]  # type: ignore
        return FusedLoc(members, location.metadata)  # type: ignore[arg-type]
    return location
