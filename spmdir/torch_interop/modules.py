"""Attributes in which modules and optimizers keep tensors and hooks, without a public name in torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as every_module
from torch.optim import Optimizer

HOOKS = {"_forward_hooks": "_forward_hooks_with_kwargs", "_forward_pre_hooks": "_forward_pre_hooks_with_kwargs",
         "_backward_hooks": "", "_backward_pre_hooks": ""}  # fmt: skip
"""Tables of a module that hold hooks → the one that says which of these take keyword arguments."""

TABLES = (*HOOKS, "_parameters", "_buffers", "_modules")
"""All tables of a module that calls of it read."""

INIT_GROUP = "_init_group"
"""The method of torch's optimizers that makes the state of parameters; some classes of users lack it."""

_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
_OF_EVERY_MODULE = {
    "forward": ("_global_forward_hooks", "_global_forward_pre_hooks"),
    "backward": ("_global_backward_hooks", "_global_backward_pre_hooks"),
}
"""Kind of a hook → the tables of `torch.nn.modules.module` with the hooks that are registered for all modules."""


def own_tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (name → parameter, name → buffer) of a module itself, without its submodules. Values may be None."""
    return module._parameters, module._buffers


def with_module(module: nn.Module, name: str, child: nn.Module) -> nn.Module:
    """Return a copy of a module with one more submodule. The copy shares all parameters and other submodules."""
    extended = copy(module)
    extended._modules = module._modules | {name: child}
    return extended


def clear_hooks(module: nn.Module) -> None:
    """Remove all hooks of a module without its submodules."""
    for table in HOOKS:
        getattr(module, table).clear()


def remove_forward_pre_hook(module: nn.Module, hook: Any) -> None:
    """Remove all registrations of a hook from a module."""
    for key in [key for key, registered in module._forward_pre_hooks.items() if registered is hook]:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)


def backward_hooks(module: nn.Module) -> Iterator[Any]:
    """Yield the backward hooks of a module without its submodules."""
    for table in _BACKWARD_HOOKS:
        yield from vars(module)[table].values()


def global_hooks() -> Iterator[tuple[str, Any]]:
    """Yield (`forward` or `backward`, hook) of the hooks that are registered for all modules."""
    for kind, tables in _OF_EVERY_MODULE.items():
        for table in tables:
            yield from ((kind, hook) for hook in getattr(every_module, table).values())


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether hooks run around the step of an optimizer."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def note_step(optimizer: Optimizer) -> None:
    """Record a step of an optimizer. Learning-rate schedulers warn if they run before the first step."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


@contextmanager
def compiling_flag() -> Iterator[None]:
    """Make `torch.compiler.is_compiling()` return True. Optimizers then compute with tensors instead of numbers.

    The flag belongs to the process, so other threads should not run optimizers meanwhile.
    """
    old_value = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = old_value
