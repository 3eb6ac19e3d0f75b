"""The initial state of a program on a rank: compare it between ranks or copy it from the first one, and shard it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.core.mesh import Mesh
from spmdir.runtime.digests import tensor_digest
from spmdir.runtime.local_state import copy_shard
from spmdir.runtime.rank_calls import broadcast_first
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.set_up import SetUp
from spmdir.runtime.signature import Argument
from spmdir.simulator.distribution import local_tensor


@attrs.frozen(eq=False)
class InitialState:
    """The initial state of a program on this rank.

    Attributes:
        arguments: the arguments of the program that ranks keep between calls.
        originals: name → whole tensor.
        mesh, rank: the mesh over which the tensors are sharded, and the index of this rank in it.
        shards: name → shard of this rank; on the meta device if the whole tensor is.
        buffer: memory for one whole tensor; None if the state is not copied from the first rank.
    """

    arguments: Sequence[Argument]
    originals: Mapping[str, Tensor]
    mesh: Mesh
    rank: int
    shards: dict[str, Tensor]
    buffer: Tensor | None

    def copy_from_first_rank(self, ranks: Ranks) -> None:
        """Overwrite the shards with those of the first rank's values if there is a buffer; all ranks must call this."""
        if self.buffer is None:
            return
        for argument in self.arguments:
            original = self.originals[argument.name]
            if not original.is_meta:
                values = values_of_first_rank(argument.name, original, self.buffer, ranks)
                if argument.name in self.shards:
                    shard = local_tensor(values, argument.sharding, self.mesh, self.rank)
                    self.shards[argument.name].detach().copy_(shard)


def initial_state(
    arguments: Sequence[Argument],
    originals: Mapping[str, Tensor],
    setup: SetUp,
    status: dict[str, Any],
    kept: Collection[str] | None = None,
) -> InitialState:
    """Return the initial state on this rank, and add the fields that ranks compare to `status`.

    These are the names of tensors on the meta device, and the digests of all others unless `setup.sync_state` is set.

    Args:
        arguments: the arguments of the program that ranks keep between calls.
        originals: name → whole tensor, for each of `arguments`.
        kept: the names of the tensors that this rank keeps; all of them if None.

    Raises:
        MemoryError, RuntimeError: out of memory. All memory is allocated here.
    """
    status["meta"] = [name for name, tensor in originals.items() if tensor.is_meta]
    if not setup.sync_state:
        status["state"] = {name: tensor_digest(tensor) for name, tensor in originals.items() if not tensor.is_meta}
    shards = {
        argument.name: copy_shard(originals[argument.name], argument.sharding, setup.mesh, setup.rank, setup.device)
        for argument in arguments
        if kept is None or argument.name in kept
    }
    largest = max((tensor.nbytes for tensor in originals.values() if not tensor.is_meta), default=0)
    buffer = torch.empty(largest, dtype=torch.uint8, device=setup.device) if setup.sync_state else None
    return InitialState(arguments, originals, setup.mesh, setup.rank, shards, buffer)


def values_of_first_rank(name: str, tensor: Tensor, buffer: Tensor, ranks: Ranks) -> Tensor:
    """Return the first rank's values of `tensor`, in the memory of `buffer`, without an allocation that could fail."""
    values = buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    if ranks.index == 0:
        values.copy_(tensor.detach())
    if tensor.nbytes:
        broadcast_first(buffer[: tensor.nbytes], f"'{name}' from the first rank", ranks)
    return values
