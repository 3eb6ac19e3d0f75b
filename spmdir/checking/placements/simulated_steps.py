"""Programs of one step, run on simulated ranks: what comes out, and what was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import fx

from spmdir.checking.placements.law import Example
from spmdir.core.dtype import F64
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.dialects.ir import parse
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.process_groups import symbolic_axes
from spmdir.passes.pipeline import run_passes
from spmdir.simulator.distribution import distribute
from spmdir.simulator.lockstep import run_lockstep


@attrs.frozen(kw_only=True)
class Move(Example):
    """A value that goes from one sharding to another.

    Attributes:
        kind: "reshard", which the planner turns into steps, or "convert", which is a declared edge.
    """

    kind: str
    mesh: Mesh
    source: Sharding
    target: Sharding

    def __str__(self) -> str:
        return f"{super().__str__()}: spmd.{self.kind} from <{self.source}> to <{self.target}> on mesh {self.mesh}"

    @property
    def text(self) -> str:
        """Return the program, as it is before lower-reshard."""
        kind = f"tensor<{'x'.join([*map(str, self.shape or ()), str(self.dtype or F64)])}>"
        return (
            f"spmd.mesh @mesh {self.mesh}\n"
            f"func.func @main(%x: {kind} {_attribute(self.source)}) -> ({kind} {_attribute(self.target)}) {{\n"
            f"  %y = spmd.{self.kind} %x : {kind} <{self.target}>\n  return %y : {kind}\n}}\n"
        )

    def programs(self) -> list[fx.GraphModule]:
        """Return the graph of each rank."""
        module = parse(self.text, "<step>")
        run_passes(module, "lower-reshard,localize")
        return [lower_to_fx(module, rank) for rank in range(self.mesh.world_size)]

    def held(self) -> list[torch.Tensor]:
        """Return the local tensor of each rank before."""
        return distribute(self.tensor(), self.source, self.mesh, self.noise())

    def run(self) -> list[torch.Tensor]:
        """Return the local tensor of each rank afterwards."""
        return [shard for (shard,) in run_lockstep(self.programs(), [[shard] for shard in self.held()], self.mesh)]

    def sent(self) -> float:
        """Bytes that the busiest rank sends, by the ring model, counted on the collectives of its graph."""
        held = self.held()
        return max(_sent(graph, held[rank], self.mesh) for rank, graph in enumerate(self.programs()))


def _attribute(sharding: Sharding) -> str:
    return f"{{spmd.sharding = #spmd.sharding<@mesh{', ' if sharding.entries else ''}{sharding}>}}"


SENT: dict[str, Callable[[float, int], float]] = {
    "all_gather_into_tensor": lambda size, count: (count - 1) * size,
    "reduce_scatter_tensor": lambda size, count: (count - 1) * size / count,
    "all_reduce": lambda size, count: 2 * (count - 1) * size / count,
    "all_to_all_single": lambda size, count: (count - 1) * size / count,
    "broadcast": lambda size, count: size,
}
"""Collective → bytes that a rank sends, of the bytes of its operand and the number of ranks."""


class _Counter(fx.Interpreter):
    """Runs a graph on fake tensors, and adds up what its collectives send."""

    def __init__(self, graph: fx.GraphModule, mesh: Mesh):
        super().__init__(graph)
        self.mesh, self.bytes = mesh, 0.0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        name = str(target).removeprefix("_c10d_functional.").partition(".")[0]
        if name in SENT:
            size = args[0].numel() * args[0].element_size()
            self.bytes += SENT[name](size, self.mesh.group_size(symbolic_axes(args[-1]) or ()))
        return super().call_function(target, args, kwargs)


def _sent(graph: fx.GraphModule, shard: torch.Tensor, mesh: Mesh) -> float:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        counter = _Counter(graph, mesh)
        counter.run(mode.from_tensor(shard))
    return counter.bytes
