"""Run programs of reshards and edges on simulated ranks, and count the bytes that ranks send."""

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


def is_edge_step(kind: str) -> bool:
    """Return whether the op `spmd.KIND` is the step of a declared edge."""
    return kind != "reshard" and collective(kind).moves == "edge"


@attrs.frozen(kw_only=True)
class Move(Example):
    """A tensor that changes from one sharding to another.

    Attributes:
        kind: the name of the op: "reshard", which the planner turns into steps, or the step of a declared edge.
    """

    kind: str
    mesh: Mesh
    source: Sharding
    target: Sharding

    def __str__(self) -> str:
        return f"{super().__str__()}: spmd.{self.kind} from <{self.source}> to <{self.target}> on mesh {self.mesh}"

    @property
    def meta(self) -> TensorMeta:
        """The global type of the tensor."""
        return TensorMeta(self.shape or (), self.dtype or F64)

    @property
    def edge_states(self) -> tuple[StepState, ...]:
        """The states of the declared edge; none for a reshard."""
        if not is_edge_step(self.kind):
            return ()
        step = Step(self.kind, converted_axes(self.source, self.target, self.mesh), self.source, self.target)
        return step_states(step, self.meta, self.mesh)

    @property
    def declarations(self) -> tuple[str, ...]:
        return ("edges",) if is_edge_step(self.kind) else ()

    def source_shards(self) -> list[torch.Tensor]:
        """Return the local tensor of each rank in the source sharding."""
        return distribute(self.tensor(), self.source, self.mesh, self.noise())

    def count_sent_bytes(self) -> float:
        """Return the bytes that the busiest rank sends with ring algorithms, from the collectives in its graph."""
        graphs, states, _ = _lower([self])
        return max(
            _sent_bytes(graphs[rank], [shard, *(state[rank] for state in states)], self.mesh)
            for rank, shard in enumerate(self.source_shards())
        )


def run_moves(moves: Sequence[Move], shards_of_moves: Sequence[Sequence[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Run several moves on one mesh in one program, and return the local tensors after each of them.

    Args:
        shards_of_moves: the local tensors of the ranks before each move.

    Raises:
        SpmdirError: a step fails, or a state differs between ranks that share it.
    """
    mesh = moves[0].mesh
    graphs, states, state_shardings = _lower(moves)
    inputs = [[value[rank] for value in (*shards_of_moves, *states)] for rank in range(mesh.world_size)]
    results_of_ranks = run_lockstep(graphs, inputs, mesh)
    results = [list(shards) for shards in zip(*results_of_ranks, strict=True)]
    for new_state, old_state, sharding in zip(results[len(moves) :], states, state_shardings, strict=True):
        # Raises an error if ranks that share a state have different values.
        collect(new_state, sharding, mesh, _global_state_shape(old_state, sharding, mesh))
    return results[: len(moves)]


def run_repeatedly(move: Move, shards: Sequence[torch.Tensor], times: int) -> Iterator[list[list[torch.Tensor]]]:
    """Run a move several times with its states. Yield the local tensors of its result, then of each state."""
    graphs, states, _ = _lower([move])
    for _ in range(times):
        inputs = [[value[rank] for value in (shards, *states)] for rank in range(move.mesh.world_size)]
        result, *states = ([*shards] for shards in zip(*run_lockstep(graphs, inputs, move.mesh), strict=True))
        yield [result, *states]


def _lower(moves: Sequence[Move]) -> tuple[list[fx.GraphModule], list[list[torch.Tensor]], list[Sharding]]:
    """Return (graph of each rank, initial local tensors of each state, sharding of each state) for all moves.

    Each graph runs all moves. Its inputs are the local tensors of the moves, then of the states.
    """
    mesh, module = moves[0].mesh, parse(program_text(moves), "<step>")
    run_passes(module, "lower-reshard,localize")
    function = main_function(module)
    shardings = [sharding_of(argument) or Sharding() for argument in function.args][len(moves) :]
    states = [
        distribute(tensor, sharding, mesh, moves[0].noise())
        for tensor, sharding in zip(initial_states(function, mesh).values(), shardings, strict=True)
    ]
    return [lower_to_fx(module, rank) for rank in range(mesh.world_size)], states, shardings


def program_text(moves: Sequence[Move]) -> str:
    """Return the text of the program that runs all moves. At most one of them may have states.

    Argument `%x0` and result `%y0` belong to the first move. States are further arguments and results.
    """
    arguments, results, ops = [], [], ""
    types = [_type(move.meta) for move in moves]
    for index, (move, type_) in enumerate(zip(moves, types, strict=True)):
        arguments.append(f"%x{index}: {type_} {_attributes(move.source)}")
        results.append(f"{type_} {_attributes(move.target)}")
        op_results = [f"%y{index}", *(f"%new_{state.name}" for state in move.edge_states)]
        operands = [f"%x{index}", *(f"%{state.name}" for state in move.edge_states)]
        result_types = [
            f"{type_} <{move.target}>",
            *(f"{_type(state.meta)} <{state.sharding}>" for state in move.edge_states),
        ]
        ops += f"  {', '.join(op_results)} = spmd.{move.kind} {', '.join(operands)} : {', '.join(result_types)}\n"
    states = [state for move in moves for state in move.edge_states]
    arguments += [
        f"%{state.name}: {_type(state.meta)} {_attributes(state.sharding, state.initial)}" for state in states
    ]
    results += [f"{_type(state.meta)} {_attributes(state.sharding, name=state.name)}" for state in states]
    returned = [*(f"%y{index}" for index in range(len(moves))), *(f"%new_{state.name}" for state in states)]
    returned_types = [*types, *(_type(state.meta) for state in states)]
    return (
        f"spmd.mesh @mesh {moves[0].mesh}\n"
        f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n"
        f"{ops}  return {', '.join(returned)} : {', '.join(returned_types)}\n}}\n"
    )


def _global_state_shape(state: list[torch.Tensor], sharding: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """Return the shape of a state whose local tensors are stacked along dimension 0."""
    rows, *shape = state[0].shape
    return (rows * mesh.group_size(sharding.dim_axes(0)), *shape)


def _type(meta: TensorMeta) -> str:
    """Return a tensor type in the text of a program."""
    return f"tensor<{meta}>"


def _attributes(sharding: Sharding, initial: str = "", name: str = "") -> str:
    """Return the attributes of an argument or result: its sharding, and the initial value or name of a state."""
    attributes = [f"spmd.sharding = #spmd.sharding<@mesh{', ' if sharding.entries else ''}{sharding}>"]
    attributes += [f'spmd.state = "{initial}"'] if initial else []
    attributes += [f'spmd.kind = "state", spmd.name = "{name}"'] if name else []
    return f"{{{', '.join(attributes)}}}"


SENT_BYTES: dict[str, Callable[[float, int], float]] = {
    "all_gather_into_tensor": lambda size, count: (count - 1) * size,
    "reduce_scatter_tensor": lambda size, count: (count - 1) * size / count,
    "all_reduce": lambda size, count: 2 * (count - 1) * size / count,
    "all_to_all_single": lambda size, count: (count - 1) * size / count,
    "broadcast": lambda size, count: size,
}
"""Collective → function from (bytes of its operand, number of ranks) to the bytes that a rank sends."""


class _ByteCounter(fx.Interpreter):
    """Runs a graph on fake tensors, and adds up the bytes that its collectives send."""

    def __init__(self, graph: fx.GraphModule, mesh: Mesh):
        super().__init__(graph)
        self.mesh, self.bytes = mesh, 0.0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run a call, and add the bytes that one rank sends if it is a collective."""
        name = str(target).removeprefix("_c10d_functional.").partition(".")[0]
        if name in SENT_BYTES:
            size = args[0].numel() * args[0].element_size()
            self.bytes += SENT_BYTES[name](size, self.mesh.group_size(symbolic_axes(args[-1]) or ()))
        return super().call_function(target, args, kwargs)


def _sent_bytes(graph: fx.GraphModule, inputs: list[torch.Tensor], mesh: Mesh) -> float:
    """Return the bytes that one rank sends in the graph. It runs on fake tensors."""
    from spmdir.torch_interop.fake_tensors import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        counter = _ByteCounter(graph, mesh)
        counter.run(*map(mode.from_tensor, inputs))
    return counter.bytes
