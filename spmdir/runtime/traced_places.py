"""Record the module and the source lines of the nodes of a traced step, also for nodes of its backward.

`make_fx` records neither for a function that differentiates. Here each torch call of the forward sets the module and
lines of the nodes that it adds. Each autograd node of such a call sets them again in the backward.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode

from spmdir.importer.locations import is_library_file

_Place = dict[str, Any]
"""The metadata that the tracer copies into `node.meta`."""


@contextmanager
def traced_places(model: nn.Module) -> Iterator[None]:
    """Record modules of `model` and source lines on the nodes of a forward and backward that are traced inside.

    Without a tracer, this has no effect.
    """
    if get_proxy_mode() is None:
        yield
        return
    places = _Places(sys._getframe(2))
    hooks = [
        hook
        for name, module in model.named_modules()
        for hook in (
            module.register_forward_pre_hook(places.enter_hook(name), prepend=True),
            module.register_forward_hook(places.leave_hook, always_call=True),
        )
    ]
    try:
        with fx_traceback.preserve_node_meta(), places:
            yield
    finally:
        for hook in hooks:
            hook.remove()
        _set({})


class _Places(TorchFunctionMode):
    """Sets the metadata of the nodes of each torch call."""

    def __init__(self, outside: FrameType):
        """Start to record; frames that called `outside` are not recorded."""
        super().__init__()
        self._outside = outside
        self._modules: list[tuple[str, _Place]] = []  # with the place before it was entered
        self._marked_nodes: set[Any] = set()  # autograd nodes, not ids, because the id of a freed node is reused
        self._in_backward = False

    def enter_hook(self, name: str) -> Any:
        """Return the hook that runs when a module is entered."""

        def hook(*_: object) -> None:
            self._modules.append((name, _current()))
            _set({**_current(), **_of_module(name)})  # for calls that no mode intercepts, such as recomputed functions

        return hook

    def leave_hook(self, *_: object) -> None:
        """Leave the innermost module."""
        _set(self._modules.pop()[1])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._in_backward and not self._modules:  # except for calls that a checkpointed module repeats
            return func(*args, **(kwargs or {}))
        previous_place, place = _current(), self._place()
        _set(place)
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            _set(previous_place)
        for leaf in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                self._mark_node(leaf.grad_fn, place)
        return result

    def _place(self) -> _Place:
        """Return the metadata of the present torch call: the user's lines on the stack, and the innermost module."""
        frame, lines = sys._getframe(2), list[tuple[CodeType, int]]()
        while frame is not None and frame is not self._outside:
            if _is_users(frame.f_code):
                lines.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return {"stack_trace": _trace(tuple(lines)), **_of_module(self._modules[-1][0] if self._modules else "")}

    def _mark_node(self, node: Any, place: _Place) -> None:
        """Register hooks that set `place` on an autograd node, and on its unmarked predecessors."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node is not None and node not in self._marked_nodes:
                self._marked_nodes.add(node)
                node.register_prehook(lambda _: self._begin(place))
                node.register_hook(lambda *_: self._end())
                stack += [predecessor for predecessor, _ in node.next_functions]

    def _begin(self, place: _Place) -> None:
        self._in_backward = True
        _set(place)

    def _end(self) -> None:
        self._in_backward = False
        _set({})


def _of_module(path: str) -> _Place:
    return {"nn_module_stack": {path: (path, "")}} if path else {}


def _current() -> _Place:
    meta = fx_traceback.current_meta
    return {key: meta[key] for key in ("stack_trace", "nn_module_stack") if key in meta}


def _set(place: _Place) -> None:
    for key in ("stack_trace", "nn_module_stack"):
        fx_traceback.current_meta.pop(key, None)
    fx_traceback.current_meta.update(place)


@lru_cache(maxsize=65536)
def _is_users(code: CodeType) -> bool:
    return not is_library_file(code.co_filename)


@lru_cache(maxsize=65536)
def _trace(lines: Sequence[tuple[CodeType, int]]) -> str:
    """Return lines, given from the innermost to the outermost, as a stack trace."""
    return "\n".join(f'File "{code.co_filename}", line {line}, in {code.co_name}' for code, line in reversed(lines))
