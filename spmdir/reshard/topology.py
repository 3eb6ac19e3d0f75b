"""Machines: what links and memory a mesh runs on, as constants for the cost model."""

from __future__ import annotations

import math
from pathlib import Path

import attrs

from spmdir.core.errors import Location, ParseError, UnsupportedError, did_you_mean, require_type, shown
from spmdir.core.text_file import read_text_file
from spmdir.core.toml_text import place_of, read_toml


@attrs.frozen
class Topology:
    """Constants of a machine, all per rank; in a TOML file each is a key, as in `intra_bandwidth = 370e9`.

    Attributes:
        name: of the machine, as `topology` options give it.
        intra_bandwidth, inter_bandwidth: bytes a second in one direction within and between nodes.
        base_latency: seconds to start any collective.
        intra_latency, inter_latency: seconds a hop within and between nodes.
        memory_bandwidth: bytes a second of local memory.
    """

    name: str
    intra_bandwidth: float
    inter_bandwidth: float
    base_latency: float
    intra_latency: float
    inter_latency: float
    memory_bandwidth: float


H100X8 = Topology("h100x8", 370e9, 50e9, 14e-6, 1.9e-6, 4e-6, 3.35e12)
A100X8 = Topology("a100x8", 240e9, 25e9, 14e-6, 1.9e-6, 4e-6, 2.0e12)
FLAT = Topology("flat", 370e9, 370e9, 1e-8, 0.0, 0.0, math.inf)
CPU_GLOO = Topology("cpu-gloo", 0.7e9, 0.7e9, 1e-4, 1e-4, 1e-4, 5e9)

TOPOLOGIES: dict[str, Topology] = {topology.name: topology for topology in (FLAT, H100X8, A100X8, CPU_GLOO)}
"""Name → topology. Eight accelerators to a node with one network card each; processes on one host; or `flat`,
equal links between any two ranks, on which a plan of fewest bytes is fastest, unless it takes a step more to save less
than 3.7 kB."""


def find_topology(given: str | Topology | None, default: Topology) -> Topology:
    """A topology from its name or from a TOML file (a path that ends in .toml); `default` if none is given.

    Raises:
        UnsupportedError: there is no preset of that name.
        ParseError: the file cannot be read, lacks a constant or has another.
    """
    if given is None or isinstance(given, Topology):
        return given or default
    require_type("topology", given, str, f"one of {', '.join(TOPOLOGIES)}, a .toml file, or a Topology")
    if given.endswith(".toml"):
        return _read(Path(given))
    if given not in TOPOLOGIES:
        raise UnsupportedError(
            f"unknown topology '{given}'; expected one of {', '.join(TOPOLOGIES)} or a .toml file"
            f"{did_you_mean(given, TOPOLOGIES)}"
        )
    return TOPOLOGIES[given]


def _read(path: Path) -> Topology:
    text = read_text_file(path, f"the topology {path}")
    table = read_toml(text, str(path))
    expected = [field.name for field in attrs.fields(Topology) if field.name != "name"]
    for name, value in table.items():
        place = place_of(text, str(path), name)
        if name not in expected:
            raise ParseError(
                f"a topology has no '{name}'; expected {', '.join(expected)}{did_you_mean(name, expected)}", place
            )
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ParseError(f"{name} is {shown(value)}; expected a number from 0 on, in SI units", place)
        if name.endswith("bandwidth") and not value:
            raise ParseError(f"{name} is 0; expected bytes a second", place)
    missing = [name for name in expected if name not in table]
    if missing:
        raise ParseError(f"the topology lacks {', '.join(missing)}", Location(str(path), 1, 1))
    return Topology(path.stem, **table)
