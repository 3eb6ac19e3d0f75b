"""What a program has in the memory of the host, copy by copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xdsl.ir import Operation

from spmdir.dialects.collectives import WaitOp
from spmdir.dialects.host import HostCopyOp


def host_peak(ops: Iterable[Operation], copied: Mapping[HostCopyOp, float]) -> float:
    """Return the most bytes that are in the memory of the host at once.

    A tensor is there from the op that begins to copy it to the end of the last copy of it, or of the wait for that.

    Args:
        ops: of a function, in order.
        copied: op that copies to the host or from there → its bytes.
    """
    last: dict[HostCopyOp, Operation] = {}
    source: dict[HostCopyOp, HostCopyOp] = {}
    for op in ops:
        copy = op.start if isinstance(op, WaitOp) else op
        if isinstance(copy, HostCopyOp):
            maker = copy if copy.TO_HOST else source.setdefault(copy, _maker(copy))
            last[maker] = op
    freed: dict[Operation, float] = {}
    for copy, op in last.items():
        freed[op] = freed.get(op, 0.0) + copied[copy]
    live = most = 0.0
    for op in ops:
        live += copied[op] if isinstance(op, HostCopyOp) and op.TO_HOST else 0.0
        most = max(most, live)
        live -= freed.get(op, 0.0)
    return most


def _maker(reload: HostCopyOp) -> HostCopyOp:
    """Return what has copied, or started to copy, to the host what `reload` copies back."""
    owner = reload.operands[0].owner
    owner = owner.start if isinstance(owner, WaitOp) else owner
    assert isinstance(owner, HostCopyOp)  # verified
    return owner
