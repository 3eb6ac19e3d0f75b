"""Element types of messages: views of types that some backends cannot send, and a check of reductions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.reductions import why_not_reduced
from spmdir.lowering.ranges import Emit, aten
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

Unpack = Callable[[Node], Node]
"""Received tensor → tensor of the original element type."""


def _view_as_bytes(emit: Emit, x: Node) -> tuple[Node, Unpack]:
    """Return `x` as bytes, with the bytes of an element in a new last dimension, and the function that undoes it."""
    # A program may run with another floating type than in its IR, so the type is read at run time.
    dtype = emit(getattr, x, "dtype")
    sent = emit(aten.view.dtype, emit(aten.unsqueeze.default, x, -1), torch.uint8)
    return sent, lambda received: emit(aten.squeeze.dim, emit(aten.view.dtype, received, dtype), -1)


def _view_as_real(emit: Emit, x: Node) -> tuple[Node, Unpack]:
    """Return complex `x` as pairs of real numbers in a new last dimension, and the function that undoes it."""
    # A lazy conjugate has no parts to view.
    sent = emit(aten.view_as_real.default, emit(aten.resolve_conj.default, x))
    return sent, lambda received: emit(aten.view_as_complex.default, received)


SENT_AS: dict[torch.dtype, Callable[[Emit, Node], tuple[Node, Unpack]]] = {
    torch.int16: _view_as_bytes,
    torch.float8_e4m3fn: _view_as_bytes,
    torch.float8_e5m2: _view_as_bytes,
    torch.complex64: _view_as_real,
    torch.complex128: _view_as_real,
}
"""Element type → a function that returns a view with another type and one more dimension, the last.

gloo cannot send i16 and 8-bit floats, and complex numbers in all-to-all. NCCL cannot send i16 and complex numbers.
Other types are sent without a view. Bytes are never checked, for example for NaN. The parts of complex numbers keep
gradients.
"""


def view_as_sendable(emit: Emit, x: Node, dtype: torch.dtype) -> tuple[Node, Unpack]:
    """Return `x` of element type `dtype` as a view that backends can send, and the function that undoes the view."""
    return SENT_AS[dtype](emit, x) if dtype in SENT_AS else (x, lambda received: received)


def check_reduced(reduction: str, dtype: torch.dtype) -> None:
    """Raise UnsupportedError unless process groups reduce `dtype` by `reduction`, a key of REDUCTIONS."""
    if dtype != torch.bool and (reason := why_not_reduced(reduction, DTYPES_OF_TORCH[dtype])):
        raise UnsupportedError(reason)
