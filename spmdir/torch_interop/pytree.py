"""Nested containers of tensors: `torch.utils._pytree`, which has no public name in torch 2.11 to 2.13."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec as TreeSpec
from torch.utils._pytree import keystr as keystr
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_flatten_with_path as tree_flatten_with_path
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map as tree_map
from torch.utils._pytree import tree_map_only as tree_map_only
from torch.utils._pytree import tree_structure as tree_structure
from torch.utils._pytree import tree_unflatten as tree_unflatten
from torch.utils._pytree import treespec_dumps as treespec_dumps
from torch.utils._pytree import treespec_loads as treespec_loads

from spmdir.torch_interop.fake_tensors import FakeTensor

_LEAVES = frozenset((
    torch.Tensor, nn.Parameter, FakeTensor, bool, int, float, complex, str, type(None),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
))  # fmt: skip
"""Types of most arguments of ops, none of which is a container."""


def leaves_of(values: Iterable[Any]) -> list[Any]:
    """Return the leaves of `values` like `tree_leaves`, in a quarter of its time for arguments of an op."""
    leaves: list[Any] = []
    for value in values:
        kind = type(value)
        if kind in _LEAVES:
            leaves.append(value)
        else:
            leaves.extend(leaves_of(value) if kind is list or kind is tuple else tree_leaves(value))
    return leaves
