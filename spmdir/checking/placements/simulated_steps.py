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
from spmdir.core.tensor import TensorMeta
from spmdir.dialects.ir import main_function, parse
from spmdir.dialects.values import sharding_of
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.process_groups import symbolic_axes
from spmdir.passes.pipeline import run_passes
from spmdir.reshard.edge_state import StepState, step_state
from spmdir.reshard.moved_axes import converted_axes
from spmdir.reshard.steps import Step
from spmdir.simulator.distribution import collect, distribute
from spmdir.simulator.lockstep import run_lockstep
from spmdir.simulator.simulate import initial_states


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
    def states(self) -> tuple[StepState, ...]:
        """Return what ranks keep for a declared edge."""
        if self.kind != "convert":
            return ()
        step = Step("convert", converted_axes(self.source, self.target, self.mesh), self.source, self.target)
        return step_state(step, TensorMeta(self.shape or (), self.dtype or F64), self.mesh)

    @property
    def text(self) -> str:
        """Return the program, as it is before lower-reshard."""
        kind = _type(TensorMeta(self.shape or (), self.dtype or F64))
        held = [f"%{one.name}: {_type(one.meta)} {_attribute(one.sharding, one.initial)}" for one in self.states]
        given = [f"{_type(one.meta)} {_attribute(one.sharding, '', one.name)}" for one in self.states]
        values = [f"%new_{one.name}" for one in self.states]
        operands = ", ".join(["%x", *(f"%{one.name}" for one in self.states)])
        placed = [f"{_type(one.meta)} <{one.sharding}>" for one in self.states]
        types = [kind, *(_type(one.meta) for one in self.states)]
        return (
            f"spmd.mesh @mesh {self.mesh}\n"
            f"func.func @main({', '.join([f'%x: {kind} {_attribute(self.source)}', *held])}) -> "
            f"({', '.join([f'{kind} {_attribute(self.target)}', *given])}) {{\n"
            f"  {', '.join(['%y', *values])} = spmd.{self.kind} {operands} : "
            f"{', '.join([f'{kind} <{self.target}>', *placed])}\n"
            f"  return {', '.join(['%y', *values])} : {', '.join(types)}\n}}\n"
        )

    def programs(self) -> tuple[list[fx.GraphModule], list[list[torch.Tensor]], list[Sharding]]:
        """Return the graph of each rank, what ranks begin with of each state, and how that is laid out."""
        module = parse(self.text, "<step>")
        run_passes(module, "lower-reshard,localize")
        function = main_function(module)
        initial = initial_states(function, self.mesh).values()
        shardings = [sharding_of(value) or Sharding() for value in function.args][1:]
        states = [
            distribute(whole, one, self.mesh, self.noise()) for whole, one in zip(initial, shardings, strict=True)
        ]
        return [lower_to_fx(module, rank) for rank in range(self.mesh.world_size)], states, shardings

    def held(self) -> list[torch.Tensor]:
        """Return the local tensor of each rank before."""
        return distribute(self.tensor(), self.source, self.mesh, self.noise())

    def run(self) -> list[torch.Tensor]:
        """Return the local tensor of each rank afterwards.

        Raises:
            SpmdirError: a step fails, or ranks that share a state disagree on it.
        """
        graphs, states, shardings = self.programs()
        given = [[shard, *(state[rank] for state in states)] for rank, shard in enumerate(self.held())]
        returned = run_lockstep(graphs, given, self.mesh)
        for index, (state, sharding) in enumerate(zip(states, shardings, strict=True)):
            collect(
                [outputs[1 + index] for outputs in returned], sharding, self.mesh, _whole(state, sharding, self.mesh)
            )
        return [outputs[0] for outputs in returned]

    def sent(self) -> float:
        """Bytes that the busiest rank sends, by the ring model, counted on the collectives of its graph."""
        graphs, states, _ = self.programs()
        given = [[shard, *(state[rank] for state in states)] for rank, shard in enumerate(self.held())]
        return max(_sent(graph, given[rank], self.mesh) for rank, graph in enumerate(graphs))


def _whole(state: list[torch.Tensor], sharding: Sharding, mesh: Mesh) -> tuple[int, ...]:
    rows, *shape = state[0].shape
    return (rows * mesh.group_size(sharding.dim_axes(0)), *shape)


def _type(meta: TensorMeta) -> str:
    return f"tensor<{meta}>"


def _attribute(sharding: Sharding, initial: str = "", kept: str = "") -> str:
    said = [f"spmd.sharding = #spmd.sharding<@mesh{', ' if sharding.entries else ''}{sharding}>"]
    said += [f'spmd.state = "{initial}"'] if initial else []
    said += [f'spmd.kind = "state", spmd.name = "{kept}"'] if kept else []
    return f"{{{', '.join(said)}}}"


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


def _sent(graph: fx.GraphModule, given: list[torch.Tensor], mesh: Mesh) -> float:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        counter = _Counter(graph, mesh)
        counter.run(*map(mode.from_tensor, given))
    return counter.bytes
