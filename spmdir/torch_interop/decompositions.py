"""Find the decomposition of an op: `torch._decomp` and the dispatch keys of kernels, in torch 2.11 to 2.13."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table as decomposition_table
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spmdir.torch_interop.ops import OpOverload

_IS_BEFORE_2_13 = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""Whether `linear` specialises symbolic sizes, and fake states of an LSTM have four dimensions."""


def can_decompose(op: OpOverload) -> bool:
    """Return whether torch has a decomposition of an op, in Python or in C++."""
    return op in decomposition_table or op._can_decompose()


def sized_form(op: OpOverload) -> Callable[..., Any]:
    """Return the Python decomposition of an op. Unlike that in C++, it does not specialise symbolic sizes."""
    decomposition = decomposition_table.get(op, op)

    def run_corrected(*args: Any, **kwargs: Any) -> Any:
        """Run the decomposition, with corrections for torch before 2.13."""
        with _SymbolicLinear():
            return with_right_states(op, decomposition(*args, **kwargs))

    return run_corrected if _IS_BEFORE_2_13 else decomposition


def with_right_states(op: OpOverload, results: Any) -> Any:
    """Return the results of an op on fake tensors, with the correct shape of the states of an LSTM.

    Up to torch 2.12, the decomposition of an LSTM in Python adds a dimension to the states of more than one example.
    """
    if not _IS_BEFORE_2_13 or op.overloadpacket is not torch.ops.aten.lstm:
        return results
    output, *states = results
    return output, *(state.squeeze(1) if state.dim() == 4 else state for state in states)


class _SymbolicLinear(TorchFunctionMode):
    """Runs `linear` as a product of matrices, which does not specialise symbolic sizes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_linear if func is functional.linear else func)(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` as a product of two matrices."""
    sizes = input.shape[:-1]
    product = input.reshape(math.prod(sizes), input.shape[-1]) @ weight.t()
    return (product if bias is None else product + bias).view(*sizes, weight.shape[0])


def composite(op: OpOverload) -> Callable[..., Any]:
    """Return the kernel in C++ that computes an op by other ops on all devices. The op must have one."""
    return partial(op._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)


def has_cpu_kernel(op: OpOverload) -> bool:
    """Return whether an op runs on a CPU; some run on other devices only."""
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), "CPU")
