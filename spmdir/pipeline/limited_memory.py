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
from spmdir.schedule import memory as schedule
from spmdir.search.timeline import Timeline, live_bytes


def most_bytes(function: FuncOp, mesh: Mesh) -> float:
    """Return a bound on what a rank holds at once in a decided function, before or after its reshards are inserted.

    It is quick to find: no view shares memory, a resharded value is held as whole as some step may make it, and what
    an op or a step holds inside is a multiple of what it takes and gives.
    """
    return _Bound(function, mesh).run()


class _Bound:
    """A decided function, told to a timeline with more memory than it takes."""

    def __init__(self, function: FuncOp, mesh: Mesh):
        self.function, self.mesh, self.timeline = function, mesh, Timeline()
        self.buffers: dict[SSAValue, dict[Sharding | None, int]] = {}
        self._most_buffers = max(len(spec.buffers) for spec in collectives())
        self._sizes: dict[tuple[object, Sharding | None], float] = {}

    def run(self) -> float:
        """Return the most bytes that are live at once."""
        for argument in self.function.args:
            self.timeline.keep(self._hold(argument, sharding_of(argument)))
        for op in self.function.body.block.ops:
            if isinstance(op, ValueOp):
                self._op(op)
        self.timeline.advance()
        for index, value in enumerate(ir.terminator(self.function).operands):
            wanted = function_attrs(self.function, "res_attrs", index).get("spmd.sharding")
            self._inside(self._use(value, wanted.data if wanted else None))
            for buffer in self.buffers.get(value, {}).values():
                self.timeline.keep(buffer)
        return max(live_bytes(self.timeline.buffers()))

    def _op(self, op: ValueOp) -> None:
        self.timeline.advance()
        wanted = op.needs.data if op.needs else (None,) * len(op.operands)
        taken = sum(self._use(value, need) for value, need in zip(op.operands, wanted, strict=False))
        given = sum(self._whole(value) for value in op.operands) if isinstance(op, SpmdOp) else 0.0
        for result in op.results:
            self._hold(result, sharding_of(result))
            given += self._size(result, sharding_of(result))
        self._inside(taken + given)

    def _use(self, value: SSAValue, need: Sharding | None) -> float:
        """Use a value, and what was made of it, resharded if it is needed otherwise; return what that takes at most."""
        own = self.buffers.get(value)
        if own is None:
            return 0.0  # a size
        made = sharding_of(value)
        need = made if need is None else need
        if need not in own:
            self._hold(value, need)
            if len(own) > 2:  # what a step gives on the way to one copy may be kept for another
                own.setdefault(None, self.timeline.hold("", self._whole(value), "activations"))
        for buffer in own.values():
            self.timeline.use(buffer)
        return self._size(value, need) + (self._whole(value) if need != made else 0.0)

    def _inside(self, size: float) -> None:
        """Hold what is allocated at this step alone, as often as a collective allocates buffers."""
        self.timeline.hold("", self._most_buffers * size, "communication buffers")

    def _hold(self, value: SSAValue, sharding: Sharding | None) -> int:
        buffer = self.timeline.hold("", self._size(value, sharding), "activations")
        self.buffers.setdefault(value, {})[sharding] = buffer
        return buffer

    def _whole(self, value: SSAValue) -> float:
        meta = meta_of(value.type)
        return float(meta.bytes) if meta else 0.0

    def _size(self, value: SSAValue, sharding: Sharding | None) -> float:
        """Return the bytes of a value on the rank that holds most of it."""
        key = value.type, sharding
        if key not in self._sizes:
            meta = meta_of(value.type)
            own = sharding or Sharding()
            self._sizes[key] = local_bytes(own, meta.shape, meta.dtype.itemsize, self.mesh) if meta else 0.0
        return self._sizes[key]


def peak_bytes(module: ModuleOp, context: IRContext) -> float:
    """Return the most bytes that a rank holds at once in a decided program, which is localized on a copy.

    Raises:
        SpmdirError: it cannot be partitioned.
    """
    # fuse-collectives asks what its own result holds.
    steps = tuple(step for step in parse_steps(PARTITIONING) if step.name != "fuse-collectives")
    local = run_trial(context, module.clone(), steps)
    memories = [live_memory(one, ir.mesh(local), context.rules, {}) for one in ir.functions(local)]
    return max(schedule.peak_bytes(memory.program) for memory in memories)


def restore(module: ModuleOp, original: ModuleOp) -> None:
    """Put copies of the functions of `original` in the place of those of `module`."""
    for old, new in zip(ir.functions(module), ir.functions(original.clone()), strict=True):
        new.detach()
        block = old.parent
        assert block is not None  # that of the module
        block.insert_op_before(new, old)
        Rewriter.erase_op(old)
