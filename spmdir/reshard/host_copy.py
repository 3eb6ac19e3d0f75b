"""The price of a copy between the memory of a rank and that of its host."""

from __future__ import annotations

from spmdir.core.errors import UnsupportedError
from spmdir.reshard.topology import Topology


def host_seconds(size: float, topology: Topology) -> float:
    """Return how long a copy of `size` bytes takes, alone in its direction.

    Raises:
        UnsupportedError: the topology has no bandwidth to the host.
    """
    if not topology.host_bandwidth:
        raise UnsupportedError(
            f"copies to the memory of the host, for which topology '{topology}' has no bandwidth; expected one with "
            "host_bandwidth, as h100x8, or a .toml file that has it"
        )
    return topology.host_latency + size / topology.host_bandwidth
