"""What a strategy sends round rings inside an op, for the search to price."""

from __future__ import annotations

from collections.abc import Callable

from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import shard_of
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.local.expansion import Expansion
from spmdir.rules.local.rank import Rank
from spmdir.rules.shapes.instance import RuleInstance
from spmdir.rules.strategies.strategy import Strategy


def rotated(
    rule: RuleInstance, local_form: Callable[..., Expansion | None], strategy: Strategy, count: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (bytes, factors) of each tensor that a rank sends in the local form of `strategy` on `count` ranks.

    The factors are those by which other axes may make it smaller: of an operand of its shape but for what rotates.
    """
    mesh = Mesh({"ring": count})
    sharded = {f: shard_of(rule.factors[f].size, [("ring", strategy.placement_of(f))]) for f in strategy.factors}
    operands = tuple(
        TensorMeta(*placement.local_type(meta.shape, meta.dtype, count, 0))
        for meta, placement in zip(rule.call.operands, strategy.operands, strict=True)
    )
    scattered = frozenset(f for f, shard in sharded.items() if not shard.is_contiguous(mesh))
    form = local_form(sharded, operands, Rank(mesh, mesh.coordinate(0)), scattered, (strategy,))
    sent = [op.call.operands[0] for op in form.ops if op.call.name == "spmd.rotate"] if form else []
    return tuple((meta.bytes, _factors(rule, strategy, operands, meta)) for meta in sent)


def _factors(
    rule: RuleInstance, strategy: Strategy, operands: tuple[TensorMeta, ...], sent: TensorMeta
) -> tuple[int, ...]:
    for dims, meta in zip(rule.operand_dims, operands, strict=True):
        pairs = list(zip(dims, meta.shape, sent.shape, strict=False))
        alike = all(size == other or set(strategy.factors) & set(factors) for factors, size, other in pairs)
        if meta.rank == sent.rank and alike:
            return tuple(f for factors in dims for f in factors if f not in strategy.factors)
    return ()
