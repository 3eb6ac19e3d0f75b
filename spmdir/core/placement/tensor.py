"""Shape and element type of a tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from spmdir.core.dtype import DType, as_dtype
from spmdir.core.symbolic.expressions import Size, evaluate, is_symbolic


@attrs.frozen(cache_hash=True)
class TensorMeta:
    """Shape and element type of a tensor value.

    Attributes:
        shape: sizes; global until localize.
        dtype: element type; may be given by its name.
    """

    shape: tuple[int, ...]
    dtype: DType = attrs.field(converter=as_dtype)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def __repr__(self) -> str:
        return f"TensorMeta({self.shape}, '{self.dtype.name}')"

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype.name])


@attrs.frozen(cache_hash=True)
class SizedMeta(TensorMeta):
    """A tensor whose sizes are not all known; `shape` has an example for each.

    Attributes:
        sizes: the sizes; numbers where they are known.
    """

    sizes: tuple[int | Size, ...]


def sized_meta(sizes: tuple[int | Size, ...], hints: Mapping[str, int], dtype: DType | str) -> TensorMeta:
    """Return a tensor of `sizes`, with the examples that `hints` give for the symbols."""
    if not any(map(is_symbolic, sizes)):
        return TensorMeta(sizes, dtype)  # type: ignore[arg-type]
    return SizedMeta(tuple(evaluate(size, hints) for size in sizes), dtype, sizes)
