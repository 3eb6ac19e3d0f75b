"""What process groups carry: views of element types that some backend does not move, and reductions that none does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Node

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.reductions import unreduced
from spmdir.lowering.ranges import Emit, aten
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

Unpack = Callable[[Node], Node]
"""What has come → the tensor."""


def _bytes(emit: Emit, x: Node) -> tuple[Node, Unpack]:
    # A program may be given another floating type than its own, and its bytes are as many as that has.
    dtype = emit(getattr, x, "dtype")
    sent = emit(aten.view.dtype, emit(aten.unsqueeze.default, x, -1), torch.uint8)
    return sent, lambda came: emit(aten.squeeze.dim, emit(aten.view.dtype, came, dtype), -1)


def _parts(emit: Emit, x: Node) -> tuple[Node, Unpack]:
    # A conjugate that has not been written has no parts to view.
    sent = emit(aten.view_as_real.default, emit(aten.resolve_conj.default, x))
    return sent, lambda came: emit(aten.view_as_complex.default, came)


MOVED_AS: dict[torch.dtype, Callable[[Emit, Node], tuple[Node, Unpack]]] = {
    torch.int16: _bytes,
    torch.float8_e4m3fn: _bytes,
    torch.float8_e5m2: _bytes,
    torch.complex64: _parts,
    torch.complex128: _parts,
}
"""Element type → how it is moved: as a view with one more dimension, the last, so that the others stay as they are.

gloo moves no i16 and no 8-bit floats, and no complex numbers in all-to-all; NCCL has no i16 and no complex numbers.
Other types go as they are. Bytes are what no backend looks at, as one that looks for NaN does; parts pass gradients.
"""


def packed(emit: Emit, x: Node, dtype: torch.dtype) -> tuple[Node, Unpack]:
    """Return `x` of element type `dtype` as a view that backends move, and the function that undoes the view."""
    return MOVED_AS[dtype](emit, x) if dtype in MOVED_AS else (x, lambda came: came)


def check_reduced(reduction: str, dtype: torch.dtype) -> None:
    """Raise UnsupportedError unless process groups reduce `dtype` by `reduction`, a key of REDUCTIONS."""
    if dtype != torch.bool and (reason := unreduced(reduction, DTYPES_OF_TORCH[dtype])):
        raise UnsupportedError(reason)
