"""Whether a decided program fits into the memory that its machine has, and the undoing of one that does not."""

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


def most_bytes(function: FuncOp, mesh: Mesh) -> float:
    """Return a bound on what a rank holds at once in a decided function, before or after its reshards are inserted.

    It is quick to find: no view shares memory, a resharded value is held as whole as some step may make it, and what
    an op or a step holds inside is a multiple of what it takes and gives.
    """
    return _Bound(function, mesh).run()


class _Bound:
    """A decided function as a program of tasks, one an op, that hold at least what its ops hold."""

    def __init__(self, function: FuncOp, mesh: Mesh):
        self.function, self.mesh = function, mesh
        self.copies: dict[SSAValue, dict[Sharding | None, int]] = {}  # the buffers of a value and of its reshards
        self.buffers: list[Buffer] = []
        self.tasks: list[Task] = []
        self._makes: list[int] = []  # by the current op, as the next two
        self._reads: list[int] = []
        self._transient = 0.0
        self._most_buffers = max(len(spec.buffers) for spec in collectives())  # what ops hold inside counts as often
        self._sizes: dict[tuple[object, Sharding | None], float] = {}

    def run(self) -> float:
        """Return the most bytes that are live at once."""
        inputs = tuple([self._hold(argument, sharding_of(argument)) for argument in self.function.args])
        self._makes = []
        for op in self.function.body.block.ops:
            if isinstance(op, ValueOp):
                self._op(op)
        outputs: list[int] = []
        for index, value in enumerate(ir.terminator(self.function).operands):
            wanted = function_attrs(self.function, "res_attrs", index).get("spmd.sharding")
            self._transient += self._most_buffers * self._use(value, wanted.data if wanted else None)
            outputs += self.copies.get(value, {}).values()
        self._end_task()
        return most_live_bytes(Program(tuple(self.tasks), tuple(self.buffers), inputs, tuple(outputs)))

    def _op(self, op: ValueOp) -> None:
        wanted = op.needs.data if op.needs else (None,) * len(op.operands)
        taken = sum(self._use(value, need) for value, need in zip(op.operands, wanted, strict=False))
        given = sum(self._whole(value) for value in op.operands) if isinstance(op, SpmdOp) else 0.0
        for result in op.results:
            self._hold(result, sharding_of(result))
            given += self._size(result, sharding_of(result))
        self._transient = self._most_buffers * (taken + given)
        self._end_task()

    def _end_task(self) -> None:
        """Add the task of the current op, and begin the next one."""
        makes, reads = tuple(self._makes), tuple(self._reads)
        self.tasks.append(Task("", "", "", 0.0, allocates=makes, reads=reads, transient=self._transient))
        self._makes, self._reads, self._transient = [], [], 0.0

    def _use(self, value: SSAValue, need: Sharding | None) -> float:
        """Use a value, and what was made of it, resharded if it is needed otherwise; return what that takes at most."""
        own = self.copies.get(value)
        if own is None:
            return 0.0  # a size
        made = sharding_of(value)
        need = made if need is None else need
        if need not in own:
            self._hold(value, need)
            if len(own) > 2:  # what a step gives on the way to one copy may be kept for another
                own.setdefault(None, self._allocate(self._whole(value)))
        self._reads += own.values()
        return self._size(value, need) + (self._whole(value) if need != made else 0.0)

    def _hold(self, value: SSAValue, sharding: Sharding | None) -> int:
        buffer = self._allocate(self._size(value, sharding))
        self.copies.setdefault(value, {})[sharding] = buffer
        return buffer

    def _allocate(self, size: float) -> int:
        """Return the number of a new buffer, which the current op makes."""
        self.buffers.append(Buffer("", size, "activations"))
        self._makes.append(len(self.buffers) - 1)
        return len(self.buffers) - 1

    def _whole(self, value: SSAValue) -> float:
        meta = meta_of(value.type)
        return float(meta.bytes) if meta else 0.0

    def _size(self, value: SSAValue, sharding: Sharding | None) -> float:
        """Return the bytes of a value on the rank that holds most of it."""
        meta = meta_of(value.type)
        if (meta, sharding) not in self._sizes:
            own = sharding or Sharding()
            size = local_bytes(own, meta.shape, meta.dtype.itemsize, self.mesh) if meta else 0.0
            self._sizes[meta, sharding] = size
        return self._sizes[meta, sharding]


def peak_bytes(module: ModuleOp, context: IRContext) -> float:
    """Return the most bytes that a rank holds at once in a decided program, which is localized on a copy.

    Raises:
        SpmdirError: it cannot be partitioned.
    """
    # fuse-collectives asks what its own result holds.
    steps = tuple(step for step in parse_steps(PARTITIONING) if step.name != "fuse-collectives")
    local = run_trial(context, module.clone(), steps)
    memories = [live_memory(one, ir.mesh(local), context.rules, {}) for one in ir.functions(local)]
    return max(most_live_bytes(memory.program) for memory in memories)


def restore(module: ModuleOp, original: ModuleOp) -> None:
    """Put copies of the functions of `original` in the place of those of `module`."""
    for old, new in zip(ir.functions(module), ir.functions(original.clone()), strict=True):
        new.detach()
        block = old.parent
        assert block is not None  # that of the module
        block.insert_op_before(new, old)
        Rewriter.erase_op(old)
