"""The program of one rank as a schedule sees it: units of its ops as tasks with prices, messages and buffers.

Prices are those of the search and the planner. Elementwise ops that follow each other are one kernel, whatever is
between them in the text, and so the sum over ops does not depend on their order; a collective ends a kernel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import Pure, is_side_effect_free

from spmdir.analysis.live_memory import LiveMemory, live_memory
from spmdir.analysis.local_forms import SPLIT, Note
from spmdir.analysis.local_programs.globalize import Unit, steps
from spmdir.analysis.memory_classes import memory_classes
from spmdir.analysis.op_seconds import op_work, work_alone
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
from spmdir.dialects.host import HostCopyOp
from spmdir.dialects.in_flight import communicator_on
from spmdir.dialects.names import text_name
from spmdir.dialects.recomputation import originals
from spmdir.dialects.ring import AssembleOp, RotateStartOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, sharding_of
from spmdir.reshard.cost import add_terms, local_shape, sends_anything, step_terms
from spmdir.reshard.topology import Topology
from spmdir.rules import OpRule, RuleSet
from spmdir.rules.shapes.views import VIEWS
from spmdir.schedule.memory import memory_of_tasks
from spmdir.schedule.program import KernelCost, Program, Task, Transfer
from spmdir.search.kernels import Step, works
from spmdir.search.work import Work

_ABSENT = TensorMeta((), I1)
"""What stands for a result that an op is asked not to make."""

_NOTHING = KernelCost()
"""What a unit without kernels computes."""


def rank_program(
    function: FuncOp,
    mesh: Mesh,
    rules: RuleSet,
    topology: Topology,
    memory: LiveMemory | None = None,
    paths: Mapping[Any, str] | None = None,
) -> tuple[Program, tuple[Unit, ...]]:
    """Return the tasks of a localized function, and the ops that each of them is.

    A task with effects, as one that draws random numbers, needs the one before it, and one that repeats another one
    needs that, which has to be before it.

    Args:
        memory: the buffers of the function, if they are known.
        paths: op → the path of its module, if tasks are to say it.

    Raises:
        ShardingError: the note of a local form is malformed; located.
        UnsupportedError: it copies to the host, and the topology has no bandwidth to there; located.
    """
    forms = list(steps(function.body.block))
    memory = memory or live_memory(function, mesh, rules, memory_classes(function, rules))
    asked = SentMessages(mesh, topology)
    messages = {op: message for op in memory.stages if (message := asked.of(op)) is not None}
    streams = _Streams(messages, mesh)
    kernels = _Kernels(function, mesh, rules, topology, messages).of(forms)
    maker: dict[SSAValue, int] = {
        result: at for at, (_, ops) in enumerate(forms) for op in ops for result in op.results
    }
    stages = [
        memory.stages[ops[0]] if len(ops) == 1 else [stage for op in ops for stage in memory.stages[op]]
        for _, ops in forms
    ]
    repeated = originals(function)
    effects = [at for at, (_, ops) in enumerate(forms) if not all(map(_has_no_effects, ops))]
    effect_before = {later: earlier for earlier, later in itertools.pairwise(effects)}
    tasks = []
    for at, ((note, ops), held) in enumerate(
        zip(forms, memory_of_tasks(stages, memory.buffers, memory.outputs), strict=True)
    ):
        name, op = _name(note, ops)
        needs = {maker[operand] for one in ops for operand in one.operands if operand in maker}
        needs.update([maker[repeated[one]] for one in ops if one in repeated])
        needs.discard(at)
        if at in effect_before:
            needs.add(effect_before[at])
        path = paths[ops[0]] if paths else ""
        if isinstance(ops[0], HostCopyOp):
            transfer = host_transfer(ops[0], memory.copied[ops[0]], topology)
            took = _Timing(0.0, transfer, is_blocking=not ops[0].IS_START)
        else:
            took = _timing(ops, kernels[at], maker, messages, streams)
        holds = held.allocates, held.reads, held.transient, held.memory_steps
        sends = took.transfer, took.waits, took.is_blocking, took.overlap
        needed = tuple(sorted(needs))
        tasks.append(Task(name, op, path, took.seconds, needed, *holds, *sends, kernel_cost=kernels[at].computed))
    return Program(tuple(tasks), memory.buffers, memory.inputs, memory.outputs), tuple(ops for _, ops in forms)


def _has_no_effects(op: Operation) -> bool:
    return _is_pure(type(op)) or is_side_effect_free(op)


@functools.cache
def _is_pure(kind: type[Operation]) -> bool:
    return kind.has_trait(Pure)


def _name(note: Note | None, ops: Unit) -> tuple[str, str]:
    """Return the name of what a unit gives, and of its op, that which it is a local form of."""
    if note is None:
        return text_name(ops[0].results[0]), ops[0].name
    places = [place for place in note.places.results if place is not None]
    return text_name(ops[places[0][0]].results[places[0][1]] if places else ops[0].results[0]), note.op


@attrs.frozen
class _Timing:
    """The fields of a task that say what it takes and sends."""

    seconds: float
    transfer: Transfer | None = None
    waits: int | None = None
    is_blocking: bool = False
    overlap: float = 0.0


class _Streams:
    """What the collectives of a program run on."""

    def __init__(self, messages: Mapping[Operation, SentMessage], mesh: Mesh):
        self._of = {op: communicator_on(op, message.axes, mesh) for op, message in messages.items()}
        each = {*self._of.values()}
        self._excludes = {one: frozenset(other.name for other in each if one.excludes(other, mesh)) for one in each}

    def of(self, ops: Iterable[Operation]) -> tuple[str, frozenset[str]]:
        """Return the stream of ops that run together, and those that it excludes."""
        each = dict.fromkeys(self._of[op] for op in ops)
        return ", ".join(one.name for one in each), frozenset().union(*(self._excludes[one] for one in each))


@attrs.define
class _UnitKernels:
    """The kernels of a unit, other than those that pack and unpack messages.

    Attributes:
        seconds: what they take.
        blocks: of these the products of blocks, of a product that is split.
        computed: what they compute.
    """

    seconds: float = 0.0
    blocks: float = 0.0
    computed: KernelCost = _NOTHING


def _timing(
    ops: Unit,
    kernels: _UnitKernels,
    maker: Mapping[SSAValue, int],
    messages: Mapping[Operation, SentMessage],
    streams: _Streams,
) -> _Timing:
    """Return what a unit takes."""
    op, seconds = ops[0], kernels.seconds
    if isinstance(op, WaitOp):
        if isinstance(op.start, HostCopyOp):
            return _Timing(0.0, waits=maker[op.start.results[0]])
        message = messages.get(op.start)
        return _Timing(message.terms.unpacking, waits=maker[op.start.results[0]]) if message else _Timing(seconds)
    own = [messages[one] for one in ops if one in messages]
    if not own:
        return _Timing(seconds)
    terms = add_terms([message.terms for message in own])
    axes = tuple(dict.fromkeys(axis for message in own for axis in message.axes))
    stream, excludes = streams.of(one for one in ops if one in messages)
    sends = terms.latency, terms.intra, terms.inter, terms.wire_bytes
    transfer = Transfer(stream, axes, *sends, excludes, own[0].joining if len(own) == 1 else 0.0)
    if isinstance(op, Collective) and op.IS_START:
        return _Timing(terms.packing, transfer)
    starts = sum(isinstance(one, RotateStartOp) for one in ops)  # each beside a product, of which there is one more
    overlap = kernels.blocks * starts / (starts + 1)
    return _Timing(seconds + terms.packing + terms.unpacking, transfer, is_blocking=True, overlap=overlap)


class _Kernels:
    """The kernels of a localized function, as the search prices them."""

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
        self._metas: list[TensorMeta] = []
        self._numbers: dict[SSAValue, int] = {}
        self._rules: dict[Call, OpRule | None] = {}
        self._steps = [Step(None, "", (), (self._number(value),)) for value in function.args]
        self._first = mesh.coordinate(0)

    def of(self, forms: Sequence[tuple[Note | None, Unit]]) -> list[_UnitKernels]:
        """Return the kernels of each unit."""
        first = len(self._steps)
        found, unit_of = [_UnitKernels() for _ in forms], list[int]()
        for at, (note, ops) in enumerate(forms):
            if note is not None and note.op.startswith("aten.") and SPLIT not in note.attributes:
                work = self._form(note)
                found[at].seconds, found[at].computed = self._priced(work)
                inside = {result for op in ops for result in op.results}
                read = [value for op in ops for value in op.operands if value not in inside]
                self._steps.append(Step(None, "", self._tensors(read), self._tensors(list(inside))))
            else:
                found[at].seconds = sum([self._add(op) for op in ops if isinstance(op, ValueOp)])
            unit_of += [at] * (len(self._steps) - first - len(unit_of))
        for value in ir.terminator(self.function).operands:  # what leaves the function is written
            self._steps.append(Step(None, "", self._tensors([value]), ()))
        times: dict[Work, tuple[float, KernelCost]] = {}
        priced = works(self._steps, self._metas, self.topology.costs is not None)[first:]
        split = [note.op if note is not None and SPLIT in note.attributes else None for note, _ in forms]
        for step, at, work in zip(self._steps[first:], unit_of, priced, strict=False):
            if work not in times:
                times[work] = self._priced(work)
            seconds, computed = times[work]
            if not seconds:
                continue
            unit = found[at]
            unit.seconds += seconds
            unit.blocks += seconds if step.name == split[at] else 0.0
            unit.computed = computed if unit.computed == _NOTHING else unit.computed.plus(computed)
        return found

    def _priced(self, work: Work) -> tuple[float, KernelCost]:
        """Return the time of a kernel, and what it computes."""
        spent, (_, arithmetic, traffic) = work.time(self.topology), work.terms(self.topology)
        bound = work.bound(self.topology) if spent.place == self.topology.name else "measured"
        return spent.seconds, KernelCost(work.flops, work.traffic, max(arithmetic, traffic), bound)

    def _form(self, note: Note) -> Work:
        """Return the work of the op that a local form is of."""
        operands, results = ([meta_of(type_) for type_ in types] for types in (note.operands, note.results))
        arguments, structure = (getattr(note.properties.get(key), "data", None) for key in ("arguments", "structure"))
        given, present = ([meta or _ABSENT for meta in metas] for metas in (operands, results))
        rule = self.rules.instantiate(Call(note.op, tuple(given), arguments or (), tuple(results), structure))
        work = work_alone(rule and rule.evaluated, note.op, tuple(given), tuple(present))
        needed, made = (
            tuple((meta, sharding or Sharding()) for meta, sharding in zip(metas, shardings, strict=True))
            for metas, shardings in ((given, note.needs), (present, note.made))
        )
        return op_work(work, needed, made, self.mesh)

    def _add(self, op: ValueOp) -> float:
        """Add the steps of an op, and return the time that it takes beside these."""
        if isinstance(op, AtenOp):
            self._steps.append(self._of_aten(op))
        elif isinstance(op, (WaitOp, HostCopyOp)):
            start = op.start if isinstance(op, WaitOp) else op
            if not (start is op and isinstance(op, HostCopyOp) and op.IS_START):
                self._through(op, start.operands)
        elif isinstance(op, Collective) and not op.IS_START:
            self._through(op, op.operands)
            return 0.0 if op in self.messages else self._copied(op)
        elif not isinstance(op, (Collective, RotateStartOp)):
            name = op.name if isinstance(op, AssembleOp) else ""
            self._steps.append(Step(None, name, self._tensors(op.operands), self._tensors(op.results)))
        return 0.0

    def _copied(self, op: Collective) -> float:
        """Return the time of a collective that has no message: a step that sends nothing, such as a slice."""
        step, meta = op.step(self.mesh), global_type(op.operands[0], self.mesh)
        if meta is None or sends_anything(step, meta.shape, self.mesh):
            return 0.0  # it was sent before
        return step_terms(step, meta.shape, meta.dtype.itemsize, self.mesh, self.topology).seconds

    def _through(self, op: SpmdOp, operands: Sequence[SSAValue]) -> None:
        """Add what a collective does to each of its tensors: `op` gives it."""
        for operand, (_, result) in zip(operands, op.pairs, strict=False):
            self._steps.append(Step(None, "", self._tensors([operand]), self._tensors([result])))

    def _of_aten(self, op: AtenOp) -> Step:
        operands, results = self._tensors(op.operands), self._tensors(op.results)
        call = op.call()
        if call in self._rules:
            rule = self._rules[call]
        elif any(DYNAMIC in meta.shape for meta in (*call.operands, *call.results) if meta is not None):
            arguments = tuple((name, self._evaluated(value)) for name, value in call.arguments)
            given, own = (tuple([self._metas[value] for value in values]) for values in (operands, results))
            made = tuple([meta and found for meta, found in zip(call.results, own, strict=True)])
            rule = self._rule(Call(call.name, given, arguments, made, call.structure))
        else:
            rule = self._rules[call] = self._rule(call)
        return Step(rule, "" if rule is None and op.name in VIEWS else op.name, operands, results)

    def _rule(self, call: Call) -> OpRule | None:
        """Return the rule of a call on what the first rank has; None if there is none, or not for such sizes."""
        try:
            rule = self.rules.instantiate(call)
            return rule and rule.evaluated
        except (SpmdirError, TypeError, ValueError):
            return None

    def _evaluated(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._evaluated, value))
        return value.evaluate(self.mesh, self._first) if isinstance(value, Local) else value

    def _tensors(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        known = self._numbers.get
        return tuple([self._number(value) if (found := known(value)) is None else found for value in values])

    def _number(self, value: SSAValue) -> int:
        """Return the number of a value that has none yet."""
        self._metas.append(self._meta(value))
        return self._numbers.setdefault(value, len(self._numbers))

    def _meta(self, value: SSAValue) -> TensorMeta:
        """Return the type of a value on the rank that has most of it."""
        meta = meta_of(value.type)
        if meta is None or DYNAMIC not in meta.shape:
            return meta or _ABSENT
        whole, sharding = global_type(value, self.mesh), sharding_of(value)
        if whole is None or sharding is None or DYNAMIC in whole.shape:
            return attrs.evolve(meta, shape=tuple(1 if size == DYNAMIC else size for size in meta.shape))
        return attrs.evolve(meta, shape=local_shape(sharding, whole.shape, self.mesh))
