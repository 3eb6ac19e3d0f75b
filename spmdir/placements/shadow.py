"""`Shadow(bf16)`: each rank has the complete value in a lower precision.

It gathers sharded f32 weights in 16 bits, as mixed-precision FSDP does. Each rank converts its shard from `S(d)` and
sends it. The gathered value stays in the lower precision until an op needs it in f32. `Shadow(f8E4M3FN)` sends one byte
for each element. The placement is lossy, so the search never chooses it: the user must annotate it.

Finite numbers are clamped to the largest number of the type, and numbers below its smallest one become 0. bf16 has the
range of f32, so its error is bounded if the largest element is a normal f32 number. The other types have a smaller
range, so their error depends on the values and has no bound.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import BF16, F8E4M3FN, F8E5M2, F16, F32, F64, DType, as_dtype
from spmdir.core.placement.base import Edge, LocalType, Noise, Placement
from spmdir.core.placement.error_bound import UNKNOWN, ErrorBound
from spmdir.core.placement.packing import convert_tensor

ERRORS = {BF16: ErrorBound(2.0**-8), F16: UNKNOWN, F8E4M3FN: UNKNOWN, F8E5M2: UNKNOWN}
"""Element type of a shadow → its error bound: half a unit in the last place if the type has the range of f32."""

DIMS = 8
"""The number of dimensions d for which there is a gather from `S(d)` in the lower precision."""


def _check_element_type(_: object, __: object, name: str) -> None:
    """Raise ValueError for an element type without an entry in `ERRORS`; a validator of attrs."""
    if as_dtype(name) not in ERRORS:
        raise ValueError(f"'{name}' is not a type of shadows; expected one of {', '.join(map(str, ERRORS))}")


@attrs.frozen
class Shadow(Placement):
    """Each rank has the value in element type `held`."""

    text: ClassVar[str] = "Shadow({held})"
    examples: ClassVar[tuple[str, ...]] = ("Shadow(bf16)",)
    rounds: ClassVar[bool] = True
    held: str = attrs.field(validator=_check_element_type)

    @property
    def error(self) -> ErrorBound:  # type: ignore[override]
        return ERRORS[as_dtype(self.held)]

    def supports(self, dtype: DType) -> bool:
        return dtype in (F64, F32)

    def keeps(self, dim: int | None) -> bool:
        return dim is not None

    def local_type(self, shape: tuple[int, ...], dtype: DType, count: int, index: int) -> LocalType:
        return shape, as_dtype(self.held)

    def distribute(self, tensor: Any, count: int, noise: Noise) -> list[Any]:
        return [self._to_held_type(tensor) for _ in range(count)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        return shards[0]

    def edges(self) -> Iterable[Edge]:
        """Yield the gathers from `S(0)` to `S(7)`, and the conversions from and to R, which send nothing."""
        itemsize = as_dtype(self.held).itemsize
        for dim in range(DIMS):
            gather = functools.partial(self._gather, dim)
            yield Edge(gather, source=f"S({dim})", by="all_gather", itemsize=itemsize)
        yield Edge(lambda x, group: self._to_held_type(x), source="R")
        yield Edge(lambda x, group: x.to(group.dtype), target="R")

    def _gather(self, dim: int, x: Any, group: Any) -> Any:
        """Gather the shards `x` of dimension `dim` in the lower precision."""
        step = -(-group.shape[dim] // group.size)
        padded = x.new_zeros((*x.shape[:dim], step, *x.shape[dim + 1 :]))
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        together = group.all_gather(self._to_held_type(padded)).movedim(0, dim).flatten(dim, dim + 1)
        return together.narrow(dim, 0, group.shape[dim])

    def _to_held_type(self, x: Any) -> Any:
        """Return `x` in the lower precision, with finite numbers clamped to its range."""
        import torch

        held_type = as_dtype(self.held)
        largest = torch.finfo(convert_tensor(x.new_empty(0), held_type).dtype).max
        return convert_tensor(x.clamp(-largest, largest).where(x.isfinite(), x), held_type)
