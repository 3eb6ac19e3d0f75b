"""What ranks give each other: chunks of grids, and how they are cut and shared out.

Prices ask only how many elements there are, of far more chunks than are ever moved; so a chunk knows its lengths, and
finds its positions when they are asked for.
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
    """What one rank gives another, or keeps: the elements of a grid, of one partial."""

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

    def __init__(self, lengths: tuple[int, ...], numel: int, whole: Chunk | None = None, dim: int = 0, start: int = 0):
        self.lengths, self.numel = lengths, numel
        self._whole, self._dim, self._start = whole, dim, start

    @staticmethod
    def of(grid: Grid) -> Chunk:
        """All of `grid`."""
        lengths = tuple(map(length, grid))
        chunk = Chunk(lengths, math.prod(lengths))
        chunk.grid = grid
        return chunk

    @cached_property
    def grid(self) -> Grid:
        """Its elements."""
        assert self._whole is not None  # a whole grid is given
        grid, dim = self._whole.grid, self._dim
        part = select(grid[dim], ((self._start, self._start + self.lengths[dim]),)) if self.lengths[dim] else ()
        return (*grid[:dim], part, *grid[dim + 1 :])

    def stretch(self, begin: int, end: int, count: int) -> Chunk:
        """What lies from `begin` to `end` if this is `count` units long in its longest dimension; it may be empty."""
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
"""What is left of a single element by those who do not get it."""


class Share:
    """A part whose positions are not known yet."""

    __slots__ = ("chunk", "partial", "receiver", "sender")

    def __init__(self, sender: int, receiver: int, partial: int, chunk: Chunk):
        self.sender, self.receiver, self.partial, self.chunk = sender, receiver, partial, chunk


def split(chunk: Chunk, weighted: Sequence[tuple[Any, int]]) -> Iterator[tuple[Chunk, Any]]:
    """`chunk` cut along its longest dimension into one for each of `weighted`, as long as its weight says."""
    edges = [0, *itertools.accumulate(weight for _, weight in weighted)]
    for (begin, end), (item, _) in zip(itertools.pairwise(edges), weighted, strict=True):
        yield chunk.stretch(begin, end, edges[-1]), item


def shared(partial: int, wanted: Sequence[tuple[int, Chunk]], holders: Sequence[int]) -> Iterator[Share]:
    """What each rank of `wanted` gets of the chunk that it wants from each of the `holders`.

    Laid end to end, what all get is cut into one stretch for each holder.
    """
    if not wanted:
        return
    # The line is as many units long as both numbers divide.
    line = math.lcm(len(wanted), len(holders))
    whole, share = line // len(wanted), line // len(holders)
    low = 0
    while low < line:
        first, by = low // whole, low // share
        high = min((first + 1) * whole, (by + 1) * share)
        receiver, chunk = wanted[first]
        yield Share(holders[by], receiver, partial, chunk.stretch(low - first * whole, high - first * whole, whole))
        low = high


def in_order(shares: Iterable[Share]) -> tuple[Part, ...]:
    """Those of the `shares` that are not empty, by receiver, partial and position."""
    parts = [Part(one.sender, one.receiver, one.partial, one.chunk.grid) for one in shares if one.chunk.numel]
    return tuple(sorted(parts, key=lambda part: (part.receiver, part.partial, part.grid)))


def moved(shares: Iterable[Share], group: Sequence[int]) -> tuple[list[int], list[int]]:
    """Elements that each rank of `group` sends, and those that it receives."""
    sent, received = dict.fromkeys(group, 0), dict.fromkeys(group, 0)
    for one in shares:
        if one.sender != one.receiver:
            numel = one.chunk.numel
            sent[one.sender] += numel
            received[one.receiver] += numel
    return list(sent.values()), list(received.values())
