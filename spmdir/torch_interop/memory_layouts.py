"""Which elements of its memory a tensor has, as integers: what may be asked of a fake tensor."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.torch_interop.symbolic_numbers import is_open, plain
from spmdir.torch_interop.tensors import storage_key

_ENUMERATED = 1 << 24
"""Elements up to which layouts are compared one by one; beyond, intervals that meet count as common elements."""


@attrs.frozen(slots=False)
class Layout:
    """The layout of a strided tensor.

    Attributes:
        storage: what tells its memory from others; ids of live memory differ.
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
        return self.is_lazy == other.is_lazy and _numbers(self) == _numbers(other)

    __hash__ = None  # type: ignore  # symbolic sizes have none

    def has_size_of(self, other: Layout) -> bool:
        """Return whether both have one shape."""
        return [*map(plain, self.size)] == [*map(plain, other.size)]

    @property
    def is_open(self) -> bool:
        """Return whether sizes or strides are symbolic."""
        return any(map(is_open, (*self.size, *self.stride, self.offset)))

    @property
    def count(self) -> int:
        """Return how many elements it has; sizes are known."""
        return math.prod(self.size)

    @property
    def last(self) -> int:
        """Return the place of the last element in memory."""
        return self.offset + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))

    @cached_property
    def places(self) -> Tensor:
        """Return the place in memory of each element, flat, in order."""
        found = torch.full((), self.offset)
        for n, step in zip(self.size, self.stride, strict=True):
            found = found.unsqueeze(-1) + torch.arange(n) * step
        return found.flatten()

    def order(self) -> list[int] | None:
        """Return the dimensions from the outermost in memory to the innermost.

        None if there are gaps or common elements.
        """
        order = sorted(range(len(self.size)), key=lambda d: (-self.stride[d], self.size[d] == 1))
        expected = 1
        for dim in reversed(order):
            if self.size[dim] != 1:
                if self.stride[dim] != expected:
                    return None
                expected *= self.size[dim]
        return order

    @property
    def is_line(self) -> bool:
        """Return whether the elements lie in memory in their order, from its start."""
        return not self.is_open and not self.offset and self.order() == list(range(len(self.size)))

    def repeats(self) -> bool:
        """Return whether two positions may be one element of memory."""
        if self.is_open:
            return any(plain(step) == 0 and plain(n) != 1 for n, step in zip(self.size, self.stride, strict=True))
        if not self.count:
            return False
        reach = 0
        for step, n in sorted((step, n) for n, step in zip(self.size, self.stride, strict=True) if n > 1):
            if step <= reach:
                return self.count > _ENUMERATED or len(self.places.unique()) < self.count
            reach += (n - 1) * step
        return False

    def meets(self, other: Layout) -> bool:
        """Return whether some element of memory may be in both; they have one memory."""
        if self.is_open or other.is_open or self.dtype != other.dtype or self == other:
            return True
        if not self.count or not other.count or self.last < other.offset or other.last < self.offset:
            return False
        if self.count + other.count > _ENUMERATED:
            return True
        return bool(torch.isin(self.places, other.places).any())


def _numbers(layout: Layout) -> list[Any]:
    return [*map(plain, layout.size), *map(plain, layout.stride), plain(layout.offset)]


def layout_of(value: object) -> Layout | None:
    """Return the layout of a tensor; None for what has no strides."""
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
