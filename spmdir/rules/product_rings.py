"""The local form of a split matrix product: a ring in which each rank sends one block while it multiplies another.

For `m k, k n -> m n` on a ring of 2 ranks, with blocks a0, a1 of the first operand, there are two forms:

    gather: (S(m), S(n)) -> S(n)             scatter: (S(k), S(k)) -> S(m)
    step 0: send a0, multiply a0 @ b         step 0: multiply block 1 of a @ b
    step 1: receive a1, multiply a1 @ b      step 1: send the sum, multiply block 0 of a @ b, add the received sum
    assemble both parts of the result        the sum is block 0 of the result

These are the steps of rank 0. Rank 1 starts with the other block in each form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spmdir.core.placement.call import Call, Local
from spmdir.core.placement.shards import ShardPlacement
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
    """Return the ops of the product `owner` by `strategy`, one of `split_strategies`.

    If an operand is gathered, its blocks move round the ring. Each rank multiplies the block that it has, and assembles
    the parts of the result.

    If the result is scattered, partial sums move round the ring. Each rank adds its product for the block of the
    received sum. It starts with the block of the previous rank and ends with its own block.

    Args:
        shard: the shard of the block factor. The ring is along the innermost of its axes.
        operands: the local types of the operands.
    """
    builder = _Builder(owner, ops, strategy, shard, operands, rank)
    result = builder.scatter() if builder.gathered_operand is None else builder.gather()
    return Expansion(tuple(builder.emitted), (result,))


class _Builder:
    """Builds the ops of a split product.

    Attributes:
        gathered_operand: the index of the operand that is gathered; None if the result is scattered.
        shard: the shard of the block factor along the axis of the ring.
        count: the number of ranks of the ring.
        factor: the block factor.
        dims: for each operand, its dimension with the block factor, or None.
        emitted: the ops so far.
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
        # The ring is along the innermost axis. The outer axes have already divided the block factor.
        *outer, axis = shard.axes
        self.owner, self.ops, self.operands, self.rank = owner, ops, operands, rank
        self.shard = attrs.evolve(shard, extent=shard.extent // rank.ring_size(outer), axes=(axis,))
        self.factor, self.count = strategy.factors[-1], rank.ring_size((axis,))
        self.dims = [_dim(dims, self.factor) for dims in owner.operand_dims]
        self.gathered_operand: int | None = None
        for index, (placement, dim) in enumerate(zip(strategy.operands, self.dims, strict=True)):
            if isinstance(placement, ShardPlacement) and placement.dim == dim:
                self.gathered_operand = index
                break
        self.emitted: list[ExpandedOp] = []

    def gather(self) -> Value:
        """Emit the ring in which the blocks of the gathered operand move; return the assembled result."""
        assert self.gathered_operand is not None
        block, parts = Value("operand", self.gathered_operand), list[Value]()
        for step in range(self.count):
            pending = self.send(block) if step + 1 < self.count else None
            parts.append(self.multiply({**self.slice_operands(step), self.gathered_operand: block}))
            block = block if pending is None else self.receive(pending)
        part_meta, result_dim = self.meta(parts[0]), _dim(self.owner.result_dims[0] or (), self.factor)
        assert result_dim is not None  # the strategy shards it
        shape = list(part_meta.shape)
        shape[result_dim] *= self.count
        arguments = (("axes", self.shard.axes), ("dim", result_dim))
        result = attrs.evolve(part_meta, shape=tuple(shape))
        return self.emit(Call("spmd.assemble", (part_meta,) * self.count, arguments, (result,)), tuple(parts))

    def scatter(self) -> Value:
        """Emit the ring in which partial sums move; return the sum for the rank's own block of the result."""
        total: Value | None = None
        for step in range(self.count):
            pending = None if total is None else self.send(total)
            part = self.multiply(self.slice_operands(step + 1))
            total = part if pending is None else self.emit_call("aten.add.Tensor", (self.receive(pending), part))
        assert total is not None  # a ring has at least two ranks
        return total

    def slice_operands(self, back: int) -> dict[int, Value]:
        """Slice each operand that has the whole block factor to the block of the rank `back` places before this one.

        Return index of such an operand → its slice.
        """
        start, end = (attrs.evolve(self.shard, kind=kind, back=back % self.count) for kind in ("offset", "end"))
        slices: dict[int, Value] = {}
        for index, dim in enumerate(self.dims):
            if dim is not None and index != self.gathered_operand:
                bounds = {"dim": dim, "start": start, "end": end}
                slices[index] = self.emit_call("aten.slice.Tensor", (Value("operand", index),), bounds)
        return slices

    def multiply(self, blocks: Mapping[int, Value]) -> Value:
        """Emit the product; `blocks` (index of an operand → its block) replaces some of its operands."""
        operands = tuple(blocks.get(index, Value("operand", index)) for index in range(len(self.operands)))
        call = self.owner.call
        return self.emit_call(call.name, operands, call.argument, call.structure)

    def send(self, value: Value) -> Value:
        """Emit the start of sending `value` to the next rank; return the pending transfer, for `receive`."""
        meta = self.meta(value)
        return self.emit(Call("spmd.rotate_start", (meta,), (("axes", self.shard.axes),), (meta,)), (value,))

    def receive(self, pending: Value) -> Value:
        """Emit the wait for a transfer that `send` started; return the value from the previous rank."""
        meta = self.meta(pending)
        return self.emit(Call("spmd.wait", (meta,), (), (meta,)), (pending,))

    def emit_call(
        self, op: str, operands: tuple[Value, ...], arguments: Mapping[str, Any] = {}, structure: Any = None
    ) -> Value:
        """Emit a call of `op` with inferred results, and return its first result.

        Args:
            arguments: name → literal, which may be a Local; the integer of the rank is used to infer the results.
            structure: see `Call`.
        """
        rank_arguments = {
            name: self.rank.value(value) if isinstance(value, Local) else value for name, value in arguments.items()
        }
        call = self.ops.infer_call(op, tuple(map(self.meta, operands)), rank_arguments, structure)
        return self.emit(attrs.evolve(call, arguments=tuple(sorted(arguments.items()))), operands)

    def emit(self, call: Call, operands: tuple[Value, ...]) -> Value:
        """Add `call` on `operands` to the emitted ops, and return its first result."""
        self.emitted.append(ExpandedOp(call, operands, self.owner.rule.location))
        return Value("op", len(self.emitted) - 1)

    def meta(self, value: Value) -> TensorMeta:
        """Return the local type of `value`."""
        meta = self.operands[value.index] if value.source == "operand" else self.emitted[value.index].call.results[0]
        assert meta is not None  # no op of the ring has an absent result
        return meta


def _dim(dims: Any, factor: int) -> int | None:
    """Return the dimension with `factor`; None if there is none."""
    return next((dim for dim, factors in enumerate(dims) if factor in factors), None)
