"""Describe the elements of memory that a strided tensor has, in a form that fake tensors support."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.torch_interop.symbolic_numbers import comparable_number, is_open
from spmdir.torch_interop.tensors import storage_key

_MAX_ENUMERATED = 1 << 24
"""Layouts with up to this many elements are compared element by element, larger ones by their memory intervals."""


@attrs.frozen(slots=False)
class Layout:
    """The layout of a strided tensor.

    Attributes:
        storage: the id of its memory, unique among live memory.
        size, stride, offset: in elements; may be symbolic.
        dtype: element type.
        is_lazy: whether elements are conjugated or negated when they are read.
    """

    storage: int
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    is_lazy: bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout) or (self.storage, self.dtype) != (other.storage, other.dtype):
            return False
        return self.is_lazy == other.is_lazy and _comparable_numbers(self) == _comparable_numbers(other)

    __hash__ = None  # type: ignore  # symbolic sizes have none

    def has_same_shape(self, other: Layout) -> bool:
        """Return whether both layouts have the same shape."""
        return [*map(comparable_number, self.size)] == [*map(comparable_number, other.size)]

    @property
    def is_open(self) -> bool:
        """Return whether sizes or strides are symbolic."""
        return any(map(is_open, (*self.size, *self.stride, self.offset)))

    @property
    def element_count(self) -> int:
        """Return the number of elements. Sizes must not be symbolic."""
        return math.prod(self.size)

    @property
    def last_position(self) -> int:
        """Return the position of the last element in memory."""
        return self.offset + sum((size - 1) * step for size, step in zip(self.size, self.stride, strict=True))

    @cached_property
    def positions(self) -> Tensor:
        """Return the position in memory of each element, flat, in order."""
        positions = torch.full((), self.offset)
        for size, step in zip(self.size, self.stride, strict=True):
            positions = positions.unsqueeze(-1) + torch.arange(size) * step
        return positions.flatten()

    def dims_outermost_first(self) -> list[int] | None:
        """Return the dimensions from the outermost in memory to the innermost.

        Returns None if there are gaps or repeated elements.
        """
        # Dimensions of size 1 may have any stride. Of equal strides, they come last.
        order = sorted(range(len(self.size)), key=lambda dim: (-self.stride[dim], self.size[dim] == 1))
        expected = 1
        for dim in reversed(order):
            if self.size[dim] != 1:
                if self.stride[dim] != expected:
                    return None
                expected *= self.size[dim]
        return order

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements fill memory from its start, in order."""
        return not self.is_open and not self.offset and self.dims_outermost_first() == list(range(len(self.size)))

    def has_repeated_elements(self) -> bool:
        """Return whether two different indices of the tensor may refer to the same element of memory.

        This depends on its sizes and strides only. For example, an expanded dimension has stride 0.
        """
        if self.is_open:
            for size, step in zip(self.size, self.stride, strict=True):
                if comparable_number(step) == 0 and comparable_number(size) != 1:
                    return True
            return False
        if not self.element_count:
            return False
        # Without a repetition, the stride of a dimension usually exceeds all positions of the inner dimensions.
        last_reached = 0
        for step, size in sorted(zip(self.stride, self.size, strict=True)):
            if size == 1:
                continue
            if step <= last_reached:
                return self.element_count > _MAX_ENUMERATED or len(self.positions.unique()) < self.element_count
            last_reached += (size - 1) * step
        return False

    def overlaps(self, other: Layout) -> bool:
        """Return whether two layouts of the same memory may have common elements."""
        if self.is_open or other.is_open or self.dtype != other.dtype or self == other:
            return True
        if not self.element_count or not other.element_count:
            return False
        if self.last_position < other.offset or other.last_position < self.offset:
            return False
        if self.element_count + other.element_count > _MAX_ENUMERATED:
            return True
        return bool(torch.isin(self.positions, other.positions).any())


def _comparable_numbers(layout: Layout) -> list[Any]:
    """Return the sizes, strides and offset of a layout, with sympy expressions for symbolic ones."""
    return [
        *map(comparable_number, layout.size),
        *map(comparable_number, layout.stride),
        comparable_number(layout.offset),
    ]


def layout_of(value: object) -> Layout | None:
    """Return the layout of a strided tensor; None for other values."""
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
        return None
    return Layout(
        storage_key(value.untyped_storage()),
        tuple(value.shape),
        tuple(value.stride()),
        value.storage_offset(),
        value.dtype,
        value.is_conj() or value.is_neg(),
    )
