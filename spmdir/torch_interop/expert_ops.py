"""The torch ops of a mixture of experts, `torch.ops.experts`, on one device and on the local tensors of a rank.

A router chooses k of E experts for each of T tokens. A *row* is one (token, expert) pair. `route` sorts the rows by
expert, and all other ops take the resulting order or the number of rows of each expert. With T = 3, k = 1, E = 2:

    experts of the tokens   1 0 1
    order                   1 0 2       token 1 goes to expert 0, tokens 0 and 2 to expert 1
    counts                  1 2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._library.effects import EffectType
from torch.fx.node import has_side_effect

from spmdir.core.errors import UnsupportedError

LIBRARY = torch.library.Library("experts", "DEF")

_KERNEL_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The element types of torch's grouped product."""

_ALIGNMENT = 16
"""Bytes to which torch's grouped product requires strides to be aligned."""


def route(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sort rows by expert, stably: [T, k] expert of each row → order [T·k] and number of rows of each expert [E].

    The number of rows is returned twice. On ranks, the second is the number of rows that arrive from each rank.

    Raises:
        UnsupportedError: a row has no expert in 0 … E - 1. On an accelerator, the device raises an error later.
    """
    flat = ids.reshape(-1).long()
    if flat.device.type == "cpu" and len(flat) and not (flat.min() >= 0 and flat.max() < experts):
        raise UnsupportedError(
            f"the router chooses the experts {int(flat.min())} to {int(flat.max())}; expected 0 to {experts - 1}: "
            "correct the router, or mask its choices before the experts"
        )
    counts = flat.new_zeros(experts).scatter_add_(0, flat, torch.ones_like(flat))
    return torch.argsort(flat, stable=True), counts, counts.clone()


def sort_rows(rows: Tensor, order: Tensor) -> Tensor:
    """Return rows in the order of their experts: [T, k, …] → [T·k, …]. An expanded operand is not copied."""
    k = max(rows.shape[1], 1)
    if rows.shape[1] and rows.stride(1) == 0:
        return rows.select(1, 0).index_select(0, torch.div(order, k, rounding_mode="floor"))
    return rows.flatten(0, 1).index_select(0, order)


def unsort_rows(rows: Tensor, order: Tensor, ids: Tensor) -> Tensor:
    """Return rows in the order of their tokens: [T·k, …] → [T, k, …], where [T, k] is the shape of `ids`."""
    result = torch.empty_like(rows)
    result[order] = rows
    return result.reshape(*ids.shape, *rows.shape[1:])


def grouped_mm(rows: Tensor, weights: Tensor, counts: Tensor, first: int = 0) -> Tensor:
    """Multiply each row by the weight of its expert: [t, k], [g, k, n] → [t, n].

    Args:
        counts: the number of rows of each expert, in the order of the rows.
        first: the number of the expert of the first weight. Rows of experts without a weight are zero in the result.
    """
    sizes = counts.tolist()
    start, number = sum(sizes[:first]), len(weights)
    sizes = sizes[first : first + number]
    local_rows = rows.narrow(0, start, sum(sizes))
    if not number or not len(local_rows):
        return rows.new_zeros(len(rows), weights.shape[2])
    if _has_kernel(local_rows, weights):
        ends = torch.tensor(sizes, device=rows.device).cumsum(0, dtype=torch.int32)
        product = torch.ops.aten._grouped_mm.default(local_rows.contiguous(), weights, ends)
    else:
        product = torch.cat([part @ weight for part, weight in zip(local_rows.split(sizes), weights, strict=True)])
    if len(local_rows) == len(rows):
        return product
    result = rows.new_zeros(len(rows), weights.shape[2])
    result[start : start + len(local_rows)] = product
    return result


def grouped_outer(left: Tensor, right: Tensor, counts: Tensor, experts: int, first: int = 0) -> Tensor:
    """Return for each expert the sum over its rows of the products leftᵀ·right: [t, m], [t, n] → [experts, m, n].

    Args:
        counts: the number of rows of each expert, in the order of the rows.
        experts: the number of results.
        first: the expert of the first result.
    """
    sizes = counts.tolist()
    start, sizes = sum(sizes[:first]), sizes[first : first + experts]
    lefts, rights = (x.narrow(0, start, sum(sizes)).split(sizes) for x in (left, right))
    result = left.new_empty(len(sizes), left.shape[1], right.shape[1])
    for index, (a, b) in enumerate(zip(lefts, rights, strict=True)):
        torch.mm(a.T, b, out=result[index])
    return result


def regroup(rows: Tensor, counts: Tensor, arrivals: Tensor, capacity: int = 0) -> Tensor:
    """Return a copy of the rows. On ranks, rows move between the ranks of their tokens and those of their experts."""
    return rows.clone()


def from_sources(rows: Tensor, arrivals: Tensor) -> Tensor:
    """Order received rows by expert, then by source rank. They arrive ordered by source rank, then by expert.

    Args:
        arrivals: [sources, experts], the number of rows.
    """
    return torch.cat(_blocks(rows, arrivals.tolist()))


def to_sources(rows: Tensor, arrivals: Tensor) -> Tensor:
    """Order rows by source rank, then by expert: the inverse of `from_sources`."""
    return torch.cat(_blocks(rows, arrivals.T.tolist()))


def pad_rows(rows: Tensor, counts: Tensor, capacity: int) -> Tensor:
    """Give each expert `capacity` slots for its rows: [t, …] → [experts · capacity, …]. Empty slots are zero.

    Rows beyond the capacity are left out.

    Args:
        counts: the number of rows of each expert, in the order of the rows.
    """
    expert, position = _places(len(rows), counts)
    # Rows beyond the capacity go to one more slot at the end.
    slots = torch.where(position < capacity, expert * capacity + position, len(counts) * capacity)
    result = rows.new_zeros(len(counts) * capacity + 1, *rows.shape[1:])
    result[slots] = rows
    return result[:-1]


def unpad_rows(slots: Tensor, counts: Tensor, capacity: int, size: int) -> Tensor:
    """Return the rows that `pad_rows` has put into slots: [experts · capacity, …] → [size, …].

    Rows beyond the capacity are zero.
    """
    expert, position = _places(size, counts)
    rows = slots[expert * capacity + position.clamp(max=capacity - 1)]
    return rows * (position < capacity).reshape(-1, *[1] * (rows.dim() - 1))


def _places(size: int, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return (expert of each row, position of each row among the rows of its expert), two vectors of `size` entries.

    Args:
        size: the number of rows, which are sorted by expert.
        counts: the number of rows of each expert.
    """
    ends, index = counts.cumsum(0), torch.arange(size, device=counts.device)
    expert = torch.searchsorted(ends, index, right=True).clamp(max=len(counts) - 1)
    return expert, index - (ends - counts)[expert]


def from_slots(slots: Tensor, arrivals: Tensor) -> Tensor:
    """Order received slots by expert, then by source rank. They arrive ordered by source rank, then by expert.

    Args:
        arrivals: [sources, experts]; only its shape is used.
    """
    capacity = len(slots) // max(arrivals.numel(), 1)
    return slots.reshape(*arrivals.shape, capacity, *slots.shape[1:]).transpose(0, 1).reshape(slots.shape)


def to_slots(slots: Tensor, arrivals: Tensor, size: int) -> Tensor:
    """Order `size` slots by source rank, then by expert: the inverse of `from_slots`."""
    return from_slots(slots, arrivals.T)


def clear(rows: Tensor, arrivals: Tensor) -> Tensor:
    """Return a copy of the rows. On ranks with empty slots, these become zero."""
    return rows.clone()


def clear_slots(slots: Tensor, arrivals: Tensor) -> Tensor:
    """Set the empty slots to zero.

    Args:
        slots: [experts · sources · capacity, …].
        arrivals: [sources, experts], the number of rows.
    """
    capacity = len(slots) // max(arrivals.numel(), 1)
    is_row = torch.arange(capacity, device=slots.device) < arrivals.to(slots.device).T.reshape(-1, 1)
    return torch.where(is_row.reshape(-1, *[1] * (slots.dim() - 1)), slots, slots.new_zeros(()))


def slots_mm(slots: Tensor, weights: Tensor) -> Tensor:
    """Multiply equally many slots of each expert by the weight of the expert: [t, k], [g, k, n] → [t, n]."""
    per_expert = len(slots) // max(len(weights), 1)
    rows = slots.reshape(len(weights), per_expert, slots.shape[1])
    return torch.bmm(rows, weights).reshape(len(slots), weights.shape[2])


def slots_outer(left: Tensor, right: Tensor, experts: int) -> Tensor:
    """Return for each expert the sum over its slots of the products leftᵀ·right: [t, m], [t, n] → [experts, m, n]."""
    left, right = (x.reshape(experts, len(x) // max(experts, 1), x.shape[1]) for x in (left, right))
    return torch.bmm(left.transpose(1, 2), right)


def require_within_capacity(exceeding: Tensor, capacities: Sequence[int]) -> None:
    """Raise SpmdirError if rows exceed the capacity of their expert.

    Args:
        exceeding: for each check, the number of rows beyond the capacity.
        capacities: the capacity of each check.
    """
    for number, capacity in zip(exceeding.tolist(), capacities, strict=True):
        if number:
            raise UnsupportedError(
                f"{number} rows exceed the capacity of {capacity} rows for each expert and rank; expected none, since "
                "they are dropped: increase `capacity` of pad-rows, or remove the pass"
            )


def _blocks(rows: Tensor, sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Cut rows into blocks of `sizes[i][j]` rows, in row-major order, and return the blocks column by column."""
    columns = len(sizes[0])
    blocks = rows.split([size for row in sizes for size in row])
    return [blocks[row * columns + column] for column in range(columns) for row in range(len(sizes))]


def _has_kernel(rows: Tensor, weights: Tensor) -> bool:
    """Return whether torch's grouped product supports the element type and the alignment of rows and weights."""
    sizes = (rows.shape[1], weights.shape[1], weights.shape[2])
    return rows.dtype in _KERNEL_TYPES and all(size * rows.element_size() % _ALIGNMENT == 0 for size in sizes)


def _fake_route(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    counts = ids.new_empty([experts], dtype=torch.int64)
    return ids.new_empty([ids.numel()], dtype=torch.int64), counts, counts.clone()


def _fake_sort_rows(rows: Tensor, order: Tensor) -> Tensor:
    return rows.new_empty([*order.shape, *rows.shape[2:]])


def _fake_unsort_rows(rows: Tensor, order: Tensor, ids: Tensor) -> Tensor:
    return rows.new_empty([*ids.shape, *rows.shape[1:]])


def _fake_grouped_mm(rows: Tensor, weights: Tensor, counts: Tensor, first: int = 0) -> Tensor:
    return rows.new_empty([rows.shape[0], weights.shape[2]])


def _fake_grouped_outer(left: Tensor, right: Tensor, counts: Tensor, experts: int, first: int = 0) -> Tensor:
    return left.new_empty([experts, left.shape[1], right.shape[1]])


def _fake_rows(rows: Tensor, *counts: Tensor, capacity: int = 0) -> Tensor:
    return torch.empty_like(rows)


def _fake_pad_rows(rows: Tensor, counts: Tensor, capacity: int) -> Tensor:
    return rows.new_empty([counts.shape[0] * capacity, *rows.shape[1:]])


def _fake_unpad_rows(slots: Tensor, counts: Tensor, capacity: int, size: int) -> Tensor:
    return slots.new_empty([size, *slots.shape[1:]])


def _fake_to_slots(slots: Tensor, arrivals: Tensor, size: int) -> Tensor:
    return slots.new_empty([size, *slots.shape[1:]])


def _fake_slots_mm(slots: Tensor, weights: Tensor) -> Tensor:
    return slots.new_empty([slots.shape[0], weights.shape[2]])


def _fake_slots_outer(left: Tensor, right: Tensor, experts: int) -> Tensor:
    return left.new_empty([experts, left.shape[1], right.shape[1]])


def _fake_require_within_capacity(exceeding: Tensor, capacities: Sequence[int]) -> None:
    return None


_OPS = (
    (route, "(Tensor ids, int experts) -> (Tensor, Tensor, Tensor)", _fake_route),
    (sort_rows, "(Tensor rows, Tensor order) -> Tensor", _fake_sort_rows),
    (unsort_rows, "(Tensor rows, Tensor order, Tensor ids) -> Tensor", _fake_unsort_rows),
    (grouped_mm, "(Tensor rows, Tensor weights, Tensor counts, int first=0) -> Tensor", _fake_grouped_mm),
    (
        grouped_outer,
        "(Tensor left, Tensor right, Tensor counts, int experts, int first=0) -> Tensor",
        _fake_grouped_outer,
    ),
    (regroup, "(Tensor rows, Tensor counts, Tensor arrivals, int capacity=0) -> Tensor", _fake_rows),
    (from_sources, "(Tensor rows, Tensor arrivals) -> Tensor", _fake_rows),
    (to_sources, "(Tensor rows, Tensor arrivals) -> Tensor", _fake_rows),
    (pad_rows, "(Tensor rows, Tensor counts, int capacity) -> Tensor", _fake_pad_rows),
    (unpad_rows, "(Tensor slots, Tensor counts, int capacity, int size) -> Tensor", _fake_unpad_rows),
    (from_slots, "(Tensor slots, Tensor arrivals) -> Tensor", _fake_rows),
    (to_slots, "(Tensor slots, Tensor arrivals, int size) -> Tensor", _fake_to_slots),
    (clear, "(Tensor rows, Tensor arrivals) -> Tensor", _fake_rows),
    (clear_slots, "(Tensor slots, Tensor arrivals) -> Tensor", _fake_rows),
    (slots_mm, "(Tensor slots, Tensor weights) -> Tensor", _fake_slots_mm),
    (slots_outer, "(Tensor left, Tensor right, int experts) -> Tensor", _fake_slots_outer),
    (require_within_capacity, "(Tensor exceeding, int[] capacities) -> ()", _fake_require_within_capacity),
)
"""Function, schema without the name, and the function on fake tensors."""

for _function, _schema, _fake in _OPS:
    LIBRARY.define(_function.__name__ + _schema)
    LIBRARY.impl(_function.__name__, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"experts::{_function.__name__}", _fake, lib=LIBRARY)

# An op without results would be removed from compiled programs and from parts of programs.
torch.library._register_effectful_op("experts::require_within_capacity", EffectType.ORDERED, lib=LIBRARY)
has_side_effect(torch.ops.experts.require_within_capacity.default)
