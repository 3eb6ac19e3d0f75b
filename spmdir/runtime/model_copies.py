"""Copy modules, with their tensors replaced by fake or other tensors."""

from __future__ import annotations

import copy
import types
from collections.abc import MutableMapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from spmdir.torch_interop.fake_tensors import FakeTensor, FakeTensorMode

Model = TypeVar("Model", bound=nn.Module)


def copy_model(model: Model, memo: MutableMapping[int, Any]) -> Model:
    """Return a deep copy of a module; `memo` is as for `copy.deepcopy`: id of an object → its copy.

    Functions that are attributes of submodules, such as methods replaced on the object, are copied with their closures.
    `copy.deepcopy` would leave references to modules of the original in them.
    """
    copied_model = copy.deepcopy(model, memo)  # type: ignore[arg-type]  # a dict
    for module in copied_model.modules():
        for name, value in vars(module).items():
            if isinstance(value, types.FunctionType) and value.__closure__:
                vars(module)[name] = _copy_function(value, memo)
    return copied_model


def _copy_function(function: types.FunctionType, memo: MutableMapping[int, Any]) -> types.FunctionType:
    """Return a copy of a function whose closure has copies of modules, methods and functions with closures.

    Args:
        memo: as for `copy.deepcopy`: id of an object → its copy.
    """
    if id(function) in memo:
        return memo[id(function)]
    cells = [types.CellType() for _ in function.__closure__ or ()]
    result = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    )
    memo[id(function)] = result
    result.__kwdefaults__, result.__dict__ = function.__kwdefaults__, dict(vars(function))
    result.__module__, result.__qualname__ = function.__module__, function.__qualname__
    for cell, old_cell in zip(cells, function.__closure__ or (), strict=True):
        try:
            content = old_cell.cell_contents
        except ValueError:  # a variable that is not set yet
            continue
        if isinstance(content, types.FunctionType):
            content = _copy_function(content, memo) if content.__closure__ else content
        elif isinstance(content, (nn.Module, types.MethodType)):
            content = copy.deepcopy(content, memo)  # type: ignore[arg-type]  # a dict
        cell.cell_contents = content
    return result


def fake_copy(model: Model, mode: FakeTensorMode, device: torch.device | None = None) -> Model:
    """Return a copy of a module with fake parameters and buffers, on `device` or, if it is None, on their devices."""
    originals = (*model.parameters(), *model.buffers())
    return copy_model(model, {id(tensor): fake(tensor, mode, device) for tensor in originals})


def fake(tensor: Tensor, mode: FakeTensorMode, device: torch.device | None = None) -> Tensor:
    """Return a fake tensor like `tensor`, a parameter for a parameter. It is contiguous.

    Args:
        device: the device of the fake tensor; None for that of `tensor`.
    """
    meta = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    # Quicker than `torch.empty` in the mode, by a factor of four.
    fake_tensor = FakeTensor(mode, meta, torch.device(device or tensor.device))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake_tensor, tensor.requires_grad)
    return fake_tensor.requires_grad_(tensor.requires_grad)
