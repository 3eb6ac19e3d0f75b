"""Submodules of a sharded module: a program runs in their place, and they hold DTensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spmdir.core.errors import UnsupportedError
from spmdir.torch_interop import pytree
from spmdir.torch_interop.modules import remove_forward_pre_hook


def watch_inner_modules(module: nn.Module) -> None:
    """Let calls of submodules by themselves, with tensors that are no DTensors, be errors."""
    for inner in module.modules():
        if inner is not module and any(True for _ in inner.parameters(recurse=False)):
            inner.register_forward_pre_hook(_reject_plain_tensors, with_kwargs=True)


def leave_inner_modules(module: nn.Module) -> None:
    """Undo `watch_inner_modules`."""
    for inner in module.modules():
        remove_forward_pre_hook(inner, _reject_plain_tensors)


def _reject_plain_tensors(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise UnsupportedError for tensors that DTensor would not mix with what the module holds."""
    given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_sharded = any(isinstance(parameter, DTensor) for parameter in module.parameters(recurse=False))
    if is_sharded and any(not isinstance(tensor, DTensor) for tensor in given):
        raise UnsupportedError(
            f"{str(module).partition(chr(10))[0]} of a sharded module is called by itself, with plain tensors, as by "
            "another method than forward; expected a call of the sharded module: let forward return what the method "
            "computes, or shard a module whose forward calls the method"
        )
