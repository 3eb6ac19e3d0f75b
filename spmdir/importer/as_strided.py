"""Replace `as_strided` of a contiguous tensor by slices; autograd uses it for views that are written in place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_ATEN = torch.ops.aten

Slice = tuple[int, int, int, int]
"""A dimension, and start, end and step along it."""


def slices(
    self: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> tuple[tuple[int, ...], list[Slice]] | None:
    """Return (shape, slices) such that reshaping `self` to `shape` and slicing it gives the elements of `as_strided`.

    Return None if there are no such slices: elements repeat or are in another order, or sizes are symbolic.
    """
    numbers = (*self.shape, *self.stride(), *size, *stride, offset, self.storage_offset())
    if not all(type(number) is int for number in numbers) or not self.is_contiguous() or self.storage_offset():
        return None
    if 0 in size or not self.numel() or not 0 <= offset < self.numel():
        return None
    wanted = [(length, step) for length, step in zip(size, stride, strict=True) if length > 1]
    units = [self.numel(), *(step for _, step in wanted), 1]
    shapes = [tuple(self.shape)]
    if all(inner and outer % inner == 0 for outer, inner in itertools.pairwise(units)):
        shapes.append(tuple(outer // inner for outer, inner in itertools.pairwise(units)))
    found = ((shape, _slices(shape, wanted, offset)) for shape in shapes)
    return next(((shape, parts) for shape, parts in found if parts is not None), None)


def _slices(shape: tuple[int, ...], wanted: list[tuple[int, int]], offset: int) -> list[Slice] | None:
    """Return the slices of a contiguous `shape` for (length, stride) pairs `wanted` from `offset`; None without any."""
    left, found = list(wanted), []
    for dim, extent in enumerate(shape):
        unit = math.prod(shape[dim + 1 :])
        start, length, step = offset // unit % extent, 1, 1
        if left and left[0][1] >= unit and left[0][1] % unit == 0:
            count, jump = left[0][0], left[0][1] // unit
            if start + (count - 1) * jump < extent:
                length, step = count, jump
                left.pop(0)
        end = start + (length - 1) * step + 1
        if (start, end, step) != (0, extent, 1):
            found.append((dim, start, end, step))
    return None if left else found


def _is_line(self: Tensor, size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Return whether `self` is contiguous, and no number is symbolic."""
    known = all(type(number) is int for number in (*self.shape, *size, *stride))
    return known and self.is_contiguous() and not self.storage_offset()


def _places(self: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Return the position of each element of an `as_strided` in the flat contiguous tensor."""
    places = _ATEN.full.default([], offset, dtype=torch.int64, device=self.device)
    for length, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(length, device=self.device) * step
    return places


def _as_strided(self: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None) -> Any:
    sliced = slices(self, size, stride, storage_offset or 0)
    if sliced is None and _is_line(self, size, stride):
        return _ATEN.index.Tensor(self.reshape(-1), [_places(self, size, stride, storage_offset or 0)])
    if sliced is None:
        return NotImplemented
    part = self.reshape(sliced[0])
    for one in sliced[1]:
        part = _ATEN.slice.Tensor(part, *one)
    return part.reshape(tuple(size))


def _as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Any:
    sliced = slices(self, size, stride, storage_offset or 0)
    if sliced is None and _is_line(self, size, stride):
        places = _places(self, size, stride, storage_offset or 0)
        return _ATEN.index_put.default(self.reshape(-1), [places], src).reshape(self.shape)
    if sliced is None:
        return NotImplemented
    around = [self.reshape(sliced[0])]
    for one in sliced[1]:
        around.append(_ATEN.slice.Tensor(around[-1], *one))
    written = src.reshape(around.pop().shape)
    for whole, one in zip(reversed(around), reversed(sliced[1]), strict=True):
        written = _ATEN.slice_scatter.default(whole, written, *one)
    return written.reshape(self.shape)


SLICED: dict[Any, Callable[..., Any]] = {
    _ATEN.as_strided.default: _as_strided,
    _ATEN.as_strided_scatter.default: _as_strided_scatter,
}
"""Op → function that computes it with slices, for a trace."""
