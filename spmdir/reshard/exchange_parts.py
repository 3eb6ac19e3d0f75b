"""The parts of a tensor that ranks send each other in an exchange.

The planner prices many more chunks than a plan moves, and prices need only numbers of elements. So a chunk stores its
lengths, and computes its positions on demand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import attrs

from spmdir.core.intervals import Ranges, length, select

Grid = tuple[Ranges, ...]
"""A set of elements: for each dimension, ranges of global positions."""

Loads = dict[tuple[int, int], int]
"""(sender, receiver) → elements."""


@attrs.frozen
class Part:
    """A grid of one partial value that a rank sends to another rank, or keeps.

    Attributes:
        sender, receiver: the ranks; equal if the rank keeps the part.
        partial: the number of the partial value.
        grid: the elements.
    """

    sender: int
    receiver: int
    partial: int
    grid: Grid

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(map(length, self.grid))


class Chunk:
    """A grid, or a stretch of a larger chunk along one dimension.

    Args:
        parent, dim, start: for a stretch, the larger chunk, the dimension, and the first position in it.

    Attributes:
        lengths: the length of each dimension.
        numel: the number of elements.
    """

    def __init__(self, lengths: tuple[int, ...], numel: int, parent: Chunk | None = None, dim: int = 0, start: int = 0):
        self.lengths, self.numel = lengths, numel
        self._parent, self._dim, self._start = parent, dim, start

    @staticmethod
    def of(grid: Grid) -> Chunk:
        """Return the chunk of all elements of `grid`."""
        lengths = tuple(map(length, grid))
        chunk = Chunk(lengths, math.prod(lengths))
        chunk.grid = grid
        return chunk

    @cached_property
    def grid(self) -> Grid:
        """Return the grid of its elements."""
        assert self._parent is not None  # `of` sets the grid
        grid, dim = self._parent.grid, self._dim
        part = select(grid[dim], ((self._start, self._start + self.lengths[dim]),)) if self.lengths[dim] else ()
        return (*grid[:dim], part, *grid[dim + 1 :])

    def stretch(self, begin: int, end: int, count: int) -> Chunk:
        """Return the part from begin/count to end/count of the longest dimension; it may be empty.

        A chunk without dimensions has one element. The part that begins at 0 has this element, all others are empty.
        """
        if (begin == 0 and end == count) or not self.numel:
            return self
        if not self.lengths:
            return self if begin == 0 < end else _EMPTY
        longest = max(self.lengths)
        dim = self.lengths.index(longest)
        start = longest * begin // count
        stretch_length = longest * end // count - start
        lengths = (*self.lengths[:dim], stretch_length, *self.lengths[dim + 1 :])
        return Chunk(lengths, self.numel // longest * stretch_length, self, dim, start)


_EMPTY = Chunk((), 0)
"""The empty chunk of a tensor without dimensions."""


class Share:
    """A part whose positions are not computed yet. The attributes are those of `Part`, with a chunk as its elements."""

    __slots__ = ("chunk", "partial", "receiver", "sender")

    def __init__(self, sender: int, receiver: int, partial: int, chunk: Chunk):
        self.sender, self.receiver, self.partial, self.chunk = sender, receiver, partial, chunk


def split_by_weight(chunk: Chunk, weighted: Sequence[tuple[Any, int]]) -> Iterator[tuple[Chunk, Any]]:
    """Split `chunk` along its longest dimension in proportion to weights.

    For example, weights 1 and 3 split 8 elements into the positions 0-1 and 2-7.

    Args:
        weighted: (item, weight) pairs. An item is any value that identifies the part.

    Yields: (part, item) pairs.
    """
    boundaries = [0, *itertools.accumulate(weight for _, weight in weighted)]
    for (begin, end), (item, _) in zip(itertools.pairwise(boundaries), weighted, strict=True):
        yield chunk.stretch(begin, end, boundaries[-1]), item


def share_among(partial: int, wanted: Sequence[tuple[int, Chunk]], senders: Sequence[int]) -> Iterator[Share]:
    """Yield the shares that send chunks to ranks, split evenly among the senders.

    All chunks count as equally large. For example, two senders share three chunks: the first sends chunk 0 and half of
    chunk 1, the second sends the other half and chunk 2.

    Args:
        partial: the number of the partial value.
        wanted: (receiver, chunk) pairs.
        senders: the ranks that have all chunks.
    """
    if not wanted:
        return
    if len(senders) == 1:
        yield from [Share(senders[0], receiver, partial, chunk) for receiver, chunk in wanted]
        return
    # The number of units is a multiple of the number of chunks and of the number of senders.
    units = math.lcm(len(wanted), len(senders))
    per_chunk, per_sender = units // len(wanted), units // len(senders)
    unit = 0
    while unit < units:
        chunk_index, sender_index = unit // per_chunk, unit // per_sender
        end = min((chunk_index + 1) * per_chunk, (sender_index + 1) * per_sender)
        receiver, chunk = wanted[chunk_index]
        start = chunk_index * per_chunk
        yield Share(senders[sender_index], receiver, partial, chunk.stretch(unit - start, end - start, per_chunk))
        unit = end


def sort_parts(shares: Iterable[Share]) -> tuple[Part, ...]:
    """Return the shares that are not empty as parts, sorted by receiver, partial and position."""
    parts = [
        Part(share.sender, share.receiver, share.partial, share.chunk.grid) for share in shares if share.chunk.numel
    ]
    return tuple(sorted(parts, key=lambda part: (part.receiver, part.partial, part.grid)))


def transfer_counts(shares: Iterable[Share], group: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the number of elements that each rank of `group` sends, and the number that it receives."""
    sent, received = dict.fromkeys(group, 0), dict.fromkeys(group, 0)
    for share in shares:
        if share.sender != share.receiver:
            numel = share.chunk.numel
            sent[share.sender] += numel
            received[share.receiver] += numel
    return list(sent.values()), list(received.values())
