"""Convert outputs of modules to trees that torch can trace: register dataclasses, and leave out caches.

`torch.export` and TorchDynamo support outputs of tensors and plain values in registered pytrees. A forward may return
other objects. Its dry run, on fake tensors, shows which:

    Out(logits=…, cache=DynamicCache)   →   Out(logits=…, cache=None), and `Out` is a pytree node
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from spmdir.core.errors import UnsupportedError, warn
from spmdir.torch_interop import pytree

PLAIN = (Tensor, bool, int, float, complex, str, type(None), torch.dtype, torch.device)
"""Types of leaves that a program takes and returns."""


@contextmanager
def without_unknown_outputs(model: nn.Module, output: Any) -> Iterator[None]:
    """Let `model` return only objects that torch can trace, within the context.

    If an entry of the output is an object that is not a pytree, such as a cache of `transformers`, it becomes None,
    with a warning. An entry is a field of a dataclass, or an item of a dictionary or a tuple.

    Args:
        output: the output of `model` for the traced arguments.

    Raises:
        UnsupportedError: such an object is the output itself, or is nested deeper.
    """
    _register_dataclasses(output)
    unknown = _unknown_entries(output)
    if not unknown:
        yield
        return
    for key, kind in unknown.items():
        warn(
            f"output {key!r} of {type(model).__name__} is a {kind}, so a partitioned program returns None "
            "instead; expected tensors and plain values: return its tensors, or disable the output, such "
            "as by config.use_cache = False"
        )
    keys = frozenset(unknown)
    remove_unknown = _remover(output)  # before the trace, which cannot inspect classes
    hook = model.register_forward_hook(lambda module, args, output: remove_unknown(output, keys))
    try:
        yield
    finally:
        hook.remove()


def without_unknown(output: Any) -> Any:
    """Return `output` as a model returns it within `without_unknown_outputs`.

    Raises:
        UnsupportedError: as `without_unknown_outputs`.
    """
    _register_dataclasses(output)
    unknown = _unknown_entries(output)
    return _remover(output)(output, frozenset(unknown)) if unknown else output


def _register_dataclasses(output: Any) -> None:
    """Register the dataclasses in a tree as nodes of pytrees, as `torch.export.register_dataclass` does for a user."""
    for leaf in pytree.tree_leaves(output):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            torch.export.register_dataclass(type(leaf))
            _register_dataclasses(leaf)


def _unknown_entries(output: Any) -> dict[Any, str]:
    """Return key, field or index of an entry → name of the class of its object, for objects that are not pytrees.

    Raises:
        UnsupportedError: such an object is not an entry of the output itself.
    """
    unknown = {}
    for path, leaf in pytree.tree_flatten_with_path(output)[0]:
        if isinstance(leaf, PLAIN):
            continue
        kind = type(leaf).__name__
        if len(path) != 1:
            place = f"output{pytree.keystr(path)}" if path else "the output of the module"
            raise UnsupportedError(
                f"{place} is a {kind}; expected tensors and numbers in tuples, lists, dictionaries or dataclasses: "
                "return its tensors, or register its class by torch.utils._pytree.register_pytree_node"
            )
        # A key of a dictionary, an index of a sequence, or a field of another class.
        entries = [getattr(path[0], attribute) for attribute in ("key", "idx", "name") if hasattr(path[0], attribute)]
        unknown[entries[0] if entries else None] = kind
    return unknown


def _remover(output: Any) -> Callable[[Any, frozenset[Any]], Any]:
    """Return a function (output, keys) → copy of this output with None for the entries at `keys`.

    The function accepts outputs of the class of `output`.
    """
    output_class: Any = type(output)
    if dataclasses.is_dataclass(output):
        names = [field.name for field in dataclasses.fields(output)]
        return lambda output, keys: output_class(
            **{name: None if name in keys else getattr(output, name) for name in names}
        )
    if isinstance(output, Mapping):
        return lambda output, keys: output_class({key: None if key in keys else value for key, value in output.items()})
    if hasattr(output, "_fields"):  # a named tuple
        return lambda output, keys: output_class(*_without_entries(output, output_class._fields, keys))
    return lambda output, keys: output_class(_without_entries(output, range(len(output)), keys))


def _without_entries(entries: Iterable[Any], names: Iterable[Any], removed_names: frozenset[Any]) -> list[Any]:
    """Return the entries of a tuple, with None for those whose name or index is in `removed_names`."""
    return [None if name in removed_names else entry for name, entry in zip(names, entries, strict=True)]
