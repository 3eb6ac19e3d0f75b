"""Intervals of one dimension: ranges of positions, in the local order of a rank."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.limits import RANGES

Range = tuple[int, int]
"""(start, end) of positions."""

Ranges = tuple[Range, ...]
"""The positions of a dimension on one rank, in local order; ranges do not overlap, and adjacent ones are merged."""


def chunk(size: int, count: int, index: int) -> tuple[int, int]:
    """Return offset and length of chunk `index` of `size` elements in `count` chunks, as `torch.chunk` makes them.

    Every chunk has ceil(size / count) elements until the elements run out; later chunks are shorter or empty.
    """
    step = -(-size // count)
    offset = min(index * step, size)
    return offset, min(step, size - offset)


Run = tuple[int, int, int]
"""(first rank, number of ranks, local length of each)."""


def chunk_runs(size: int, count: int) -> tuple[Run, ...]:
    """Return the runs of equal length among the `count` chunks that `chunk` makes of `size` elements: at most 3."""
    step = -(-size // count)
    full, rest = divmod(size, step) if step else (0, 0)
    runs = ((0, full, step), (full, bool(rest), rest), (full + bool(rest), count - full - bool(rest), 0))
    return tuple(run for run in runs if run[1])


def summed_runs(several: Iterable[tuple[int, Sequence[Run]]], count: int) -> tuple[Run, ...]:
    """Return the runs of `count` ranks whose length is the sum, over (times, runs), of `times` that in `runs`."""
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


def have_same_chunks(size: int, a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether `size` elements in `a[0]` chunks, each in `a[1]` chunks and so on, are chunked as by `b`.

    Chunks without elements do not count.
    """
    a, b = tuple(a), tuple(b)
    return a == b or (
        _chunk_lengths(size, a) == _chunk_lengths(size, b)
        and all(one == other for one, other in itertools.zip_longest(_nested_runs(size, a), _nested_runs(size, b)))
    )


def _chunk_lengths(size: int, counts: Sequence[int]) -> dict[int, int]:
    """Return the length of each chunk that is not empty → how many there are."""
    lengths = {size: 1}
    for count in counts:
        found: dict[int, int] = {}
        for extent, times in lengths.items():
            for _, chunks, own in chunk_runs(extent, count):
                found[own] = found.get(own, 0) + chunks * times
        lengths = found
    return {own: times for own, times in lengths.items() if own}


def _nested_runs(size: int, counts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield (length, number) of neighbouring chunks of one length that are not empty."""
    for own, several in itertools.groupby(_repeated_runs(size, counts), key=lambda run: run[0]):
        yield own, sum(number for _, number in several)


def _repeated_runs(size: int, counts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    if not counts:
        yield size, 1
        return
    for _, chunks, extent in chunk_runs(size, counts[0]):
        inner = tuple(_nested_runs(extent, counts[1:])) if extent else ()
        if len(inner) == 1:
            yield inner[0][0], inner[0][1] * chunks
        else:
            yield from itertools.chain.from_iterable(itertools.repeat(inner, chunks))


def joined(ranges: Iterable[Range]) -> Ranges:
    """Return `ranges` without empty ones, adjacent ones as one.

    Raises:
        LimitError: they are more than could be handled one by one.
    """
    found: list[Range] = []
    for start, end in ranges:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        elif start < end:
            found.append((start, end))
            if len(found) > RANGES.most:
                raise RANGES.error(f"more than {RANGES.most}")
    return tuple(found)


def length(ranges: Ranges) -> int:
    """Return the number of positions."""
    return sum(end - start for start, end in ranges)


def select(ranges: Ranges, positions: Ranges) -> Ranges:
    """Return the global ranges of the local `positions` of a rank that has `ranges`."""
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
    """Return the positions in both `a` and `b`, ascending."""
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
    """Return the positions in any of `several`, ascending."""
    found: list[Range] = []
    for start, end in sorted(pair for ranges in several for pair in ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif start < end:
            found.append((start, end))
    return tuple(found)


def positions(part: Ranges, ranges: Ranges) -> Ranges:
    """Return the local positions of the global ranges `part` on a rank that has `ranges`: the inverse of `select`.

    Raises:
        ValueError: `part` is not inside `ranges`.
    """
    if len(ranges) == 1:
        low, high = ranges[0]
        if all(low <= start and end <= high for start, end in part):
            return tuple((start - low, end - low) for start, end in part)
        raise ValueError(f"{part} is not inside {ranges}")
    offsets = itertools.accumulate((high - low for low, high in ranges), initial=0)
    placed = zip(ranges, offsets, strict=False)
    shifts = sorted((low, high, offset - low) for (low, high), offset in placed if low < high)
    found: list[Range] = []
    for start, end in part:
        at = bisect_right(shifts, start, key=lambda shift: shift[0]) - 1
        while start < end:
            low, high, shift = shifts[at] if 0 <= at < len(shifts) else (end, end, 0)
            if not low <= start < high:
                raise ValueError(f"{part} is not inside {ranges}")
            found.append((start + shift, min(end, high) + shift))
            start, at = min(end, high), at + 1
    return joined(found)


def scaled(ranges: Ranges, inner: int) -> Ranges:
    """Return `ranges` where each position stands for `inner` of them."""
    return tuple((start * inner, end * inner) for start, end in ranges)


def tiled(ranges: Ranges, extent: int, outer: int) -> Ranges:
    """Return `ranges` of `extent` positions in each of `outer` blocks of that length."""
    return joined((start + at * extent, end + at * extent) for at in range(outer) for start, end in ranges)
