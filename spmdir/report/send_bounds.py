"""The least that a program could send for its reshards: of each value that is resharded, the planner's lower bound."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.analysis.sent_messages import NEIGHBOURLY
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.reshard_ops import has_lossy
from spmdir.dialects.values import global_type, sharding_of
from spmdir.reshard.bound import lower_bound


def send_bounds(function: FuncOp, mesh: Mesh) -> Iterator[tuple[tuple[Operation, ...], float | None]]:
    """Yield, for each value that collectives start from, these, and the lower bound of that form which needs most.

    The bound is in bytes of the busiest rank; None if it is not known.
    """
    origins: dict[SSAValue, SSAValue] = {}
    forms: dict[SSAValue, list[Sharding]] = {}
    senders: dict[SSAValue, dict[Operation, None]] = {}
    for op in function.body.block.ops:
        if isinstance(op, NEIGHBOURLY):
            yield (op,), op.sent(mesh)
        if not isinstance(op, (Collective, WaitOp)):
            continue
        for value, result in op.pairs:
            # What a lossy placement loses need not be sent, so what is made of it is made of another value.
            origins[result] = value if has_lossy(sharding_of(value)) else origins.get(value, value)
            senders.setdefault(origins[result], {})[op] = None
            used = any(not isinstance(use.operation, (Collective, WaitOp)) for use in result.uses)
            if used or has_lossy(sharding_of(result)):
                forms.setdefault(origins[result], []).append(sharding_of(result))  # type: ignore  # verified
    for value, targets in forms.items():
        meta, source = global_type(value, mesh), sharding_of(value)
        if meta is not None and source is not None:
            found = [lower_bound(meta.shape, meta.dtype.itemsize, source, target, mesh) for target in targets]
            bound = None if None in found else max(bound for bound in found if bound is not None)
            yield tuple(senders[value]), bound
