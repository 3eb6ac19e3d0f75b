"""A local tensor of a DTensor that records the positions of its elements in the global tensor.

DTensor represents only shards of `torch.chunk`. Other shards, such as cyclic shards, consist of several blocks of the
tensor. `torch.distributed.checkpoint` reads the blocks from the local tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from spmdir.core.errors import UnsupportedError
from spmdir.runtime.shard_blocks import ShardBlock
from spmdir.torch_interop import pytree
from spmdir.torch_interop.tensors import wrapper

COPIES = frozenset({
    "alias", "clone", "copy", "copy_", "detach", "empty_like", "equal", "fill_", "full_like", "is_same_size",
    "lift_fresh", "ones_like", "zero_", "zeros_like", "_to_copy", "_is_any_true",
})  # fmt: skip
"""Ops whose result has the elements of the operand at the same positions, or does not depend on their order."""

NORMS = frozenset({"linalg_vector_norm", "norm", "_foreach_norm"})
"""Reductions that DTensor completes over the ranks; correct if the ranks have every element exactly once."""


class BlockShard(Tensor):
    """A local shard with the blocks that it consists of; see `spmdir.runtime.shard_blocks`.

    Optimizers and other elementwise ops run on it, and their results have the same blocks. Ops that mix positions raise
    an UnsupportedError, because DTensor would treat the shard as one of `torch.chunk`.

    Attributes:
        shard: the plain tensor.
        blocks: the positions of its blocks in the global tensor and in the shard.
        is_partition: whether the ranks along the sharding axes have every element exactly once.
    """

    shard: Tensor
    blocks: tuple[ShardBlock, ...]
    is_partition: bool

    @staticmethod
    def __new__(cls, shard: Tensor, blocks: Sequence[ShardBlock], is_partition: bool) -> BlockShard:
        block_shard = wrapper(cls, shard)
        block_shard.shard, block_shard.blocks, block_shard.is_partition = shard.detach(), tuple(blocks), is_partition
        return block_shard

    def __repr__(self, **_: Any) -> str:
        return f"BlockShard({self.shard}, {len(self.blocks)} blocks)"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op on the plain shards, and wrap each result with the blocks of an operand of its shape.

        The result of an in-place op is the wrapped operand itself.

        Raises:
            UnsupportedError: the op mixes positions, or its operands have different blocks.
        """
        operands_of_results = _operands_of_results(args)
        _check_op(func, args, operands_of_results)
        wrapper_of_shard = {
            id(leaf.shard): leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, BlockShard)
        }
        args, kwargs = pytree.tree_map_only(BlockShard, lambda leaf: leaf.shard, (args, kwargs or {}))

        def wrap_result(result: Tensor, operands: Sequence[Tensor]) -> Tensor:
            """Return the result as a BlockShard with the blocks of the first operand of its shape, if there is one."""
            if id(result) in wrapper_of_shard:
                return wrapper_of_shard[id(result)]
            for operand in operands:
                if isinstance(operand, BlockShard) and operand.shape == result.shape:
                    return BlockShard(result, operand.blocks, operand.is_partition)
            return result

        returned = func(*args, **kwargs)
        if len(operands_of_results) > 1:  # a list op, which returns None if it works in place
            return returned and type(returned)(map(wrap_result, returned, operands_of_results))
        return pytree.tree_map_only(Tensor, lambda result: wrap_result(result, operands_of_results[0]), returned)

    def __create_write_items__(self, fqn: str, object: Any) -> list[WriteItem]:
        """Return one item for each block, for the planner of torch.distributed.checkpoint.

        Args:
            fqn: the name of the tensor.
            object: the DTensor, which has the global size.
        """
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
        return [ChunkStorageMetadata(torch.Size(block.offsets), torch.Size(block.sizes)) for block in self.blocks]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        block = next(block for block in self.blocks if index.offset is None or block.offsets == tuple(index.offset))
        return block.view_local(self.shard)


def _check_op(func: Any, args: Sequence[Any], operands_of_results: Sequence[Sequence[Tensor]]) -> None:
    """Raise UnsupportedError unless `func` on the shards returns the shards of its result on the whole tensors."""
    name = func.overloadpacket.__name__
    wrapped = [operand for operands in operands_of_results for operand in operands if isinstance(operand, BlockShard)]
    if name in NORMS:
        is_supported = all(operand.is_partition for operand in wrapped)
    elif name in ("view", "_unsafe_view"):
        is_supported = tuple(args[1]) == tuple(args[0].shape)
    else:
        is_supported = name in COPIES or torch.Tag.pointwise in func.tags or name.startswith(("_foreach_", "_fused_"))
    if not is_supported or name == "_foreach_max":  # this reduction has the prefix of the elementwise list ops
        raise UnsupportedError(
            f"cannot run {func} on a shard other than those of torch.chunk; expected an elementwise op: to "
            "gather whole values, use state_dict() of a Parallel or spmdir.checkpoint.save_safetensors, or "
            "shard the tensor by S(dim) with axes in mesh order"
        )
    for operands in operands_of_results:
        # A plain tensor has no blocks: it is a different sharding too.
        if len({getattr(operand, "blocks", None) for operand in operands if operand.dim()}) > 1:
            raise UnsupportedError(
                f"cannot run {func} on tensors with different shardings; expected one sharding of all that "
                "are not 0-d: give these tensors one sharding in the plan"
            )


def _operands_of_results(args: Sequence[Any]) -> list[tuple[Tensor, ...]]:
    """Return the tensor operands of each result of an op.

    `add(a, b)` has one result: [(a, b)]. The list op `_foreach_add([a, b], [c, d])` has two: [(a, c), (b, d)].
    """
    lists = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor)]
    args_of_results = zip(*lists, strict=True) if lists else [args]
    return [tuple(arg for arg in result_args if isinstance(arg, Tensor)) for result_args in args_of_results]
