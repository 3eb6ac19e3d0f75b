"""Peak memory of a decided program: a quick bound, the modelled peak, and `restore` for a program that does not fit."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import Rewriter

from spmdir.analysis.live_memory import live_memory
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import SpmdOp
from spmdir.dialects.context import IRContext
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import function_attrs, sharding_of
from spmdir.pipeline.pipeline import PARTITIONING, parse_steps
from spmdir.pipeline.trials import run_trial
from spmdir.reshard.collectives import collectives
from spmdir.reshard.cost import local_bytes
from spmdir.schedule.memory import peak_bytes as most_live_bytes
from spmdir.schedule.program import Buffer, Program, Task


def peak_bound(function: FuncOp, mesh: Mesh) -> float:
    """Return an upper bound on the peak bytes of a rank for a decided function, before or after insert-reshard.

    The bound is quick to compute. It assumes that views do not share memory, and that a reshard allocates the whole
    value. The temporary buffers of an op or a step count as a multiple of its operands and results.
    """
    return _Bound(function, mesh).run()


class _Bound:
    """A decided function as a program with one task for each op. Each task allocates at least the memory of its op.

    Attributes:
        copies: value → sharding → the buffer of the value, or of its reshard to this sharding. The key None is for
            intermediate values of reshards.
        buffers, tasks: of the program.
    """

    def __init__(self, function: FuncOp, mesh: Mesh):
        self.function, self.mesh = function, mesh
        self.copies: dict[SSAValue, dict[Sharding | None, int]] = {}
        self.buffers: list[Buffer] = []
        self.tasks: list[Task] = []
        # The buffers that the current op allocates and reads, and the bytes of its temporary buffers.
        self._allocates: list[int] = []
        self._reads: list[int] = []
        self._transient = 0.0
        self._most_buffers = max(len(spec.buffers) for spec in collectives())  # the factor for temporary buffers
        self._sizes: dict[tuple[object, Sharding | None], float] = {}  # (type, sharding) → bytes of the largest shard

    def run(self) -> float:
        """Return the most bytes that are live at once.

        The tasks are the ops, and then the return, which reads the results in their annotated shardings.
        """
        inputs = tuple([self._define(argument, sharding_of(argument)) for argument in self.function.args])
        self._allocates = []  # the caller allocates the arguments
        for op in self.function.body.block.ops:
            if isinstance(op, ValueOp):
                self._add_op(op)
        outputs: list[int] = []
        for index, value in enumerate(ir.terminator(self.function).operands):
            annotation = function_attrs(self.function, "res_attrs", index).get("spmd.sharding")
            self._transient += self._most_buffers * self._read(value, annotation.data if annotation else None)
            outputs += self.copies.get(value, {}).values()
        self._end_task()
        return most_live_bytes(Program(tuple(self.tasks), tuple(self.buffers), inputs, tuple(outputs)))

    def _add_op(self, op: ValueOp) -> None:
        """Add the task of an op: it reads its operands in the shardings that it needs, and allocates its results."""
        needs = op.needs.data if op.needs else (None,) * len(op.operands)
        operand_bytes = sum(self._read(value, need) for value, need in zip(op.operands, needs, strict=False))
        whole_bytes = sum(self._whole_bytes(value) for value in op.operands) if isinstance(op, SpmdOp) else 0.0
        for result in op.results:
            self._define(result, sharding_of(result))
            whole_bytes += self._shard_bytes(result, sharding_of(result))
        self._transient = self._most_buffers * (operand_bytes + whole_bytes)
        self._end_task()

    def _end_task(self) -> None:
        """Add the task of the current op, and start the next one."""
        allocates, reads = tuple(self._allocates), tuple(self._reads)
        self.tasks.append(Task("", "", "", 0.0, allocates=allocates, reads=reads, transient=self._transient))
        self._allocates, self._reads, self._transient = [], [], 0.0

    def _read(self, value: SSAValue, need: Sharding | None) -> float:
        """Record that the current op reads a value in the sharding `need`. A new reshard to it gets a buffer.

        For example, a value of 8 bytes is sharded over 2 ranks, and the op needs it replicated. The op reads the shard
        of 4 bytes and the new buffer of 8 bytes. The result is 8 + 8: the operand, and the whole value of the reshard.

        Args:
            need: the sharding; None for that of the value.

        Returns: an upper bound on the bytes of the operand and of its reshard.
        """
        buffer_of_sharding = self.copies.get(value)
        if buffer_of_sharding is None:
            return 0.0  # a size
        sharding = sharding_of(value)
        if need is None:
            need = sharding
        if need not in buffer_of_sharding:
            self._define(value, need)
            if len(buffer_of_sharding) > 2:  # an intermediate value of one reshard may stay live for another
                buffer_of_sharding.setdefault(None, self._allocate(self._whole_bytes(value)))
        self._reads += buffer_of_sharding.values()
        reshard_bytes = 0.0 if need == sharding else self._whole_bytes(value)
        return self._shard_bytes(value, need) + reshard_bytes

    def _define(self, value: SSAValue, sharding: Sharding | None) -> int:
        """Allocate a buffer for a value in a sharding, and return its number."""
        buffer = self._allocate(self._shard_bytes(value, sharding))
        self.copies.setdefault(value, {})[sharding] = buffer
        return buffer

    def _allocate(self, size: float) -> int:
        """Return the number of a new buffer that the current op allocates."""
        self.buffers.append(Buffer("", size, "activations"))
        self._allocates.append(len(self.buffers) - 1)
        return len(self.buffers) - 1

    def _whole_bytes(self, value: SSAValue) -> float:
        """Return the bytes of an unsharded value."""
        meta = meta_of(value.type)
        return float(meta.bytes) if meta else 0.0

    def _shard_bytes(self, value: SSAValue, sharding: Sharding | None) -> float:
        """Return the bytes of the largest local shard of a value; 0.0 if the value is no tensor.

        If the sizes of the shards depend on data, such as the rows of experts, return the bytes of the whole value.
        """
        meta = meta_of(value.type)
        if sharding is not None and any(placement.varies for _, placement in sharding.entries):
            return self._whole_bytes(value)
        if (meta, sharding) not in self._sizes:
            size = local_bytes(sharding or Sharding(), meta.shape, meta.dtype.itemsize, self.mesh) if meta else 0.0
            self._sizes[meta, sharding] = size
        return self._sizes[meta, sharding]


def peak_bytes(module: ModuleOp, context: IRContext) -> float:
    """Return the modelled peak bytes of a rank for a decided program. A copy of it is localized.

    Raises:
        SpmdirError: the program cannot be localized.
    """
    # fuse-collectives calls this function for its own output.
    steps = tuple(step for step in parse_steps(PARTITIONING) if step.name != "fuse-collectives")
    local = run_trial(context, module.clone(), steps)
    memories = [live_memory(function, ir.mesh(local), context.rules, {}) for function in ir.functions(local)]
    return max(most_live_bytes(memory.program) for memory in memories)


def restore(module: ModuleOp, original: ModuleOp) -> None:
    """Replace the functions of `module` by copies of those of `original`."""
    for old, new in zip(ir.functions(module), ir.functions(original.clone()), strict=True):
        new.detach()
        block = old.parent
        assert block is not None  # the block of the module
        block.insert_op_before(new, old)
        Rewriter.erase_op(old)
