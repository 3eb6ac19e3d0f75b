"""Digests of the layouts that placements define, to compare them between processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from spmdir.core.dtype import DType
from spmdir.core.limits import ENUMERATED
from spmdir.core.placement.base import Placement, own_type


def layout_digest(placement: Placement, tensors: Iterable[tuple[tuple[int, ...], DType, int]]) -> str:
    """Return a digest of the local tensors of all ranks: their ranges, shapes and element types.

    It differs between processes if the code of the placement depends on the process, as the hash of a string does.

    Args:
        tensors: (shape, element type, number of ranks) of each tensor. The digest covers at most the first ENUMERATED
            ranks.

    Raises:
        SpmdirError: the placement does not define the local tensors.
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
