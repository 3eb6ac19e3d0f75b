"""Interpretations of a local tensor: it may be a complete tensor, a shard of a larger one, or a summand of a sum.

A rank creates `ones([2, 1])`, and adds it to its two rows of a tensor of four rows. Alone, the ones are a complete
tensor [2, 1]. In the sum, they are this rank's rows of `ones([4, 1])`, so they have the sharding <dp: S(0)>. Four kinds
of values have another interpretation than the complete tensor:

- a constant, or an expanded value, may be a shard of a larger one;
- a part of a complete tensor may be the shard of this rank, if it is at the position of this rank;
- a complete value that is divided by the number of ranks may be a partial sum;
- a result of an op on such values may be the result of the op on their interpretations.

Another interpretation is used only if an op is not legal without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
from xdsl.ir import Operation, OpResult, SSAValue

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R, Shard
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.collectives import build_collective
from spmdir.dialects.names import copy_name
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.read_back.global_calls import CallTyper, GlobalValue
from spmdir.reshard.steps import make_step

_LONGEST = 16
"""The longest chain of ops that are interpreted together."""


@attrs.frozen(eq=False)
class Interpretation:
    """Another global value for a local tensor.

    Attributes:
        value: the global value.
        ops: the global ops that compute it, in order.
    """

    value: SSAValue
    ops: tuple[Operation, ...]


class Interpreter:
    """Finds the interpretations of local values that are complete on every rank.

    Args:
        value: local value → its global value; None if it has none.
        operands: local op → the operands of its global form; None if it has none.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        typer: CallTyper,
        value: Callable[[SSAValue], SSAValue | None],
        operands: Callable[[Operation], Sequence[SSAValue] | None],
    ):
        """Start without interpretations; the arguments are those of the class."""
        self.mesh, self.rank, self._typer, self._value, self._operands = mesh, rank, typer, value, operands

    def interpretations(self, local: SSAValue, axis: str, length: int = 0) -> Iterator[Interpretation]:
        """Yield the interpretations of a local value that are not replicated along `axis`.

        A local value that all ranks have may be the shard of a larger tensor, or a summand of a partial sum. Then the
        ops that compute it are legal on other operands, which may be interpretations themselves.

        Args:
            local: a local value whose global value is replicated along `axis`.
            length: the length of the chain of ops so far.
        """
        op, value = local.owner, self._value(local)
        sharding = sharding_of(value) if value is not None else None
        if length > _LONGEST or not isinstance(op, AtenOp) or sharding is None or sharding[axis] != R:
            return
        known = self._operands(op)
        if known is None or not isinstance(local, OpResult):
            return
        yield from self._as_shard(op, known, local, axis)
        yield from self.part_of_rank(op, known, local, axis)
        yield from self._as_summand(op, known, axis)
        for index, operand in enumerate(op.operands):
            for interpretation in self.interpretations(operand, axis, length + 1):
                replaced = [*known[:index], interpretation.value, *known[index + 1 :]]
                yield from self._on_operands(op, replaced, local, interpretation.ops)

    def _on_operands(
        self,
        op: ValueOp,
        operands: Sequence[SSAValue],
        local: OpResult,
        ops: tuple[Operation, ...],
        wanted: GlobalValue | None = None,
    ) -> Iterator[Interpretation]:
        """Yield the interpretation of a result of `op` on these operands, if the op is legal on them."""
        try:
            call = self._typer.infer(op, [global_value(operand) for operand in operands], wanted)
        except SpmdirError:
            return
        new = op_class(op.name).build_op(
            operands, call.call.results, call.call.arguments, call.shardings, call.call.structure, op.location
        )
        for result, old in zip(new.results, op.results, strict=True):
            copy_name(result, old)
        yield Interpretation(new.results[local.index], (*ops, new))

    def _as_shard(
        self, op: AtenOp, operands: Sequence[SSAValue], local: OpResult, axis: str
    ) -> Iterator[Interpretation]:
        """Yield the interpretations of a constant or an expanded value as a shard of a larger one."""
        if len(op.results) > 1 or (operands and op.name != "aten.expand"):
            return
        known = global_value(self._value(local))  # type: ignore  # it has a value
        meta = known.meta
        for dim in range(meta.rank):
            shape = (*meta.shape[:dim], meta.shape[dim] * self.mesh.sizes[axis], *meta.shape[dim + 1 :])
            sharding = known.sharding.replace(axis, Shard(dim))
            yield from self._on_operands(op, operands, local, (), GlobalValue(TensorMeta(shape, meta.dtype), sharding))

    def part_of_rank(
        self, op: ValueOp, operands: Sequence[SSAValue], local: OpResult, axis: str
    ) -> Iterator[Interpretation]:
        """Yield the interpretation of a part of a complete tensor as the shard of this rank, if there is one.

        Args:
            op: an op that cuts the part out of its first operand.
            operands: the global operands of `op`.
            local: the part, a result of `op`.
            axis: the mesh axis along which the interpretation is sharded.
        """
        cut = _cut(op, local.index)
        count, index = self.mesh.sizes[axis], self.mesh.coordinate(self.rank)[axis]
        source, part = meta_of(op.operands[0].type) if op.operands else None, meta_of(local.type)
        if cut is None or source is None or part is None:
            return
        dim, start = cut
        length = part.shape[dim]
        if start != index * length or source.shape[dim] != count * length:
            return
        known = global_value(operands[0])
        try:
            step = make_step("slice", known.sharding, self.mesh, known.meta.shape, axes=(axis,), dim=dim)
        except SpmdirError:
            return
        new = build_collective(step, operands[0], op.location)
        yield Interpretation(new.results[0], (new,))

    def _as_summand(self, op: AtenOp, operands: Sequence[SSAValue], axis: str) -> Iterator[Interpretation]:
        """Yield the interpretation of a complete value divided by the number of ranks as a partial sum."""
        factor = op.argument.get("other")
        if not isinstance(factor, (int, float)) or len(operands) != 1:
            return
        kind, count = op.name.split(".")[1], self.mesh.sizes[axis]
        divides_by_count = (kind, factor) in (("div", count), ("mul", 1 / count))
        if not divides_by_count:
            return
        known = global_value(operands[0])
        try:
            step = make_step("partition", known.sharding, self.mesh, known.meta.shape, axes=(axis,), reduction="sum")
        except SpmdirError:
            return
        new = build_collective(step, operands[0], op.location)
        yield Interpretation(new.results[0], (new,))


def _cut(op: ValueOp, index: int) -> tuple[int, int] | None:
    """Return (dimension, first element) of result `index` of an op that cuts one dimension; None for other ops."""
    argument, source = op.argument, meta_of(op.operands[0].type) if op.operands else None
    if source is None or op.name not in (
        "aten.slice.Tensor", "aten.split.Tensor", "aten.split_with_sizes", "aten.chunk", "aten.narrow",
    ):  # fmt: skip
        return None
    dim = int(argument.get("dim", 0)) % source.rank  # type: ignore
    if op.name in ("aten.slice.Tensor", "aten.narrow"):
        start = argument.get("start") or 0
        return (dim, start % source.shape[dim]) if isinstance(start, int) and argument.get("step", 1) == 1 else None
    lengths = [meta.shape[dim] for meta in op.metas[:index] if meta is not None]
    return dim, sum(lengths)


def global_value(value: SSAValue) -> GlobalValue:
    """Return the type and the sharding of a value of the global program."""
    meta, sharding = meta_of(value.type), sharding_of(value)
    assert meta is not None and isinstance(sharding, Sharding)  # the builder sets both
    return GlobalValue(meta, sharding)
