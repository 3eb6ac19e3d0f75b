"""Record the ops of a forward on fake tensors as lines of text, which ranks compare.

Tensors are numbered in the order of their first use. The lines for `(x @ w).relu()` are

    aten.mm.default(x: float32[4, 8], w: float32[8, 8] learns) → %0: float32[4, 8]
    aten.relu.default(%0 learns) → %1: float32[4, 8]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spmdir.core.errors import Location
from spmdir.importer.locations import current_user_line
from spmdir.runtime.digests import tensor_digest
from spmdir.torch_interop.dispatch import without_modes
from spmdir.torch_interop.fake_tensors import FakeTensor


class OpRecord:
    """Records ops as they run.

    Attributes:
        lines: one line for each op.
        locations: for each op, its location in the user's code.
    """

    def __init__(self, named: Mapping[str, Tensor]):
        """Start without ops; `named` is name → tensor, for tensors that lines contain by name instead of by number."""
        self.lines: list[str] = []
        self.locations: list[Location | None] = []
        # Weak references: autograd calls `detach` after `ones_like` if something else holds its result.
        self._names = WeakTensorKeyDictionary()
        for name, tensor in reversed([*named.items()]):  # so that the first name of a tied tensor remains
            self._names[tensor] = f"{name}: {type_text(tensor)}"
        self._count = 0

    def note(self, func: Any, leaves: Iterable[Any], results: Sequence[Any]) -> None:
        """Record an op with the leaves of its arguments and its results."""
        arguments = ", ".join(map(self._argument_text, leaves))
        mode = "" if torch.is_grad_enabled() else " without gradients"
        returned = ", ".join([self._result_text(result) for result in results])
        self.lines.append(f"{func}({arguments}){mode} → {returned}")
        self.locations.append(current_user_line())

    def _result_text(self, value: Any) -> str:
        """Return the text of a result. A tensor gets the next number, unless the op has written to an older tensor."""
        if not isinstance(value, Tensor):
            return str(value)
        if value in self._names:  # the op has written to it
            return self._names[value]
        return f"{self._assign_number(value)}: {type_text(value)}"

    def _argument_text(self, leaf: Any) -> str:
        """Return the text of a leaf of the arguments."""
        if not isinstance(leaf, Tensor):
            return str(leaf) if isinstance(leaf, (torch.device, torch.dtype)) else f"{type(leaf).__name__} {leaf}"
        name = self._names.get(leaf) or f"{self._assign_number(leaf)}: {type_text(leaf)}{_digest_text(leaf)}"
        return f"{name} learns" if leaf.requires_grad else name

    def _assign_number(self, tensor: Tensor) -> str:
        """Give a tensor the next number, and return its name, such as `%3`."""
        name = self._names[tensor] = f"%{self._count}"
        self._count += 1
        return name


def type_text(tensor: Tensor) -> str:
    """Return the element type and shape of a tensor: `float32[4, 8]`."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _digest_text(tensor: Tensor) -> str:
    """Return the digest of a tensor that the forward has not computed; an empty text if it has no values."""
    value = tensor.constant if isinstance(tensor, FakeTensor) else tensor
    if value is None or value.is_meta or value.layout != torch.strided:
        return ""
    with without_modes():  # under the fake mode its bits would be fake
        return f" {tensor_digest(value)}"
