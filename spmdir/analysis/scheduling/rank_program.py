"""Convert the program of one rank to tasks with times, transfers and buffers.

Times are the prices of the search and the planner. Elementwise ops that use each other are one kernel, even if other
ops are between them in the text. So the sum of the times does not depend on the order of the ops. A collective ends a
kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import Pure, is_side_effect_free

from spmdir.analysis.live_memory import LiveMemory, live_memory
from spmdir.analysis.local_forms import SPLIT, ReplacedOp
from spmdir.analysis.local_programs.globalize import Unit, units_of
from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.op_seconds import op_work, work_alone
from spmdir.analysis.routes import dispatched_dim, most_rows
from spmdir.analysis.scheduling.copied_values import host_transfer
from spmdir.analysis.sent_messages import SentMessage, SentMessages
from spmdir.core.dtype import I1
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call, Local
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import DYNAMIC, meta_of
from spmdir.dialects.collectives import Collective, SpmdOp, WaitOp
from spmdir.dialects.deadlock_check import communicator_on
from spmdir.dialects.host_ops import HostCopyOp
from spmdir.dialects.names import text_name
from spmdir.dialects.recomputation import originals
from spmdir.dialects.ring_ops import AssembleOp, RotateStartOp
from spmdir.dialects.row_exchanges import is_exchange_start
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, sharding_of
from spmdir.reshard.cost import add_terms, local_shape, sends_anything, step_terms
from spmdir.reshard.topology import Topology
from spmdir.rules import OpRule, RuleSet
from spmdir.rules.shapes.views import VIEWS
from spmdir.schedule.memory import memory_of_tasks
from spmdir.schedule.program import KernelCost, Program, Task, Transfer
from spmdir.search.kernels import Step, works
from spmdir.search.roofline import Work

RankProgram = tuple[Program, tuple[Unit, ...]]
"""The tasks of a localized function, and the ops of each task."""

_ABSENT_META = TensorMeta((), I1)
"""The type of an absent result."""

PRICED = ("aten.", "experts.")
"""The prefixes of the ops whose local forms are priced as the op that they replace."""

_NO_COST = KernelCost()
"""The cost of a unit without kernels."""


def rank_program(
    function: FuncOp,
    mesh: Mesh,
    rules: RuleSet,
    topology: Topology,
    memory: LiveMemory | None = None,
    paths: Mapping[Any, str] | None = None,
) -> RankProgram:
    """Return the tasks of a localized function, and the ops of each task.

    A task with side effects, such as one that draws random numbers, needs the previous task with side effects. A
    recomputed task needs the original task. A task that overwrites an argument needs all tasks that read the old value.

    Args:
        memory: the buffers of the function; computed if None.
        paths: op → the path of its module, to be recorded in tasks.

    Raises:
        ShardingError: the attribute of a local form is malformed; located.
        UnsupportedError: the function copies to the host, but the topology has no bandwidth to the host; located.
    """
    units = list(units_of(function.body.block))
    unit_ops = tuple(ops for _, ops in units)
    memory = memory or live_memory(function, mesh, rules, memory_classes(function, rules), topology.imbalance)
    sent_messages = SentMessages(mesh, topology)
    messages = {op: message for op in memory.memory_steps if (message := sent_messages.of(op)) is not None}
    streams = _Streams(messages, mesh)
    kernels = _Kernels(function, mesh, rules, topology, messages).of_units(units)
    producer_unit: dict[SSAValue, int] = {
        result: index for index, ops in enumerate(unit_ops) for op in ops for result in op.results
    }
    needs = _needs(function, unit_ops, producer_unit, memory)
    memory_steps = [[step for op in ops for step in memory.memory_steps[op]] for ops in unit_ops]
    memories = memory_of_tasks(memory_steps, memory.buffers, memory.outputs)
    tasks = []
    for index, ((replaced, ops), task_memory) in enumerate(zip(units, memories, strict=True)):
        name, op_name = _name(replaced, ops)
        path = paths[ops[0]] if paths else ""
        if isinstance(ops[0], HostCopyOp):
            transfer = host_transfer(ops[0], memory.copied[ops[0]], topology)
            timing = _Timing(0.0, transfer, is_blocking=not ops[0].IS_START)
        else:
            timing = _timing(ops, kernels[index], producer_unit, messages, streams)
        task = Task(
            name, op_name, path, needs=needs[index], kernel_cost=kernels[index].cost,
            **attrs.asdict(timing, recurse=False), **attrs.asdict(task_memory, recurse=False),
        )  # fmt: skip
        tasks.append(task)
    return Program(tuple(tasks), memory.buffers, memory.inputs, memory.outputs), unit_ops


def _needs(
    function: FuncOp, unit_ops: Sequence[Unit], producer_unit: Mapping[SSAValue, int], memory: LiveMemory
) -> list[tuple[int, ...]]:
    """Return, for each unit, the units that must run before it, in ascending order.

    A unit needs the producers of its operands, and the originals of its recomputed ops. A unit with side effects needs
    the previous unit with side effects. A unit that overwrites a buffer needs the earlier units that read the buffer.

    Args:
        producer_unit: value → the number of the unit that computes it.
        memory: the buffers of the function.
    """
    original_of = originals(function)
    needs_of_units = []
    last_with_effects: int | None = None
    # overwritten buffer → the units that have read it so far
    readers: dict[int, list[int]] = {buffer: [] for buffers in memory.overwritten.values() for buffer in buffers}
    for index, ops in enumerate(unit_ops):
        needs = {producer_unit[operand] for op in ops for operand in op.operands if operand in producer_unit}
        needs.update([producer_unit[original_of[op]] for op in ops if op in original_of])
        for buffer in [buffer for op in ops for buffer in memory.overwritten.get(op, ())]:
            needs.update(readers[buffer])
        needs.discard(index)
        if not all(map(_has_no_effects, ops)):
            if last_with_effects is not None:
                needs.add(last_with_effects)
            last_with_effects = index
        needs_of_units.append(tuple(sorted(needs)))
        steps = [step for op in ops for step in memory.memory_steps[op]] if readers else []
        for buffer in {buffer for step in steps for buffer in step.reads}.intersection(readers):
            readers[buffer].append(index)
    return needs_of_units


def _has_no_effects(op: Operation) -> bool:
    """Return whether an op has no side effects."""
    return _is_pure(type(op)) or is_side_effect_free(op)


@functools.cache
def _is_pure(kind: type[Operation]) -> bool:
    """Return whether all ops of a class are pure."""
    return kind.has_trait(Pure)


def _name(replaced: ReplacedOp | None, ops: Unit) -> tuple[str, str]:
    """Return the names of a unit's first result and of its op; for a local form, those of the op that it replaces.

    The first part of a divided form is named after the start that ends it.
    """
    if replaced is None or is_exchange_start(ops[-1]):
        return text_name(ops[-1].results[0]), ops[-1].name
    if isinstance(ops[0], WaitOp):
        return text_name(ops[-1].results[0]), replaced.op
    result = ops[0].results[0]
    for place in replaced.places.results:
        if place is not None:
            number, index = place
            result = ops[number].results[index]
            break
    return text_name(result), replaced.op


@attrs.frozen
class _Timing:
    """The fields of a task that describe its time and its transfer."""

    seconds: float
    transfer: Transfer | None = None
    waits_for: int | None = None
    is_blocking: bool = False
    overlap: float = 0.0


class _Streams:
    """The streams of the collectives of a program.

    Args:
        messages: the ops that send messages, among them all collectives whose streams are needed.
    """

    def __init__(self, messages: Mapping[Operation, SentMessage], mesh: Mesh):
        self._communicator_of = {op: communicator_on(op, message.axes, mesh) for op, message in messages.items()}
        communicators = {*self._communicator_of.values()}
        # communicator → the names of the communicators that must not run at the same time
        self._excludes = {
            communicator: frozenset(
                excluded.name for excluded in communicators if communicator.excludes(excluded, mesh)
            )
            for communicator in communicators
        }

    def of_unit(self, ops: Iterable[Operation]) -> tuple[str, frozenset[str]]:
        """Return the stream of the collectives of a unit, and the streams on which nothing may be in flight meanwhile.

        If the collectives have several communicators, as in a local form, their names together are one stream.
        """
        communicators = dict.fromkeys(self._communicator_of[op] for op in ops)
        stream = ", ".join(communicator.name for communicator in communicators)
        excluded_streams = [self._excludes[communicator] for communicator in communicators]
        return stream, frozenset().union(*excluded_streams)


@attrs.define
class _UnitKernels:
    """The kernels of a unit, other than those that pack and unpack messages.

    Attributes:
        seconds: the time of all kernels.
        block_seconds: the part of `seconds` for the products of blocks, if the unit is a split product; else 0.
        cost: the work of all kernels.
    """

    seconds: float = 0.0
    block_seconds: float = 0.0
    cost: KernelCost = _NO_COST


def _timing(
    ops: Unit,
    kernels: _UnitKernels,
    producer_unit: Mapping[SSAValue, int],
    messages: Mapping[Operation, SentMessage],
    streams: _Streams,
) -> _Timing:
    """Return the time and the transfer of a unit, other than a copy to or from the host.

    The start of a collective takes the time to pack its message, and its wait the time to unpack, in addition to the
    kernels of a divided form. Any other unit with messages blocks until its transfer ends, and takes the time of its
    kernels, of packing and of unpacking.

    Args:
        producer_unit: value → the number of the unit that computes it.
        messages: op → its message, for the ops that send one.
    """
    op, seconds = ops[0], kernels.seconds
    if isinstance(op, WaitOp):
        if isinstance(op.start, HostCopyOp):
            return _Timing(0.0, waits_for=producer_unit[op.start.results[0]])
        message = messages.get(op.start)
        if message is None:
            return _Timing(seconds)
        form_seconds = seconds if is_exchange_start(op.start) else 0.0
        return _Timing(form_seconds + message.terms.unpacking, waits_for=producer_unit[op.start.results[0]])
    unit_messages = [messages[member] for member in ops if member in messages]
    if not unit_messages:
        return _Timing(seconds)
    terms = add_terms([message.terms for message in unit_messages])
    axes = tuple(dict.fromkeys(axis for message in unit_messages for axis in message.axes))
    stream, excludes = streams.of_unit(member for member in ops if member in messages)
    transfer_terms = terms.latency, terms.intra, terms.inter, terms.wire_bytes
    packing_seconds = unit_messages[0].packing_seconds if len(unit_messages) == 1 else 0.0
    transfer = Transfer(stream, axes, *transfer_terms, excludes, packing_seconds)
    if isinstance(op, Collective) and op.IS_START:
        return _Timing(terms.packing, transfer)
    if is_exchange_start(ops[-1]):
        return _Timing(seconds + terms.packing, transfer)
    # Each start of a rotation runs in parallel to a product of blocks. The last product has no start.
    starts = sum(isinstance(member, RotateStartOp) for member in ops)
    overlap = kernels.block_seconds * starts / (starts + 1)
    return _Timing(seconds + terms.packing + terms.unpacking, transfer, is_blocking=True, overlap=overlap)


class _Kernels:
    """The kernels of a localized function, with the prices of the search. `of_units` may be called once.

    Kernels are computed from *steps* (`search.kernels.Step`): first one for each argument of the function, then those
    of each unit, then one for each result of the function. The steps of arguments and results have no name, so they
    take no time. They only keep values that cross the border of the function out of fused kernels.

    Args:
        messages: the ops that send messages, whose kernels pack and unpack them.
    """

    def __init__(
        self,
        function: FuncOp,
        mesh: Mesh,
        rules: RuleSet,
        topology: Topology,
        messages: Collection[Operation],
    ):
        self.function, self.mesh, self.rules, self.topology = function, mesh, rules, topology
        self.messages = messages
        self._imbalance = min(topology.imbalance, most_rows(function, mesh))
        self._metas: list[TensorMeta] = []
        self._numbers: dict[SSAValue, int] = {}
        self._rules: dict[Call, OpRule | None] = {}
        self._prices: dict[Work, tuple[float, KernelCost]] = {}
        self._steps = [Step(None, "", (), (self._number(value),)) for value in function.args]
        self._first = mesh.coordinate(0)  # rank 0, whose sizes replace Locals in arguments of ops

    def of_units(self, units: Sequence[tuple[ReplacedOp | None, Unit]]) -> list[_UnitKernels]:
        """Return the kernels of each unit.

        A local form is priced as the op that it replaces. The other ops are steps of kernels, which `works` fuses. The
        launch of a fused kernel counts for the unit of its first step, bytes for the unit that reads or writes them.
        For example, if the units 0 and 1 are the two ops of the kernel `exp(x) + y`, the launch and the read of x count
        for unit 0, the read of y and the write of the sum for unit 1.

        Args:
            units: each with the op that it replaces, if it is a local form.
        """
        kernels: list[_UnitKernels] = []
        steps_of_unit: list[range] = []  # positions in `_steps`
        for replaced, ops in units:
            first_step = len(self._steps)
            if replaced is not None and replaced.op.startswith(PRICED) and SPLIT not in replaced.attributes:
                kernels.append(self._form_kernels(replaced, ops))
                self._add_boundary_step(ops)
            else:
                local_seconds = sum([self._add_steps(op) for op in ops if isinstance(op, ValueOp)])
                kernels.append(_UnitKernels(local_seconds))
            steps_of_unit.append(range(first_step, len(self._steps)))
        for value in ir.terminator(self.function).operands:  # results of the function are written to memory
            self._steps.append(Step(None, "", self._tensors([value]), ()))
        work_of_step = works(self._steps, self._metas, self.topology.costs is not None)
        for (replaced, _), unit_kernels, unit_steps in zip(units, kernels, steps_of_unit, strict=True):
            split_product = replaced.op if replaced is not None and SPLIT in replaced.attributes else None
            for position in unit_steps:
                seconds, cost = self._price(work_of_step[position])
                if not seconds:
                    continue
                unit_kernels.seconds += seconds
                if self._steps[position].name == split_product:
                    unit_kernels.block_seconds += seconds
                unit_kernels.cost = cost if unit_kernels.cost == _NO_COST else unit_kernels.cost.plus(cost)
        return kernels

    def _form_kernels(self, replaced: ReplacedOp, ops: Unit) -> _UnitKernels:
        """Return the kernels of one part of a local form: those of the whole op that it replaces, or none.

        All torch ops of a form are in one of its parts, and the form is priced with this part.
        """
        if not any(isinstance(op, AtenOp) for op in ops):
            return _UnitKernels()
        seconds, cost = self._price(self._form_work(replaced))
        return _UnitKernels(seconds, cost=cost)

    def _add_boundary_step(self, ops: Unit) -> None:
        """Add a step that takes no time, and keeps operands and results of `ops` out of the kernels of other ops."""
        results = {result for op in ops for result in op.results}
        operands = [value for op in ops for value in op.operands if value not in results]
        self._steps.append(Step(None, "", self._tensors(operands), self._tensors(list(results))))

    def _price(self, work: Work) -> tuple[float, KernelCost]:
        """Return the seconds and the cost of a kernel; computed once for equal works."""
        if work not in self._prices:
            self._prices[work] = self._compute_price(work)
        return self._prices[work]

    def _compute_price(self, work: Work) -> tuple[float, KernelCost]:
        """Return the seconds and the cost of a kernel."""
        time, (_, arithmetic_seconds, traffic_seconds) = work.time(self.topology), work.terms(self.topology)
        bound = work.bound(self.topology) if time.place == self.topology.name else "measured"
        ideal_seconds = max(arithmetic_seconds, traffic_seconds)
        return time.seconds, KernelCost(work.flops, work.traffic, ideal_seconds, bound)

    def _form_work(self, replaced: ReplacedOp) -> Work:
        """Return the work of the op that a local form replaces."""
        results = tuple(map(meta_of, replaced.results))  # None for absent results
        operand_metas = tuple([meta_of(type_) or _ABSENT_META for type_ in replaced.operands])
        result_metas = tuple([meta or _ABSENT_META for meta in results])
        arguments, structure = (
            getattr(replaced.properties.get(key), "data", None) for key in ("arguments", "structure")
        )
        rule = self.rules.instantiate(Call(replaced.op, operand_metas, arguments or (), results, structure))
        work = work_alone(rule and rule.evaluated, replaced.op, operand_metas, result_metas)
        operand_shardings = [sharding or Sharding() for sharding in replaced.operand_shardings]
        result_shardings = [sharding or Sharding() for sharding in replaced.result_shardings]
        sharded_operands = tuple(zip(operand_metas, operand_shardings, strict=True))
        sharded_results = tuple(zip(result_metas, result_shardings, strict=True))
        return op_work(work, sharded_operands, sharded_results, self.mesh, self.topology.imbalance)

    def _add_steps(self, op: ValueOp) -> float:
        """Add the kernel steps of an op, and return the seconds that it takes in addition to these kernels.

        Only a collective that sends nothing takes additional seconds. The start of a collective has no steps: its wait
        has them, because kernels cannot be fused across the transfer.
        """
        if isinstance(op, AtenOp):
            self._steps.append(self._torch_step(op))
        elif isinstance(op, WaitOp):
            self._add_reshard(op, op.start.operands)
        elif isinstance(op, HostCopyOp):
            if not op.IS_START:
                self._add_reshard(op, op.operands)
        elif isinstance(op, Collective) and not op.IS_START:
            self._add_reshard(op, op.operands)
            return 0.0 if op in self.messages else self._local_seconds(op)
        elif not isinstance(op, (Collective, RotateStartOp)):
            name = op.name if isinstance(op, AssembleOp) else ""
            self._steps.append(Step(None, name, self._tensors(op.operands), self._tensors(op.results)))
        return 0.0

    def _local_seconds(self, op: Collective) -> float:
        """Return the seconds of a collective without a message: a local step, such as a slice."""
        step, meta = op.step(self.mesh), global_type(op.operands[0], self.mesh)
        if meta is None or sends_anything(step, meta.shape, self.mesh):
            return 0.0  # its packed state was sent before
        return step_terms(step, meta.shape, meta.dtype.itemsize, self.mesh, self.topology).seconds

    def _add_reshard(self, op: SpmdOp, operands: Sequence[SSAValue]) -> None:
        """Add one kernel step for each tensor of a collective.

        Args:
            op: the collective or its wait, whose results are the tensors.
            operands: the operands of the collective.
        """
        # Operands after the pairs are edge states, which have no step.
        for operand, (_, result) in zip(operands, op.pairs, strict=False):
            self._steps.append(Step(None, "", self._tensors([operand]), self._tensors([result])))

    def _torch_step(self, op: AtenOp) -> Step:
        """Return the kernel step of a torch op, with the rule of its call on the shards of the first rank.

        If a size differs between ranks, the call has the types in `_metas`, in which all sizes are known. A view
        without a rule has no name, so it takes no time.
        """
        operands, results = self._tensors(op.operands), self._tensors(op.results)
        call = op.call()
        if call in self._rules:
            rule = self._rules[call]
        elif any(DYNAMIC in meta.shape for meta in (*call.operands, *call.results) if meta is not None):
            arguments = tuple((name, self._evaluated(value)) for name, value in call.arguments)
            operand_metas = tuple([self._metas[value] for value in operands])
            result_metas = tuple(
                [meta and self._metas[value] for meta, value in zip(call.results, results, strict=True)]
            )
            rule = self._rule(Call(call.name, operand_metas, arguments, result_metas, call.structure))
        else:
            rule = self._rules[call] = self._rule(call)
        return Step(rule, "" if rule is None and op.name in VIEWS else op.name, operands, results)

    def _rule(self, call: Call) -> OpRule | None:
        """Return the rule of a call on the first rank's shards; None if no rule applies to these sizes."""
        try:
            rule = self.rules.instantiate(call)
            return rule and rule.evaluated
        except (SpmdirError, TypeError, ValueError):
            return None

    def _evaluated(self, value: Any) -> Any:
        """Return an argument of a call with the sizes that it has on the first rank."""
        if isinstance(value, tuple):
            return tuple(map(self._evaluated, value))
        return value.evaluate(self.mesh, self._first) if isinstance(value, Local) else value

    def _tensors(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        """Return the numbers of values. Values without a number get the next ones."""
        number_of = self._numbers.get
        return tuple([self._number(value) if (number := number_of(value)) is None else number for value in values])

    def _number(self, value: SSAValue) -> int:
        """Give a value without a number the next one, and return this number."""
        self._metas.append(self._meta(value))
        return self._numbers.setdefault(value, len(self._numbers))

    def _meta(self, value: SSAValue) -> TensorMeta:
        """Return the type of a value on the rank with its largest shard; rows of experts are times the imbalance."""
        meta = self._balanced_meta(value)
        dim = dispatched_dim(value) if self._imbalance > 1.0 else None
        if dim is None:
            return meta
        rows = math.ceil(meta.shape[dim] * self._imbalance)
        return attrs.evolve(meta, shape=(*meta.shape[:dim], rows, *meta.shape[dim + 1 :]))

    def _balanced_meta(self, value: SSAValue) -> TensorMeta:
        """Return the type of a value on the rank with the largest shard, with a balanced router.

        A size of a local form that is unknown counts as 1. A value that is no tensor has a type of one element.
        """
        meta = meta_of(value.type)
        if meta is None or DYNAMIC not in meta.shape:
            return meta or _ABSENT_META
        global_meta, sharding = global_type(value, self.mesh), sharding_of(value)
        if global_meta is None or sharding is None or DYNAMIC in global_meta.shape:
            return attrs.evolve(meta, shape=tuple(1 if size == DYNAMIC else size for size in meta.shape))
        return attrs.evolve(meta, shape=local_shape(sharding, global_meta.shape, self.mesh))
