"""`Shadow(bf16)`: every rank holds the complete value in a lower precision.

Weights that are kept in f32 and sharded are gathered in 16 bits, as mixed-precision FSDP does: from `S(d)` a rank's
shard is converted, sent, and stays converted until something needs the value itself. A value that was written as a
shadow is one: it is lossy, so it occurs only where it is asked for, and `Shadow(f8E4M3FN)` sends one byte an
element.

Finite numbers beyond the largest of the type become that one, and numbers below its smallest become 0. bf16 has the
range of f32, so its error is bounded wherever the largest element is a normal f32 number; the other types have a
smaller range, so that no bound is known before the values are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs

from spmdir.core.dtype import BF16, F8E4M3FN, F8E5M2, F16, F32, F64, DType, as_dtype
from spmdir.core.placement.base import Edge, LocalType, Noise, Placement
from spmdir.core.placement.error import UNKNOWN, ErrorBound
from spmdir.core.placement.packing import convert_tensor

ERRORS = {BF16: ErrorBound(2.0**-8), F16: UNKNOWN, F8E4M3FN: UNKNOWN, F8E5M2: UNKNOWN}
"""Element type of a shadow → its error: half a unit in the last place, where the type has the range of f32."""

DIMS = 8
"""From shards of so many dimensions there is a step that sends what ranks hold afterwards."""


def _is_shadow(_: object, __: object, name: str) -> None:
    if as_dtype(name) not in ERRORS:
        raise ValueError(f"'{name}' is not the element type of a shadow; expected one of {', '.join(map(str, ERRORS))}")


@attrs.frozen
class Shadow(Placement):
    """Every rank has the value in element type `held`."""

    text: ClassVar[str] = "Shadow({held})"
    examples: ClassVar[tuple[str, ...]] = ("Shadow(bf16)",)
    rounds: ClassVar[bool] = True
    held: str = attrs.field(validator=_is_shadow)

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
        return [self._lowered(tensor) for _ in range(count)]

    def collect(self, shards: Sequence[Any], shape: tuple[int, ...]) -> Any:
        return shards[0]

    def edges(self) -> Iterable[Edge]:
        itemsize = as_dtype(self.held).itemsize
        for dim in range(DIMS):
            gather = functools.partial(self._gather, dim)
            yield Edge(gather, source=f"S({dim})", by="all_gather", itemsize=itemsize)
        yield Edge(lambda x, group: self._lowered(x), source="R")
        yield Edge(lambda x, group: x.to(group.dtype), target="R")

    def _gather(self, dim: int, x: Any, group: Any) -> Any:
        """Return the value of which `x` is this rank's shard of `dim`, in the lower precision."""
        step = -(-group.shape[dim] // group.size)
        padded = x.new_zeros((*x.shape[:dim], step, *x.shape[dim + 1 :]))
        padded.narrow(dim, 0, x.shape[dim]).copy_(x)
        together = group.all_gather(self._lowered(padded)).movedim(0, dim).flatten(dim, dim + 1)
        return together.narrow(dim, 0, group.shape[dim])

    def _lowered(self, x: Any) -> Any:
        import torch

        held = as_dtype(self.held)
        largest = torch.finfo(convert_tensor(x.new_empty(0), held).dtype).max
        return convert_tensor(x.clamp(-largest, largest).where(x.isfinite(), x), held)
