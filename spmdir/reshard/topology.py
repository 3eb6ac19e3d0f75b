"""Topologies: constants of the cost model for links, memory and arithmetic of a machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from spmdir.core.dtype import DTYPES
from spmdir.core.errors import Location, ParseError, UnsupportedError, did_you_mean, require_type, shown
from spmdir.core.text_file import read_text_file
from spmdir.core.toml_text import place_of, read_toml
from spmdir.reshard.measured_times import MOST_SECONDS, Costs, read_costs


def _pairs(table: Mapping[str, float] | Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(dict(table).items()))


@attrs.frozen(slots=False, cache_hash=True)
class Topology:
    """Constants of a machine, all per rank. In a TOML file, each is a key, as in `intra_bandwidth = 370e9`.

    Attributes:
        name: the name in `topology` options.
        intra_bandwidth, inter_bandwidth: bytes per second in one direction, within and between nodes.
        base_latency: seconds to start any collective.
        intra_latency, inter_latency: seconds per hop, within and between nodes.
        memory_bandwidth: bytes per second of local memory.
        launch_latency: the minimum seconds of a kernel.
        memory: bytes that a program may use.
        peak_flops: achievable floating-point operations per second, by unit. Matrix units are named by the element type
            of the operands, such as `bf16`. All other ops use `vector`. A mapping is stored as pairs. By default,
            arithmetic takes no time.
        host_bandwidth: bytes per second between the memory of a rank and its host, in each direction; 0 if programs
            cannot copy to the host.
        host_latency: seconds to start a copy to the host or from it.
        ranks_per_node: the number of ranks in a node; 0 if all ranks are in one node.
        costs: measured times, which replace modelled ones; not a key of a file.
    """

    name: str
    intra_bandwidth: float
    inter_bandwidth: float
    base_latency: float
    intra_latency: float
    inter_latency: float
    memory_bandwidth: float
    launch_latency: float = 0.0
    memory: float = math.inf
    peak_flops: tuple[tuple[str, float], ...] = attrs.field(default=(), converter=_pairs)
    host_bandwidth: float = 0.0
    host_latency: float = 0.0
    ranks_per_node: int = 0
    costs: Costs | None = None

    def __str__(self) -> str:
        return self.name

    @cached_property
    def _peaks(self) -> dict[str, float]:
        return dict(self.peak_flops)

    def peak(self, unit: str) -> float:
        """Return the floating-point operations per second of `unit`. An unknown unit has those of `vector`."""
        return self._peaks.get(unit) or self._peaks.get(VECTOR, math.inf)


VECTOR = "vector"
"""The unit of all ops that matrix units do not compute."""

RATES = (1e-3, 1e30)
"""The range of bytes, bytes per second and operations per second in a file."""

_LARGEST = sys.float_info.max
"""The largest finite number."""

EFFICIENCY = 0.7
"""The fraction of a data sheet's dense peak that large products achieve."""


def _achieved_peaks(**peaks: float) -> dict[str, float]:
    """Return achieved operations per second, from the peaks of a data sheet in 1e12 operations per second."""
    return {unit: EFFICIENCY * peak * 1e12 for unit, peak in peaks.items()}


# The driver, communicators and fragmentation use a tenth of 80 GiB.
_USABLE = 0.9 * 80 * 2**30

# torch computes f32 without TF32 by default.
_H100_FLOPS = _achieved_peaks(f8E4M3FN=1979, f8E5M2=1979, bf16=989, f16=989, f32=67, f64=67, vector=67)
_A100_FLOPS = _achieved_peaks(bf16=312, f16=312, f32=19.5, f64=19.5, vector=19.5)

# Pinned copies to the host, over 16 lanes of PCI Express 5 (of 63 GB/s) and 4 (of 32 GB/s).
H100X8 = Topology("h100x8", 370e9, 50e9, 14e-6, 1.9e-6, 4e-6, 3.35e12, 2e-6, _USABLE, _H100_FLOPS, 50e9, 1e-5, 8)
A100X8 = Topology("a100x8", 240e9, 25e9, 14e-6, 1.9e-6, 4e-6, 2.0e12, 2e-6, _USABLE, _A100_FLOPS, 25e9, 1e-5, 8)
FLAT = Topology("flat", 370e9, 370e9, 1e-8, 0.0, 0.0, math.inf, peak_flops={VECTOR: _H100_FLOPS["bf16"]})

# Medians of processes on two cores: a small gather takes 0.6 ms in a group of two, and 1.6 to 3 ms in one of four.
CPU_GLOO = Topology("cpu-gloo", 0.7e9, 0.7e9, 1e-4, 5e-4, 5e-4, 5e9, 1e-5, math.inf, {"f64": 25e9, VECTOR: 50e9})

DEFAULT = H100X8
"""The default topology of the search, the planner and reports."""

TOPOLOGIES: dict[str, Topology] = {topology.name: topology for topology in (FLAT, H100X8, A100X8, CPU_GLOO)}
"""Name → topology.

`h100x8` and `a100x8` have eight accelerators per node, with one network card each. `cpu-gloo` is processes on one host.
`flat` has equal links between any two ranks, and local memory access costs nothing. So the plan with the fewest bytes
is the fastest, unless one step more saves less than 3.7 kB.
"""


def find_topology(topology: str | Topology | None) -> Topology:
    """Return a topology from its name or from a TOML file (a path that ends in .toml); DEFAULT if None.

    Raises:
        UnsupportedError: the name is unknown.
        ParseError: the file cannot be read, lacks a constant, or has an unknown one.
    """
    if topology is None or isinstance(topology, Topology):
        return topology or DEFAULT
    require_type("topology", topology, str, f"one of {', '.join(TOPOLOGIES)}, a .toml file, or a Topology")
    if topology.endswith(".toml"):
        return _read(Path(topology))
    if topology not in TOPOLOGIES:
        raise UnsupportedError(
            f"unknown topology '{topology}'; expected one of {', '.join(TOPOLOGIES)} or a .toml file"
            f"{did_you_mean(topology, TOPOLOGIES)}"
        )
    return TOPOLOGIES[topology]


def with_costs(topology: Topology, path: str) -> Topology:
    """Return `topology` with the measured times of the file at `path`; unchanged if `path` is empty.

    Raises:
        ParseError, SpmdirErrors: the file cannot be read, or lines are malformed; located.
    """
    return attrs.evolve(topology, costs=read_costs(path)) if path else topology


def _read(path: Path) -> Topology:
    text = read_text_file(path, f"the topology {path}")
    return topology_of_table(path.stem, read_toml(text, str(path)), lambda key: place_of(text, str(path), key))


def topology_of_table(
    name: str, table: Mapping[str, Any], place: Callable[[str], Location | None], most: float = RATES[1]
) -> Topology:
    """Return the topology with the constants of `table`.

    Args:
        place: key → its location.
        most: the largest rate, and the largest memory.

    Raises:
        ParseError: a constant is missing, unknown or out of range; located.
    """
    fields = [field for field in attrs.fields(Topology) if field.name not in ("name", "costs")]
    expected = [field.name for field in fields]
    for key, value in table.items():
        if key not in expected:
            raise ParseError(
                f"unknown key '{key}' of a topology; expected {', '.join(expected)}{did_you_mean(key, expected)}",
                place(key),
            )
        if key == "peak_flops":
            _check_peaks(value, place, most)
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= max(most, _LARGEST):
            raise ParseError(f"{key} is {shown(value)}; expected a number from 0 on, in SI units", place(key))
        if not value and key == "host_bandwidth":  # no copies to the host
            continue
        if key == "ranks_per_node":
            if value % 1:
                raise ParseError(f"{key} is {shown(value)}; expected a whole number of ranks", place(key))
            continue
        if not value and (key.endswith("bandwidth") or key == "memory"):
            raise ParseError(
                f"{key} is 0; expected a positive number of bytes{' per second' if key != 'memory' else ''}", place(key)
            )
        _check_range(key, value, (0, MOST_SECONDS) if key.endswith("latency") else (RATES[0], most), place(key))
    missing = [field.name for field in fields if field.default is attrs.NOTHING and field.name not in table]
    if missing:
        raise ParseError(f"the topology has no {', '.join(missing)}; expected a number for each", place(""))
    return Topology(name, **{**table, "ranks_per_node": int(table.get("ranks_per_node", 0))})


def _check_peaks(peaks: Any, place: Callable[[str], Location | None], most: float) -> None:
    """Raise ParseError unless `peaks` is a table of units and their operations per second."""
    if not isinstance(peaks, dict):
        raise ParseError(
            f"peak_flops is {shown(peaks)}; expected a table, such as `[peak_flops]` with `bf16 = 690e12`",
            place("peak_flops"),
        )
    units = [*DTYPES, VECTOR]
    for unit, peak in peaks.items():
        if unit not in units:
            raise ParseError(
                f"unknown unit '{unit}'; expected one of {', '.join(units)}{did_you_mean(unit, units)}", place(unit)
            )
        if isinstance(peak, bool) or not isinstance(peak, (int, float)) or not 0 < peak <= max(most, _LARGEST):
            raise ParseError(f"{unit} is {shown(peak)}; expected operations per second, above 0", place(unit))
        _check_range(unit, peak, (RATES[0], most), place(unit))


def _check_range(name: str, value: float, between: tuple[float, float], place: Location | None) -> None:
    """Raise ParseError if a constant is out of range. The ranges exclude overflow and underflow of times."""
    least, most = between
    if not least <= value <= most:
        raise ParseError(f"{name} is {shown(value)}; expected {least:g} to {most:g}, in SI units", place)
