"""The part of a block of causal attention that is not masked, for shards of queries and keys.

A query at position q attends to the keys at positions up to q. Leading queries without keys, and trailing keys without
queries, can be cut off. The remaining block is unmasked (every query attends to every key), a lower triangle, or
irregular. For example, queries ((0, 2), (6, 8)) and keys ((4, 8),): the first 2 queries attend to no key, so `since` is
2. Each key has a query, so `upto` is 4. In the remaining block, queries 6, 7 against keys 4 to 7, query 6 attends to 3
keys. It is irregular.

These functions are the numbers with two shards in local forms: see `rotate` and rings in docs/ir.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spmdir.core.intervals import Ranges, length


def since(queries: Ranges, keys: Ranges) -> int:
    """Return the number of leading queries that are before all keys; all of them if there are no keys."""
    before, least = 0, min((start for start, end in keys if start < end), default=None)
    for start, end in queries:
        if least is not None and end > max(start, least):
            return before + max(least - start, 0)
        before += end - start
    return before


def upto(keys: Ranges, queries: Ranges) -> int:
    """Return the end of the keys that some query attends to, as a local position; 0 if there are no queries."""
    end_of_seen = before = 0
    most = max((end - 1 for start, end in queries if start < end), default=-1)
    for start, end in keys:
        if start < end and start <= most:
            end_of_seen = before + min(end, most + 1) - start
        before += end - start
    return end_of_seen


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
    """Return whether, in the remaining block, query i attends exactly to the keys up to index i."""
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
    rows = _cut(queries, since(queries, keys), length(queries))
    return rows, _cut(keys, 0, upto(keys, queries))


def _cut(ranges: Ranges, start: int, end: int) -> Ranges:
    """Return the ranges of the local positions from `start` up to `end`."""
    pieces, before = [], 0
    for low, high in ranges:
        piece = (low + max(start - before, 0), min(high, low + end - before))
        if piece[0] < piece[1]:
            pieces.append(piece)
        before += high - low
    return tuple(pieces)


def _sees_all(queries: Ranges, keys: Ranges) -> bool:
    rows, columns = _remaining_block(queries, keys)
    return not rows or not columns or min(low for low, _ in rows) >= max(high - 1 for _, high in columns)


def _is_triangle(rows: Ranges, columns: Ranges) -> bool:
    if list(rows) != sorted(rows) or list(columns) != sorted(columns):
        return False
    for row, column, count, following in _stretches(rows, columns):
        # Row i must include column i and exclude column i + 1. Within a stretch, both positions increase by one.
        if column > row or (count > 1 and row > column) or (following is not None and row + count > following):
            return False
    return True


def _stretches(rows: Ranges, columns: Ranges) -> Iterator[tuple[int, int, int, int | None]]:
    """Yield (row, column, count, next column or None) where rows and columns are consecutive for `count` steps."""
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
