"""The group of ranks that is passed to the lowering of an edge: collectives on torch tensors."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.core.dtype import DType
from spmdir.core.errors import SpmdirError
from spmdir.core.placement.reductions import REDUCTIONS, group_reduction
from spmdir.lowering.partition import DimPartition, pad_chunks, split_even, to_chunk_order
from spmdir.lowering.ranges import Indices, narrow
from spmdir.lowering.wire_types import check_reduced, view_as_sendable
from spmdir.torch_interop.dtypes import TORCH_DTYPES

functional = torch.ops._c10d_functional


@attrs.frozen(cache_hash=True)
class Group:
    """The ranks along the axes of an edge, with the collectives that its lowering may call.

    Collectives run at once, or are traced. A group of one rank sends nothing.

    Attributes:
        name: the name of the process group; unused if there is one rank.
        size: the number of ranks.
        index: the index of this rank, in mesh order.
        shape, element_type: the type of the local tensor on this rank after the edge.
        partition: the chunks of the dimension that the target of the edge shards; None if it shards no dimension.
    """

    name: str
    size: int
    index: int
    shape: tuple[int, ...]
    element_type: DType
    partition: DimPartition | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Return the torch element type of the local tensor on this rank after the edge."""
        return TORCH_DTYPES[self.element_type]

    def all_gather(self, x: Tensor) -> Tensor:
        """Return the tensors of all ranks, in rank order: [*shape] → [size, *shape]."""
        x = x.unsqueeze(0)
        return x if self.size == 1 else self._move(functional.all_gather_into_tensor.default, x, self.size)

    def all_reduce(self, x: Tensor, op: str = "sum") -> Tensor:
        """Return the reduction over all ranks by `op`, a key of `spmdir.core.placement.reductions.REDUCTIONS`.

        Raises:
            SpmdirError: process groups cannot reduce the element type by `op`.
        """
        return self._reduce(functional.all_reduce.default, x, op)

    def reduce_scatter(self, x: Tensor, op: str = "sum") -> Tensor:
        """Return the reduction over all ranks of slice `index` of dimension 0: [size, *shape] → [*shape].

        Raises:
            SpmdirError: dimension 0 has another size, or process groups cannot reduce the element type by `op`.
        """
        self._check_slices("reduce_scatter", x)
        return self._reduce(functional.reduce_scatter_tensor.default, x, op, self.size).squeeze(0)

    def all_to_all(self, x: Tensor) -> Tensor:
        """Send slice i of `x` to rank i, and return the slices from all ranks: [size, *shape] → [size, *shape].

        Raises:
            SpmdirError: dimension 0 does not have one slice per rank.
        """
        self._check_slices("all_to_all", x)
        ones = [1] * self.size
        return x if self.size == 1 else self._move(functional.all_to_all_single.default, x, ones, ones)

    def broadcast(self, x: Tensor, source: int = 0) -> Tensor:
        """Return the tensor of rank `source`. On other ranks, `x` defines shape and element type."""
        return x if self.size == 1 else self._move(functional.broadcast.default, x, source)

    def rotate(self, x: Tensor, steps: int = 1) -> Tensor:
        """Send `x` to rank `index + steps`, and return the tensor of rank `index - steps`, modulo `size`."""
        if steps % self.size == 0:
            return x
        target, source = ((self.index + by) % self.size for by in (steps, -steps))
        sends, receives = ([int(rank == peer) for rank in range(self.size)] for peer in (target, source))
        return self._move(functional.all_to_all_single.default, x.unsqueeze(0), receives, sends).squeeze(0)

    def split(self, x: Tensor) -> Tensor:
        """Return the chunks of `x` under the target of the edge, in rank order, padded with zeros: [size, *block].

        Raises:
            SpmdirError: the target shards no dimension.
        """
        partition = self._partition("split")
        block = (*x.shape[: partition.dim], partition.step, *x.shape[partition.dim + 1 :])
        padded = pad_chunks(_call, to_chunk_order(_call, x, partition), partition, x.dim())  # type: ignore[arg-type]
        return split_even(_call, padded, partition, block).reshape(self.size, *block)  # type: ignore[attr-defined]

    def keep(self, x: Tensor) -> Tensor:
        """Return `x`, one block of `split`, without the padding of this rank's chunk.

        Raises:
            SpmdirError: the target shards no dimension.
        """
        partition = self._partition("keep")
        length = partition.chunks[partition.by_rank[self.index]][1]  # of this rank's chunk
        return narrow(_call, x, partition.dim, 0, length, partition.step)  # type: ignore[return-value, arg-type]

    def _partition(self, method: str) -> DimPartition:
        """Return the partition; raise SpmdirError with the name of `method` if the target shards no dimension."""
        if self.partition is None:
            raise SpmdirError(
                f"group.{method} uses the sharding of the target, but the target shards no dimension; "
                "expected a target such as S(0)"
            )
        return self.partition

    def _check_slices(self, method: str, x: Tensor) -> None:
        """Raise SpmdirError unless dimension 0 of `x` has one slice per rank."""
        if not x.dim() or x.shape[0] != self.size:
            raise SpmdirError(
                f"group.{method} found the shape {[*x.shape]}; expected [{self.size}, …], one slice per rank"
            )

    def _reduce(self, collective: Any, x: Tensor, op: str, *arguments: Any) -> Tensor:
        """Run a collective that reduces by `op`; return `x` for one rank. Process groups reduce booleans as bytes.

        Raises:
            SpmdirError: process groups cannot reduce the element type by `op`.
        """
        if self.size == 1:
            return x
        check_reduced(op, x.dtype)
        if x.dtype != torch.bool:
            return self._run(collective, x, op, *arguments)
        name = group_reduction(op, True)
        if name is None:
            names = [name for name, reduction in REDUCTIONS.items() if reduction.of_bool]
            raise SpmdirError(f"cannot reduce booleans by {op}; expected one of {', '.join(names)}")
        return self._run(collective, x.view(torch.uint8), name, *arguments).view(torch.bool)

    def _move(self, collective: Any, x: Tensor, *arguments: Any) -> Tensor:
        """Run a collective that only moves elements, as a view of a type that all backends can send."""
        sent, unpack = view_as_sendable(_call, x, x.dtype)  # type: ignore[arg-type]
        return unpack(self._run(collective, sent, *arguments))  # type: ignore[arg-type, return-value]

    def _run(self, collective: Any, x: Tensor, *arguments: Any) -> Tensor:
        """Run a functional collective on this group, and wait for its result."""
        return functional.wait_tensor.default(collective(x.contiguous(), *arguments, self.name))


def _call(op: Any, *arguments: Any) -> Any:
    """Call a torch op at once: the `Emit` of code that runs on tensors instead of building a graph."""
    return op(*(argument.tensor() if isinstance(argument, Indices) else argument for argument in arguments))
