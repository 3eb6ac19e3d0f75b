"""The code that runs an op: modes, transforms of torch.func and functionalization, in torch 2.11 to 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, peek_interpreter_stack
from torch._subclasses.functional_tensor import dispatch_functionalize as dispatch_functionalize
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes  # noqa: F401

without_torch_function = torch._C._disabled_torch_function_impl
"""The `__torch_function__` of a class of tensors whose ops run as those of plain tensors do."""


_TRANSFORMS = (
    torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode,
    torch._C.DispatchKey.FuncTorchDynamicLayerBackMode,
    torch._C.DispatchKey.FuncTorchVmapMode,
    torch._C.DispatchKey.FuncTorchBatched,
    torch._C.DispatchKey.FuncTorchGradWrapper,
)
"""The dispatch keys of torch.func."""


def is_inside_transform() -> bool:
    """Return whether a transform of torch.func, such as grad or vmap, runs the code that asks."""
    return peek_interpreter_stack() is not None


def is_of_transform(tensor: Tensor) -> bool:
    """Return whether a transform of torch.func has wrapped a tensor."""
    return is_functorch_wrapped_tensor(tensor)


def without_subclasses() -> Any:
    """Return a context in which attributes and methods of subclasses of Tensor are those of Tensor."""
    return torch._C.DisableTorchFunctionSubclass()


def allowing_transforms() -> Any:
    """Return a context in which torch.func transforms apply inside the kernel of an op, also on fake tensors.

    torch excludes the keys of transforms while it runs a kernel on tensors with a `__torch_dispatch__`. Without this
    context, `vmap` in such a kernel fails.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _TRANSFORMS:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
