"""`ZigZag(dim)`: each rank has one chunk from the front and one from the back, to balance work under a causal mask.

A dimension is partitioned into 2n chunks for n ranks, as by `torch.chunk`. Rank i has the chunks i and 2n - 1 - i. With
`ZigZag(0)`, three ranks have these of twelve rows:

    rank 0: 0 1 10 11     rank 1: 2 3 8 9     rank 2: 4 5 6 7

In causal attention, the query at position p has p + 1 keys. If queries are sharded by `ZigZag`, all ranks have the same
number of pairs of a query and a key. If they are sharded by `S`, the last rank has nearly twice the mean. Causal
context parallelism uses this layout.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from spmdir.core.intervals import Ranges, Run, chunk, chunk_runs, joined, summed_runs
from spmdir.core.placement.shards import ShardPlacement


@attrs.frozen
class ZigZag(ShardPlacement):
    """Rank i of n has the chunks i and 2n - 1 - i of 2n."""

    text: ClassVar[str] = "ZigZag({dim})"
    dim: int

    def ranges(self, size: int, count: int, index: int) -> Ranges:
        chunks = (chunk(size, 2 * count, position) for position in (index, 2 * count - 1 - index))
        return joined((offset, offset + length) for offset, length in chunks)

    def runs(self, size: int, count: int) -> tuple[Run, ...]:
        """Return the runs of ranks with shards of equal length: the sum of the runs at the front and at the back.

        For that, each run of equal chunks is cut at the middle. Chunk k of the back is on rank 2n - 1 - k, so the runs
        of the back are reversed.
        """
        front: list[Run] = []
        back: list[Run] = []
        for start, number, length in chunk_runs(size, 2 * count):
            end = start + number
            middle = min(max(start, count), end)
            if start < middle:
                front.append((start, middle - start, length))
            if middle < end:
                back.append((2 * count - end, end - middle, length))
        return summed_runs([(1, front), (1, back[::-1])], count)

    def stretches(self, size: int, count: int) -> int:
        return min(size, 2 * count)

    def scaled(self, inner: int) -> ZigZag:
        return self

    def unscaled(self, inner: int) -> ZigZag:
        return self
