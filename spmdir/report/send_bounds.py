"""Lower bounds of the bytes that a program sends: for each resharded value, the bound of the planner."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.deadlock_check import LOCAL_MESSAGES
from spmdir.dialects.reshard_ops import has_lossy
from spmdir.dialects.values import global_type, sharding_of
from spmdir.reshard.byte_bound import lower_bound


def send_bounds(function: FuncOp, mesh: Mesh) -> Iterator[tuple[tuple[Operation, ...], float | None]]:
    """Yield the collectives of each resharded value, with the lower bound of the bytes that the busiest rank sends.

    Collectives that follow each other reshard one value, their origin: for `%b = all_to_all(%a)` and
    `%c = all_gather(%b)`, the bound is that from the sharding of %a to that of %c. If a value is resharded to several
    shardings, the bound is the largest of their bounds; None if one is unknown.
    """
    origins: dict[SSAValue, SSAValue] = {}  # result of a collective or wait → its origin
    targets_of: dict[SSAValue, list[Sharding]] = {}  # origin → the shardings in which ops use it
    collectives_of: dict[SSAValue, dict[Operation, None]] = {}
    for op in function.body.block.ops:
        if isinstance(op, LOCAL_MESSAGES):
            yield (op,), op.sent(mesh)
        if not isinstance(op, (Collective, WaitOp)):
            continue
        for value, result in op.pairs:
            # A lossy value is an origin itself: its reshards need not send the digits that it has lost.
            origins[result] = value if has_lossy(sharding_of(value)) else origins.get(value, value)
            collectives_of.setdefault(origins[result], {})[op] = None
            has_other_user = any(not isinstance(use.operation, (Collective, WaitOp)) for use in result.uses)
            if has_other_user or has_lossy(sharding_of(result)):
                targets_of.setdefault(origins[result], []).append(sharding_of(result))  # type: ignore  # verified
    for value, targets in targets_of.items():
        meta, source = global_type(value, mesh), sharding_of(value)
        if meta is not None and source is not None:
            bounds = [lower_bound(meta.shape, meta.dtype.itemsize, source, target, mesh) for target in targets]
            bound = None if None in bounds else max(bound for bound in bounds if bound is not None)
            yield tuple(collectives_of[value]), bound
