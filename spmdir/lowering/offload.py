"""Copies to the memory of the host and back, as calls in a graph: one call starts a copy, and another waits for it.

On an accelerator, each direction has its own stream, apart from the stream of the kernels, and host memory is pinned.
So copies run concurrently with kernels. On a CPU, the copy is complete after the first call. Its result is a new
tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from spmdir.lowering.ranges import Emit

_EVENT = "_spmdir_copied"
"""The attribute of the target of a copy with the event at the end of the copy."""


def begin_copy(emit: Emit, x: Node, device: Callable[[], Any], to_host: bool) -> Callable[[], Node]:
    """Emit the start of a copy of `x`; return a function that emits the wait and returns the copy.

    Args:
        device: returns the node of the accelerator's device.
    """
    copy = emit(offload, x) if to_host else emit(reload, x, device())

    def end() -> Node:
        """Emit the wait for the copy, and return the copy."""
        emit(end_copy, copy, x)  # keeps x alive until the copy is complete
        return copy

    return end


@torch.library.custom_op("spmdir::offload", mutates_args=(), schema="(Tensor x) -> Tensor")
def _offload(x: Tensor) -> Tensor:
    """Start a copy of `x` to pinned host memory."""
    host_copy = torch.empty_like(x, device="cpu", pin_memory=x.device.type != "cpu")
    return _start_copy(host_copy, x, x.device, True)


@torch.library.custom_op("spmdir::reload", mutates_args=(), schema="(Tensor x, Device device) -> Tensor")
def _reload(x: Tensor, device: torch.device) -> Tensor:
    """Start a copy of `x` from host memory to a device."""
    return _start_copy(torch.empty_like(x, device=device), x, device, False)


@torch.library.custom_op("spmdir::end_copy", mutates_args=("copied",), schema="(Tensor(a!) copied, Tensor x) -> ()")
def _end_copy(copied: Tensor, x: Tensor) -> None:
    """Let the current stream wait for the copy of `x` into `copied`."""
    device = x.device if x.device.type != "cpu" else copied.device
    if device.type == "cpu":
        return
    current = torch.get_device_module(device).current_stream(device)
    event = getattr(copied, _EVENT, None)
    if event is None:  # the tensor was wrapped in another object
        current.wait_stream(_stream(device, copied.device.type == "cpu"))
    else:
        current.wait_event(event)


def _start_copy(target: Tensor, x: Tensor, device: torch.device, to_host: bool) -> Tensor:
    """Start a copy of `x` into `target` on the stream of this direction, and return `target`.

    Args:
        device: the accelerator; a CPU copies at once.
    """
    if device.type == "cpu":
        return target.copy_(x)
    accelerator, stream = torch.get_device_module(device), _stream(device, to_host)
    stream.wait_stream(accelerator.current_stream(device))
    with accelerator.stream(stream):
        target.copy_(x, non_blocking=True)
        setattr(target, _EVENT, stream.record_event())
    return target


@cache
def _stream(device: torch.device, to_host: bool) -> Any:
    """Return the stream for copies in one direction on a device."""
    return torch.get_device_module(device).Stream(device)


@_offload.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, device="cpu")


@_reload.register_fake
def _(x: Tensor, device: torch.device) -> Tensor:
    return torch.empty_like(x, device=device)


offload = torch.ops.spmdir.offload.default
reload = torch.ops.spmdir.reload.default
end_copy = torch.ops.spmdir.end_copy.default
