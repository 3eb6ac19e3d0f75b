"""Trace grouped products of all element types; torch has their fake kernel only for bfloat16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

import spmdir.torch_interop.expert_ops  # noqa: F401  # registers torch.ops.experts

_PRODUCT = torch.ops.aten._grouped_mm.default
_HAS_FAKE_KERNEL = torch.bfloat16


class TracedGroupedProducts(TorchDispatchMode):
    """Replaces grouped products without a fake kernel by `experts.grouped_mm` and `experts.grouped_outer`.

    This includes those of backward and recomputed functions. Rows behind the last group are zero in the result, and
    operands may have any strides.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _multiply(*args, **(kwargs or {})) if func is _PRODUCT else NotImplemented
        return func(*args, **(kwargs or {})) if result is NotImplemented else result


def _multiply(left: Tensor, right: Tensor, offs: Tensor | None = None, *options: Any, **named: Any) -> Any:
    """Return a grouped product; NotImplemented if torch has its fake kernel.

    Args:
        left, right: [rows, k] and [groups, k, n], or [m, rows] and [rows, n], which gives [groups, m, n].
        offs: the ends of the groups of rows.
    """
    has_options = any(option is not None for option in (*options, *named.values()))
    if left.dtype == _HAS_FAKE_KERNEL or left.dim() != 2 or offs is None or has_options:
        return NotImplemented
    counts = offs - pad(offs[:-1], (1, 0))
    if right.dim() == 3:
        return torch.ops.experts.grouped_mm(left, right, counts)
    return torch.ops.experts.grouped_outer(left.transpose(-2, -1), right, counts, offs.shape[0])


DECOMPOSITIONS = {_PRODUCT: _multiply}
"""The same replacement as a table for `make_fx`. A trace before dispatch records the product before a mode gets it."""
