"""The torch ops of caches of attention, `torch.ops.cache`, on one device and on the local tensors of a rank.

A cache has keys or values of earlier tokens, in pages: [pages, rows of a page, heads, size of a head]. `table[i, j]` is
page j of sequence i. Without a table, sequence i has page i only. Position p of a sequence is row p % R of its page
p // R, for R rows of a page. A negative position, and a position without a page, has no row. An entry of the table
that is negative, or not less than the number of pages, is no page. With R = 2:

    table       positions of new tokens      rows that are written
    [[1, 0],    [[0, 1, 2],                  sequence 0: rows 0 and 1 of page 1, row 0 of page 0
     [2, -1]]    [1, 2, -1]]                 sequence 1: row 1 of page 2; position 2 has no page, and -1 is padding

`write` returns a new cache, so that programs are functional. Programs of ranks call `write_`, which writes in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIBRARY = torch.library.Library("cache", "DEF")


def write(cache: Tensor, rows: Tensor, positions: Tensor, table: Tensor | None = None) -> Tensor:
    """Return the cache with the rows of new tokens: [p, r, …], rows [b, t, …], positions [b, t] → [p, r, …]."""
    result = cache.clone()
    write_(result, rows, positions, table)
    return result


def write_(cache: Tensor, rows: Tensor, positions: Tensor, table: Tensor | None = None) -> None:
    """Write the rows of new tokens into the cache. The device never waits for the host.

    Tokens without a row repeat the write of another token, so all writes of one row have equal values. If no token has
    a row, the first row of the cache is written with its old value.
    """
    if not cache.numel() or not rows.numel():
        return
    pages, page_rows = cache.shape[:2]
    slots = _slots(positions, table, pages, page_rows).reshape(-1)
    new_rows = rows.reshape(-1, *cache.shape[2:])
    flat = cache.view(pages * page_rows, *cache.shape[2:])
    # Tokens without a row write to the row `spare_slot`: the row and value of the token `written`, if it has a row,
    # else row 0 with its old value.
    written = slots.argmax().reshape(1)  # a token with a row, if there is one
    spare_slot = slots[written].clamp(0)
    spare_row = torch.where(_column(slots[written] < 0, new_rows), flat[spare_slot], new_rows[written])
    has_row = slots >= 0
    written_rows = torch.where(_column(has_row, new_rows), new_rows, spare_row)
    flat.index_put_((torch.where(has_row, slots, spare_slot),), written_rows)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    table: Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
) -> Tensor:
    """Return the attention of new tokens to the rows of their sequences up to their positions.

    Query [b, t, h·g, e], keys [p, r, h, e], values [p, r, h, v] → [b, t, h·g, v], where g query heads use one key head.
    The result of a token with a negative position is 0.

    Args:
        scale: the factor of the scores; 1 / √e if None.
        window: the number of the last rows that a token attends to; all if 0.
    """
    batch, count, heads, _ = query.shape
    if not query.numel() or not keys.numel():
        return query.new_zeros(*query.shape[:3], values.shape[3])
    page_rows, key_heads = keys.shape[1:3]
    row_count = page_rows * (1 if table is None else table.shape[1])
    if positions.device.type == "cpu":  # the host reads the longest length, and attends to no rows after it
        row_count = min(row_count, max(int(positions.max()) + 1, 1))
    pages = None if table is None else table[:, : -(-row_count // page_rows)]
    rows = torch.arange(row_count, device=query.device)
    hidden = rows > positions.unsqueeze(-1)
    if window:
        hidden |= rows <= positions.unsqueeze(-1) - window
    if pages is not None:
        hidden |= ((pages < 0) | (pages >= len(keys))).repeat_interleave(page_rows, 1)[:, None, :row_count]
    # The g query heads of a key head become g tokens, so keys and values are not repeated.
    groups = heads // key_heads
    grouped = query.unflatten(2, (key_heads, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    is_idle = hidden.all(-1)  # tokens that attend to no row: softmax would give NaN, so their rows are not masked
    mask = ~(hidden & ~is_idle.unsqueeze(-1)).repeat(1, groups, 1).unsqueeze(1)
    keys, values = (_rows_of(cache, pages, row_count).transpose(1, 2) for cache in (keys, values))
    result = torch.nn.functional.scaled_dot_product_attention(grouped, keys, values, mask, scale=scale)
    result = result.unflatten(2, (groups, count)).permute(0, 3, 1, 2, 4).reshape(batch, count, heads, values.shape[3])
    return result.masked_fill(is_idle[:, :, None, None], 0)


def _slots(positions: Tensor, table: Tensor | None, pages: int, page_rows: int) -> Tensor:
    """Return the row of each position, counted over all pages; a negative number for a position without a row."""
    index = torch.div(positions, page_rows, rounding_mode="floor")
    if table is None:
        page = torch.arange(len(positions), device=positions.device).unsqueeze(1)
        is_present = index == 0
    else:
        page = table.gather(1, index.clamp(0, table.shape[1] - 1))
        is_present = (index >= 0) & (index < table.shape[1]) & (page >= 0)
    is_present &= page < pages
    return torch.where(is_present, page * page_rows + positions % page_rows, -1)


def _rows_of(cache: Tensor, pages: Tensor | None, row_count: int) -> Tensor:
    """Return the first rows of each sequence: [p, r, h, e] → [b, row_count, h, e]. Without pages, this is a view."""
    if pages is None:
        return cache[:, :row_count]
    if pages.shape[1] == 1:
        return cache[:, :row_count][pages[:, 0].clamp(0, len(cache) - 1)]
    return cache[pages.clamp(0, len(cache) - 1)].flatten(1, 2)[:, :row_count]


def _column(flags: Tensor, rows: Tensor) -> Tensor:
    """Return flags of rows in a shape that broadcasts against the rows."""
    return flags.view(-1, *(1,) * (rows.dim() - 1))


def _fake_write(cache: Tensor, rows: Tensor, positions: Tensor, table: Tensor | None = None) -> Tensor:
    return torch.empty_like(cache)


def _fake_write_in_place(cache: Tensor, rows: Tensor, positions: Tensor, table: Tensor | None = None) -> None:
    return None


def _fake_attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    table: Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
) -> Tensor:
    """Return an empty tensor with the shape of the result of `attend`, for traces."""
    return query.new_empty(*query.shape[:3], values.shape[3])


_OPS = (
    (write, "(Tensor cache, Tensor rows, Tensor positions, Tensor? table=None) -> Tensor", _fake_write),
    (
        write_,
        "(Tensor(a!) cache, Tensor rows, Tensor positions, Tensor? table=None) -> ()",
        _fake_write_in_place,
    ),
    (
        attend,
        "(Tensor query, Tensor keys, Tensor values, Tensor positions, Tensor? table=None, float? scale=None, "
        "int window=0) -> Tensor",
        _fake_attend,
    ),
)
"""Function, schema without the name, and the function on fake tensors."""

for _function, _schema, _fake in _OPS:
    LIBRARY.define(_function.__name__ + _schema)
    LIBRARY.impl(_function.__name__, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"cache::{_function.__name__}", _fake, lib=LIBRARY)
