"""Equal parts of a sequence, as the layers of a program: how long they are, where they begin, and which there are.

This compares sequences, for parts of a text that are cut or called: outlined layers and blocks of a schedule.
`search/colours.py` compares graphs, where the order of the text does not matter.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

WINDOW = 12
"""How many entries in a row have to be equal to count as a repetition."""

CANDIDATES = 16
"""How many distances between equal windows are tried as the length of a part."""

MOST_KINDS = 64
"""How many kinds of equal parts are looked for."""


def distances(looks: Sequence[Hashable], window: int = WINDOW) -> Counter[int]:
    """Return how many windows of `looks` stand at each distance from the last equal one."""
    numbers: dict[Hashable, int] = {}
    numbered = [numbers.setdefault(look, len(numbers)) for look in looks]
    last: dict[tuple[int, ...], int] = {}
    found: Counter[int] = Counter()
    for index in range(len(looks) - window + 1):
        seen = tuple(numbered[index : index + window])
        if seen in last:
            found[index - last[seen]] += 1
        last[seen] = index
    return found


def longest_run(looks: Sequence[Hashable], period: int) -> tuple[int, int]:
    """Return the first entry of the longest range that repeats with `period`, and the one after its last."""
    best, first = (0, 0), 0
    pairs = zip(looks, itertools.islice(looks, period, None), strict=False)
    for end in (*(index for index, (one, other) in enumerate(pairs) if one != other), len(looks) - period):
        if end - first > best[1] - best[0]:
            best = (first, end)
        first = end + 1
    return best[0], best[1] + period


def repeated_parts(
    looks: Sequence[int], links: Sequence[Sequence[int]], labels: Sequence[Hashable | None], smallest: int
) -> list[list[range]]:
    """Return groups of equal ranges of a sequence, none in two groups; the largest saving first.

    Parts begin where few entries are linked across, and where no label is on both sides. What stands between two equal
    parts and is about as long is a part of their group that differs.

    Args:
        looks: equal numbers for equal entries, from 0 on.
        links: for each entry those before it that it uses.
        labels: what entries of one part have in common; None of an entry that does not say.
        smallest: the fewest entries of a part.
    """
    left, groups = list(looks), []
    while len(groups) < MOST_KINDS and (parts := _most_repeated(left, links, labels, smallest)):
        groups.append(parts)
        for part in parts:
            left[part.start : part.stop] = [-1 - index for index in part]  # equal to nothing
    return groups


def _most_repeated(
    looks: Sequence[int], links: Sequence[Sequence[int]], labels: Sequence[Hashable | None], smallest: int
) -> list[range]:
    best: list[range] = []
    counted = distances(looks, min(WINDOW, smallest))
    for period, _ in counted.most_common(CANDIDATES):
        if period < smallest:
            continue
        start, stop = longest_run(looks, period)
        if stop - start < 2 * period:
            continue
        cost = _costs(range(start, min(start + period, stop - 2 * period + 1)), stop, period, links, labels)
        first = min(cost, key=cost.__getitem__)
        parts = list(_occurrences(looks, tuple(looks[first : first + period])))
        if _saving(parts) > _saving(best):
            best = parts
    return best


def _saving(parts: Sequence[range]) -> int:
    return sum(map(len, parts[1:]))


def _costs(
    firsts: range, stop: int, period: int, links: Sequence[Sequence[int]], labels: Sequence[Hashable | None]
) -> dict[int, tuple[int, int]]:
    """Return how bad it is to begin the parts of a run at each of `firsts`: labels and links across the second cut."""
    found: dict[int, tuple[int, int]] = {}
    for first in firsts:
        cut = first + period
        before, after = range(first, cut), range(cut, min(cut + period, stop))
        across = {used for index in after for used in links[index] if used in before}
        split = {labels[index] for index in before} & {labels[index] for index in after} - {None}
        found[first] = (len(split), len(across))
    return found


def _occurrences(looks: Sequence[int], part: tuple[int, ...]) -> Iterator[range]:
    """Yield the ranges that look like `part`, and between two of these what may be one that differs."""
    index, end = 0, None
    while index <= len(looks) - len(part):
        if looks[index] != part[0] or tuple(looks[index : index + len(part)]) != part:
            index += 1
            continue
        if end is not None and len(part) <= 2 * (index - end) < 4 * len(part) and min(looks[end:index]) >= 0:
            yield range(end, index)
        yield range(index, index + len(part))
        index = end = index + len(part)
