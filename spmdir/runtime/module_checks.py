"""Checks of a module before it is traced."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from spmdir.core.declared_fields import place
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.torch_interop.modules import backward_hooks, global_hooks

_UNWRITABLE = frozenset('"\\')
"""Characters that torch.fx does not escape in generated code."""


def check_initialized(model: nn.Module) -> None:
    """Raise SpmdirError if a lazy layer has parameters or buffers without a shape."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise SpmdirError(
                f"'{name}' has no shape yet; expected lazy layers to be initialized: call the model once with an "
                "example, before its optimizer is made"
            )


def check_traceable(model: nn.Module) -> None:
    """Raise UnsupportedError if torch cannot trace a name, or a hook into forward and backward together.

    Hooks of `model` itself run around its sharded forward, and forward hooks of its submodules are traced.
    """
    for name, _ in (*model.named_modules(), *model.named_parameters(), *model.named_buffers()):
        if not name.isprintable() or not _UNWRITABLE.isdisjoint(name):
            raise UnsupportedError(
                f"the name {name!r} of a submodule or tensor has a quote, a backslash or a line break, "
                "which TorchDynamo cannot trace; expected other characters: rename it"
            )
    for kind, hook in global_hooks():
        raise UnsupportedError(
            f"the {kind} hook {_hook_name(hook)} is registered for all modules, which cannot be traced; "
            "expected hooks of single modules: remove it with its handle, and register it on the "
            "submodules that need it",
            place(hook),
        )
    for name, module in model.named_modules():
        for hook in backward_hooks(module) if name else ():
            raise UnsupportedError(
                f"the backward hook {_hook_name(hook)} of submodule '{name}' cannot be traced by "
                "shard_module; expected no backward hooks: remove it, or train with spmdir.training_step, "
                "which traces what backward hooks do",
                place(hook),
            )


def _hook_name(hook: Any) -> str:
    """Return the qualified name of a hook function, or of the class of a callable object."""
    return getattr(hook, "__qualname__", type(hook).__qualname__)


def check_forward_call(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise SpmdirError if the forward of `model` cannot be called with the example inputs."""
    signature = inspect.signature(type(model).forward)
    try:
        signature.bind(model, *args, **kwargs)
    except TypeError as error:
        raise SpmdirError(
            f"the forward of {type(model).__name__} cannot be called with the example inputs: {error}; "
            f"expected its arguments ({', '.join([*signature.parameters][1:])})"
        ) from None
