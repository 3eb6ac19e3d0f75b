"""What a rank keeps from one call of a program to the next."""

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
    """What this rank keeps for a step from one call to the next, of a tensor of global `shape`."""

    tensor: Tensor
    sharding: Sharding
    shape: tuple[int, ...]


@attrs.frozen(eq=False, kw_only=True)
class RankState:
    """What this rank keeps between calls. Calls and loads write into the tensors.

    Attributes:
        held: name → shard of what the program holds.
        kept: name → what it keeps for its steps.
        unset: the names in `held` of what has no values yet.
        rates: name in `held` → the learning rate that the optimizer had in the last call.
    """

    shards: Mapping[str, Tensor]
    edge_states: Mapping[str, EdgeStateShard]
    unset: set[str]
    rates: dict[str, float]

    def check_values(self) -> None:
        """Raise SpmdirError if something has no values yet."""
        if self.unset:
            raise SpmdirError(
                f"'{min(self.unset)}' has no values, for it was on the meta device; give it some by materialize, "
                "load_safetensors or checkpoint.load"
            )

    def share_rates(self, step: TrainingStep) -> None:
        """Take the learning rates that the optimizer has got since the last call, or give it those that were loaded."""
        for name, rate in step.rates().items():
            if rate != self.rates[name]:
                self.shards[name].fill_(rate)
            else:
                step.set_rate(name, self.shards[name].item())
            self.rates[name] = self.shards[name].item()

    def as_dtensors(self, arguments: Sequence[Argument], ranks: Ranks) -> dict[str, Tensor | LocalShard]:
        """Return name → DTensor in the memory of this rank, of what it holds as `arguments` and of what it keeps."""
        parts = [(a.name, self.shards[a.name], a.sharding, a.meta.shape) for a in arguments]
        parts += [
            (name, edge_state.tensor, edge_state.sharding, edge_state.shape)
            for name, edge_state in self.edge_states.items()
        ]
        return {
            name: as_dtensor(name, tensor, sharding, shape, ranks.mesh, ranks.device_mesh)
            for name, tensor, sharding, shape in parts
        }


def allocate_meta(shards: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Return the shards, with room on `device` for the values of those that are on the meta device."""
    return {name: _allocate(shard, device) if shard.is_meta else shard for name, shard in shards.items()}


def _allocate(shard: Tensor, device: torch.device) -> Tensor:
    allocated = torch.empty_like(shard, device=device)
    return nn.Parameter(allocated, shard.requires_grad) if isinstance(shard, nn.Parameter) else allocated


def initial_edge_states(program: ModuleOp, mesh: Mesh, rank: int, device: torch.device) -> dict[str, EdgeStateShard]:
    """Return name → what `rank` begins with, of what a program with collectives keeps for its steps."""
    function = main_function(program)
    initial, edge_states = initial_states(function, mesh), {}
    for value in function.args:
        name = signature_name(function, "arg_attrs", value.index)
        if name in initial and signature_kind(function, "arg_attrs", value.index) == "state":
            sharding, whole = sharding_of(value) or Sharding((), mesh.name), initial[name]
            edge_states[name] = EdgeStateShard(
                copy_shard(whole, sharding, mesh, rank, device), sharding, tuple(whole.shape)
            )
    return edge_states
