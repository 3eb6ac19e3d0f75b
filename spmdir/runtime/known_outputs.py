"""Outputs of modules as trees that torch traces: dataclasses are registered, caches are left out.

`torch.export` and TorchDynamo return tensors and plain values in containers that torch's pytrees know. A forward may
return more. Its rehearsal shows what it returns:

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
"""What a program takes and returns beside containers."""


@contextmanager
def without_unknown_outputs(model: nn.Module, output: Any) -> Iterator[None]:
    """Let `model` return what torch can trace, within the context.

    A field of a dataclass, an entry of a dictionary or of a tuple that holds an object without a pytree, such as a
    cache of `transformers`, is None instead, with a warning.

    Args:
        output: what the forward of `model` returns for the arguments that are traced.

    Raises:
        UnsupportedError: the output as a whole, or something deeper inside it, is such an object.
    """
    _register_dataclasses(output)
    unknown = _unknown_entries(output)
    if not unknown:
        yield
        return
    for key, kind in unknown.items():
        warn(
            f"output {key!r} of {type(model).__name__} is a {kind}, which a partitioned program does not return; "
            "it is None instead: return its tensors, or let the model not make it, as by config.use_cache = False"
        )
    keys = frozenset(unknown)
    remove_unknown = _remover(output)  # found before the trace, which cannot ask for the kind of each class
    hook = model.register_forward_hook(lambda module, args, output: remove_unknown(output, keys))
    try:
        yield
    finally:
        hook.remove()


def without_unknown(output: Any) -> Any:
    """Return what a model that returns `output` returns within `known_outputs`.

    Raises:
        UnsupportedError: as `known_outputs`.
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
    """Return key, field or place in an output → the class of an object there that is no pytree.

    Raises:
        UnsupportedError: such an object is not an entry of the output itself.
    """
    unknown = {}
    for path, leaf in pytree.tree_flatten_with_path(output)[0]:
        if isinstance(leaf, PLAIN):
            continue
        kind = type(leaf).__name__
        if len(path) != 1:
            place = f"output{pytree.keystr(path)}" if path else "what the module returns"
            raise UnsupportedError(
                f"{place} is a {kind}; expected tensors and numbers in tuples, lists, dictionaries or dataclasses: "
                "return its tensors, or register its class by torch.utils._pytree.register_pytree_node"
            )
        (key,) = path
        unknown[getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))] = kind
    return unknown


def _remover(output: Any) -> Callable[[Any, frozenset[Any]], Any]:
    """Return what makes of an output like `output` one with None for the entries at some keys."""
    kind: Any = type(output)
    if dataclasses.is_dataclass(output):
        names = [field.name for field in dataclasses.fields(output)]
        return lambda output, keys: kind(**{name: None if name in keys else getattr(output, name) for name in names})
    if isinstance(output, Mapping):
        return lambda output, keys: kind({key: None if key in keys else value for key, value in output.items()})
    if hasattr(output, "_fields"):
        return lambda output, keys: kind(*_entries(output, kind._fields, keys))
    return lambda output, keys: kind(_entries(output, range(len(output)), keys))


def _entries(output: Any, names: Iterable[Any], keys: frozenset[Any]) -> list[Any]:
    return [None if name in keys else entry for name, entry in zip(names, output, strict=True)]
