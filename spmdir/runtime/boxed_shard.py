"""A shard that is not a single block of its tensor, as the local tensor of a DTensor.

DTensor represents only shards of `torch.chunk`. For other shards, the local tensor records the positions, and
`torch.distributed.checkpoint` reads them from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.boxes import Box
from spmdir.torch_interop import pytree
from spmdir.torch_interop.tensors import wrapper

COPIES = frozenset({
    "alias", "clone", "copy", "copy_", "detach", "empty_like", "equal", "fill_", "full_like", "is_same_size",
    "lift_fresh", "ones_like", "zero_", "zeros_like", "_to_copy", "_is_any_true",
})  # fmt: skip
"""Ops whose result has the elements of the operand at the same positions, or does not depend on positions."""

NORMS = frozenset({"linalg_vector_norm", "norm", "_foreach_norm"})
"""Reductions that DTensor completes over the ranks; correct if the ranks have every element exactly once."""


class BoxedShard(Tensor):
    """A local shard with the boxes that it consists of; see `spmdir.runtime.boxes`.

    Optimizers and other elementwise ops run on it, and their results have the same boxes. Ops that mix positions raise
    an UnsupportedError, because DTensor would treat the shard as one of `torch.chunk`.

    Attributes:
        shard: the plain tensor.
        boxes: the positions of its parts in the global tensor.
        is_partition: whether the ranks along the sharding axes have every element exactly once.
    """

    shard: Tensor
    boxes: tuple[Box, ...]
    is_partition: bool

    @staticmethod
    def __new__(cls, shard: Tensor, boxes: Sequence[Box], is_partition: bool) -> BoxedShard:
        boxed = wrapper(cls, shard)
        boxed.shard, boxed.boxes, boxed.is_partition = shard.detach(), tuple(boxes), is_partition
        return boxed

    def __repr__(self, **_: Any) -> str:
        return f"BoxedShard({self.shard}, {len(self.boxes)} boxes)"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        rows = _rows(args)
        _check_op(func, args, rows)
        # An in-place op returns its operands; other results have the boxes of their operands.
        boxed_of_shard = {
            id(leaf.shard): leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, BoxedShard)
        }
        args, kwargs = pytree.tree_map_only(BoxedShard, lambda leaf: leaf.shard, (args, kwargs or {}))

        def wrap_result(result: Tensor, operands_of_result: Sequence[Tensor]) -> Tensor:
            if id(result) in boxed_of_shard:
                return boxed_of_shard[id(result)]
            operand = next(
                (t for t in operands_of_result if isinstance(t, BoxedShard) and t.shape == result.shape), None
            )
            return result if operand is None else BoxedShard(result, operand.boxes, operand.is_partition)

        returned = func(*args, **kwargs)
        if len(rows) > 1:
            return returned and type(returned)(map(wrap_result, returned, rows))
        return pytree.tree_map_only(Tensor, lambda result: wrap_result(result, rows[0]), returned)

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.shard)
        return [
            WriteItem(
                MetadataIndex(fqn, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=object.size()),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box in self.boxes]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        box = next(box for box in self.boxes if index.offset is None or box.offsets == tuple(index.offset))
        return box.of_local(self.shard)


def _check_op(func: Any, args: Sequence[Any], rows: Sequence[Sequence[Tensor]]) -> None:
    """Raise UnsupportedError unless `func` on the shards returns the shards of its result on the whole tensors."""
    name = func.overloadpacket.__name__
    boxed = [operand for row in rows for operand in row if isinstance(operand, BoxedShard)]
    if name in NORMS:
        is_supported = all(operand.is_partition for operand in boxed)
    elif name in ("view", "_unsafe_view"):
        is_supported = tuple(args[1]) == tuple(args[0].shape)
    else:
        is_supported = name in COPIES or torch.Tag.pointwise in func.tags or name.startswith(("_foreach_", "_fused_"))
    if not is_supported or name == "_foreach_max":
        raise UnsupportedError(
            f"cannot run {func} on a shard other than those of torch.chunk; expected an elementwise op; to "
            "gather whole values, use state_dict() of a Parallel or spmdir.checkpoint.save_safetensors; or shard the "
            "tensor by S(dim) with axes in mesh order"
        )
    if any(len({getattr(operand, "boxes", None) for operand in row if operand.dim()}) > 1 for row in rows):
        raise UnsupportedError(
            f"cannot run {func} on tensors with different shardings; expected one sharding of all that are not 0-d"
        )


def _rows(args: Sequence[Any]) -> list[tuple[Tensor, ...]]:
    """Return the operands of each result: all operands, or of a list op the n-th of each list."""
    lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor)]
    columns = zip(*lists, strict=True) if lists else [args]
    return [tuple(arg for arg in column if isinstance(arg, Tensor)) for column in columns]
