"""Find repeated parts of a sequence, such as the layers of a program.

`outline-layers` and the scheduler use it, because they need consecutive ops. `search/colour_refinement.py` finds equal
parts of a graph, independent of the order of ops.

For example, entries `a b c d b c d b c d e`: equal windows are at distance 3, so parts have length 3. The longest range
with this period is `b c d b c d b c d`. Its parts may begin at b, c or d. The best begin is the one where the fewest
values are used across the cut.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

WINDOW = 12
"""Number of consecutive equal entries that count as a repetition."""

CANDIDATES = 16
"""Number of distances between equal windows that are tried as the length of a part."""

MOST_KINDS = 64
"""Largest number of groups of equal parts."""


def distances(keys: Sequence[Hashable], window: int = WINDOW) -> Counter[int]:
    """Return distance → number of windows that repeat an equal window this many entries earlier.

    A window is `window` consecutive entries. It is compared with the last equal window before it. For the entries of
    the module and windows of 3, the result is {3: 4}.

    Args:
        keys: for each entry of the sequence, a value that equal entries have in common.
    """
    numbers: dict[Hashable, int] = {}
    numbered = [numbers.setdefault(key, len(numbers)) for key in keys]
    last_index: dict[tuple[int, ...], int] = {}
    counts: Counter[int] = Counter()
    for index in range(len(keys) - window + 1):
        window_numbers = tuple(numbered[index : index + window])
        if window_numbers in last_index:
            counts[index - last_index[window_numbers]] += 1
        last_index[window_numbers] = index
    return counts


def longest_run(keys: Sequence[Hashable], period: int) -> tuple[int, int]:
    """Return (start, end) of the longest range that repeats with `period`.

    For the entries of the module and period 3, this is (1, 10), the range `b c d b c d b c d`.
    """
    pairs = zip(keys, itertools.islice(keys, period, None), strict=False)
    mismatches = [index for index, (entry, later_entry) in enumerate(pairs) if entry != later_entry]
    # Between two mismatches, each entry equals the one `period` entries later.
    best_start, best_end, start = 0, 0, 0
    for end in (*mismatches, len(keys) - period):
        if end - start > best_end - best_start:
            best_start, best_end = start, end
        start = end + 1
    return best_start, best_end + period


def repeated_parts(
    keys: Sequence[int], links: Sequence[Sequence[int]], labels: Sequence[Hashable | None], smallest: int
) -> list[list[range]]:
    """Return groups of equal, disjoint ranges of a sequence; the group that saves most entries is first.

    A part begins where the fewest labels, and then the fewest links, cross the cut between two parts. A range between
    two equal parts that has about their length joins their group, although it differs.

    Args:
        keys: a number for each entry, at least 0; equal entries have equal numbers.
        links: for each entry, the earlier entries that it uses.
        labels: for each entry, a label that entries of one part share, or None.
        smallest: the smallest length of a part.
    """
    remaining, groups = list(keys), []
    while len(groups) < MOST_KINDS and (parts := _most_repeated(remaining, links, labels, smallest)):
        groups.append(parts)
        for part in parts:
            remaining[part.start : part.stop] = [-1 - index for index in part]  # different from all entries
    return groups


def _most_repeated(
    keys: Sequence[int], links: Sequence[Sequence[int]], labels: Sequence[Hashable | None], smallest: int
) -> list[range]:
    """Return the parts, of at least `smallest` indices, with the most indices in repetitions; [] if none repeat.

    The most frequent distances between equal windows are tried as the length of a part. For each length, the parts are
    those equal to one part of the longest range with this period.

    Args:
        keys, links, labels: as for `repeated_parts`.
    """
    best: list[range] = []
    distance_counts = distances(keys, min(WINDOW, smallest))
    for period, _ in distance_counts.most_common(CANDIDATES):
        if period < smallest:
            continue
        start, stop = longest_run(keys, period)
        if stop - start < 2 * period:
            continue
        # A part may begin at any of `period` entries, if two parts fit into the range from there.
        first_starts = range(start, min(start + period, stop - 2 * period + 1))
        cost_by_start = _cut_costs(first_starts, stop, period, links, labels)
        best_start = min(cost_by_start, key=cost_by_start.__getitem__)
        parts = list(_occurrences(keys, tuple(keys[best_start : best_start + period])))
        if _saving(parts) > _saving(best):
            best = parts
    return best


def _saving(parts: Sequence[range]) -> int:
    """Return the number of indices in all parts but the first: the entries that outlining removes."""
    return sum(map(len, parts[1:]))


def _cut_costs(
    first_starts: range, stop: int, period: int, links: Sequence[Sequence[int]], labels: Sequence[Hashable | None]
) -> dict[int, tuple[int, int]]:
    """Return start of the first part → numbers of (labels, links) that cross the cut between it and the second part.

    Args:
        first_starts: the candidates for the start of the first part.
        stop: the end of the range that repeats with `period`, the length of a part.
        links, labels: as for `repeated_parts`.
    """
    costs: dict[int, tuple[int, int]] = {}
    for start in first_starts:
        cut = start + period
        before, after = range(start, cut), range(cut, min(cut + period, stop))
        crossing_links = {used for index in after for used in links[index] if used in before}
        split_labels = {labels[index] for index in before} & {labels[index] for index in after} - {None}
        costs[start] = (len(split_labels), len(crossing_links))
    return costs


def _occurrences(keys: Sequence[int], part: tuple[int, ...]) -> Iterator[range]:
    """Yield the ranges equal to `part`, and the gap between two of them if it has about their length.

    That is half of the length of `part` or more, and less than twice its length. Parts of other groups in the gap
    exclude it.
    """
    index, previous_end = 0, None
    while index <= len(keys) - len(part):
        if keys[index] != part[0] or tuple(keys[index : index + len(part)]) != part:
            index += 1
            continue
        if previous_end is not None:
            gap = range(previous_end, index)
            is_unused = bool(gap) and min(keys[gap.start : gap.stop]) >= 0  # negative: in a part of another group
            if len(part) <= 2 * len(gap) < 4 * len(part) and is_unused:
                yield gap
        yield range(index, index + len(part))
        index = previous_end = index + len(part)
