"""The buffers of the program of one rank, op by op, as its emitted graph allocates and frees them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.attributes import DYNAMIC, meta_of
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.names import text_name
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import global_type, sharding_of, signature_name
from spmdir.reshard.buffers import copies_strided, keeps_operand, step_buffers
from spmdir.reshard.cost import local_bytes, local_shape
from spmdir.reshard.steps import Step
from spmdir.rules import RuleSet
from spmdir.rules.shapes.views import VIEWS, Strides, contiguous, is_contiguous, view_strides
from spmdir.search.timeline import Buffer, Timeline


@attrs.frozen(eq=False)
class LiveMemory:
    """The buffers of a localized function.

    Attributes:
        buffers: in the order in which they are allocated.
        values: that each is allocated for.
        names: of what each step computes.
    """

    buffers: tuple[Buffer, ...]
    values: tuple[SSAValue, ...]
    names: Mapping[int, str]


def live_memory(function: FuncOp, mesh: Mesh, rules: RuleSet, kinds: Mapping[SSAValue, str]) -> LiveMemory:
    """Return the buffers of a localized function.

    Args:
        kinds: what values are held for, one of `spmdir.search.timeline.CLASSES`; "activations" where there is none.
    """
    return _Program(function, mesh, rules, kinds).run()


class _Program:
    """A localized function, told to a timeline op by op."""

    def __init__(self, function: FuncOp, mesh: Mesh, rules: RuleSet, kinds: Mapping[SSAValue, str]):
        self.function, self.mesh, self.rules, self.kinds = function, mesh, rules, kinds
        self.timeline = Timeline()
        self.buffer: dict[SSAValue, int] = {}
        self.strides: dict[SSAValue, Strides] = {}
        self.values: list[SSAValue] = []

    def run(self) -> LiveMemory:
        """Return the buffers."""
        ops, names = [op for op in self.function.body.block.ops if isinstance(op, ValueOp)], dict[int, str]()
        for index, value in enumerate(self.function.args):
            self._hold(value, signature_name(self.function, "arg_attrs", index) or f"argument {index}")
            self.timeline.keep(self.buffer[value])
        for op in ops:
            if isinstance(op, ConstantOp):
                self._hold(op.results[0])
                self.timeline.keep(self.buffer[op.results[0]])
        for op in ops:
            if isinstance(op, ConstantOp):
                continue
            self.timeline.advance()
            first = self.timeline.step
            if isinstance(op, Collective):
                self._collective(op)
            else:
                self._op(op)
            names.update(dict.fromkeys(range(first, self.timeline.step + 1), text_name(op.results[0])))
        for value in ir.terminator(self.function).operands:
            self.timeline.keep(self.buffer[value])
        return LiveMemory(self.timeline.buffers(), tuple(self.values), names)

    def _op(self, op: ValueOp) -> None:
        """Tell an op that allocates its results, or gives views of its first operand."""
        views = self._views(op)
        for operand in op.operands:
            if operand in self.buffer:
                self.timeline.use(self.buffer[operand])
        for index, result in enumerate(op.results):
            if views is not None:
                self.buffer[result] = self.buffer[op.operands[index if isinstance(op, WaitOp) else 0]]
                if views:
                    self.strides[result] = views[index]
            else:
                self._hold(result)

    def _views(self, op: ValueOp) -> tuple[Strides, ...] | None:
        """Return the strides of the results if these are views of the first operand, () if they are not known; else
        None."""
        if op.name in _SAME:
            return ()
        if op.name not in VIEWS:
            return None
        shape = op.call().operands[0].shape
        try:
            rule = self.rules.instantiate(op.call())
        except (SpmdirError, TypeError, ValueError):
            return ()  # of sizes that only a rank knows
        return () if rule is None else view_strides(rule, self.strides.get(op.operands[0]) or contiguous(shape))

    def _collective(self, op: Collective) -> None:
        """Tell a collective, member by member and buffer by buffer."""
        for index, step in enumerate(op.steps(self.mesh)):
            self._member(op, index, step)

    def _member(self, op: Collective, index: int, step: Step) -> None:
        operand, result = op.pairs[index]
        meta = global_type(operand, self.mesh)
        assert meta is not None  # verified
        sizes = self._buffers(step, meta, self.strides.get(operand))
        states = op.operands[len(op.pairs) :]
        operands = [self.buffer[value] for value in (operand, *states)]
        used, kept = operands, operands if keeps_operand(step, meta, self.mesh) else []
        for state in op.results[len(op.pairs) :]:
            self._hold(state)
        for place, size in enumerate(sizes):
            if place:
                self.timeline.advance()
            for one in (*used, *kept):
                self.timeline.use(one)
            is_last = place == len(sizes) - 1
            kind = self.kinds.get(result, "activations") if is_last else "communication buffers"
            self.values.append(result)
            used = [self.timeline.hold(text_name(result), size, kind)]
        for one in used:
            self.timeline.use(one)
        self.buffer[result] = used[0]

    def _buffers(self, step: Step, meta: TensorMeta, strides: Strides | None) -> list[float]:
        """Return the bytes of the buffers of a collective on an operand with `strides`; contiguous if None."""
        sizes = step_buffers(step, meta, self.mesh)
        if strides is None or is_contiguous(local_shape(step.source, meta.shape, self.mesh), strides):
            return sizes
        if step.kind == "slice":
            is_view = is_contiguous(local_shape(step.target, meta.shape, self.mesh), strides)
            return [] if is_view else [local_bytes(step.target, meta.shape, meta.dtype.itemsize, self.mesh)]
        if not copies_strided(step, meta, self.mesh):
            return sizes
        return [local_bytes(step.source, meta.shape, meta.dtype.itemsize, self.mesh), *sizes]

    def _hold(self, value: SSAValue, name: str = "") -> None:
        self.values.append(value)
        kind = self.kinds.get(value, "activations")
        self.buffer[value] = self.timeline.hold(name or text_name(value), self._bytes(value), kind)

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


_SAME = frozenset(("spmd.wait", "spmd.choose", "spmd.reshard", "spmd.constraint"))
"""Ops whose results are operands, or views of them."""
