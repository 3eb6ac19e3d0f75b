"""The parts that ranks send each other: chunks of grids, and how they are split and shared among ranks.

Costs need only the number of elements, for far more chunks than are ever moved; so a chunk has its lengths, and
computes its positions on demand.
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
"""For each dimension, ranges of global positions: the elements at which these cross."""

Loads = dict[tuple[int, int], int]
"""(sender, receiver) → elements."""


@attrs.frozen
class Part:
    """The elements of a grid, of one partial value, that a rank sends to another or keeps."""

    sender: int
    receiver: int
    partial: int
    grid: Grid

    @property
    def numel(self) -> int:
        return math.prod(map(length, self.grid))


class Chunk:
    """A grid, or a stretch of a chunk along one dimension.

    Attributes:
        lengths: of each dimension.
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
        """Return the positions of its elements."""
        assert self._parent is not None  # `of` sets the grid
        grid, dim = self._parent.grid, self._dim
        part = select(grid[dim], ((self._start, self._start + self.lengths[dim]),)) if self.lengths[dim] else ()
        return (*grid[:dim], part, *grid[dim + 1 :])

    def stretch(self, begin: int, end: int, count: int) -> Chunk:
        """Return units `begin` to `end` of `count` along the longest dimension; the result may be empty."""
        if (begin == 0 and end == count) or not self.numel:
            return self
        if not self.lengths:
            return self if begin == 0 < end else _NOTHING
        extent = max(self.lengths)
        dim = self.lengths.index(extent)
        start = extent * begin // count
        own = extent * end // count - start
        return Chunk((*self.lengths[:dim], own, *self.lengths[dim + 1 :]), self.numel // extent * own, self, dim, start)


_NOTHING = Chunk((), 0)
"""The empty chunk of a tensor without dimensions."""


class Share:
    """A part whose positions are not computed yet."""

    __slots__ = ("chunk", "partial", "receiver", "sender")

    def __init__(self, sender: int, receiver: int, partial: int, chunk: Chunk):
        self.sender, self.receiver, self.partial, self.chunk = sender, receiver, partial, chunk


def split(chunk: Chunk, weighted: Sequence[tuple[Any, int]]) -> Iterator[tuple[Chunk, Any]]:
    """Yield a part of `chunk` for each (item, weight): `chunk` is split along its longest dimension by weight."""
    edges = [0, *itertools.accumulate(weight for _, weight in weighted)]
    for (begin, end), (item, _) in zip(itertools.pairwise(edges), weighted, strict=True):
        yield chunk.stretch(begin, end, edges[-1]), item


def shared(partial: int, wanted: Sequence[tuple[int, Chunk]], senders: Sequence[int]) -> Iterator[Share]:
    """Yield the shares that send each chunk of the (rank, chunk) pairs `wanted` to its rank; `senders` all have them.

    The chunks, one after the other, are split evenly among the senders.
    """
    if not wanted:
        return
    # All chunks together have so many units that a chunk and a sender's share both have a whole number of them.
    units = math.lcm(len(wanted), len(senders))
    per_chunk, per_sender = units // len(wanted), units // len(senders)
    low = 0
    while low < units:
        first, by = low // per_chunk, low // per_sender
        high = min((first + 1) * per_chunk, (by + 1) * per_sender)
        receiver, chunk = wanted[first]
        start = first * per_chunk
        yield Share(senders[by], receiver, partial, chunk.stretch(low - start, high - start, per_chunk))
        low = high


def in_order(shares: Iterable[Share]) -> tuple[Part, ...]:
    """Return the `shares` that are not empty as parts, by receiver, partial and position."""
    parts = [Part(one.sender, one.receiver, one.partial, one.chunk.grid) for one in shares if one.chunk.numel]
    return tuple(sorted(parts, key=lambda part: (part.receiver, part.partial, part.grid)))


def moved(shares: Iterable[Share], group: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return how many elements each rank of `group` sends, and how many it receives."""
    sent, received = dict.fromkeys(group, 0), dict.fromkeys(group, 0)
    for one in shares:
        if one.sender != one.receiver:
            numel = one.chunk.numel
            sent[one.sender] += numel
            received[one.receiver] += numel
    return list(sent.values()), list(received.values())
