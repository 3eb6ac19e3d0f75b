"""The price of copies to the memory of the host: bytes over the bandwidth of the topology, where it has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from spmdir.core.errors import UnsupportedError
from spmdir.reshard.host_copy import host_seconds
from spmdir.reshard.topology import A100X8, CPU_GLOO, FLAT, H100X8, Topology, find_topology

KEYS = """intra_bandwidth = 1e9
inter_bandwidth = 1e9
base_latency = 1e-6
intra_latency = 0
inter_latency = 0
memory_bandwidth = 1e12
"""


def test_a_copy_takes_its_bytes_over_the_bandwidth_and_a_latency() -> None:
    assert host_seconds(50e9, H100X8) == pytest.approx(1.0 + 1e-5)
    assert host_seconds(50e9, A100X8) == pytest.approx(2.0 + 1e-5)


def test_a_file_may_say_the_bandwidth(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(f"{KEYS}host_bandwidth = 4e9\nhost_latency = 0.5\n")
    assert host_seconds(8e9, find_topology(str(file))) == 2.5
    file.write_text(KEYS)
    assert find_topology(str(file)).host_bandwidth == 0


@pytest.mark.parametrize("topology", [FLAT, CPU_GLOO])
def test_nothing_is_copied_where_there_is_no_bandwidth(topology: Topology) -> None:
    with pytest.raises(UnsupportedError, match=f"topology '{topology}' has no host_bandwidth"):
        host_seconds(1.0, topology)
