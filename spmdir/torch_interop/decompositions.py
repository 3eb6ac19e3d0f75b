"""What torch computes an op by: `torch._decomp` and the dispatch keys of kernels, in torch 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._decomp import decomposition_table as decomposition_table

from spmdir.torch_interop.ops import OpOverload


def can_decompose(op: OpOverload) -> bool:
    """Return whether torch knows an op by others, in Python or in C++."""
    return op in decomposition_table or op._can_decompose()


def composite(op: OpOverload) -> Callable[..., Any]:
    """Return what computes an op by other ops, where torch has such a kernel in C++ for all devices."""
    return partial(op._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)


def has_cpu_kernel(op: OpOverload) -> bool:
    """Return whether an op runs on a CPU; some run on other devices only."""
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), "CPU")
