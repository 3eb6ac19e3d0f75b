"""`ZigZag(dim)`: a chunk from the front and the one as far from the back, for equal work under a causal mask.

A dimension is partitioned into twice as many chunks as there are ranks, n, as `torch.chunk` does; rank i has the chunks
i and 2n - 1 - i. With `ZigZag(0)`, three ranks hold of twelve rows

    rank 0: 0 1 10 11     rank 1: 2 3 8 9     rank 2: 4 5 6 7

In causal attention position p has p + 1 keys. Where a sequence is sharded so over the positions of its queries, every
rank has as many pairs of query and key; with S the last rank has nearly twice the mean. It is the layout of causal
context parallelism.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from spmdir.core.intervals import Ranges, Run, chunk, chunk_runs, joined, summed_runs
from spmdir.core.placement.base import ShardPlacement


@attrs.frozen
class ZigZag(ShardPlacement):
    """Rank i of n holds the chunks i and 2n - 1 - i of 2n."""

    text: ClassVar[str] = "ZigZag({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        chunks = (chunk(size, 2 * count, at) for at in (index, 2 * count - 1 - index))
        return joined((offset, offset + own) for offset, own in chunks)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        front, back = [], []
        for first, number, own in chunk_runs(size, 2 * count):
            low, middle, high = first, min(max(first, count), first + number), first + number
            front += [(low, middle - low, own)] if low < middle else []
            back += [(2 * count - high, high - middle, own)] if middle < high else []
        return summed_runs([(1, front), (1, back[::-1])], count)

    def stretches(self, size: int, count: int) -> int:
        return min(size, 2 * count)

    def scaled(self, inner: int) -> ZigZag:
        return self

    def unscaled(self, inner: int) -> ZigZag:
        return self
