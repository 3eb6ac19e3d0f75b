"""The price of a copy between the memory of a rank and the memory of its host."""

from __future__ import annotations

from spmdir.core.errors import UnsupportedError
from spmdir.reshard.topology import Topology


def host_seconds(size: float, topology: Topology) -> float:
    """Return the seconds of a copy of `size` bytes if it is the only copy in its direction.

    Raises:
        UnsupportedError: the topology has no `host_bandwidth`.
    """
    if not topology.host_bandwidth:
        raise UnsupportedError(
            f"topology '{topology}' has no host_bandwidth, which copies to host memory require; expected "
            "this bandwidth: use a topology with host_bandwidth, such as h100x8, or add it to the .toml "
            "file"
        )
    return topology.host_latency + size / topology.host_bandwidth
