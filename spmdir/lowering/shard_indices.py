"""Emit the indices of a rank's shard: aranges and arithmetic for few ranges, constants for many."""

from __future__ import annotations

import itertools

import torch
from torch.fx import Node

from spmdir.core.intervals import Ranges
from spmdir.lowering.ranges import FEW, Emit, Pattern, Positions, Table, aten, pattern_of

FOREIGN = -(1 << 62)
"""The offset that makes positions of other ranks negative."""


def emit_positions(emit: Emit, ranges: Ranges, device: object) -> Node:
    """Return the positions of `ranges`, in their order, as an int64 vector. Without ranges, the vector is empty."""

    def arange(start: int, end: int, step: int = 1) -> Node:
        return emit(aten.arange.start_step, start, end, step, dtype=torch.int64, device=device)

    pattern = pattern_of(ranges) if ranges else Pattern(0, ((0, 1),))  # a loop of no steps
    if pattern and len(pattern.loops) < 2:
        ((count, stride),) = pattern.loops or ((1, 1),)  # a single position has no loops
        return arange(pattern.start, pattern.start + count * stride, stride)
    if len(ranges) <= FEW:
        return emit(aten.cat.default, [arange(start, end) for start, end in ranges])
    return emit(aten.alias.default, Positions(ranges))


def emit_local_index(emit: Emit, index: Node, ranges: Ranges) -> Node:
    """Return the local index of each global position in `index`, an int64 tensor; -1 if no range contains it.

    With several ranges, a table has the shift from global to local positions for each range and each gap. The shift of
    a gap is so low that the result is clamped to -1.

    For the ranges (0, 2) and (4, 6), the shifts are 0 in the first range and -2 in the second: the index [1, 3, 5] has
    the local index [1, -1, 3].
    """
    if not ranges:
        return emit(aten.full_like.default, index, -1)
    if len(ranges) == 1:
        ((start, end),) = ranges
        # Positions below the range become -1, and positions above it become its length, which is replaced by -1.
        local = emit(aten.sub.Scalar, emit(aten.clamp.default, index, start - 1, end), start)
        return emit(aten.masked_fill.Scalar, local, emit(aten.eq.Scalar, local, end - start), -1)
    offsets = itertools.accumulate((end - start for start, end in ranges), initial=0)
    sorted_ranges = sorted((start, end, offset - start) for (start, end), offset in zip(ranges, offsets, strict=False))
    edges = Table(tuple(edge for start, end, _ in sorted_ranges for edge in (start, end)))
    # Bucket 0 is the gap before the first range. Then ranges and the gaps after them alternate.
    shifts = Table((FOREIGN, *(number for _, _, shift in sorted_ranges for number in (shift, FOREIGN))))
    range_index = emit(aten.bucketize.Tensor, index, edges, right=True)
    return emit(aten.clamp.default, emit(aten.add.Tensor, index, emit(aten.index.Tensor, shifts, [range_index])), -1)
