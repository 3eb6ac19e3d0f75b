"""The buffers of the program of one rank, op by op, as its emitted graph allocates and frees them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import DYNAMIC, meta_of
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.host import HostCopyOp
from spmdir.dialects.names import text_name
from spmdir.dialects.ring import RotationOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, sharding_of, signature_name
from spmdir.reshard.allocations import Allocations, allocate_alone, allocate_bucket
from spmdir.reshard.buffers import ARRIVES, Sized, copies_strided_operand, keeps_operand, step_buffers
from spmdir.reshard.cost import local_bytes, local_shape
from spmdir.reshard.steps import Step
from spmdir.rules import RuleSet
from spmdir.rules.shapes.views import VIEWS, Strides, contiguous, is_contiguous, view_strides
from spmdir.schedule.memory import peak_bytes, program_of_steps
from spmdir.schedule.program import Buffer, MemoryStep, Program, Task


def host_peak(ops: Iterable[Operation], copied: Mapping[HostCopyOp, float]) -> float:
    """Return the most bytes that are in the memory of the host at once.

    A tensor is there from the op that begins to copy it to the end of the last copy of it, or of the wait for that.

    Args:
        ops: of a function, in order.
        copied: op that copies to the host or from there → its bytes.
    """
    buffer: dict[HostCopyOp, int] = {}
    buffers: list[Buffer] = []
    tasks: list[Task] = []
    for op in ops:
        copy = op.start if isinstance(op, WaitOp) else op
        if not isinstance(copy, HostCopyOp):
            continue
        maker, makes = copy if copy.TO_HOST else _maker(copy), ()
        if maker not in buffer:
            buffer[maker], makes = len(buffers), (len(buffers),)
            buffers.append(Buffer("", copied[maker], "activations"))
        tasks.append(Task("", op.name, "", 0.0, allocates=makes, reads=(buffer[maker],)))
    return peak_bytes(Program(tuple(tasks), tuple(buffers)))


def _maker(reload: HostCopyOp) -> HostCopyOp:
    """Return what has copied, or started to copy, to the host what `reload` copies back."""
    owner = reload.operands[0].owner
    owner = owner.start if isinstance(owner, WaitOp) else owner
    assert isinstance(owner, HostCopyOp)  # verified
    return owner


@attrs.frozen(eq=False)
class LiveMemory:
    """The buffers of a localized function.

    Attributes:
        buffers: in the order in which they are allocated.
        values: that each is allocated for.
        inputs, outputs: the buffers of arguments and constants, and those of what is returned.
        stages: op → what it allocates and needs, step by step.
        copied: op that copies to the host or from there → the bytes that it copies.
    """

    buffers: tuple[Buffer, ...]
    values: tuple[SSAValue, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    stages: Mapping[Operation, tuple[MemoryStep, ...]]
    copied: Mapping[HostCopyOp, float] = attrs.field(factory=dict)

    @property
    def host_bytes(self) -> float:
        """The most bytes that the program has in the memory of the host at once."""
        return host_peak(self.stages, self.copied)

    @property
    def program(self) -> Program:
        """The function as tasks, one an op, that take no time."""
        tasks = [
            (Task(text_name(op.results[0]), op.name, "", 0.0), stages) for op, stages in self.stages.items() if stages
        ]
        return program_of_steps(tasks, self.buffers, self.inputs, self.outputs)


def live_memory(function: FuncOp, mesh: Mesh, rules: RuleSet, kinds: Mapping[SSAValue, str]) -> LiveMemory:
    """Return the buffers of a localized function.

    Args:
        kinds: what values are held for, one of `MEMORY_CLASSES` of `spmdir.schedule.program`; "activations" where none.
    """
    return _Program(function, mesh, rules, kinds).run()


class _Program:
    """A localized function, followed op by op."""

    def __init__(self, function: FuncOp, mesh: Mesh, rules: RuleSet, kinds: Mapping[SSAValue, str]):
        self.function, self.mesh, self.rules, self.kinds = function, mesh, rules, kinds
        self.buffer: dict[SSAValue, int] = {}
        self.strides: dict[SSAValue, Strides] = {}
        self.buffers: list[Buffer] = []
        self.values: list[SSAValue] = []
        self.under_way: dict[Operation, _UnderWay] = {}
        self.copied: dict[HostCopyOp, float] = {}
        self.known_views: dict[Hashable, tuple[Strides, ...] | None] = {}
        self.known_allocations: dict[Hashable, Allocations] = {}

    def run(self) -> LiveMemory:
        """Return the buffers."""
        ops = [op for op in self.function.body.block.ops if isinstance(op, ValueOp)]
        for index, value in enumerate(self.function.args):
            self._hold(value, signature_name(self.function, "arg_attrs", index) or f"argument {index}")
        for op in ops:
            if isinstance(op, ConstantOp):
                self._hold(op.results[0])
        inputs = tuple(range(len(self.buffers)))
        stages: dict[Operation, tuple[MemoryStep, ...]] = {}
        for op in ops:
            stages[op] = () if isinstance(op, ConstantOp) else tuple(self._stages(op))
        outputs = tuple(self.buffer[value] for value in ir.terminator(self.function).operands)
        return LiveMemory(tuple(self.buffers), tuple(self.values), inputs, outputs, stages, self.copied)

    def _stages(self, op: ValueOp) -> list[MemoryStep]:
        """Return what an op allocates and needs."""
        if isinstance(op, AtenOp):
            return [self._op(op)]
        if isinstance(op, (Collective, RotationOp)):
            operands = [self.buffer[value] for value in op.operands]
            way = _UnderWay(self._allocations(op), operands, [])
            self.under_way[op] = way
            states = tuple(map(self._hold, op.results[len(op.pairs) :]))
            kept = [MemoryStep(states, tuple(operands[len(op.pairs) :]))] if states else []
            if isinstance(op, Collective) and not way.allocations.buffers:
                kept.append(MemoryStep((), tuple(operands)))  # its result is a view
            return [*kept, *self._made(way, op)]
        if isinstance(op, HostCopyOp) or (isinstance(op, WaitOp) and isinstance(op.start, HostCopyOp)):
            return [self._copy(op)]
        if isinstance(op, WaitOp):
            way = self.under_way[op.start]
            return [MemoryStep((), (*way.read(way.allocations.sent), *way.made[-1:])), *self._made(way, op)]
        return [self._op(op)]

    def _copy(self, op: HostCopyOp | WaitOp) -> MemoryStep:
        """Return what a copy to or from the host needs, or the wait for one: nothing of what is on the host."""
        start = op.start if isinstance(op, WaitOp) else op
        assert isinstance(start, HostCopyOp)
        self.copied[start] = self._bytes(start.operands[0])
        if start.TO_HOST:
            return MemoryStep((), self._read(start.operands))
        if start is op:
            return MemoryStep((self._hold(op.results[0]),))
        self.buffer[op.results[0]] = self.buffer[start.results[0]]
        return MemoryStep((), self._read(start.results))

    def _op(self, op: ValueOp) -> MemoryStep:
        """Return what an op needs that allocates its results, or gives views of its first operand."""
        views, reads = self._views(op), self._read(op.operands)
        if views is None:
            return MemoryStep(tuple(map(self._hold, op.results)), reads)
        for index, result in enumerate(op.results):
            self.buffer[result] = self.buffer[op.operands[0]]
            if views:
                self.strides[result] = views[index]
        return MemoryStep((), reads)

    def _read(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        """Return the buffers of those of `values` that are tensors."""
        return tuple(dict.fromkeys([self.buffer[value] for value in values if value in self.buffer]))

    def _views(self, op: ValueOp) -> tuple[Strides, ...] | None:
        """Return the strides of the results if these are views of the first operand, () if they are not known; else
        None."""
        if op.name in _SAME:
            return ()
        if op.name not in VIEWS:
            return None
        call, strides = op.call(), self.strides.get(op.operands[0])
        if (call, strides) not in self.known_views:
            self.known_views[call, strides] = self._view_strides(call, strides)
        return self.known_views[call, strides]

    def _view_strides(self, call: Call, strides: Strides | None) -> tuple[Strides, ...] | None:
        try:
            rule = self.rules.instantiate(call)
        except (SpmdirError, TypeError, ValueError):
            return ()  # of sizes that only a rank knows
        return () if rule is None else view_strides(rule, strides or contiguous(call.operands[0].shape))

    def _allocations(self, op: Collective | RotationOp) -> Allocations:
        """Return what a collective allocates."""
        if isinstance(op, RotationOp):
            return allocate_alone([(ARRIVES, self._bytes(op.results[0]))])
        known = op.likeness(self.mesh), tuple([self.strides.get(value) for value, _ in op.pairs])
        if known not in self.known_allocations:
            self.known_allocations[known] = self._allocated(op)
        return self.known_allocations[known]

    def _allocated(self, op: Collective) -> Allocations:
        steps = op.steps(self.mesh)
        metas = [meta for value, _ in op.pairs if (meta := global_type(value, self.mesh)) is not None]  # verified
        sizes = [
            self._buffers(step, meta, self.strides.get(value))
            for step, meta, (value, _) in zip(steps, metas, op.pairs, strict=True)
        ]
        if len(steps) == 1:
            return allocate_alone(sizes[0], keeps_operand(steps[0], metas[0], self.mesh))
        sources, targets = (
            [
                local_bytes(getattr(step, end), meta.shape, meta.dtype.itemsize, self.mesh)
                for step, meta in zip(steps, metas, strict=True)
            ]
            for end in ("source", "target")
        )
        keep = [keeps_operand(step, meta, self.mesh) for step, meta in zip(steps, metas, strict=True)]
        return allocate_bucket(op.spec, sizes, sources, targets, keep)

    def _made(self, way: _UnderWay, op: Collective | RotationOp | WaitOp) -> list[MemoryStep]:
        """Return the stages of a collective that are left, or those of its start, and put results into buffers."""
        found, plan = [], way.allocations
        last = plan.start_count if not isinstance(op, WaitOp) and op.IS_START else len(plan.buffers)
        for at in range(len(way.made), last):
            one = plan.buffers[at]
            result = op.results[one.member]
            kind = self.kinds.get(result, "activations") if at in plan.results else "communication buffers"
            buffer = self._allocate(result, text_name(result), one.bytes, kind)
            found.append(MemoryStep((buffer,), way.read(one.reads)))
            way.made.append(buffer)
        for (_, result), at in zip(op.pairs, plan.results, strict=True):
            if at < last:
                (self.buffer[result],) = way.read((at,))
        return found

    def _buffers(self, step: Step, meta: TensorMeta, strides: Strides | None) -> list[Sized]:
        """Return the buffers of a collective on an operand with `strides`; contiguous if None."""
        sizes = step_buffers(step, meta, self.mesh)
        if strides is None or is_contiguous(local_shape(step.source, meta.shape, self.mesh), strides):
            return sizes
        if step.spec.is_slice:
            is_view = is_contiguous(local_shape(step.target, meta.shape, self.mesh), strides)
            sliced = local_bytes(step.target, meta.shape, meta.dtype.itemsize, self.mesh)
            return [] if is_view else [("result", sliced)]
        if not copies_strided_operand(step, meta, self.mesh):
            return sizes
        return [("packed", local_bytes(step.source, meta.shape, meta.dtype.itemsize, self.mesh)), *sizes]

    def _hold(self, value: SSAValue, name: str = "") -> int:
        """Return the number of a new buffer of a value."""
        kind = self.kinds.get(value, "activations")
        self.buffer[value] = self._allocate(value, name or text_name(value), self._bytes(value), kind)
        return self.buffer[value]

    def _allocate(self, value: SSAValue, name: str, size: float, kind: str) -> int:
        self.values.append(value)
        self.buffers.append(Buffer(name, size, kind))
        return len(self.buffers) - 1

    def _bytes(self, value: SSAValue) -> float:
        """Return the bytes of a value on the rank that holds most of it."""
        meta = meta_of(value.type)
        if meta is None:
            return 0.0
        if DYNAMIC not in meta.shape:
            return float(meta.bytes)
        whole, sharding = global_type(value, self.mesh), sharding_of(value)
        if sharding is None or whole is None or DYNAMIC in whole.shape:
            return self._guess(value, meta)
        return local_bytes(sharding, whole.shape, whole.dtype.itemsize, self.mesh)

    def _guess(self, value: SSAValue, meta: TensorMeta) -> float:
        """Return the bytes of a value inside a local form, whose size ranks alone know: as large as its operands."""
        owner = value.owner
        largest = max((self._bytes(operand) for operand in getattr(owner, "operands", ())), default=0.0)
        known = math.prod(size for size in meta.shape if size >= 0) * meta.dtype.itemsize
        return max(largest, float(known))


@attrs.frozen
class _UnderWay:
    """A collective as it is told.

    Attributes:
        operands: the buffers of its operands.
        made: the buffers of its allocations so far.
    """

    allocations: Allocations
    operands: Sequence[int]
    made: list[int]

    def read(self, sources: Sequence[int]) -> tuple[int, ...]:
        """Return the buffers of allocations and operands."""
        return tuple(dict.fromkeys(self.made[at] if at >= 0 else self.operands[~at] for at in sources))


_SAME = frozenset(("spmd.choose", "spmd.reshard", "spmd.constraint"))
"""Ops whose results are operands, or views of them."""
