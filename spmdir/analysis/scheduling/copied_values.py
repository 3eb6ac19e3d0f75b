"""The values that may be copied to the host and back, and the transfers of such copies."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.ir import OpResult, SSAValue

from spmdir.analysis.live_memory import LiveMemory
from spmdir.core.errors import UnsupportedError
from spmdir.dialects.host_ops import HostCopyOp
from spmdir.dialects.locations import errors_at
from spmdir.dialects.spmd import ConstantOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.host_copy import host_seconds
from spmdir.reshard.topology import Topology
from spmdir.schedule.host_copies import copy_transfer
from spmdir.schedule.program import Transfer


def copyable_values(memory: LiveMemory, topology: Topology) -> tuple[dict[int, SSAValue], dict[int, float]]:
    """Return buffer → the value that may be copied to the host, and buffer → the seconds of a copy in one direction.

    These are results of ops with a sharding. Arguments are excluded because the caller holds them, values inside local
    forms because they cannot be used outside. Both dicts are empty if the topology has no bandwidth to the host.
    """
    values: dict[int, SSAValue] = {}
    for number, (buffer, value) in enumerate(zip(memory.buffers, memory.values, strict=True)):
        is_result = buffer.kind != "communication buffers" and isinstance(value.type, TensorType)
        is_computed = isinstance(value, OpResult) and not isinstance(value.op, ConstantOp)
        if topology.host_bandwidth and buffer.bytes and is_result and is_computed and sharding_of(value) is not None:
            values[number] = value
    return values, {number: host_seconds(memory.buffers[number].bytes, topology) for number in values}


def host_transfer(op: HostCopyOp, size: float, topology: Topology) -> Transfer:
    """Return the transfer of an op that copies `size` bytes.

    Raises:
        UnsupportedError: the topology has no bandwidth to the host; located.
    """
    with errors_at(op, UnsupportedError):
        return copy_transfer(op.TO_HOST, size, host_seconds(size, topology))
