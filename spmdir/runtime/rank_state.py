"""The tensors that a rank keeps between calls of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor, nn
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.ir import main_function
from spmdir.dialects.values import sharding_of, signature_kind, signature_name
from spmdir.runtime.local_state import LocalShard, as_dtensor, copy_shard
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument
from spmdir.runtime.training import TrainingStep
from spmdir.simulator.simulate import initial_states


@attrs.frozen(eq=False)
class EdgeStateShard:
    """The shard of an edge state on this rank.

    Attributes:
        tensor: the shard.
        sharding: the sharding of the edge state.
        shape: its global shape.
    """

    tensor: Tensor
    sharding: Sharding
    shape: tuple[int, ...]


@attrs.frozen(eq=False, kw_only=True)
class RankState:
    """The tensors that this rank keeps between calls. Calls and loads write into them.

    Attributes:
        shards: name → local shard of a parameter, buffer or entry of the state.
        edge_states: name → edge state.
        unset: the names in `shards` of tensors that have no values yet.
        rates: name in `shards` → learning rate of the optimizer in the last call.
    """

    shards: Mapping[str, Tensor]
    edge_states: Mapping[str, EdgeStateShard]
    unset: set[str]
    rates: dict[str, float]

    def check_values(self) -> None:
        """Raise SpmdirError if a tensor has no values yet."""
        if self.unset:
            raise SpmdirError(
                f"'{min(self.unset)}' has no values, because it was on the meta device; expected a tensor "
                "with values: initialise it with materialize, load_safetensors or checkpoint.load"
            )

    def share_rates(self, step: TrainingStep) -> None:
        """Make the learning rates of the optimizer and of the state equal.

        A rate that the optimizer has changed since the last call, as a scheduler does, is copied into the state.
        Otherwise the rate in the state, which a checkpoint may have loaded, is given to the optimizer.
        """
        for name, rate in step.rates().items():
            if rate != self.rates[name]:
                self.shards[name].fill_(rate)
            else:
                step.set_rate(name, self.shards[name].item())
            self.rates[name] = self.shards[name].item()

    def as_dtensors(self, arguments: Sequence[Argument], ranks: Ranks) -> dict[str, Tensor | LocalShard]:
        """Return name → DTensor, in the same memory, of the state `arguments` and the edge states."""
        shards = {
            argument.name: (self.shards[argument.name], argument.sharding, argument.meta.shape)
            for argument in arguments
        }
        for name, edge_state in self.edge_states.items():
            shards[name] = edge_state.tensor, edge_state.sharding, edge_state.shape
        return {
            name: as_dtensor(name, shard, sharding, global_shape, ranks.mesh, ranks.device_mesh)
            for name, (shard, sharding, global_shape) in shards.items()
        }


def allocate_meta(shards: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the shards; those on the meta device are replaced by uninitialised ones on `device`."""
    return {name: _allocate(shard, device) if shard.is_meta else shard for name, shard in shards.items()}


def _allocate(shard: Tensor, device: torch.device) -> Tensor:
    """Return an uninitialised tensor like `shard` on `device`; a parameter for a parameter."""
    allocated = torch.empty_like(shard, device=device)
    return nn.Parameter(allocated, shard.requires_grad) if isinstance(shard, nn.Parameter) else allocated


def initial_edge_states(program: ModuleOp, mesh: Mesh, rank: int, device: torch.device) -> dict[str, EdgeStateShard]:
    """Return name → initial edge state of `rank`, for the edges of a program with collectives."""
    function = main_function(program)
    initial_tensors, edge_states = initial_states(function, mesh), {}
    for value in function.args:
        name = signature_name(function, "arg_attrs", value.index)
        if name in initial_tensors and signature_kind(function, "arg_attrs", value.index) == "state":
            sharding, global_tensor = sharding_of(value) or Sharding((), mesh.name), initial_tensors[name]
            edge_states[name] = EdgeStateShard(
                copy_shard(global_tensor, sharding, mesh, rank, device), sharding, tuple(global_tensor.shape)
            )
    return edge_states
