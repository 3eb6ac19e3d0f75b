"""Interpret the program of one rank, until it issues a collective or waits for one."""

from __future__ import annotations

from collections.abc import Container, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import fx
from torch.fx.node import map_arg

from spmdir.core.errors import DivergenceError, ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.lowering.process_groups import symbolic_axes
from spmdir.lowering.site import WAIT
from spmdir.torch_interop.pytree import tree_leaves
from spmdir.torch_interop.schemas import is_random

Tensor = torch.Tensor


@attrs.frozen
class Issued:
    """An issued collective of a rank: its node and its arguments, beginning with the tensor."""

    node: fx.Node
    arguments: tuple[Any, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes of its group; raise DivergenceError if the group has no symbolic name."""
        name = self.arguments[-1]
        axes = symbolic_axes(name) if isinstance(name, str) else None
        if axes is None:
            raise self.error(
                f"runs in group {name!r} of a process; expected groups named by mesh axes: lower the module "
                "without a device mesh to simulate it"
            )
        return axes

    def check(self, mesh: Mesh) -> None:
        """Raise DivergenceError unless the mesh has the axes of the collective."""
        for axis in self.axes:
            try:
                mesh.require(axis)
            except ShardingError:
                raise self.error(
                    f"names axis '{axis}', which is not in mesh {mesh}; expected a mesh axis: simulate the program on "
                    "the mesh that it was lowered for"
                ) from None

    def error(self, message: str) -> DivergenceError:
        """Return the error of the collective; `message` continues after its name."""
        return DivergenceError(f"'{self.node.name}' ({self.node.target}) {message}", self.node.meta.get("location"))

    def __str__(self) -> str:
        tensor, *arguments = self.arguments
        return f"{self.node.target}({tensor.dtype} {list(tensor.shape)}, {', '.join(map(str, arguments))})"


@attrs.define(eq=False)
class InFlight:
    """A collective that a rank has issued.

    Attributes:
        issued: the collective.
        result: its result on the rank; None until all ranks of the group have issued it.
    """

    issued: Issued
    result: Tensor | None = None


class Random:
    """The random numbers of one rank.

    Each rank has its own generator state from the same seed. So all ranks draw equal numbers, in whatever order the
    simulator runs them.
    """

    def __init__(self, seed: int):
        self._seed = seed
        self._states: dict[torch.device, Tensor] = {}

    @contextmanager
    def drawn(self, devices: set[torch.device]) -> Iterator[None]:
        """Let random ops on `devices` continue the stream of this rank."""
        sources: dict[torch.device, Any] = {}
        for device in devices:
            sources[device] = torch.random if device.type == "cpu" else torch.get_device_module(device)
        before = {device: source.get_rng_state() for device, source in sources.items()}
        try:
            for device, source in sources.items():
                if device in self._states:
                    source.set_rng_state(self._states[device])
                else:
                    source.manual_seed(self._seed)
            yield
            self._states.update({device: source.get_rng_state() for device, source in sources.items()})
        finally:
            for device, source in sources.items():
                source.set_rng_state(before[device])


def run(
    program: fx.GraphModule, inputs: Sequence[Tensor], rank: int, random: Random, collectives: Container[Any]
) -> Generator[InFlight, None, Any]:
    """Interpret the graph of one rank. Values are freed after their last use.

    Yields: each collective when it is issued, and again at its wait if it has not ended. Before the caller resumes
    after a wait, it sets the result of the collective.

    Returns: the results of the graph.

    Args:
        program: the graph.
        inputs: its local tensors.
        rank: the rank, for errors.
        random: the random numbers of the rank.
        collectives: the targets of nodes that all ranks of a group execute together.

    Raises:
        DivergenceError: a result is used before its wait.
        SpmdirError: an op fails.
    """
    remaining_inputs = iter(inputs)
    values: dict[fx.Node, Any] = {}
    last_uses: dict[fx.Node, list[fx.Node]] = {}
    used: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        last_used = [operand for operand in node.all_input_nodes if operand not in used]
        last_uses[node] = last_used
        used.update(last_used)
    for node in program.graph.nodes:
        args, kwargs = _load(node, node.args, values), _load(node, node.kwargs, values)
        if node.op == "output":
            return args[0]
        if node.op == "placeholder":
            values[node] = next(remaining_inputs)
        elif node.op == "get_attr":
            values[node] = getattr(program, str(node.target))
        elif node.target is WAIT:
            value = args[0]
            if isinstance(value, InFlight):
                if value.result is None:
                    yield value
                value = value.result
            values[node] = value
        elif node.target in collectives:
            values[node] = started = InFlight(Issued(node, args))
            yield started
        else:
            values[node] = _call(node, args, kwargs, rank, random)
        for operand in last_uses[node]:
            del values[operand]
    return None


def _load(node: fx.Node, arguments: Any, values: dict[fx.Node, Any]) -> Any:
    """Return the arguments of a node with the value of each operand; raise DivergenceError for one in flight."""

    def value_of(operand: fx.Node) -> Any:
        value = values[operand]
        if isinstance(value, InFlight) and node.target is not WAIT:
            raise Issued(operand, ()).error(
                f"is used by '{node.name}' before its wait; expected an op on the result of the wait: use that result"
            )
        return value

    return map_arg(arguments, value_of)


def _call(node: fx.Node, args: Any, kwargs: Any, rank: int, random: Random) -> Any:
    """Run the op of a node; a random op draws from the stream of the rank on the devices of its arguments."""
    try:
        if is_random(node.target):
            leaves = tree_leaves((args, kwargs))
            devices = [leaf.device if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            with random.drawn({device for device in devices if isinstance(device, torch.device)}):
                return node.target(*args, **kwargs)  # type: ignore
        return node.target(*args, **kwargs)  # type: ignore
    except Exception as error:
        # torch ops may raise anything. For the user, this op failed.
        reason = str(error).partition("\n")[0]
        raise SpmdirError(
            f"'{node.name}' ({node.target}) fails on rank {rank}: {reason}", node.meta.get("location")
        ) from error
