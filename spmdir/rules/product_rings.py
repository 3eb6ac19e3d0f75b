"""The local form of a matrix product that is split: what a rank sends of it goes while it multiplies another block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spmdir.core.placement.base import ShardPlacement
from spmdir.core.placement.call import Call, Local
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.local.expansion import ExpandedOp, Expansion, Value
from spmdir.rules.local.rank import Rank
from spmdir.rules.shapes.instance import Ops, RuleInstance
from spmdir.rules.strategies.strategy import Strategy


def product_ring(
    owner: RuleInstance,
    ops: Ops,
    strategy: Strategy,
    shard: Local,
    operands: tuple[TensorMeta, ...],
    rank: Rank,
) -> Expansion:
    """Return the steps of the product `owner` by `strategy`, one of `split_strategies`.

    Where an operand is gathered, its blocks go round, each rank multiplies the one that it has, and the parts of the
    result are put together. Where the result is scattered, each rank adds its part of the sum of a block to what comes
    round; it begins with the block of the rank before, so that the last one is its own.

    Args:
        shard: of the factor of the blocks, on the rank; the ring is along the innermost of its axes.
        operands: the local types.
    """
    builder = _Builder(owner, ops, strategy, shard, operands, rank)
    result = builder.scattered() if builder.fed is None else builder.gathered()
    return Expansion(tuple(builder.made), (result,))


class _Builder:
    """Puts the steps together.

    Attributes:
        fed: the operand that is gathered; None where the result is scattered.
        shard: the part of a rank of what the ring shares out.
        count: the ranks of the ring.
        made: the ops so far.
    """

    def __init__(
        self,
        owner: RuleInstance,
        ops: Ops,
        strategy: Strategy,
        shard: Local,
        operands: tuple[TensorMeta, ...],
        rank: Rank,
    ):
        *outer, axis = shard.axes
        self.owner, self.ops, self.operands, self.rank = owner, ops, operands, rank
        self.shard = attrs.evolve(shard, extent=shard.extent // rank.ring(outer), axes=(axis,))
        self.factor, self.count = strategy.factors[-1], rank.ring((axis,))
        self.dims = [_dim(dims, self.factor) for dims in owner.operand_dims]
        placed = enumerate(zip(strategy.operands, self.dims, strict=True))
        self.fed = next((i for i, (p, dim) in placed if isinstance(p, ShardPlacement) and p.dim == dim), None)
        self.made: list[ExpandedOp] = []

    def gathered(self) -> Value:
        assert self.fed is not None
        block, parts = Value("operand", self.fed), list[Value]()
        for step in range(self.count):
            pending = self.sent(block) if step + 1 < self.count else None
            parts.append(self.product({**self.sliced(step), self.fed: block}))
            block = block if pending is None else self.received(pending)
        meta, dim = self.meta(parts[0]), _dim(self.owner.result_dims[0] or (), self.factor)
        assert dim is not None  # the strategy places it
        shape = tuple(size * self.count if d == dim else size for d, size in enumerate(meta.shape))
        arguments = (("axes", self.shard.axes), ("dim", dim))
        call = Call("spmd.assemble", (meta,) * self.count, arguments, (attrs.evolve(meta, shape=shape),))
        return self.add(call, tuple(parts))

    def scattered(self) -> Value:
        total: Value | None = None
        for step in range(self.count):
            pending = None if total is None else self.sent(total)
            part = self.product(self.sliced(step + 1))
            total = part if pending is None else self.call("aten.add.Tensor", (self.received(pending), part))
        assert total is not None  # a ring has ranks
        return total

    def sliced(self, back: int) -> dict[int, Value]:
        """Return what each operand that is whole has of the block of the rank `back` places before."""
        start, end = (attrs.evolve(self.shard, kind=kind, back=back % self.count) for kind in ("offset", "end"))
        found = [(i, dim) for i, dim in enumerate(self.dims) if dim is not None and i != self.fed]
        return {
            i: self.call("aten.slice.Tensor", (Value("operand", i),), {"dim": dim, "start": start, "end": end})
            for i, dim in found
        }

    def product(self, replaced: Mapping[int, Value]) -> Value:
        operands = tuple(replaced.get(i, Value("operand", i)) for i in range(len(self.operands)))
        own = self.owner.call
        return self.call(own.name, operands, own.argument, own.structure)

    def sent(self, value: Value) -> Value:
        meta = self.meta(value)
        return self.add(Call("spmd.rotate_start", (meta,), (("axes", self.shard.axes),), (meta,)), (value,))

    def received(self, pending: Value) -> Value:
        meta = self.meta(pending)
        return self.add(Call("spmd.wait", (meta,), (), (meta,)), (pending,))

    def call(
        self, op: str, operands: tuple[Value, ...], arguments: Mapping[str, Any] = {}, structure: Any = None
    ) -> Value:
        static = {n: self.rank.value(v) if isinstance(v, Local) else v for n, v in arguments.items()}
        call = self.ops.infer_call(op, tuple(map(self.meta, operands)), static, structure)
        return self.add(attrs.evolve(call, arguments=tuple(sorted(arguments.items()))), operands)

    def add(self, call: Call, operands: tuple[Value, ...]) -> Value:
        self.made.append(ExpandedOp(call, operands, self.owner.rule.location))
        return Value("op", len(self.made) - 1)

    def meta(self, value: Value) -> TensorMeta:
        meta = self.operands[value.index] if value.source == "operand" else self.made[value.index].call.results[0]
        assert meta is not None  # all of them give a tensor
        return meta


def _dim(dims: Any, factor: int) -> int | None:
    """Return the dimension that `factor` makes up; None if it is none of these."""
    return next((dim for dim, made_of in enumerate(dims) if factor in made_of), None)
