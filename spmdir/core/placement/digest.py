"""Digests of what placements say of the ranks, by which processes compare what their code returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from spmdir.core.dtype import DType
from spmdir.core.limits import ENUMERATED
from spmdir.core.placement.base import Placement, own_type


def layout_digest(placement: Placement, tensors: Iterable[tuple[tuple[int, ...], DType, int]]) -> str:
    """Return a digest of what each rank holds of some tensors: its ranges, its shape and its element type.

    It differs between processes if the code of the placement depends on something that does, as the hash of a text.

    Args:
        held: (shape, element type, number of ranks) of each tensor. Where there are more than ENUMERATED ranks, the
            digest is of the first ones.

    Raises:
        SpmdirError: the placement has no answer for a tensor.
    """
    digest = hashlib.sha256()
    for shape, dtype, count in tensors:
        for index in range(min(count, ENUMERATED.most)):
            ranges = placement.held_ranges(shape, count, index)
            local = own_type(placement, shape, dtype, count, index)
            digest.update(
                repr((shape, count, index, ranges and sorted(ranges.items()), local[0], str(local[1]))).encode()
            )
    return digest.hexdigest()
