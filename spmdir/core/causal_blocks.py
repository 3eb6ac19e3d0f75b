"""The part of a block of causal attention that is not masked, for shards of queries and keys.

A query at position q attends to the keys at positions up to q. Leading queries without keys, and trailing keys without
queries, can be cut off. The remaining block is unmasked (every query attends to every key), a lower triangle, or
irregular. For example, queries ((0, 2), (6, 8)) and keys ((4, 8),): the first 2 queries attend to no key, so `since` is
2. Each key has a query, so `upto` is 4. In the remaining block, queries 6, 7 against keys 4 to 7, query 6 attends to 3
keys. It is irregular.

Each function takes the shards of two ranks. A `Local` with two shards, such as `since(10, tp | 10, tp, back 2)`, calls
the function of its name: see `rotate` and rings in docs/ir.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spmdir.core.intervals import Ranges, length


def since(queries: Ranges, keys: Ranges) -> int:
    """Return the number of leading queries that are before all keys; the number of all queries if there are no keys."""
    local_offset, first_key = 0, min((start for start, end in keys if start < end), default=None)
    for start, end in queries:
        if first_key is not None and end > max(start, first_key):
            return local_offset + max(first_key - start, 0)
        local_offset += end - start
    return local_offset


def upto(keys: Ranges, queries: Ranges) -> int:
    """Return the end of the keys that some query attends to, as a local position; 0 if there are no queries.

    For example, the last of the queries ((0, 6),) is at position 5. Of the keys ((0, 4), (8, 12)), it attends to the
    first 4, so the end is 4.
    """
    end_of_attended = local_offset = 0
    last_query = max((end - 1 for start, end in queries if start < end), default=-1)
    for start, end in keys:
        if start < end and start <= last_query:
            end_of_attended = local_offset + min(end, last_query + 1) - start
        local_offset += end - start
    return end_of_attended


def beyond(keys: Ranges, queries: Ranges) -> int:
    """Return the number of trailing keys that are after all queries."""
    return length(keys) - upto(keys, queries)


def reaches(queries: Ranges, keys: Ranges) -> bool:
    """Return whether some query attends to some key."""
    return since(queries, keys) < length(queries)


def both(first: Ranges, second: Ranges) -> bool:
    """Return whether both shards are non-empty."""
    return length(first) > 0 and length(second) > 0


def triangle(queries: Ranges, keys: Ranges) -> bool:
    """Return whether the remaining block is a triangle and not unmasked: query i attends to the keys up to index i."""
    return not _sees_all(queries, keys) and _is_triangle(*_remaining_block(queries, keys))


def irregular(queries: Ranges, keys: Ranges) -> bool:
    """Return whether the remaining block is neither unmasked nor a triangle."""
    return not _sees_all(queries, keys) and not _is_triangle(*_remaining_block(queries, keys))


PRECEDENCE: dict[str, Callable[[Ranges, Ranges], int]] = {
    "since": since,
    "upto": upto,
    "beyond": beyond,
    "reaches": reaches,
    "both": both,
    "triangle": triangle,
    "irregular": irregular,
}
"""Name in local forms → function of (ranges of the first shard, ranges of the second shard)."""


def _remaining_block(queries: Ranges, keys: Ranges) -> tuple[Ranges, Ranges]:
    """Return the (queries, keys) of the block that remains after the cuts by `since` and `upto`."""
    rows = _cut(queries, since(queries, keys), length(queries))
    return rows, _cut(keys, 0, upto(keys, queries))


def _cut(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return the ranges of the local positions from `start` up to `end`.

    Positions 1 to 6 of ((0, 4), (8, 12)) are ((1, 4), (8, 10)).
    """
    pieces, local_offset = [], 0
    for low, high in ranges:
        piece = (low + max(start - local_offset, 0), min(high, low + end - local_offset))
        if piece[0] < piece[1]:
            pieces.append(piece)
        local_offset += high - low
    return tuple(pieces)


def _sees_all(queries: Ranges, keys: Ranges) -> bool:
    """Return whether the remaining block is unmasked, or empty."""
    rows, columns = _remaining_block(queries, keys)
    return not rows or not columns or min(low for low, _ in rows) >= max(high - 1 for _, high in columns)


def _is_triangle(rows: Ranges, columns: Ranges) -> bool:
    """Return whether the query in row i attends exactly to the keys up to column i.

    For example, it does for rows and columns ((4, 8),). If the columns are ((2, 6),), the first query, at position 4,
    attends to three keys.

    Args:
        rows: the ranges of the positions of queries.
        columns: the ranges of the positions of keys.
    """
    if list(rows) != sorted(rows) or list(columns) != sorted(columns):
        return False
    for row, column, count, next_column in _stretches(rows, columns):
        # Row i must include column i and exclude column i + 1. Within a stretch, both positions increase by one.
        if column > row or (count > 1 and row > column) or (next_column is not None and row + count > next_column):
            return False
    return True


def _stretches(rows: Ranges, columns: Ranges) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield (row, column, count, next column or None) where rows and columns are consecutive for `count` steps.

    The rows ((6, 8), (12, 14)) and the columns ((4, 7), (10, 12)) have the stretches (6, 4, 2, 6), (12, 6, 1, 10) and
    (13, 10, 1, 11).
    """
    remaining_rows, remaining_columns = list(reversed(rows)), list(reversed(columns))
    while remaining_rows and remaining_columns:
        (row, row_end), (column, column_end) = remaining_rows.pop(), remaining_columns.pop()
        count = min(row_end - row, column_end - column)
        if row + count < row_end:
            remaining_rows.append((row + count, row_end))
        if column + count < column_end:
            remaining_columns.append((column + count, column_end))
        yield row, column, count, remaining_columns[-1][0] if remaining_columns else None
