"""Ranges of positions of one dimension.

The positions that a rank has are a tuple of (start, end) ranges, in local order. For example, the ranges of a rank with
blocks 0 and 2 of size 4 are ((0, 4), (8, 12)): its local position 5 is the global position 9.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.limits import RANGES

Range = tuple[int, int]
"""(start, end) positions; the end is exclusive."""

Ranges = tuple[Range, ...]
"""Ranges in local order. They do not overlap, and adjacent ones are merged."""


def chunk(size: int, count: int, index: int) -> tuple[int, int]:
    """Return (offset, length) of chunk `index` if `torch.chunk` splits `size` elements into `count` chunks.

    Chunks have ceil(size / count) elements until none are left; later chunks are shorter or empty.
    """
    step = -(-size // count)
    offset = min(index * step, size)
    return offset, min(step, size - offset)


Run = tuple[int, int, int]
"""(first rank, number of ranks, local length): neighbouring ranks with shards of equal length."""


def chunk_runs(size: int, count: int) -> tuple[Run, ...]:
    """Return the runs of `size` elements in `count` chunks, at most 3: full chunks, a shorter one, empty ones.

    10 elements in 6 chunks have the runs (0, 5, 2) and (5, 1, 0).
    """
    step = -(-size // count)
    full_chunks, remainder = divmod(size, step) if step else (0, 0)
    short_chunks = 1 if remainder else 0
    nonempty_chunks = full_chunks + short_chunks
    runs = (
        (0, full_chunks, step),
        (full_chunks, short_chunks, remainder),
        (nonempty_chunks, count - nonempty_chunks, 0),
    )
    return tuple((first_rank, ranks, length) for first_rank, ranks, length in runs if ranks)


def summed_runs(weighted_runs: Iterable[tuple[int, Sequence[Run]]], count: int) -> tuple[Run, ...]:
    """Return the runs whose lengths are Σ factor · (length in runs), over all (factor, runs) and `count` ranks.

    10 elements on 4 ranks have the lengths 3, 3, 3, 1, and 4 elements 1, 1, 1, 1. With the factors 2 and -1 the sums
    are 5, 5, 5, 1: the runs (0, 3, 5) and (3, 1, 1).
    """
    # First rank of a run → increase of the sum from the rank before it.
    changes: dict[int, int] = {}
    for factor, runs in weighted_runs:
        previous_length = 0
        for first_rank, _, local_length in runs:
            changes[first_rank] = changes.get(first_rank, 0) + factor * (local_length - previous_length)
            previous_length = local_length
    # A run starts at rank 0, and where the sum changes.
    starts = [first for first in sorted(changes) if first < count and (first == 0 or changes[first] != 0)]
    lengths = itertools.accumulate(changes[first] for first in starts)
    return tuple(
        (first, end - first, run_length)
        for first, end, run_length in zip(starts, [*starts[1:], count], lengths, strict=True)
    )


def have_same_chunks(size: int, counts: Sequence[int], other_counts: Sequence[int]) -> bool:
    """Return whether two nested splits of `size` elements have the same chunks, apart from empty ones.

    `counts` splits the elements into `counts[0]` chunks, each of these into `counts[1]` chunks, and so on; likewise
    `other_counts`. For example, `(2, 4)` and `(8,)` have the same chunks of 16 elements, but not of 10.
    """
    counts, other_counts = tuple(counts), tuple(other_counts)
    if counts == other_counts:
        return True
    # The order of the chunks is slower to compare, so it is compared last.
    if _chunk_lengths(size, counts) != _chunk_lengths(size, other_counts):
        return False
    pairs = itertools.zip_longest(_nested_runs(size, counts), _nested_runs(size, other_counts))
    return all(run == other_run for run, other_run in pairs)


def _chunk_lengths(size: int, counts: Sequence[int]) -> dict[int, int]:
    """Return chunk length → number of chunks of that length in a nested split, without empty chunks.

    10 elements in 2 chunks of 4 chunks each are chunks of 2, 2, 1, 2, 2 and 1 elements: {2: 4, 1: 2}.

    Args:
        counts: as for `have_same_chunks`.
    """
    lengths = {size: 1}
    for count in counts:
        chunk_counts: dict[int, int] = {}
        for extent, copies in lengths.items():
            for _, chunks, chunk_length in chunk_runs(extent, count):
                chunk_counts[chunk_length] = chunk_counts.get(chunk_length, 0) + chunks * copies
        lengths = chunk_counts
    return {chunk_length: copies for chunk_length, copies in lengths.items() if chunk_length}


def _nested_runs(size: int, counts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield (length, number of chunks) of each run of equal neighbouring chunks in a nested split.

    Empty chunks are omitted. The run of one length is followed by a run of another.
    """
    for chunk_length, neighbours in itertools.groupby(_repeated_runs(size, counts), key=lambda run: run[0]):
        yield chunk_length, sum(number for _, number in neighbours)


def _repeated_runs(size: int, counts: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield (length, number of chunks) of runs. Neighbouring runs can have the same length.

    For 10 elements in 2 chunks of 4 chunks each, this is (2, 2), (1, 1), (2, 2), (1, 1).
    """
    if not counts:
        yield size, 1
        return
    for _, chunks, extent in chunk_runs(size, counts[0]):
        inner_runs = tuple(_nested_runs(extent, counts[1:])) if extent else ()
        if len(inner_runs) == 1:
            yield inner_runs[0][0], inner_runs[0][1] * chunks
        else:
            yield from itertools.chain.from_iterable(itertools.repeat(inner_runs, chunks))


def joined(ranges: Iterable[Range]) -> Ranges:
    """Drop empty ranges, and merge a range with the previous one if it starts at its end. The order is kept.

    ((0, 2), (2, 4), (5, 5), (6, 8)) become ((0, 4), (6, 8)).

    Raises:
        LimitError: the result has more than RANGES ranges.
    """
    merged: list[Range] = []
    for start, end in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        elif start < end:
            merged.append((start, end))
            if len(merged) > RANGES.most:
                raise RANGES.error(f"more than {RANGES.most}")
    return tuple(merged)


def length(ranges: Ranges) -> int:
    """Return the number of positions in `ranges`."""
    return sum(end - start for start, end in ranges)


def select(ranges: Ranges, positions: Ranges) -> Ranges:
    """Convert local positions of a rank with `ranges` to global ranges.

    With the ranges ((0, 4), (8, 12)), local ((1, 5),) is global ((1, 4), (8, 9)).
    """
    if len(ranges) == 1:
        offset = ranges[0][0]
        return tuple((start + offset, end + offset) for start, end in positions)
    selected: list[Range] = []
    local_starts = list(itertools.accumulate((high - low for low, high in ranges), initial=0))
    for start, end in positions:
        index = bisect_right(local_starts, start) - 1
        while start < end and index < len(ranges):
            stop, shift = min(end, local_starts[index + 1]), ranges[index][0] - local_starts[index]
            selected.append((start + shift, stop + shift))
            start, index = stop, index + 1
    return joined(selected)


def common(a: Ranges, b: Ranges) -> Ranges:
    """Return the intersection of `a` and `b`, ascending."""
    if len(a) == 1 and len(b) == 1:
        start, end = max(a[0][0], b[0][0]), min(a[0][1], b[0][1])
        return ((start, end),) if start < end else ()
    overlaps, index = [], 0
    a, b = tuple(sorted(a)), tuple(sorted(b))
    for start, end in a:
        while index < len(b) and b[index][1] <= start:  # ranges of `b` before this and all later ranges of `a`
            index += 1
        b_index = index
        while b_index < len(b) and b[b_index][0] < end:
            overlaps.append((max(start, b[b_index][0]), min(end, b[b_index][1])))
            b_index += 1
    return joined(overlaps)


def union(*operands: Ranges) -> Ranges:
    """Return the union of all `operands`, ascending."""
    merged: list[Range] = []
    for start, end in sorted(pair for ranges in operands for pair in ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif start < end:
            merged.append((start, end))
    return tuple(merged)


def positions(part: Ranges, ranges: Ranges) -> Ranges:
    """Convert global ranges to local positions of a rank with `ranges`: the inverse of `select`.

    With the ranges ((0, 4), (8, 12)), global ((1, 4), (8, 9)) is local ((1, 5),).

    Raises:
        ValueError: `part` is not inside `ranges`.
    """
    if len(ranges) == 1:
        low, high = ranges[0]
        if all(low <= start and end <= high for start, end in part):
            return tuple((start - low, end - low) for start, end in part)
        raise ValueError(f"the ranges {part} contain positions that are not in {ranges}")
    offsets = itertools.accumulate((high - low for low, high in ranges), initial=0)
    ranges_with_offsets = zip(ranges, offsets, strict=False)
    # (start, end, local position minus global position) of each range, by global position.
    shifts = sorted((low, high, offset - low) for (low, high), offset in ranges_with_offsets if low < high)
    local_ranges: list[Range] = []
    for start, end in part:
        index = bisect_right(shifts, start, key=lambda shift: shift[0]) - 1
        while start < end:
            # Beyond the first or last range, the empty range (end, end) stands for none.
            low, high, shift = shifts[index] if 0 <= index < len(shifts) else (end, end, 0)
            if not low <= start < high:
                raise ValueError(f"the ranges {part} contain positions that are not in {ranges}")
            local_ranges.append((start + shift, min(end, high) + shift))
            start, index = min(end, high), index + 1
    return joined(local_ranges)


def scaled(ranges: Ranges, inner: int) -> Ranges:
    """Return `ranges` after each position was replaced by `inner` positions: (2, 4) times 3 is (6, 12)."""
    return tuple((start * inner, end * inner) for start, end in ranges)


def tiled(ranges: Ranges, extent: int, outer: int) -> Ranges:
    """Repeat `ranges` of a block of `extent` positions in `outer` consecutive blocks.

    The range (0, 2) of a block of 4, in 2 blocks, is ((0, 2), (4, 6)).
    """
    return joined((start + block * extent, end + block * extent) for block in range(outer) for start, end in ranges)
