"""What a step's trace must watch: random ops that run again, and parameters that are not those of the state."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from spmdir.errors import UnsupportedError


def watched(parameters: Mapping[int, str]) -> AbstractContextManager[Any]:
    """Return the context in which to run a step; nothing is watched unless a tracer runs it.

    Inside, a random op that starts from a state of the CPU's generator from which one started before gives the same
    values, as activation checkpointing expects of `set_rng_state`: a graph knows no such state. The generator is
    left as it was.

    Args:
        parameters: id → FQN of the parameters that the state has tensors for.

    Raises:
        UnsupportedError: one of them is used, which the trace would keep as a constant; or the generator was set
            back, and another op draws from there.
    """
    stack = ExitStack()
    if get_proxy_mode() is not None:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_Watch(parameters))
    return stack


_FIRST = 1 << 48  # far from seeds that a model may set


class _Watch(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, parameters: Mapping[int, str]):
        super().__init__()
        self._parameters = parameters
        self._drawn: dict[int, tuple[Any, Any]] = {}
        # The seed names a state of the generator: it is saved and restored with it, and each draw moves on to the next.
        torch.default_generator.manual_seed(_FIRST)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in pytree.tree_leaves((args, kwargs)):
            if id(leaf) in self._parameters:
                raise UnsupportedError(
                    f"the loss uses the parameter '{self._parameters[id(leaf)]}' itself, which the trace would keep as "
                    "a constant that no update reaches; take it from the model that the loss is given"
                )
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        return self._draw(func, args, kwargs)

    def _draw(self, func: Any, args: Any, kwargs: Any) -> Any:
        start = torch.random.initial_seed()
        called = (func, *(tuple(leaf.shape) for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)))
        if start in self._drawn:
            before, values = self._drawn[start]
            if before != called:
                raise UnsupportedError(
                    f"{func} draws from a state of the generator that {before[0]} drew from before; a checkpointed "
                    "function must run the same ops again"
                )
            values = pytree.tree_map_only(Tensor, torch.clone, values)
            result = args[0].copy_(values) if func._schema.is_mutable else values
        else:
            result = func(*args, **kwargs)
            # Copies, for the op's results may be written to; those of draws that are not repeated are dead code.
            self._drawn[start] = called, pytree.tree_map_only(Tensor, torch.clone, result)
        torch.default_generator.manual_seed(start + 1)
        return result
