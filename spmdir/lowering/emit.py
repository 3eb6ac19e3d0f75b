"""Emit the torch.fx graph of one rank: torch ops on local tensors, and functional collectives."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import fx
from xdsl.dialects.builtin import ModuleOp, NameLoc
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue

from spmdir.core.arguments import INTEGER, SIZES, accepts
from spmdir.core.dtype import I64
from spmdir.core.errors import UnsupportedError, shown
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Local
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import DYNAMIC, meta_of
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.halo import HaloExchangeOp
from spmdir.dialects.host_ops import HostCopyOp
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.names import name_of
from spmdir.dialects.reshard_ops import ConstraintOp, ReshardOp
from spmdir.dialects.ring_ops import AssembleOp, ChooseOp, PackOp, RotationOp, StateOp
from spmdir.dialects.row_exchanges import (
    CheckCapacityOp,
    CountsExchangeOp,
    ExpertExchangeOp,
    SlotsExchangeOp,
    host_reads_counts,
)
from spmdir.dialects.sent_states import sent_state
from spmdir.dialects.shard_index_ops import LocalIndexOp, ShardIndexOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_shape, global_type, sharding_of, signature_name
from spmdir.lowering import exchange_rows
from spmdir.lowering.collectives import prepare_message
from spmdir.lowering.gathers import write_gathers
from spmdir.lowering.halo import EMITTERS as HALO_EMITTERS
from spmdir.lowering.halo import line_of
from spmdir.lowering.joined_messages import StartedCollective, start_collective
from spmdir.lowering.node_shapes import NodeShapes
from spmdir.lowering.offload import begin_copy
from spmdir.lowering.process_groups import (
    GroupName,
    device_groups,
    device_rank,
    generate,
    is_runnable,
    symbolic_group,
)
from spmdir.lowering.ranges import Emit, Indices
from spmdir.lowering.recordings import Recorder, Recording
from spmdir.lowering.ring import assemble, emit_state, erase_unused, rotate
from spmdir.lowering.shard_indices import emit_local_index, emit_positions
from spmdir.lowering.site import IS_COMPUTED, WAIT, Kind, Site, here
from spmdir.lowering.torch_calls import TorchCalls, fill_operands
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.reshard.conditions import refinement
from spmdir.reshard.steps import Step
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.graphs import LazyGraphModule, rename
from spmdir.torch_interop.schemas import is_random
from spmdir.torch_interop.torch_literals import torch_constant

aten = torch.ops.aten


@accepts(module=MODULE, rank=INTEGER, sizes=SIZES, pipeline=PIPELINE)
def lower_to_fx(
    module: ModuleOp,
    rank: int = 0,
    device_mesh: Any = None,
    sizes: Mapping[str, int] | None = None,
    pipeline: Pipeline | str | None = None,
) -> fx.GraphModule:
    """Return the program of one rank. It takes local tensors and returns a tuple of local tensors, in function order.

    Args:
        module: a module at any stage after import. The remaining passes run on a copy.
        rank: the rank; with a device mesh, it is the rank of this process.
        device_mesh: a torch DeviceMesh that equals the mesh of the module. Collectives use its process groups. Without
            a device mesh, groups are named by mesh axes, such as `mesh:dp,tp`, and the program can only be read and
            simulated.
        sizes: name → value of each symbolic size. A program is emitted for one choice of sizes.
        pipeline: the pipeline whose remaining passes run; the standard pipeline if None.

    Raises:
        SpmdirError: the module cannot be lowered, or the device mesh differs from its mesh.

    Example:
        >>> print(spmdir.lower_to_fx(module, rank=3).code)
    """
    pipeline = as_pipeline(pipeline)
    with collector_paused(), pipeline.rules:
        module = localize(module, pipeline, sizes)
        mesh, function, group_name = ir.mesh(module), ir.main_function(module), symbolic_group
        if device_mesh is not None:
            rank, group_name = device_rank(device_mesh), device_groups(mesh, device_mesh)
        program = emit(function, mesh, rank, group_name)
        if device_mesh is not None:
            write_gathers(program, device_mesh)
            program.to(device_mesh.device_type)
        return generate(program) if is_runnable(program) else program


def emit(
    function: FuncOp,
    mesh: Mesh,
    rank: int,
    group_name: GroupName,
    ignore_shardings: bool = False,
    measured: bool = False,
) -> fx.GraphModule:
    """Return the graph of `rank` of a local function. Its Python code is generated on demand, see `generate`.

    Args:
        ignore_shardings: whether to emit the whole program for one device.
        measured: whether to call `measured_step` after each lossy step. Only the simulator runs such a graph.

    Raises:
        SpmdirError: torch has no such op, or a collective is impossible. The error has a location.
    """
    if rank not in range(mesh.world_size):
        raise UnsupportedError(
            f"rank {shown(rank)} is not in the mesh of {mesh.world_size} ranks; expected 0 to {mesh.world_size - 1}"
        )
    return _Emitter(function, mesh, rank, group_name, ignore_shardings, measured).emit_function()


def measured_step(before: Any, after: Any, number: int, member: int, group: str) -> Any:
    """Measure the error of a lossy step. This function is a placeholder; the simulator implements it.

    Args:
        before, after: the local tensor before and after the step.
        number: the position of the op in the program.
        member: the index of the tensor in its bucket.
        group: the name of the group of all ranks.
    """
    raise NotImplementedError("only a simulation measures the steps of a program")


class _Emitter:
    """Walks a local function once, and appends the nodes of one rank to a graph.

    Attributes:
        function, mesh, rank, group_name, ignore_shardings: the arguments of `emit`.
        graph: the graph so far.
        measured: whether to call `measured_step` after each lossy step.
        number: the position of the current op in the function.
        constants: name → constant tensor of the graph.
        constant_names: indices, or the id of a tensor → the name of the constant.
        values: value → its node; for an in-flight value, a function that emits the wait and returns its nodes.
        origin: node → the value that it computes.
        shapes: the shapes of nodes in local forms.
        rejected_nodes: nodes that other ranks use, but not this one. They are erased at the end if nothing uses them.
        random_nodes: nodes that draw random numbers. All ranks draw them, so they are never erased.
        calls_of_state: key of a call for a sent state → its node, see `call_once`.
        exceeding: node of the rows per expert → (node of the number of rows beyond the capacity, capacity).
        last_check: the last op that compares counts with a capacity.
        meta: the metadata for the nodes of the current op.
        calls: the torch calls of `aten` ops.
        recordings: key of a collective → its nodes, for equal collectives.
    """

    def __init__(
        self,
        function: FuncOp,
        mesh: Mesh,
        rank: int,
        group_name: GroupName,
        ignore_shardings: bool,
        measured: bool,
    ):
        """Start with an empty graph; the arguments are those of `emit`."""
        self.measured, self.number = measured, 0
        self.function, self.mesh, self.rank, self.group_name = function, mesh, rank, group_name
        self.ignore_shardings = ignore_shardings
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.constant_names: dict[Indices | int, str] = {}
        self.values: dict[SSAValue, fx.Node | Callable[[], Sequence[fx.Node]]] = {}
        self.origin: dict[fx.Node, SSAValue] = {}
        self.shapes = NodeShapes(
            lambda node: self.local_meta(self.origin[node]) if node in self.origin else None, self.constants
        )
        self.rejected_nodes: list[fx.Node] = []
        self.random_nodes: set[fx.Node] = set()
        self.calls_of_state: dict[object, fx.Node] = {}
        self.exceeding: dict[fx.Node, tuple[fx.Node, int]] = {}
        checks = [op for op in function.body.block.ops if isinstance(op, CheckCapacityOp)]
        self.last_check = checks[-1] if checks else None
        self.meta: dict[str, Any] = {}
        self.calls = TorchCalls(self.evaluate, self.device)
        self.recordings: dict[object, Recording] = {}
        self._device: Any = None

    def emit_function(self) -> fx.GraphModule:
        """Emit all ops of the function, and return the graph with its constants as buffers.

        Raises:
            UnsupportedError: the function calls another function.
        """
        for index, argument in enumerate(self.function.args):
            name = name_of(argument) or signature_name(self.function, "arg_attrs", index) or f"input_{index}"
            self.values[argument] = placeholder = self.graph.placeholder(_identifier(name))
            self.origin[placeholder] = argument
            placeholder.target = placeholder.name  # the name in generated code; names in a graph are unique
        for number, op in enumerate(self.function.body.block.ops):
            self.number = number
            if isinstance(op, CallOp):
                raise UnsupportedError(
                    f"the function calls {op.callee}; expected a function without calls: run the pass inline first",
                    location_of(op),
                )
            if isinstance(op, ValueOp):
                with errors_at(op):
                    self.emit_op(op)
        self.graph.output(tuple(self.node(value) for value in ir.terminator(self.function).operands))
        if self.rejected_nodes:
            results = (node for node in self.graph.nodes if node.target is operator.getitem)
            erase_unused(self.graph, (*self.rejected_nodes, *results), self.random_nodes)
        self.graph.lint()
        root = torch.nn.Module()
        for name, tensor in self.constants.items():
            root.register_buffer(name, tensor, persistent=False)
        return LazyGraphModule(root, self.graph, class_name="RankProgram")

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Append a call to the graph. Index tensors and other tensors among its arguments become constants."""
        args = tuple(self.constant(arg) if isinstance(arg, (torch.Tensor, Indices)) else arg for arg in args)
        return self.append(target, args, kwargs)

    def append(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str | None = None) -> fx.Node:
        """Append a call to the graph. The node is named `name`, by default like the target."""
        name = _default_name(target) if name is None else _identifier(name)
        node = self.graph.create_node("call_function", target, name=name)
        # create_node with arguments would search them for symbolic sizes, and an assignment would look the node up
        # again. Together, this is half of the time of a call.
        object.__setattr__(node, "args", args)
        if kwargs:
            object.__setattr__(node, "kwargs", kwargs)
        node.meta.update(self.meta)
        return node

    def call_once(self, state: object, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """Return the node of a call, as `call` does. An equal earlier call for the same `state` is reused.

        Calls that draw random numbers and calls with constant tensors are never reused.

        All ranks must reuse the same calls, or their collectives differ. Nodes cannot decide this: with `spmd.choose`,
        nodes that are equal on this rank may differ on another rank. So `state` comes from the IR, which is equal on
        all ranks.
        """
        if is_random(target) or any(isinstance(arg, (torch.Tensor, Indices)) for arg in args):
            return self.call(target, *args, **kwargs)
        key = (state, target, _typed_key(args), _typed_key(tuple(sorted(kwargs.items()))))
        if key not in self.calls_of_state:
            self.calls_of_state[key] = self.call(target, *args, **kwargs)
        return self.calls_of_state[key]

    def node(self, value: SSAValue) -> fx.Node:
        """Return the node of a value that is not in flight."""
        node = self.values[value]
        assert isinstance(node, fx.Node)  # the verifier allows pending values only in spmd.wait
        return node

    def local_shape(self, value: SSAValue) -> tuple[int, ...]:
        """Return the shape of this rank's shard of a tensor; the global shape in a program for one device."""
        meta = global_type(value, self.mesh)
        assert meta is not None  # a tensor
        return self.sharding(value).local_type(meta, self.mesh, self.mesh.coordinate(self.rank)).shape

    def sharding(self, value: SSAValue) -> Sharding:
        """Return the sharding of a value; replicated if it has none, and in a program for one device."""
        sharding = None if self.ignore_shardings else sharding_of(value)
        return sharding or Sharding((), self.mesh.name)

    def emit_op(self, op: ValueOp) -> None:
        """Emit one op, and record the node of each result. For a start, record the function that emits its wait."""
        self.meta = _node_metadata(op)
        for result, node in zip(op.results, _emitter(type(op))(self, op), strict=True):
            self.values[result] = node
            if isinstance(node, fx.Node) and node not in self.origin:
                self.origin[node] = result
                if (name := name_of(result)) is not None:
                    rename(node, _identifier(name))
                node.meta[IS_COMPUTED] = not isinstance(op, (Collective, WaitOp))

    def emit_aten(self, op: ValueOp) -> Sequence[Any]:
        """Emit the torch call of an `aten` op. If torch returns a list, emit a `getitem` for each result.

        A result without a tensor type has no node: its entry in the returned list is None.
        """
        operands, results = op.operands, op.results
        # Unused by-products may differ between kernels, as in embedding_bag in bf16, so they are not checked.
        is_checked = [bool(result.uses) or len(results) == 1 for result in results]
        result_types = tuple(
            self.local_meta(result) if checked else None for result, checked in zip(results, is_checked, strict=True)
        )
        call = self.calls.of(op, tuple(map(self.local_meta, operands)), result_types)
        nodes, name = [self.node(value) for value in operands], name_of(results[0]) if call.is_single else None
        node = self.append(call.target, fill_operands(call.args, nodes), fill_operands(call.kwargs, nodes), name)
        if call.draws:
            self.random_nodes.add(node)
        if call.is_single:
            return [node]
        items: list[fx.Node | None] = []
        for index, (meta, result) in enumerate(zip(op.metas, results, strict=True)):
            default_name = f"{node.name}_{index}" if len(results) > 1 else node.name
            item_name = name_of(result) or default_name
            items.append(None if meta is None else self.append(operator.getitem, (node, index), {}, item_name))
        return items

    def local_meta(self, value: SSAValue) -> TensorMeta | None:
        """Return shape and element type of this rank's shard; None if the IR does not contain the local shape.

        The IR lacks it in local forms whose types have no sizes, and for routed dimensions, whose local size depends on
        data.
        """
        meta = meta_of(value.type)
        if meta is not None and DYNAMIC not in meta.shape and not self.ignore_shardings:
            return meta
        if meta is None or DYNAMIC in global_shape(value, self.mesh) or self.sharding(value).routed_dims:
            return None
        return TensorMeta(self.local_shape(value), meta.dtype)

    def evaluate(self, local: Local) -> int:
        """Return the value on this rank of a number that depends on the rank."""
        return local.evaluate(self.mesh, self.mesh.coordinate(self.rank))

    def device(self) -> Any:
        """Return the node of the device of the first input, for ops without operands; the CPU if there is no input."""
        first_input = next((node for node in self.graph.nodes if node.op == "placeholder"), None)
        if first_input is None:
            return torch.device("cpu")
        if self._device is None:
            with self.graph.inserting_after(first_input):
                self._device = self.graph.call_function(getattr, (first_input, "device"))
        return self._device

    def emit_collective(self, op: Any) -> Sequence[Any]:
        """Emit a collective, and return its results: one for each member, then the new edge states.

        For a start, the entry of a member is the function that emits the wait. On one device, a collective returns its
        operands.
        """
        operands = [self.node(value) for value, _ in op.pairs]
        if self.ignore_shardings:
            started = start_collective(self.call, [*map(here, operands)], self.shapes.of)
            return [*self.wait_or_defer(op, (), started), *map(self.node, op.operands[len(operands) :])]
        steps, state = op.steps(self.mesh), sent_state(op, self.mesh)
        measured = self.measured and any(step.has_lossy for step in steps)
        if not measured and not op.IS_START and state is None and len(op.operands) == len(operands):
            return self.emit_stateless(op, steps, operands)
        started = self.start(op, steps, operands, self.call if state is None else partial(self.call_once, state))
        return [*self.wait_or_defer(op, steps, started), *started.states]

    def emit_stateless(self, op: Any, steps: Sequence[Step], operands: Sequence[fx.Node]) -> Sequence[fx.Node]:
        """Emit a collective without edge states and its wait, and return its results.

        Equal collectives are lowered once. The calls of the first are recorded and repeated for the operands of others.
        """
        types = tuple(global_type(value, self.mesh) for value, _ in op.pairs)
        key = (op.spec, steps, types, tuple(map(operands.index, operands)))
        if key in self.recordings:
            return self.recordings[key].replay(self.append, operands)
        emit = Recorder(self.call)
        results = self.start(op, steps, operands, emit).wait(emit)
        self.recordings[key] = Recording.of(operands, emit.nodes, results)
        return results

    def start(self, op: Any, steps: Sequence[Step], operands: Sequence[fx.Node], emit: Emit) -> StartedCollective:
        """Emit the collective `op` without its wait. Step i applies to operand i."""
        sites = [self.site(op, index, step, emit) for index, step in enumerate(steps)]
        messages = [prepare_message(op.spec, site, x) for site, x in zip(sites, operands, strict=True)]
        return start_collective(emit, messages, self.shapes.of)

    def wait_or_defer(self, op: Any, steps: Sequence[Step], started: StartedCollective) -> list[Any]:
        """Return the node of each member of `op` after its wait; for a start op, the function that does this later."""
        wait = partial(self.wait_for, op, self.number, steps, started)
        return [wait] * (len(op.results) - len(started.states)) if op.IS_START else wait()

    def wait_for(self, op: Any, number: int, steps: Sequence[Step], started: StartedCollective) -> list[fx.Node]:
        """Emit the wait for the collective `op`, and return the value of each member.

        If steps are measured, the value of a member with a lossy step is the result of `measured_step`.

        Args:
            number: the position in the program of the op that starts the collective.
        """
        values = started.wait(self.call)
        for member, (step, (operand, _)) in enumerate(zip(steps, op.pairs, strict=False)):
            if self.measured and step.has_lossy:
                group = self.group_name(self.mesh.axis_names)
                measured = self.call(measured_step, self.node(operand), values[member], number, member, group)
                values[member] = self.call(WAIT, measured)
        return values

    def site(self, op: Any, index: int, step: Step, emit: Emit) -> Site:
        """Return the site of member `index` of a collective, which its emitter reads.

        If a sharding splits an axis, the site has a mesh in which the sub-axes are axes.

        Args:
            step: the reshard of this member, from its source to its target sharding.
            emit: appends a call to the graph.
        """
        meta = global_type(op.operands[index], self.mesh)
        assert meta is not None
        mesh = refinement(self.mesh, step.source, step.target, op.axes)
        argument = {**op.member_arguments(index), "axes": tuple(part for axis in op.axes for part in mesh.parts(axis))}
        source, target = step.source.refined(mesh), step.target.refined(mesh)
        group_name = partial(self.group_name, stream=op.stream)
        return Site(emit, group_name, mesh, self.rank, source, target, meta, argument, self.states(op))

    def states(self, op: Any) -> dict[str, tuple[fx.Node, Kind]]:
        """Return name → (node, kind) of each edge state of `op` on this rank; empty if it has none."""
        edge_state_operands = op.operands[len(op.pairs) :]
        pairs = zip(op.states(self.mesh), edge_state_operands, strict=True) if edge_state_operands else ()
        return {
            state.name: (self.node(value), (self.local_shape(value), TORCH_DTYPES[state.meta.dtype]))
            for state, value in pairs
        }

    def emit_halo(self, op: Any) -> Sequence[Any]:
        """Emit the exchange of elements with the neighbouring chunks."""
        meta = meta_of(op.operands[0].type)
        assert meta is not None
        line = line_of(self.mesh, self.rank, op.axes, self.group_name)
        x, dtype = self.node(op.operands[0]), TORCH_DTYPES[meta.dtype]
        return [HALO_EMITTERS[op.name](self.call, line, x, dtype, op)]

    def emit_rotate(self, op: Any) -> Sequence[Any]:
        """Emit a rotation of a ring; for a start, return the function that waits for it."""
        meta = meta_of(op.operands[0].type)
        assert meta is not None
        x, dtype = self.node(op.operands[0]), TORCH_DTYPES[meta.dtype]
        wait = rotate(self.call, self.mesh, self.rank, self.group_name, x, dtype, op)
        return [lambda: [wait()]] if op.IS_START else [wait()]

    def emit_expert_exchange(self, op: Any) -> Sequence[Any]:
        """Emit the exchange of the rows of experts, or, for an op with one operand, of the numbers of rows.

        For a start, return the function that waits for them.
        """
        group, size = exchange_rows.exchange_group(self.mesh, op, self.group_name)
        sent, *counts = map(self.node, op.operands)
        meta = meta_of(op.operands[0].type)
        assert meta is not None
        dtype = TORCH_DTYPES[meta.dtype]
        if isinstance(op, CountsExchangeOp):
            wait = exchange_rows.exchange_counts(self.call, group, size, sent, host_reads_counts(op))
        elif isinstance(op, SlotsExchangeOp):
            wait = exchange_rows.exchange_slots(self.call, group, size, sent, meta.shape[1:], dtype)
        else:
            once = partial(self.call_once, ("counts", group))
            wait = exchange_rows.exchange_rows(self.call, once, group, size, sent, dtype, *counts)
        return [lambda: [wait()]] if op.IS_START else [wait()]

    def emit_check_capacity(self, op: Any) -> Sequence[Any]:
        """Return the counts, and record the number of rows beyond the capacity.

        The last such op of the program emits the error for all of them, because they share one message.
        """
        counts = self.node(op.operands[0])
        if counts not in self.exceeding:
            self.exceeding[counts] = exchange_rows.count_exceeding(self.call, counts, op.capacity), op.capacity
        if op is self.last_check:
            group = self.group_name(self.mesh.axis_names) if self.mesh.world_size > 1 else None
            exchange_rows.require_capacity(self.call, [*self.exceeding.values()], group)
        return [counts]

    def emit_host_copy(self, op: Any) -> Sequence[Any]:
        """Emit a copy to or from host memory; for a start, return the function that waits for it."""
        end = begin_copy(self.call, self.node(op.operands[0]), self.device, op.TO_HOST)
        return [lambda: [end()]] if op.IS_START else [end()]

    def emit_assemble(self, op: Any) -> Sequence[Any]:
        """Join the blocks that a ring received one after the other."""
        return [assemble(self.call, self.mesh, self.rank, [*map(self.node, op.operands)], op)]

    def emit_choose(self, op: ValueOp) -> Sequence[Any]:
        """Return the operand that this rank uses. The nodes that compute only the other operand are erased later."""
        when = op.argument["when"]
        assert isinstance(when, Local)  # verified
        new, old = map(self.node, op.operands)
        chosen, rejected = (new, old) if self.evaluate(when) else (old, new)
        self.rejected_nodes.append(rejected)
        return [chosen]

    def emit_state(self, op: Any) -> Sequence[Any]:
        """Emit an op on the states of a packed placement, such as the combination of two states."""
        nodes, operand_kinds = [*map(self.node, op.operands)], [*map(self.kind, op.operands)]
        result_kinds = [meta and (meta.shape, TORCH_DTYPES[meta.dtype]) for meta in map(self.local_meta, op.results)]
        call_once = partial(self.call_once, (tuple(op.operands), op.argument["by"]))
        results = emit_state(call_once if isinstance(op, PackOp) else self.call, op, nodes, operand_kinds, result_kinds)
        self.rejected_nodes += results
        return results

    def kind(self, value: SSAValue) -> Kind:
        """Return shape and element type of this rank's tensor. If the IR has no sizes, they are computed from nodes."""
        meta = self.local_meta(value)
        return self.shapes.of(self.node(value)) if meta is None else (meta.shape, TORCH_DTYPES[meta.dtype])

    def emit_shard_index(self, op: Any) -> Sequence[Any]:
        """Emit the global positions of this rank's shard; for a LocalIndexOp, the local index of global positions."""
        ranges = op.shard.ranges(self.mesh, self.mesh.coordinate(self.rank))
        if not isinstance(op, LocalIndexOp):
            return [emit_positions(self.call, ranges, self.device())]
        index, meta = self.node(op.operands[0]), meta_of(op.operands[0].type)
        if meta is None or meta.dtype != I64:
            index = self.call(aten._to_copy.default, index, dtype=torch.int64)
        return [emit_local_index(self.call, index, ranges)]

    def emit_wait(self, op: ValueOp) -> Sequence[Any]:
        """Emit the wait for an in-flight op, and return its values."""
        wait = self.values[op.operands[0]]
        assert not isinstance(wait, fx.Node)  # the verifier of spmd.wait requires a start
        return wait()

    def emit_constant(self, op: ValueOp) -> Sequence[Any]:
        """Return the node of a constant tensor."""
        meta = op.metas[0]
        assert meta is not None
        return [self.constant(torch_constant(str(op.argument["value"]), meta.shape, meta.dtype))]

    def constant(self, value: torch.Tensor | Indices) -> fx.Node:
        """Return the node of a constant. Equal indices share one constant."""
        key = value if isinstance(value, Indices) else id(value)
        if key not in self.constant_names:
            self.constant_names[key] = name = f"constant_{len(self.constants)}"
            self.constants[name] = value.tensor() if isinstance(value, Indices) else value
        return self.graph.get_attr(self.constant_names[key])

    def emit_identity(self, op: ValueOp) -> Sequence[Any]:
        """Return the operand, for an op that does nothing on one device."""
        return [self.node(op.operands[0])]


_EMITTERS = (
    (AtenOp, _Emitter.emit_aten),
    (Collective, _Emitter.emit_collective),
    (HaloExchangeOp, _Emitter.emit_halo),
    (RotationOp, _Emitter.emit_rotate),
    (ExpertExchangeOp, _Emitter.emit_expert_exchange),
    (CheckCapacityOp, _Emitter.emit_check_capacity),
    (HostCopyOp, _Emitter.emit_host_copy),
    (AssembleOp, _Emitter.emit_assemble),
    (ChooseOp, _Emitter.emit_choose),
    (StateOp, _Emitter.emit_state),
    (ShardIndexOp, _Emitter.emit_shard_index),
    (WaitOp, _Emitter.emit_wait),
    (ConstantOp, _Emitter.emit_constant),
    ((ReshardOp, ConstraintOp), _Emitter.emit_identity),
)
"""Op class → its emitter. Reshards and constraints remain only in programs for one device."""


@cache
def _emitter(kind: type[ValueOp]) -> Callable[[_Emitter, ValueOp], Sequence[Any]]:
    """Return the emitter of an op class."""
    return next(emitter for op_class, emitter in _EMITTERS if issubclass(kind, op_class))


def _typed_key(value: Any) -> object:
    """Return a hashable key for an argument of a call. The keys of 1, 1.0 and True differ, unlike the values."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_typed_key, value))
    return value if isinstance(value, fx.Node) else (type(value), value)


@cache
def _default_name(target: Any) -> str:
    """Return the default name of a node that calls `target`."""
    return _identifier(target.__name__).lower()


def _identifier(name: str) -> str:
    """Return `name` as a Python identifier: `x.1` becomes `x_1`, and `1` becomes `_1`."""
    if name.isidentifier():
        return name
    name = re.sub(r"\W", "_", name)
    return f"_{name}" if name[:1].isdigit() or not name else name


def _node_metadata(op: ValueOp) -> dict[str, Any]:
    """Return the metadata of fx nodes from the location of an op; empty if it has none."""
    location = location_of(op)
    if location is None:
        return {}
    module = op.location.desc.data if isinstance(op.location, NameLoc) else ""
    meta: dict[str, Any] = {"location": location}
    meta["stack_trace"] = f'File "{location.file}", line {location.line}, in {module or op.name}'
    if module:
        meta["nn_module_stack"] = {module: (module, "")}
    return meta
