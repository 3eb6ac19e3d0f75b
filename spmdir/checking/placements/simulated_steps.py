"""Programs of one step, run on simulated ranks: what comes out, and what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from spmdir.checking.placements.law import Example
from spmdir.core.dtype import F64
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.ir import main_function, parse
from spmdir.dialects.values import sharding_of
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.process_groups import symbolic_axes
from spmdir.pipeline.pipeline import run_passes
from spmdir.reshard.collectives import collective
from spmdir.reshard.edge_state import StepState, step_states
from spmdir.reshard.moved_axes import converted_axes
from spmdir.reshard.steps import Step
from spmdir.simulator.distribution import collect, distribute
from spmdir.simulator.lockstep import run_lockstep
from spmdir.simulator.simulate import initial_states


def is_declared(kind: str) -> bool:
    """Return whether an op `spmd.KIND` is the step that an edge of a placement declares."""
    return kind != "reshard" and collective(kind).moves == "edge"


@attrs.frozen(kw_only=True)
class Move(Example):
    """A value that goes from one sharding to another.

    Attributes:
        kind: "reshard", which the planner turns into steps, or a collective that moves along a declared edge.
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
        if not is_declared(self.kind):
            return ()
        step = Step(self.kind, converted_axes(self.source, self.target, self.mesh), self.source, self.target)
        return step_states(step, TensorMeta(self.shape or (), self.dtype or F64), self.mesh)

    @property
    def methods(self) -> tuple[str, ...]:
        return ("edges",) if is_declared(self.kind) else ()

    def held(self) -> list[torch.Tensor]:
        """Return the local tensor of each rank before."""
        return distribute(self.tensor(), self.source, self.mesh, self.noise())

    def sent(self) -> float:
        """Bytes that the busiest rank sends, by the ring model, counted on the collectives of its graph."""
        graphs, states, _ = _programs([self])
        given = [[shard, *(state[rank] for state in states)] for rank, shard in enumerate(self.held())]
        return max(_sent(graph, given[rank], self.mesh) for rank, graph in enumerate(graphs))


def run(moves: Sequence[Move], held: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Return the local tensors of the ranks after each of `moves`, all on one mesh, of what ranks `held` before.

    Raises:
        SpmdirError: a step fails, or ranks that share a state disagree on it.
    """
    mesh = moves[0].mesh
    graphs, states, shardings = _programs(moves)
    inputs = [[value[rank] for value in (*held, *states)] for rank in range(mesh.world_size)]
    by_rank = run_lockstep(graphs, inputs, mesh)
    after = [[results[at] for results in by_rank] for at in range(len(moves) + len(states))]
    for kept, before, sharding in zip(after[len(moves) :], states, shardings, strict=True):
        collect(kept, sharding, mesh, _whole(before, sharding, mesh))
    return after[: len(moves)]


def run_again(move: Move, held: Sequence[torch.Tensor], times: int) -> Iterator[list[list[torch.Tensor]]]:
    """Yield what ranks have after each of `times` runs of `move`: the value, then each state, one a rank."""
    graphs, states, _ = _programs([move])
    for _ in range(times):
        inputs = [[value[rank] for value in (held, *states)] for rank in range(move.mesh.world_size)]
        value, *states = ([*each] for each in zip(*run_lockstep(graphs, inputs, move.mesh), strict=True))
        yield [value, *states]


def _programs(moves: Sequence[Move]) -> tuple[list[fx.GraphModule], list[list[torch.Tensor]], list[Sharding]]:
    """Return the graph of each rank that makes all of `moves`, what ranks begin with of each state, and its layout."""
    mesh, module = moves[0].mesh, parse(program(moves), "<step>")
    run_passes(module, "lower-reshard,localize")
    function = main_function(module)
    shardings = [sharding_of(value) or Sharding() for value in function.args][len(moves) :]
    initial = initial_states(function, mesh).values()
    states = [distribute(whole, one, mesh, moves[0].noise()) for whole, one in zip(initial, shardings, strict=True)]
    return [lower_to_fx(module, rank) for rank in range(mesh.world_size)], states, shardings


def program(moves: Sequence[Move]) -> str:
    """Return the program that makes all of `moves`, as it is before lower-reshard; one at most has states."""
    arguments, results, steps = [], [], ""
    kinds = [_type(TensorMeta(move.shape or (), move.dtype or F64)) for move in moves]
    for at, (move, kind) in enumerate(zip(moves, kinds, strict=True)):
        arguments.append(f"%x{at}: {kind} {_attribute(move.source)}")
        results.append(f"{kind} {_attribute(move.target)}")
        made = [f"%y{at}", *(f"%new_{one.name}" for one in move.states)]
        taken = [f"%x{at}", *(f"%{one.name}" for one in move.states)]
        placed = [f"{kind} <{move.target}>", *(f"{_type(one.meta)} <{one.sharding}>" for one in move.states)]
        steps += f"  {', '.join(made)} = spmd.{move.kind} {', '.join(taken)} : {', '.join(placed)}\n"
    states = [one for move in moves for one in move.states]
    arguments += [f"%{one.name}: {_type(one.meta)} {_attribute(one.sharding, one.initial)}" for one in states]
    results += [f"{_type(one.meta)} {_attribute(one.sharding, '', one.name)}" for one in states]
    values = [*(f"%y{at}" for at in range(len(moves))), *(f"%new_{one.name}" for one in states)]
    types = [*kinds, *(_type(one.meta) for one in states)]
    return (
        f"spmd.mesh @mesh {moves[0].mesh}\n"
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n"
        f"{steps}  return {', '.join(values)} : {', '.join(types)}\n}}\n"
    )


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
    from spmdir.torch_interop.fake_tensors import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        counter = _Counter(graph, mesh)
        counter.run(*map(mode.from_tensor, given))
    return counter.bytes
