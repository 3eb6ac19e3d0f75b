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

_NodeMeta = dict[str, Any]
"""The metadata that the tracer copies into `node.meta`."""


@contextmanager
def record_locations(model: nn.Module) -> Iterator[None]:
    """Record the module of `model` and the source line of each node that a tracer creates in the body.

    The body runs a forward and a backward. A node of the backward gets the location of its forward op. Without a
    tracer, this has no effect.
    """
    if get_proxy_mode() is None:
        yield
        return
    location_mode = _LocationMode(sys._getframe(2))
    hooks = [
        hook
        for name, module in model.named_modules()
        for hook in (
            module.register_forward_pre_hook(location_mode.enter_hook(name), prepend=True),
            module.register_forward_hook(location_mode.leave_hook, always_call=True),
        )
    ]
    try:
        with fx_traceback.preserve_node_meta(), location_mode:
            yield
    finally:
        for hook in hooks:
            hook.remove()
        _set_meta({})


class _LocationMode(TorchFunctionMode):
    """Sets the metadata of the nodes of each torch call."""

    def __init__(self, outside: FrameType):
        """Start to record; frames that called `outside` are not recorded."""
        super().__init__()
        self._outside = outside
        self._modules: list[tuple[str, _NodeMeta]] = []  # (name, metadata before the module was entered)
        self._marked_nodes: set[Any] = set()  # autograd nodes, not ids, because the id of a freed node is reused
        self._in_backward = False

    def enter_hook(self, name: str) -> Any:
        """Return the hook that runs when a module is entered."""

        def hook(*_: object) -> None:
            """Enter the module: set its path as the metadata of new nodes."""
            self._modules.append((name, _current_meta()))
            # For calls that no mode intercepts, such as recomputed functions.
            _set_meta({**_current_meta(), **_module_meta(name)})

        return hook

    def leave_hook(self, *_: object) -> None:
        """Leave the innermost module."""
        _set_meta(self._modules.pop()[1])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a torch function with its location as the metadata of new nodes, and mark its backward with it."""
        if self._in_backward and not self._modules:  # except for calls that a checkpointed module repeats
            return func(*args, **(kwargs or {}))
        previous_meta, meta = _current_meta(), self._call_meta()
        _set_meta(meta)
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            _set_meta(previous_meta)
        for leaf in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                self._mark_node(leaf.grad_fn, meta)
        return result

    def _call_meta(self) -> _NodeMeta:
        """Return the metadata of the present torch call: the user's lines on the stack, and the innermost module."""
        frame, lines = sys._getframe(2), list[tuple[CodeType, int]]()
        while frame is not None and frame is not self._outside:
            if _is_user_code(frame.f_code):
                lines.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return {
            "stack_trace": _stack_trace(tuple(lines)),
            **_module_meta(self._modules[-1][0] if self._modules else ""),
        }

    def _mark_node(self, node: Any, meta: _NodeMeta) -> None:
        """Register hooks that set `meta` while the autograd engine runs a node and its unmarked predecessors."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node is not None and node not in self._marked_nodes:
                self._marked_nodes.add(node)
                node.register_prehook(lambda _: self._enter_backward(meta))
                node.register_hook(lambda *_: self._leave_backward())
                stack += [predecessor for predecessor, _ in node.next_functions]

    def _enter_backward(self, meta: _NodeMeta) -> None:
        """Set the metadata of the forward call whose autograd node starts to run."""
        self._in_backward = True
        _set_meta(meta)

    def _leave_backward(self) -> None:
        """Clear the metadata after an autograd node has run."""
        self._in_backward = False
        _set_meta({})


def _module_meta(path: str) -> _NodeMeta:
    """Return the metadata of nodes of the module at `path`."""
    return {"nn_module_stack": {path: (path, "")}} if path else {}


def _current_meta() -> _NodeMeta:
    """Return the metadata that the tracer copies into nodes now."""
    meta = fx_traceback.current_meta
    return {key: meta[key] for key in ("stack_trace", "nn_module_stack") if key in meta}


def _set_meta(meta: _NodeMeta) -> None:
    """Let the tracer copy `meta` into the nodes that it adds from now on."""
    for key in ("stack_trace", "nn_module_stack"):
        fx_traceback.current_meta.pop(key, None)
    fx_traceback.current_meta.update(meta)


@lru_cache(maxsize=65536)
def _is_user_code(code: CodeType) -> bool:
    """Return whether a code object is from a file of the user."""
    return not is_library_file(code.co_filename)


@lru_cache(maxsize=65536)
def _stack_trace(lines: Sequence[tuple[CodeType, int]]) -> str:
    """Return `lines`, (code, line number) pairs with the innermost first, as a stack trace with the innermost last."""
    return "\n".join(f'File "{code.co_filename}", line {line}, in {code.co_name}' for code, line in reversed(lines))
