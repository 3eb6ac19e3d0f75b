"""Which positions of one shard come before those of another: what a causal mask leaves of a block.

A position of the first shard, as of queries, sees those of the second, as of keys, that are not behind it. The first
are cut in front, where they see nothing, and the second at the end, where nothing sees them; of the block that is left
a rank may see everything, a lower triangle, or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spmdir.core.intervals import Ranges, length


def since(queries: Ranges, keys: Ranges) -> int:
    """Return how many of the first `queries` are before all `keys`; all if there are no keys."""
    at, least = 0, min((start for start, end in keys if start < end), default=None)
    for start, end in queries:
        if least is not None and end > max(start, least):
            return at + max(least - start, 0)
        at += end - start
    return at


def upto(keys: Ranges, queries: Ranges) -> int:
    """Return the place behind the last of `keys` that is not behind all `queries`; 0 if there are no queries."""
    found = at = 0
    most = max((end - 1 for start, end in queries if start < end), default=-1)
    for start, end in keys:
        if start < end and start <= most:
            found = at + min(end, most + 1) - start
        at += end - start
    return found


def beyond(keys: Ranges, queries: Ranges) -> int:
    """Return how many of the last `keys` are behind all `queries`."""
    return length(keys) - upto(keys, queries)


def reaches(queries: Ranges, keys: Ranges) -> bool:
    """Return whether some query sees some key."""
    return since(queries, keys) < length(queries)


def both(first: Ranges, second: Ranges) -> bool:
    """Return whether there are positions of both."""
    return length(first) > 0 and length(second) > 0


def triangle(queries: Ranges, keys: Ranges) -> bool:
    """Return whether, of the block that is left, the query i sees the keys up to the i-th and no others."""
    return not _sees_all(queries, keys) and _is_triangle(*_block(queries, keys))


def irregular(queries: Ranges, keys: Ranges) -> bool:
    """Return whether, of the block that is left, not everything is seen, and not a triangle."""
    return not _sees_all(queries, keys) and not _is_triangle(*_block(queries, keys))


PRECEDENCE: dict[str, Callable[[Ranges, Ranges], int]] = {
    "since": since,
    "upto": upto,
    "beyond": beyond,
    "reaches": reaches,
    "both": both,
    "triangle": triangle,
    "irregular": irregular,
}
"""What a rank's own number of two shards is called → (ranges of the first, of the second) → its value."""


def _block(queries: Ranges, keys: Ranges) -> tuple[Ranges, Ranges]:
    rows = _cut(queries, since(queries, keys), length(queries))
    return rows, _cut(keys, 0, upto(keys, queries))


def _cut(ranges: Ranges, first: int, end: int) -> Ranges:
    """Return the positions `first` to `end` of `ranges`, in their order."""
    found, at = [], 0
    for low, high in ranges:
        here = (low + max(first - at, 0), min(high, low + end - at))
        if here[0] < here[1]:
            found.append(here)
        at += high - low
    return tuple(found)


def _sees_all(queries: Ranges, keys: Ranges) -> bool:
    rows, columns = _block(queries, keys)
    return not rows or not columns or min(low for low, _ in rows) >= max(high - 1 for _, high in columns)


def _is_triangle(rows: Ranges, columns: Ranges) -> bool:
    if list(rows) != sorted(rows) or list(columns) != sorted(columns):
        return False
    for row, column, count, following in _stretches(rows, columns):
        # A row sees the column of its own number and not the next one; within a stretch both go on by one.
        if column > row or (count > 1 and row > column) or (following is not None and row + count > following):
            return False
    return True


def _stretches(rows: Ranges, columns: Ranges) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield (first row, first column, how many of both go on by one, the column behind them, if any)."""
    at_row, at_column, used_row, used_column = 0, 0, 0, 0
    while at_row < len(rows) and at_column < len(columns):
        row, column = rows[at_row][0] + used_row, columns[at_column][0] + used_column
        count = min(rows[at_row][1] - row, columns[at_column][1] - column)
        used_row, used_column = used_row + count, used_column + count
        if row + count == rows[at_row][1]:
            at_row, used_row = at_row + 1, 0
        if column + count == columns[at_column][1]:
            at_column, used_column = at_column + 1, 0
        following = columns[at_column][0] + used_column if at_column < len(columns) else None
        yield row, column, count, following
