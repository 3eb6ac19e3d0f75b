"""Compute the buffers that each op of one rank's program allocates and reads, as the emitted graph does.

For example, `%1 = aten.mm(%x, %w)` allocates a buffer for %1 and reads the buffers of %x and %w. `%2 = aten.t(%1)` is a
view, so %2 has the buffer of %1. A collective allocates several buffers in *memory steps*, such as a receive buffer and
then the result.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.analysis.routes import dispatched_dim, most_rows
from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import DYNAMIC, meta_of
from spmdir.dialects.caches import WRITE
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.host_ops import HostCopyOp
from spmdir.dialects.names import text_name
from spmdir.dialects.ring_ops import RotationOp
from spmdir.dialects.row_exchanges import ExpertExchangeOp
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, sharding_of, signature_name, updated_arguments
from spmdir.reshard.allocations import Allocations, allocate_alone, allocate_bucket
from spmdir.reshard.buffers import ARRIVES, Sized, copies_strided_operand, keeps_operand, step_buffers
from spmdir.reshard.cost import local_bytes, local_shape
from spmdir.reshard.steps import Step
from spmdir.rules import RuleSet
from spmdir.rules.shapes.views import VIEWS, Strides, contiguous, is_contiguous, view_strides
from spmdir.schedule.memory import peak_bytes, program_of_steps
from spmdir.schedule.program import Buffer, MemoryStep, Program, Task


def host_peak(ops: Iterable[Operation], copied: Mapping[HostCopyOp, float]) -> float:
    """Return the peak of the host's memory in bytes; 0 if nothing is copied to the host.

    A tensor occupies host memory from the op that starts its copy to the host, to the last op that copies it back or
    waits for such a copy.

    Args:
        ops: the ops of a function, in order.
        copied: offload or reload → its bytes.
    """
    buffer_of: dict[HostCopyOp, int] = {}  # offload → the number of its buffer on the host
    buffers: list[Buffer] = []
    tasks: list[Task] = []  # one for each op that copies or waits for a copy
    for op in ops:
        copy = op.start if isinstance(op, WaitOp) else op
        if not isinstance(copy, HostCopyOp):
            continue
        offload = copy if copy.TO_HOST else _offload_of(copy)
        is_first = offload not in buffer_of
        if is_first:
            buffer_of[offload] = len(buffers)
            buffers.append(Buffer("", copied[offload], "activations"))
        buffer = (buffer_of[offload],)
        tasks.append(Task("", op.name, "", 0.0, allocates=buffer if is_first else (), reads=buffer))
    return peak_bytes(Program(tuple(tasks), tuple(buffers)))


def _offload_of(reload: HostCopyOp) -> HostCopyOp:
    """Return the offload, or the start of an offload, whose copy `reload` copies back."""
    owner = reload.operands[0].owner
    owner = owner.start if isinstance(owner, WaitOp) else owner
    assert isinstance(owner, HostCopyOp)  # verified
    return owner


@attrs.frozen(eq=False)
class LiveMemory:
    """The buffers of a localized function.

    Attributes:
        buffers: the buffers in order of allocation.
        values: for each buffer, the value that it is allocated for.
        inputs, outputs: the buffers of arguments and constants, and the buffers of results.
        memory_steps: op → the buffers that it allocates and reads, step by step. Constants have no steps.
        copied: offload or reload → the bytes that it copies.
        overwritten: op → the buffers of arguments that its results overwrite.
    """

    buffers: tuple[Buffer, ...]
    values: tuple[SSAValue, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    memory_steps: Mapping[Operation, tuple[MemoryStep, ...]]
    copied: Mapping[HostCopyOp, float] = attrs.field(factory=dict)
    overwritten: Mapping[Operation, tuple[int, ...]] = attrs.field(factory=dict)

    @property
    def host_bytes(self) -> float:
        """The peak of the host's memory in bytes."""
        return host_peak(self.memory_steps, self.copied)

    @property
    def program(self) -> Program:
        """The function as tasks, one for each op, that take no time."""
        tasks = [
            (Task(text_name(op.results[0]), op.name, "", 0.0), steps)
            for op, steps in self.memory_steps.items()
            if steps
        ]
        return program_of_steps(tasks, self.buffers, self.inputs, self.outputs)


def live_memory(
    function: FuncOp, mesh: Mesh, rules: RuleSet, kinds: Mapping[SSAValue, str], imbalance: float = 1.0
) -> LiveMemory:
    """Return the buffers of a localized function.

    Args:
        kinds: value → its class of memory, one of `MEMORY_CLASSES` of `spmdir.schedule.program`. By default it is
            "activations".
        imbalance: as in `Topology`; inf for that of the worst router.
    """
    return _Tracer(function, mesh, rules, kinds, imbalance).run()


class _Tracer:
    """Walk over the ops of a localized function and record their buffers.

    Attributes:
        buffer: value → its buffer. A view has the buffer of the viewed value.
        strides: view → its strides in elements.
        in_progress: collective → its allocations so far.
        imbalance: the factor on the bytes of values with rows of experts.
        copied: as in `LiveMemory`.
    """

    def __init__(self, function: FuncOp, mesh: Mesh, rules: RuleSet, kinds: Mapping[SSAValue, str], imbalance: float):
        self.function, self.mesh, self.rules, self.kinds = function, mesh, rules, kinds
        # No rank receives more rows than with the worst router.
        self.imbalance = min(imbalance, most_rows(function, mesh))
        self.buffer: dict[SSAValue, int] = {}
        self.strides: dict[SSAValue, Strides] = {}
        self.buffers: list[Buffer] = []
        self.values: list[SSAValue] = []
        self.in_progress: dict[Operation, _CollectiveProgress] = {}
        self.copied: dict[HostCopyOp, float] = {}
        self._known_views: dict[Hashable, tuple[Strides, ...] | None] = {}
        self._known_allocations: dict[Hashable, Allocations] = {}

    def run(self) -> LiveMemory:
        """Return the buffers of the whole function."""
        ops = [op for op in self.function.body.block.ops if isinstance(op, ValueOp)]
        for index, value in enumerate(self.function.args):
            self._add_buffer(value, signature_name(self.function, "arg_attrs", index) or f"argument {index}")
        for op in ops:
            if isinstance(op, ConstantOp):
                self._add_buffer(op.results[0])
        inputs = tuple(range(len(self.buffers)))
        memory_steps: dict[Operation, tuple[MemoryStep, ...]] = {}
        for op in ops:
            memory_steps[op] = () if isinstance(op, ConstantOp) else tuple(self._memory_steps(op))
        outputs = [self.buffer[value] for value in ir.terminator(self.function).operands]
        overwritten = self._write_updates(memory_steps, outputs)
        return LiveMemory(
            tuple(self.buffers), tuple(self.values), inputs, tuple(outputs), memory_steps, self.copied, overwritten
        )

    def _write_updates(
        self, memory_steps: dict[Operation, tuple[MemoryStep, ...]], outputs: list[int]
    ) -> dict[Operation, tuple[int, ...]]:
        """Let results of the kind "update" overwrite their arguments, and return op → the buffers that it overwrites.

        The new value is copied into the buffer of the argument as soon as it is computed, and its own buffer is freed.
        Ops after the copy read the buffer of the argument. This requires that no op after the copy reads the old value.

        For example, `%new = aten.add(%cache, %x)` is the update of %cache, and the buffers of %cache and %new are 0 and
        2. A step that reads 2 and 0, the copy, follows the steps of the add. Later reads of 2 become reads of 0.

        Args:
            memory_steps: as in `LiveMemory`; changed in place.
            outputs: the buffers of the results; changed in place.
        """
        positions = {op: index for index, op in enumerate(memory_steps)}
        last_read = {
            buffer: index
            for index, steps in enumerate(memory_steps.values())
            for step in steps
            for buffer in step.reads
        }
        old_of: dict[int, int] = {}  # buffer of a new value → buffer of the argument that it is copied into
        overwritten: dict[Operation, tuple[int, ...]] = {}
        for index, argument in updated_arguments(self.function).items():
            value = ir.terminator(self.function).operands[index]
            op = value.owner
            if argument is None or not isinstance(op, Operation) or op not in positions:
                continue
            new, old = outputs[index], self.buffer[argument]
            has_own_buffer = self.values[new] is value and self.buffers[new].bytes == self.buffers[old].bytes
            is_returned_elsewhere = outputs.count(new) > 1 or old in outputs
            is_old_value_read_later = last_read.get(old, -1) > positions[op]
            if not has_own_buffer or is_returned_elsewhere or is_old_value_read_later:
                continue
            old_of[new] = old
            memory_steps[op] = (*memory_steps[op], MemoryStep((), (new, old)))  # the copy
            overwritten[op] = (*overwritten.get(op, ()), old)
        outputs[:] = [old_of.get(buffer, buffer) for buffer in outputs]
        new_of = {old: new for new, old in old_of.items()}
        old_of_earlier: dict[int, int] = {}  # `old_of` of the copies before the current op
        for op, steps in memory_steps.items():
            if any(buffer in old_of_earlier for step in steps for buffer in step.reads):
                memory_steps[op] = tuple(
                    MemoryStep(step.allocates, tuple([old_of_earlier.get(buffer, buffer) for buffer in step.reads]))
                    for step in steps
                )
            old_of_earlier.update({new_of[old]: old for old in overwritten.get(op, ())})
        return overwritten

    def _memory_steps(self, op: ValueOp) -> list[MemoryStep]:
        """Return the memory steps of an op, in order, and assign buffers to its results.

        A torch op and a host copy have one step. A collective has one step for each buffer that it allocates. If it is
        asynchronous, the start has the steps up to the receive buffer, and the wait has the remaining ones;
        `in_progress` connects the two ops. A wait first reads the buffers that the transfer in flight uses, which keeps
        them alive until then.
        """
        if isinstance(op, AtenOp):
            return [self._torch_op(op)]
        if isinstance(op, ExpertExchangeOp) and op.IS_START:
            progress = _CollectiveProgress(self._allocations(op), [self.buffer[op.operands[0]]], allocated=[])
            self.in_progress[op] = progress
            return self._allocate_next(progress, op)
        if isinstance(op, (Collective, RotationOp)):
            operands = [self.buffer[value] for value in op.operands]
            progress = _CollectiveProgress(self._allocations(op), operands, allocated=[])
            self.in_progress[op] = progress
            # A collective has one operand and result for each tensor (`pairs`), and then one for each edge state.
            old_states, new_state_values = operands[len(op.pairs) :], op.results[len(op.pairs) :]
            new_states = tuple(map(self._add_buffer, new_state_values))
            steps = [MemoryStep(allocates=new_states, reads=tuple(old_states))] if new_states else []
            if isinstance(op, Collective) and not progress.allocations.buffers:
                steps.append(MemoryStep((), reads=tuple(operands)))  # its result is a view
            return [*steps, *self._allocate_next(progress, op)]
        if isinstance(op, HostCopyOp) or (isinstance(op, WaitOp) and isinstance(op.start, HostCopyOp)):
            return [self._copy(op)]
        if isinstance(op, WaitOp):
            progress = self.in_progress[op.start]
            # The receive buffer is the last one that the start allocated.
            sent, received = progress.buffers_of(progress.allocations.sent), progress.allocated[-1:]
            return [MemoryStep((), reads=(*sent, *received)), *self._allocate_next(progress, op)]
        return [self._torch_op(op)]

    def _copy(self, op: HostCopyOp | WaitOp) -> MemoryStep:
        """Return the memory step of a copy to or from the host, or of its wait. Host memory does not count.

        A copy from the host allocates the buffer of the result at its start. The wait returns the same buffer.
        """
        start = op.start if isinstance(op, WaitOp) else op
        assert isinstance(start, HostCopyOp)
        self.copied[start] = self._bytes(start.operands[0])
        if start.TO_HOST:
            return MemoryStep((), self._buffers_of(start.operands))
        if start is op:
            return MemoryStep((self._add_buffer(op.results[0]),))
        self.buffer[op.results[0]] = self.buffer[start.results[0]]
        return MemoryStep((), self._buffers_of(start.results))

    def _torch_op(self, op: ValueOp) -> MemoryStep:
        """Return the memory step of an op that allocates its results, or returns views of its first operand."""
        views, reads = self._views(op), self._buffers_of(op.operands)
        if views is None:
            return MemoryStep(tuple(map(self._add_buffer, op.results)), reads)
        for index, result in enumerate(op.results):
            self.buffer[result] = self.buffer[op.operands[0]]
            if views:
                self.strides[result] = views[index]
        return MemoryStep((), reads)

    def _buffers_of(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        """Return the buffers of the tensors among `values`, each once."""
        return tuple(dict.fromkeys([self.buffer[value] for value in values if value in self.buffer]))

    def _views(self, op: ValueOp) -> tuple[Strides, ...] | None:
        """Return the strides of the results if they are views of the first operand; None if they are not views.

        The result is () for views whose strides are unknown or those of the operand.
        """
        if op.name in _SAME:
            return ()
        if op.name not in VIEWS:
            return None
        call, strides = op.call(), self.strides.get(op.operands[0])
        if (call, strides) not in self._known_views:
            self._known_views[call, strides] = self._view_strides(call, strides)
        return self._known_views[call, strides]

    def _view_strides(self, call: Call, strides: Strides | None) -> tuple[Strides, ...] | None:
        """Return the result of `_views` for a call. `strides` are those of its operand; contiguous if None."""
        try:
            rule = self.rules.instantiate(call)
        except (SpmdirError, TypeError, ValueError):
            return ()  # the sizes are only known at run time
        return () if rule is None else view_strides(rule, strides or contiguous(call.operands[0].shape))

    def _allocations(self, op: Collective | RotationOp | ExpertExchangeOp) -> Allocations:
        """Return the allocations of a collective; memoised for equal collectives whose operands have equal strides.

        A rotation or an exchange of rows allocates its receive buffer only.
        """
        if isinstance(op, (RotationOp, ExpertExchangeOp)):
            return allocate_alone([(ARRIVES, self._bytes(op.results[0]))])
        key = op.likeness(self.mesh), tuple([self.strides.get(value) for value, _ in op.pairs])
        if key not in self._known_allocations:
            self._known_allocations[key] = self._compute_allocations(op)
        return self._known_allocations[key]

    def _compute_allocations(self, op: Collective) -> Allocations:
        """Return the allocations of a collective of one tensor, or of a bucket of several tensors."""
        # For each tensor: the (name, bytes) of its buffers, the bytes of its operand and of its result, and whether the
        # operand must stay alive during the transfer.
        sizes: list[list[Sized]] = []
        sources: list[float] = []
        targets: list[float] = []
        keep_operands: list[bool] = []
        for step, (value, _) in zip(op.steps(self.mesh), op.pairs, strict=True):
            meta = global_type(value, self.mesh)
            assert meta is not None  # verified
            sizes.append(self._buffers(step, meta, self.strides.get(value)))
            sources.append(local_bytes(step.source, meta.shape, meta.dtype.itemsize, self.mesh))
            targets.append(local_bytes(step.target, meta.shape, meta.dtype.itemsize, self.mesh))
            keep_operands.append(keeps_operand(step, meta, self.mesh))
        if len(sizes) == 1:
            return allocate_alone(sizes[0], keep_operands[0])
        return allocate_bucket(op.spec, sizes, sources, targets, keep_operands)

    def _allocate_next(
        self, progress: _CollectiveProgress, op: Collective | RotationOp | ExpertExchangeOp | WaitOp
    ) -> list[MemoryStep]:
        """Return the next memory steps of a collective, one for each buffer, and assign buffers to its results.

        A start allocates the buffers up to the receive buffer. A wait, or a collective without a separate wait,
        allocates the remaining ones. For example, of the buffers (packed, received, result), a start allocates the
        first two. Its wait allocates the third, which is the buffer of its result.
        """
        memory_steps, allocations = [], progress.allocations
        is_start = not isinstance(op, WaitOp) and op.IS_START
        stop = allocations.start_count if is_start else len(allocations.buffers)
        for index in range(len(progress.allocated), stop):
            allocation = allocations.buffers[index]
            result = op.results[allocation.member]
            kind = self.kinds.get(result, "activations") if index in allocations.results else "communication buffers"
            buffer = self._allocate(result, text_name(result), allocation.bytes, kind)
            memory_steps.append(MemoryStep((buffer,), progress.buffers_of(allocation.reads)))
            progress.allocated.append(buffer)
        for (_, result), index in zip(op.pairs, allocations.results, strict=True):
            if index < stop:
                (self.buffer[result],) = progress.buffers_of((index,))
        return memory_steps

    def _buffers(self, step: Step, meta: TensorMeta, strides: Strides | None) -> list[Sized]:
        """Return the buffers of one tensor of a collective.

        An operand that is not contiguous may need another buffer. A collective that packs its operand needs none, since
        packing reads any strides. One that sends the operand's own memory first copies it to a contiguous buffer. A
        slice needs no buffer if its result is contiguous, because the result is a view.

        Args:
            meta: the global type of the tensor.
            strides: those of the local operand; contiguous if None.
        """
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

    def _add_buffer(self, value: SSAValue, name: str = "") -> int:
        """Add a buffer for a value and return its index."""
        kind = self.kinds.get(value, "activations")
        self.buffer[value] = self._allocate(value, name or text_name(value), self._bytes(value), kind)
        return self.buffer[value]

    def _allocate(self, value: SSAValue, name: str, size: float, kind: str) -> int:
        """Add a buffer of `size` bytes and return its index."""
        self.values.append(value)
        self.buffers.append(Buffer(name, size, kind))
        return len(self.buffers) - 1

    def _bytes(self, value: SSAValue) -> float:
        """Return the bytes of a value on the rank with its largest shard, times `imbalance` for rows of experts."""
        scale = self.imbalance if self.imbalance > 1.0 and dispatched_dim(value) is not None else 1.0
        return scale * self._balanced_bytes(value)

    def _balanced_bytes(self, value: SSAValue) -> float:
        """Return the bytes of a value on the rank with the largest shard, with a balanced router.

        A value that is no tensor has 0. A local tensor whose size depends on the rank has the size of the largest one.
        """
        meta = meta_of(value.type)
        if meta is None:
            return 0.0
        if DYNAMIC not in meta.shape:
            return float(meta.bytes)
        global_meta, sharding = global_type(value, self.mesh), sharding_of(value)
        if sharding is None or global_meta is None or DYNAMIC in global_meta.shape:
            return self._estimate_bytes(value, meta)
        return local_bytes(sharding, global_meta.shape, global_meta.dtype.itemsize, self.mesh)

    def _estimate_bytes(self, value: SSAValue, meta: TensorMeta) -> float:
        """Return the estimated bytes of a value in a local form whose size is unknown.

        They are those of the largest operand of its op, and at least the product of the known sizes.
        """
        owner = value.owner
        largest_operand = max((self._bytes(operand) for operand in getattr(owner, "operands", ())), default=0.0)
        static_bytes = math.prod(size for size in meta.shape if size >= 0) * meta.dtype.itemsize
        return max(largest_operand, float(static_bytes))


@attrs.frozen
class _CollectiveProgress:
    """The allocations of a collective up to the current op.

    Attributes:
        allocations: all allocations, of start and wait.
        operands: the buffers of its operands.
        allocated: the buffers of the allocations so far.
    """

    allocations: Allocations
    operands: Sequence[int]
    allocated: list[int]

    def buffers_of(self, sources: Sequence[int]) -> tuple[int, ...]:
        """Return the buffers of `sources`: an index of an allocation, or `~index` (< 0) of an operand."""
        return tuple(dict.fromkeys(self.allocated[index] if index >= 0 else self.operands[~index] for index in sources))


_SAME = frozenset(("spmd.choose", "spmd.reshard", "spmd.constraint", WRITE))
"""Ops whose results are operands, or views of them. They count as views of the first operand."""
