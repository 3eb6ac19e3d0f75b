"""All ranks of a program in one process: each graph runs up to its next collective, then all do it at once.

Nothing is sent and nothing can hang: ranks that would issue different collectives are an error at that place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from spmdir.core.errors import DivergenceError, ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.progress import say
from spmdir.lowering.process_groups import symbolic_axes
from spmdir.lowering.site import WAIT, functional
from spmdir.reshard.collectives import collectives
from spmdir.torch_interop.schemas import is_random

Tensor = torch.Tensor


@attrs.frozen
class _InFlight:
    """The result of a collective before its wait."""

    tensor: Tensor


@attrs.frozen
class Issued:
    """A collective that a rank has reached: its node and its arguments, the first of which is the tensor."""

    node: fx.Node
    arguments: tuple[Any, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        name = self.arguments[-1]
        axes = symbolic_axes(name) if isinstance(name, str) else None
        if axes is None:
            raise self.error(f"runs in group {name!r}; lower the module without a device mesh to simulate it")
        return axes

    def error(self, message: str) -> DivergenceError:
        return DivergenceError(f"'{self.node.name}' ({self.node.target}) {message}", self.node.meta.get("location"))

    def __str__(self) -> str:
        tensor, *rest = self.arguments
        return f"{self.node.target}({tensor.dtype} {list(tensor.shape)}, {', '.join(map(str, rest))})"


Steps = Mapping[Any, Callable[[Sequence[Issued]], list[Tensor]]]
"""Functional collective → its results on the ranks of a group, in rank order."""


class _Random:
    """The random numbers of one rank: all ranks draw the same stream, whatever the order in which they run."""

    def __init__(self, seed: int):
        self._seed = seed
        self._states: dict[torch.device, Tensor] = {}

    @contextmanager
    def drawn(self, devices: set[torch.device]) -> Iterator[None]:
        """Random ops on `devices` continue this rank's stream."""
        sources = {
            device: torch.random if device.type == "cpu" else torch.get_device_module(device) for device in devices
        }
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


def run_lockstep(
    programs: Sequence[fx.GraphModule],
    inputs: Sequence[Sequence[Tensor]],
    mesh: Mesh,
    seed: int = 0,
    others: Steps | None = None,
) -> list[Any]:
    """What each rank returns; `programs` and `inputs` are by rank, `seed` is that of random ops.

    Args:
        others: what is done together beside the collectives.

    Raises:
        DivergenceError: ranks issue different collectives, or a result is used before its wait.
        SpmdirError: an op fails on a rank.
    """
    steps = {**EXECUTED, **_plugin_steps(), **(others or {})}
    runs = [
        _run(program, given, rank, _Random(seed), steps)
        for rank, (program, given) in enumerate(zip(programs, inputs, strict=True))
    ]
    outputs: dict[int, Any] = {}
    answers: list[Any] = [None] * len(runs)
    while True:
        issued: list[Issued] = []
        for rank, run in enumerate(runs):
            say("running rank {} of {}", rank, len(runs))
            try:
                issued.append(run.send(answers[rank]))
            except StopIteration as end:
                outputs[rank] = end.value
        if len(outputs) == len(runs):
            return [outputs[rank] for rank in range(len(runs))]
        if outputs:
            raise issued[0].error(f"is never reached by rank {min(outputs)}, which has ended")
        answers = _exchange(issued, mesh, steps)


def run_alone(program: fx.GraphModule, inputs: Sequence[Tensor], seed: int = 0) -> Any:
    """What a program without collectives returns.

    Raises:
        SpmdirError: an op fails.
    """
    return run_lockstep([program], [inputs], Mesh({}), seed)[0]


def _run(
    program: fx.GraphModule, inputs: Sequence[Tensor], rank: int, random: _Random, steps: Steps
) -> Generator[Issued, Tensor, Any]:
    """Interpret one rank's graph; values die after their last use."""
    given = iter(inputs)
    values: dict[fx.Node, Any] = {}
    dying: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        last = [operand for operand in node.all_input_nodes if operand not in seen]
        dying[node] = last
        seen.update(last)
    for node in program.graph.nodes:
        args, kwargs = _load(node, node.args, values), _load(node, node.kwargs, values)
        if node.op == "output":
            return args[0]
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = getattr(program, str(node.target))
        elif node.target is WAIT:
            value = args[0]
            values[node] = value.tensor if isinstance(value, _InFlight) else value
        elif node.target in steps:
            values[node] = _InFlight((yield Issued(node, args)))
        else:
            values[node] = _call(node, args, kwargs, rank, random)
        for operand in dying[node]:
            del values[operand]
    return None


def _load(node: fx.Node, arguments: Any, values: dict[fx.Node, Any]) -> Any:
    def value_of(operand: fx.Node) -> Any:
        value = values[operand]
        if isinstance(value, _InFlight) and node.target is not WAIT:
            raise Issued(operand, ()).error(f"is used by '{node.name}' before its wait")
        return value

    return map_arg(arguments, value_of)


def _call(node: fx.Node, args: Any, kwargs: Any, rank: int, random: _Random) -> Any:
    try:
        if is_random(node.target):
            found = [a.device if isinstance(a, Tensor) else a for a in tree_leaves((args, kwargs))]
            with random.drawn({device for device in found if isinstance(device, torch.device)}):
                return node.target(*args, **kwargs)  # type: ignore
        return node.target(*args, **kwargs)  # type: ignore
    except Exception as error:
        # torch ops raise whatever they like; for the user it is one thing: this op failed there.
        reason = str(error).partition("\n")[0]
        raise SpmdirError(
            f"'{node.name}' ({node.target}) fails on rank {rank}: {reason}", node.meta.get("location")
        ) from error


def _exchange(issued: Sequence[Issued], mesh: Mesh, steps: Steps) -> list[Tensor]:
    """The result of one collective on every rank, group by group."""
    first = issued[0]
    for rank, other in enumerate(issued):
        if (other.node.target, other.axes) != (first.node.target, first.axes):
            raise first.error(f"is what rank 0 reaches while rank {rank} reaches {other} over {list(other.axes)}")
    for axis in first.axes:
        try:
            mesh.require(axis)
        except ShardingError:
            raise first.error(f"names axis '{axis}', which is not in mesh {mesh}") from None
    results: list[Tensor | None] = [None] * len(issued)
    for rank in range(len(issued)):
        if results[rank] is None:
            members = sorted(mesh.group(rank, first.axes))
            calls = [issued[member] for member in members]
            for member, result in zip(members, steps[first.node.target](calls), strict=True):
                results[member] = result
    return results  # type: ignore  # every rank is in a group


def _tensors(calls: Sequence[Issued]) -> list[Tensor]:
    """The operands of a group, of one shape and type, with the arguments after them agreeing."""
    tensors = [call.arguments[0] for call in calls]
    for call, tensor in zip(calls, tensors, strict=True):
        if (
            tensor.dtype != tensors[0].dtype
            or tensor.shape != tensors[0].shape
            or call.arguments[1:] != calls[0].arguments[1:]
        ):
            raise calls[0].error(f"has ranks of a group that disagree: {calls[0]} against {call}")
    return tensors


def _count(calls: Sequence[Issued], size: int) -> None:
    if size != len(calls):
        raise calls[0].error(f"says that its group has {size} ranks; it has {len(calls)}")


def _reduced(calls: Sequence[Issued], tensors: Sequence[Tensor], op: str) -> Tensor:
    if op not in REDUCTIONS or (op == "avg" and not (tensors[0].is_floating_point() or tensors[0].is_complex())):
        raise calls[0].error(f"cannot reduce {tensors[0].dtype} by {op}")
    if tensors[0].is_complex() and op in ("sum", "avg"):
        # As process groups do: torch's sum of complex numbers is another where parts are infinite or negative zeros.
        return torch.view_as_complex(_reduced(calls, [torch.view_as_real(t.resolve_conj()) for t in tensors], op))
    whole = tensors[0]
    for tensor in tensors[1:]:
        whole = REDUCTIONS[op].combine(whole, tensor)
    return whole / len(tensors) if op == "avg" else whole.clone()


def _all_reduce(calls: Sequence[Issued]) -> list[Tensor]:
    whole = _reduced(calls, _tensors(calls), calls[0].arguments[1])
    return [whole.clone() for _ in calls]


def _all_gather(calls: Sequence[Issued]) -> list[Tensor]:
    tensors = _tensors(calls)
    _count(calls, calls[0].arguments[1])
    if not tensors[0].dim():
        raise calls[0].error("gathers a tensor without dimensions")
    whole = torch.cat(tensors)
    return [whole.clone() for _ in calls]


def _reduce_scatter(calls: Sequence[Issued]) -> list[Tensor]:
    tensors, (_, op, size, _) = _tensors(calls), calls[0].arguments
    _count(calls, size)
    if not tensors[0].dim() or tensors[0].shape[0] % size:
        raise calls[0].error(f"scatters {list(tensors[0].shape)} over {size} ranks; dimension 0 must divide evenly")
    return [piece.clone() for piece in _reduced(calls, tensors, op).chunk(size)] if tensors[0].shape[0] else tensors


def _all_to_all(calls: Sequence[Issued]) -> list[Tensor]:
    receives, sends = [list(call.arguments[1]) for call in calls], [list(call.arguments[2]) for call in calls]
    blocks = []
    for source, call in enumerate(calls):
        tensor = call.arguments[0]
        if tensor.dtype != calls[0].arguments[0].dtype or tensor.shape[1:] != calls[0].arguments[0].shape[1:]:
            raise calls[0].error(f"has ranks of a group that disagree: {calls[0]} against {call}")
        expected = [receives[target][source] for target in range(len(calls)) if source < len(receives[target])]
        if sends[source] != expected or sum(sends[source]) != tensor.shape[0]:
            raise calls[0].error(
                f"sends {sends[source]} of {tensor.shape[0]} elements from rank {source} of the group, "
                f"whose ranks expect {expected}"
            )
        blocks.append(tensor.split(sends[source]))
    return [torch.cat([blocks[source][target] for source in range(len(calls))]) for target in range(len(calls))]


def _broadcast(calls: Sequence[Issued]) -> list[Tensor]:
    tensors, root = _tensors(calls), calls[0].arguments[1]
    if not 0 <= root < len(calls):
        raise calls[0].error(f"is from rank {root} of a group of {len(calls)}; expected one from 0 to {len(calls) - 1}")
    return [tensors[root].clone() for _ in calls]


EXECUTED: Steps = {
    functional.all_reduce.default: _all_reduce,
    functional.all_gather_into_tensor.default: _all_gather,
    functional.reduce_scatter_tensor.default: _reduce_scatter,
    functional.all_to_all_single.default: _all_to_all,
    functional.broadcast.default: _broadcast,
}
"""The functional collectives that spmdir emits."""


def _plugin_steps() -> Steps:
    """Return the steps of the ops that collectives of plug-ins emit."""
    named = [entry for spec in collectives() for entry in spec.executed.items()]
    return {operator.attrgetter(name)(torch.ops): step for name, step in named}
