"""Pieces of one dimension: ranges of positions, in the order in which a rank holds them."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Range = tuple[int, int]
"""(start, end) of positions."""

Ranges = tuple[Range, ...]
"""What a rank holds of a dimension, in its local order; ranges do not overlap, and adjacent ones are one."""


def chunk(size: int, count: int, index: int) -> tuple[int, int]:
    """Offset and length of piece `index` of `size` elements in `count` pieces, as `torch.chunk` cuts them.

    Every piece has ceil(size / count) elements until the elements run out; later pieces are shorter or empty.
    """
    step = -(-size // count)
    offset = min(index * step, size)
    return offset, min(step, size - offset)


Run = tuple[int, int, int]
"""(first rank, number of ranks, length of what each of them holds)."""


def chunk_runs(size: int, count: int) -> tuple[Run, ...]:
    """The runs of equal lengths among `count` chunks of `size` elements, as `chunk` gives them: at most three."""
    step = -(-size // count)
    full, rest = divmod(size, step) if step else (0, 0)
    runs = ((0, full, step), (full, bool(rest), rest), (full + bool(rest), count - full - bool(rest), 0))
    return tuple(run for run in runs if run[1])


def summed_runs(several: Iterable[tuple[int, Sequence[Run]]], count: int) -> tuple[Run, ...]:
    """The runs among `count` ranks of which each holds, of every (times, runs), `times` what these say."""
    changes: dict[int, int] = {}
    for times, runs in several:
        before = 0
        for first, _, own in runs:
            changes[first] = changes.get(first, 0) + times * (own - before)
            before = own
    starts = [first for first in sorted(changes) if first < count and (changes[first] or not first)]
    lengths = itertools.accumulate(changes[first] for first in starts)
    return tuple(
        (first, end - first, own) for first, end, own in zip(starts, [*starts[1:], count], lengths, strict=True)
    )


def joined(ranges: Iterable[Range]) -> Ranges:
    """`ranges` without empty ones, adjacent ones as one."""
    found: list[Range] = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def length(ranges: Ranges) -> int:
    """The number of positions."""
    return sum(end - start for start, end in ranges)


def select(ranges: Ranges, positions: Ranges) -> Ranges:
    """The ranges of the whole that `positions` in what `ranges` hold, laid end to end, stand for."""
    if len(ranges) == 1:
        offset = ranges[0][0]
        return tuple((start + offset, end + offset) for start, end in positions)
    found: list[Range] = []
    edges = list(itertools.accumulate((high - low for low, high in ranges), initial=0))
    for start, end in positions:
        at = bisect_right(edges, start) - 1
        while start < end and at < len(ranges):
            stop, shift = min(end, edges[at + 1]), ranges[at][0] - edges[at]
            found.append((start + shift, stop + shift))
            start, at = stop, at + 1
    return joined(found)


def common(a: Ranges, b: Ranges) -> Ranges:
    """The positions that both hold, ascending."""
    if len(a) == 1 and len(b) == 1:
        start, end = max(a[0][0], b[0][0]), min(a[0][1], b[0][1])
        return ((start, end),) if start < end else ()
    found, at = [], 0
    a, b = tuple(sorted(a)), tuple(sorted(b))
    for start, end in a:
        while at < len(b) and b[at][1] <= start:
            at += 1
        here = at
        while here < len(b) and b[here][0] < end:
            found.append((max(start, b[here][0]), min(end, b[here][1])))
            here += 1
    return joined(found)


def union(*several: Ranges) -> Ranges:
    """The positions that any holds, ascending."""
    found: list[Range] = []
    for start, end in sorted(pair for ranges in several for pair in ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif start < end:
            found.append((start, end))
    return tuple(found)


def positions(part: Ranges, ranges: Ranges) -> Ranges:
    """Where `part` stands in what `ranges` hold, laid end to end: the inverse of `select`.

    Raises:
        ValueError: `ranges` do not hold all of `part`.
    """
    if len(ranges) == 1:
        low, high = ranges[0]
        if all(low <= start and end <= high for start, end in part):
            return tuple((start - low, end - low) for start, end in part)
        raise ValueError(f"{part} is not inside {ranges}")
    offsets = itertools.accumulate((high - low for low, high in ranges), initial=0)
    pieces = zip(ranges, offsets, strict=False)
    held = sorted((low, high, offset - low) for (low, high), offset in pieces if low < high)
    found: list[Range] = []
    for start, end in part:
        at = bisect_right(held, start, key=lambda piece: piece[0]) - 1
        while start < end:
            low, high, shift = held[at] if 0 <= at < len(held) else (end, end, 0)
            if not low <= start < high:
                raise ValueError(f"{part} is not inside {ranges}")
            found.append((start + shift, min(end, high) + shift))
            start, at = min(end, high), at + 1
    return joined(found)


def scaled(ranges: Ranges, inner: int) -> Ranges:
    """`ranges` where each position stands for `inner` of them."""
    return tuple((start * inner, end * inner) for start, end in ranges)


def tiled(ranges: Ranges, extent: int, outer: int) -> Ranges:
    """`ranges` of `extent` positions in each of `outer` stretches of that length."""
    return joined((start + at * extent, end + at * extent) for at in range(outer) for start, end in ranges)
