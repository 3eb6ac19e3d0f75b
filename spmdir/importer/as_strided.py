"""Replace `as_strided` of a contiguous tensor by slices. Autograd traces in-place writes to views as `as_strided`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten

Slice = tuple[int, int, int, int]
"""A dimension, with the start, end and step of a slice along it."""


def find_slices(
    self: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> tuple[tuple[int, ...], list[Slice]] | None:
    """Return (shape, slices) such that `self`, reshaped to `shape` and sliced, has the elements of an `as_strided`.

    For a vector of 24 elements with size (2, 3), stride (12, 2) and offset 4, the shape is (2, 6, 2). The slices are
    2:5 of dimension 1 and 0:1 of dimension 2.

    Returns None if there are no such slices: elements repeat or are in another order, or sizes are symbolic.
    """
    numbers = (*self.shape, *self.stride(), *size, *stride, offset, self.storage_offset())
    if not all(type(number) is int for number in numbers) or not self.is_contiguous() or self.storage_offset():
        return None
    if 0 in size or not self.numel() or not 0 <= offset < self.numel():
        return None
    lengths_and_steps = [(length, step) for length, step in zip(size, stride, strict=True) if length > 1]
    # Try the shape of `self`, then the shape whose row-major strides are the strides of the call.
    shapes = [tuple(self.shape)]
    strides = [self.numel(), *(step for _, step in lengths_and_steps), 1]
    if all(inner and outer % inner == 0 for outer, inner in itertools.pairwise(strides)):
        shapes.append(tuple(outer // inner for outer, inner in itertools.pairwise(strides)))
    for shape in shapes:
        slices = _find_slices(shape, lengths_and_steps, offset)
        if slices is not None:
            return shape, slices
    # A contiguous result is a range of the flat tensor.
    if all(step == math.prod(size[dim + 1 :]) for dim, step in enumerate(stride)):
        return (self.numel(),), [(0, offset, offset + math.prod(size), 1)]
    return None


def _find_slices(shape: tuple[int, ...], lengths_and_steps: list[tuple[int, int]], offset: int) -> list[Slice] | None:
    """Return the slices of a contiguous tensor of `shape` that select the elements of an `as_strided`.

    Returns None if there are no such slices.

    Args:
        lengths_and_steps: (length, stride) of each dimension of the result, outermost first.
        offset: the offset of the first element.
    """
    remaining, slices = list(lengths_and_steps), []  # remaining: the dimensions of the result without a slice so far
    for dim, extent in enumerate(shape):
        dim_stride = math.prod(shape[dim + 1 :])
        start, length, step = offset // dim_stride % extent, 1, 1
        if remaining:
            # The next dimension of the result runs along this one if its stride is a multiple that stays inside.
            result_length, result_stride = remaining[0]
            index_step, remainder = divmod(result_stride, dim_stride)
            if index_step and not remainder and start + (result_length - 1) * index_step < extent:
                length, step = result_length, index_step
                remaining.pop(0)
        end = start + (length - 1) * step + 1
        if (start, end, step) != (0, extent, 1):
            slices.append((dim, start, end, step))
    return None if remaining else slices


def _is_contiguous(self: Tensor, size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Return whether `self` is contiguous, and no number is symbolic."""
    is_static = all(type(number) is int for number in (*self.shape, *size, *stride))
    return is_static and self.is_contiguous() and not self.storage_offset()


def _flat_positions(self: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Return a tensor of shape `size`: the index in the flat contiguous `self` of each element of an `as_strided`."""
    positions = _ATEN.full.default([], offset, dtype=torch.int64, device=self.device)
    for length, step in zip(size, stride, strict=True):
        positions = positions.unsqueeze(-1) + torch.arange(length, device=self.device) * step
    return positions


def _as_strided(self: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Any:
    """Compute an `as_strided` by slices, else by indices; return NotImplemented for a tensor that is not contiguous.

    Symbolic sizes count as not contiguous.
    """
    sliced = find_slices(self, size, stride, storage_offset or 0)
    if sliced is None and _is_contiguous(self, size, stride):
        return _ATEN.index.Tensor(self.reshape(-1), [_flat_positions(self, size, stride, storage_offset or 0)])
    if sliced is None:
        return NotImplemented
    result = self.reshape(sliced[0])
    for slice_ in sliced[1]:
        result = _ATEN.slice.Tensor(result, *slice_)
    return result.reshape(tuple(size))


def _as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Any:
    """Compute an `as_strided_scatter` as `_as_strided` does: by slices, else by indices, else NotImplemented."""
    sliced = find_slices(self, size, stride, storage_offset or 0)
    if sliced is None and _is_contiguous(self, size, stride):
        positions = _flat_positions(self, size, stride, storage_offset or 0)
        return _ATEN.index_put.default(self.reshape(-1), [positions], src).reshape(self.shape)
    if sliced is None:
        return NotImplemented
    # Slice `self` step by step; then, from the innermost slice outwards, write each updated slice to its source.
    outer_tensors = [self.reshape(sliced[0])]
    for slice_ in sliced[1]:
        outer_tensors.append(_ATEN.slice.Tensor(outer_tensors[-1], *slice_))
    update = src.reshape(outer_tensors.pop().shape)
    for outer, slice_ in zip(reversed(outer_tensors), reversed(sliced[1]), strict=True):
        update = _ATEN.slice_scatter.default(outer, update, *slice_)
    return update.reshape(self.shape)


STRIDED_FORMS: dict[Any, Callable[..., Any]] = {
    _ATEN.as_strided.default: _as_strided,
    _ATEN.as_strided_scatter.default: _as_strided_scatter,
}
"""Op on strides → its form by slices or indices, for a retrace."""
