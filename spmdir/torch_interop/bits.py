"""The bits of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def flat_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of the elements of a tensor in order; a view if the tensor is contiguous.

    torch cannot view a tensor of one element as another type if its stride is not 1, so the stride is set to 1.
    """
    contiguous = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return contiguous.as_strided((contiguous.numel(),), (1,)).view(torch.uint8)
