"""Emit nodes that select ranges of positions of one dimension: views if the ranges are regular."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import attrs
import torch
from torch.fx import Node

from spmdir.core.intervals import Ranges

aten = torch.ops.aten

Emit = Callable[..., Node]
"""(op, *arguments) → the node of the new call. `Indices` and tensors in the arguments become constants of the graph."""

FEW = 8
"""The largest number of ranges that are sliced and concatenated. For more ranges, positions are listed."""


class Indices:
    """An index tensor as a hashable value."""

    def tensor(self) -> torch.Tensor:
        """Return the tensor, as int64 on the CPU."""
        raise NotImplementedError


@attrs.frozen(cache_hash=True)
class Positions(Indices):
    """The positions in `ranges`."""

    ranges: Ranges

    def tensor(self) -> torch.Tensor:
        return torch.tensor([position for start, end in self.ranges for position in range(start, end)])


@attrs.frozen(cache_hash=True)
class Table(Indices):
    """A list of numbers."""

    numbers: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        return torch.tensor(self.numbers)


@attrs.frozen
class Pattern:
    """Positions of nested loops: `start` plus, for each loop, its counter times its stride.

    For example, the positions 0, 1, 4, 5, 8, 9 have start 0 and the loops (3, 4), (2, 1).

    Attributes:
        loops: (count, stride), outermost first.
    """

    start: int
    loops: tuple[tuple[int, int], ...]

    @property
    def is_strided(self) -> bool:
        """Return whether the positions are ranges of equal length at equal, ascending distances."""
        return self.loops[0][1] > 0 and [stride for _, stride in self.loops[1:]] in ([], [1])


def take(emit: Emit, x: Node, dim: int, ranges: Ranges, extent: int) -> Node:
    """Return the elements of `x` at the positions `ranges`, in their order, of dimension `dim` with `extent` elements.

    The cheapest form is emitted: a slice, a permutation of parts, a strided slice, a concatenation of at most `FEW`
    slices, or an index_select.
    """
    if not ranges:
        return narrow(emit, x, dim, 0, 0, extent)
    if len(ranges) == 1:
        ((start, end),) = ranges
        return narrow(emit, x, dim, start, end - start, extent)
    pattern = pattern_of(ranges)
    permuted = _permuted(emit, x, dim, pattern, extent) if pattern else None
    if permuted is not None:
        return permuted
    if pattern and pattern.is_strided:
        return _strided(emit, x, dim, pattern)
    if len(ranges) <= FEW:
        return emit(aten.cat.default, [narrow(emit, x, dim, start, end - start, extent) for start, end in ranges], dim)
    return emit(aten.index_select.default, x, dim, Positions(ranges))


def narrow(emit: Emit, x: Node, dim: int, offset: int, length: int, extent: int) -> Node:
    """Return `length` elements from `offset` on, of dimension `dim` with `extent` elements; `x` if these are all."""
    return x if length == extent else emit(aten.slice.Tensor, x, dim, offset, offset + length)


@lru_cache(maxsize=4096)
def pattern_of(ranges: Ranges) -> Pattern | None:
    """Return the pattern of `ranges`; None if they differ in length or are not regular.

    Example:
        >>> pattern_of(((0, 2), (4, 6), (8, 10)))
        Pattern(start=0, loops=((3, 4), (2, 1)))
    """
    size = ranges[0][1] - ranges[0][0]
    if any(end - start != size for start, end in ranges):
        return None
    starts = [start for start, _ in ranges]
    # Find loops from the innermost outwards. After each, `starts` has one position for each of its runs.
    loops = [(size, 1)] if size > 1 else []
    while len(starts) > 1:
        stride, count = starts[1] - starts[0], 2
        while count < len(starts) and starts[count] - starts[count - 1] == stride:
            count += 1
        # The first `count` starts are one run of the loop. All following starts must be such runs, too.
        if len(starts) % count:
            return None
        for index, start in enumerate(starts):
            position = index % count
            if start - starts[index - position] != position * stride:
                return None
        loops.insert(0, (count, stride))
        starts = starts[::count]
    return Pattern(starts[0], tuple(loops))


def _permuted(emit: Emit, x: Node, dim: int, pattern: Pattern, extent: int) -> Node | None:
    """Return the elements at the positions of `pattern`, by splitting dimension `dim` and permuting the parts.

    For example, the positions 0, 3, 1, 4, 2, 5 have the loops (3, 1), (2, 3). To get them, dimension `dim` is split
    into parts of 2 and 3, and the parts are exchanged.

    Return None unless the pattern has each position of the dimension once.
    """
    loops_by_stride = sorted(pattern.loops, key=lambda loop: -loop[1])
    # From the innermost loop outwards, each stride must be the number of positions that the loops inside cover.
    covered = 1
    for count, stride in reversed(loops_by_stride):
        if stride != covered:
            return None
        covered *= count
    if covered != extent:
        return None
    split = emit(aten.unflatten.int, x, dim, [count for count, _ in loops_by_stride])
    source_dims = [dim + loops_by_stride.index(loop) for loop in pattern.loops]
    moved = emit(aten.movedim.intlist, split, source_dims, [dim + index for index in range(len(loops_by_stride))])
    return emit(aten.flatten.using_ints, moved, dim, dim + len(loops_by_stride) - 1)


def _strided(emit: Emit, x: Node, dim: int, pattern: Pattern) -> Node:
    """Return the elements at the positions of a strided pattern: a slice with a step, or flattened equal windows."""
    (count, stride), size = pattern.loops[0], pattern.loops[1][0] if len(pattern.loops) > 1 else 1
    end = pattern.start + (count - 1) * stride + size
    if size == 1:
        return emit(aten.slice.Tensor, x, dim, pattern.start, end, stride)
    windows = emit(aten.unfold.default, emit(aten.slice.Tensor, x, dim, pattern.start, end), dim, size, stride)
    return emit(aten.flatten.using_ints, emit(aten.movedim.int, windows, -1, dim + 1), dim, dim + 1)
