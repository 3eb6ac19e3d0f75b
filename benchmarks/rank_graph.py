"""The program of one rank as a fx graph that PyTorch's schedulers take, and the order that they gave it read back.

The graph has collectives on the groups of a process group without processes, and on each node the tensor that it gives,
without values. What a node costs is what spmdir says of its op, whoever schedules it: schedulers decide by it, and what
they return is read as a `schedule.Program` with the same prices, buckets by the sums of their members.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from benchmarks.plain_schedule import joined
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.value_op import ValueOp
from spmdir.lowering.emit import _Emitter
from spmdir.lowering.process_groups import device_groups
from spmdir.lowering.site import WAIT
from spmdir.reshard.topology import Topology
from spmdir.schedule.program import Buffer, Program, Task, Transfer
from spmdir.torch_interop.dtypes import TORCH_DTYPES

VIEWS = (operator.getitem, getattr, torch.ops.aten.view.default, torch.ops.aten.reshape.default)
"""What a task's time is not told of if another of its nodes can be told of it."""


_CASTS = (torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default)


@attrs.frozen(eq=False)
class RankGraph:
    """The graph of one rank before anything is scheduled, and what its nodes cost.

    Attributes:
        tasks: node → the task of which it is the one that takes time.
        operands: start of a collective → its operand, and what that is converted from, as a bucket may do itself.
    """

    graph: fx.GraphModule
    tasks: Mapping[fx.Node, Task]
    operands: Mapping[fx.Node, Sequence[fx.Node]] = attrs.field(init=False)

    @operands.default  # type: ignore  # attrs gives fields this decorator
    def _operands(self) -> Mapping[fx.Node, Sequence[fx.Node]]:
        found = {}
        for start in (node for node, task in self.tasks.items() if task.transfer is not None):
            (operand,) = start.all_input_nodes
            found[start] = [operand, *(operand.all_input_nodes if operand.target in _CASTS else ())]
        return found

    def seconds(self, node: fx.Node) -> float:
        """Return for how long a node keeps the accelerator busy."""
        return self.tasks[node].seconds if node in self.tasks else 0.0

    def transfer(self, start: fx.Node) -> Transfer:
        """Return what a collective sends: a bucket with one latency, and the bytes of all members."""
        sent = (self.tasks[member].transfer for member in self.members(start))
        return joined([transfer for transfer in sent if transfer is not None])

    def members(self, start: fx.Node) -> list[fx.Node]:
        """Return the collectives that a collective stands for: itself, or those whose operands it packs."""
        if start in self.tasks:
            return [start]
        fitting = defaultdict[fx.Node, list[fx.Node]](list)
        for one, operands in self.operands.items():
            for operand in operands if kind_and_group(one) == kind_and_group(start) else ():
                fitting[operand].append(one)
        members: list[fx.Node] = []
        for operand in _packed(start, fitting):
            members.append(next(one for one in fitting[operand] if one not in members))
        return members

    def copies(self, members: Sequence[fx.Node], topology: Topology) -> tuple[float, float]:
        """Return the seconds in which collectives are packed into one, and unpacked.

        What is gathered is copied once more, all else are views.
        """
        packed = sum(_bytes(self.operands[member][0]) for member in members)
        gathered = sum(map(_bytes, members)) if "all_gather" in str(members[0].target) else 0.0
        into, out = (2 * size / topology.memory_bandwidth + topology.launch_latency for size in (packed, gathered))
        return into, out if gathered else 0.0


def connect(mesh: Mesh) -> Any:
    """Return a torch DeviceMesh of a process group without processes, as the last rank sees it."""
    dist.init_process_group("fake", rank=mesh.world_size - 1, world_size=mesh.world_size, store=FakeStore())
    return dist.device_mesh.init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names)


class _TracedEmitter(_Emitter):
    """Emits a rank's program and keeps which nodes each op became."""

    nodes: dict[Operation, list[fx.Node]]

    def emit_op(self, op: ValueOp) -> None:
        before = self.graph._root.prev
        super().emit_op(op)
        found, node = [], before.next
        while node is not self.graph._root:
            found.append(node)
            node = node.next
        self.nodes[op] = found


def rank_graph(module: ModuleOp, device_mesh: Any, program: Program, units: Sequence[Sequence[Operation]]) -> RankGraph:
    """Return the graph of the last rank of a localized module whose collectives are started and waited for.

    The first rank has nothing to do where a value becomes partial.

    Args:
        units: the ops of each task of `program`.
    """
    function, mesh = ir.main_function(module), ir.mesh(module)
    emitter = _TracedEmitter(function, mesh, mesh.world_size - 1, device_groups(mesh, device_mesh), False, False)
    emitter.nodes = {}
    graph = emitter.emit_function()
    with FakeTensorMode() as mode:
        metas = [meta for argument in function.args if (meta := meta_of(argument.type)) is not None]
        given = [torch.empty(meta.shape, dtype=TORCH_DTYPES[meta.dtype]) for meta in metas]
        for name, held in list(graph.named_buffers()):
            setattr(graph, name, torch.empty(held.shape, dtype=held.dtype))
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*given)
    tasks: dict[fx.Node, Task] = {}
    for task, ops in zip(program.tasks, units, strict=True):
        nodes = [node for op in ops for node in emitter.nodes.get(op, ()) if node.op == "call_function"]
        starts = [node for node in nodes if is_start(node)]
        if task.transfer is not None:
            # An op that sends several times does it at once.
            nothing = attrs.evolve(task, seconds=0.0, transfer=attrs.evolve(task.transfer, **_NOTHING))
            tasks |= dict.fromkeys(starts, nothing) | {starts[0]: task}
        elif nodes:
            tasks[next((node for node in reversed(nodes) if node.target not in VIEWS), nodes[-1])] = task
    return RankGraph(graph, tasks)


_NOTHING = dict.fromkeys(("latency", "intra", "inter", "wire_bytes"), 0.0)


def read(found: RankGraph, topology: Topology) -> Program:
    """Return the program that a graph is after it has been scheduled, its tasks in the order of its nodes."""
    return _Reader(found, topology).program()


class _Reader:
    """Walks a graph once and tells its nodes as tasks."""

    def __init__(self, found: RankGraph, topology: Topology):
        self.found, self.topology = found, topology
        self.buffers: list[Buffer] = []
        self.held: dict[Any, int] = {}
        self.tasks: list[Task] = []
        self.number: dict[fx.Node, int] = {}

    def program(self) -> Program:
        inputs: tuple[int, ...] = ()
        outputs: tuple[int, ...] = ()
        for node in self.found.graph.graph.nodes:
            if node.op == "call_function":
                self.number[node] = len(self.tasks)
                self.tasks.append(self.task(node))
            elif node.op == "output":
                outputs = self.reads(node)
            else:
                inputs += self.makes(node)
        return Program(tuple(self.tasks), tuple(self.buffers), inputs, outputs)

    def task(self, node: fx.Node) -> Task:
        reads = self.reads(node)
        needs = tuple(dict.fromkeys(self.number[user] for user in node.all_input_nodes if user in self.number))
        of, start = self.found.tasks.get(node), None
        seconds, transfer = self.found.seconds(node), None
        if node.target is WAIT and is_start(node.args[0]):
            start = self.number[node.args[0]]  # type: ignore
            # What is received is where the start put it.
            self.held |= {key: self.held[other] for key, other in zip(_keys(node), _keys(node.args[0]), strict=True)}
            seconds += self.unpacking(node.args[0])
        elif is_start(node):
            transfer = self.found.transfer(node)
            seconds += self.packing(node)
        makes = self.makes(node)
        op = of.op if of is not None else str(node.target)
        return Task(node.name, op, "", seconds, needs, makes, reads, transfer=transfer, waits_for=start)

    def packing(self, start: fx.Node) -> float:
        """Return the seconds of the copies into a bucket, and those of its members."""
        if start in self.found.tasks:
            return 0.0
        members = self.found.members(start)
        return sum(map(self.found.seconds, members)) + self.found.copies(members, self.topology)[0]

    def unpacking(self, start: Any) -> float:
        """Return the seconds of the copies out of a bucket."""
        if start in self.found.tasks:
            return 0.0
        return self.found.copies(self.found.members(start), self.topology)[1]

    def makes(self, node: fx.Node) -> tuple[int, ...]:
        found: list[int] = []
        for tensor in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(tensor, torch.Tensor) and (key := _key(tensor)) not in self.held:
                self.held[key] = len(self.buffers)
                found.append(len(self.buffers))
                self.buffers.append(Buffer(node.name, float(tensor.untyped_storage().nbytes()), "activations"))
        return tuple(found)

    def reads(self, node: fx.Node) -> tuple[int, ...]:
        keys = (key for source in node.all_input_nodes for key in _keys(source))
        return tuple(dict.fromkeys(self.held[key] for key in keys if key in self.held))


def _packed(start: fx.Node, sources: Container[fx.Node]) -> Iterator[fx.Node]:
    """Yield the nodes of `sources` that a bucket packs, in order."""
    stack, seen = [*reversed(start.all_input_nodes)], set[fx.Node]()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in sources:
            yield node
        else:
            stack += reversed(node.all_input_nodes)


def kind_and_group(start: fx.Node) -> tuple[str, Any]:
    """Return the kind of a collective, and the name of its group."""
    kind = str(start.target).removeprefix("_c10d_functional.").removesuffix(".default").removesuffix("_out")
    return kind, next(arg for arg in reversed(start.args) if isinstance(arg, str))


def is_start(node: Any) -> bool:
    """Return whether a node starts a collective."""
    return node.op == "call_function" and "_c10d_functional" in str(node.target) and node.target is not WAIT


def _keys(node: Any) -> list[Any]:
    return [_key(tensor) for tensor in pytree.tree_leaves(node.meta.get("val")) if isinstance(tensor, torch.Tensor)]


def _key(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata


def _bytes(node: Any) -> float:
    tensor = node.meta["val"]
    return float(tensor.numel() * tensor.element_size())
