"""The bits of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor's elements, one after the other; a view where they already are.

    A contiguous tensor of one element may have any stride, with which torch views no other element type.
    """
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
