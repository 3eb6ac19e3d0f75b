"""Attributes of tensors that have no public name in torch 2.11 to 2.13."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

version: Any = attrgetter("_version")
"""Return how often a tensor has been written to; an inference tensor raises RuntimeError."""


def version_code(variable: str) -> str:
    """Return Python code that gives the `version` of the tensor in a variable."""
    return f"{variable}._version"


def has_storage(tensor: Tensor) -> bool:
    """Return whether a tensor has memory of its own or of another; sparse tensors and some wrappers have none."""
    return torch._C._has_storage(tensor)


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return a number that no other live storage has; fake ones have one too."""
    return storage._cdata


def is_zero_tensor(tensor: Tensor) -> bool:
    """Return whether a tensor is zeros without memory, as torch makes for undefined gradients."""
    return tensor._is_zerotensor()


def wrapper(cls: type[Tensor], like: Tensor) -> Any:
    """Return a tensor of a subclass without elements, with sizes, strides, type and device of `like`."""
    make: Any = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
    return make(cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device)
