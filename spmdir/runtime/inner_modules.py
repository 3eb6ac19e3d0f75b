"""Submodules of a sharded module: the program runs in their place, so they are not called, and neither are hooks."""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from typing import Any

import attrs
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from spmdir.core.errors import UnsupportedError

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@attrs.frozen
class CallByItself:
    """The hook that rejects a call of a submodule outside the program.

    Attributes:
        name: of the submodule.
    """

    name: str

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise UnsupportedError for plain tensors: DTensor cannot mix them with the shards that the module holds."""
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_sharded = any(isinstance(parameter, DTensor) for parameter in module.parameters())
        if is_sharded and any(not isinstance(tensor, DTensor) for tensor in given):
            raise UnsupportedError(
                f"the submodule '{self.name}' of a sharded module is called by itself, with plain tensors, as by "
                "another method than forward; expected a call of the sharded module: let forward return what the "
                "method computes, or shard a module whose forward calls the method"
            )


class HooksOfInner(OrderedDict[int, Any]):
    """The hooks of a submodule, which warns of each that is registered."""

    @classmethod
    def of(cls, hooks: OrderedDict[int, Any]) -> HooksOfInner:
        """Return the same hooks, watched from now on."""
        watched = cls()
        for key, hook in hooks.items():
            OrderedDict.__setitem__(watched, key, hook)
        return watched

    def __deepcopy__(self, memo: Any) -> HooksOfInner:
        """Return a copy, of whose hooks nothing is said again."""
        return self.of(OrderedDict((key, copy.deepcopy(hook, memo)) for key, hook in self.items()))

    def __setitem__(self, key: int, hook: Any) -> None:
        if not isinstance(hook, CallByItself):
            warnings.warn(
                "a hook of a submodule of a sharded module is not called by calls of the module; register it before "
                "shard_module, which traces it into the program, or on the sharded module itself",
                stacklevel=3,
            )
        super().__setitem__(key, hook)


def watch_inner_modules(module: nn.Module) -> None:
    """Let calls of submodules by themselves be errors, and hooks that are registered for them be warned of."""
    for name, inner in module.named_modules():
        if inner is not module:
            inner.register_forward_pre_hook(CallByItself(name), with_kwargs=True)
            for key in _HOOKS:
                vars(inner)[key] = HooksOfInner.of(vars(inner)[key])


def leave_inner_modules(module: nn.Module) -> None:
    """Undo `watch_inner_modules`."""
    for _, inner in module.named_modules():
        for key in _HOOKS:
            kept = {at: hook for at, hook in vars(inner)[key].items() if not isinstance(hook, CallByItself)}
            for at in vars(inner)[key].keys() - kept.keys():
                inner._forward_pre_hooks_with_kwargs.pop(at, None)
            vars(inner)[key] = OrderedDict(kept)
