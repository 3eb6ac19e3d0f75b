"""Machines: the links, memory and arithmetic that a mesh runs on, as constants of the cost model."""

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
from spmdir.reshard.costs import MOST_SECONDS, Costs, read_costs


def _pairs(table: Mapping[str, float] | Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple(sorted(dict(table).items()))


@attrs.frozen(slots=False, cache_hash=True)
class Topology:
    """Constants of a machine, all per rank; in a TOML file each is a key, as in `intra_bandwidth = 370e9`.

    Attributes:
        name: of the machine, as `topology` options give it.
        intra_bandwidth, inter_bandwidth: bytes a second in one direction within and between nodes.
        base_latency: seconds to start any collective.
        intra_latency, inter_latency: seconds a hop within and between nodes.
        memory_bandwidth: bytes a second of local memory.
        launch_latency: seconds that a kernel takes at least.
        memory: bytes that a program may use.
        peak_flops: achievable floating-point operations a second, by unit: matrix units by element type of the
            operands, as `bf16`, and `vector` for all else. A mapping, kept as pairs. Without it, arithmetic is free.
        host_bandwidth: bytes a second between the memory of a rank and that of its host, in each direction; 0 where a
            program can copy nothing there.
        host_latency: seconds to start a copy to the host or from there.
        costs: measured times, which come before those that follow from the constants; not a key of a file.
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
    costs: Costs | None = None

    def __str__(self) -> str:
        return self.name

    @cached_property
    def _peaks(self) -> dict[str, float]:
        return dict(self.peak_flops)

    def peak(self, unit: str) -> float:
        """Return the floating-point operations a second of `unit`; of an unknown one, those of `vector`."""
        return self._peaks.get(unit) or self._peaks.get(VECTOR, math.inf)


VECTOR = "vector"
"""The unit that computes what matrix units do not."""

RATES = (1e-3, 1e30)
"""The least and the most that a file may give as bytes, or as bytes or operations a second."""

_LARGEST = sys.float_info.max
"""The largest number; only infinity is above it."""

EFFICIENCY = 0.7
"""The part of a data sheet's dense peak that large products achieve."""


def _achieved(**peaks: float) -> dict[str, float]:
    """Return what is achieved of the peaks of a data sheet, in units of 1e12 operations a second."""
    return {unit: EFFICIENCY * peak * 1e12 for unit, peak in peaks.items()}


# Of 80 GiB, a tenth is left to the driver, to communicators and to fragmentation.
_USABLE = 0.9 * 80 * 2**30

# f32 as torch computes it by default, without TF32.
_H100_FLOPS = _achieved(f8E4M3FN=1979, f8E5M2=1979, bf16=989, f16=989, f32=67, f64=67, vector=67)
_A100_FLOPS = _achieved(bf16=312, f16=312, f32=19.5, f64=19.5, vector=19.5)

# To the host by PCI Express of 16 lanes: of the 63 and 32 GB/s of generations 5 and 4 what pinned copies achieve.
H100X8 = Topology("h100x8", 370e9, 50e9, 14e-6, 1.9e-6, 4e-6, 3.35e12, 2e-6, _USABLE, _H100_FLOPS, 50e9, 1e-5)
A100X8 = Topology("a100x8", 240e9, 25e9, 14e-6, 1.9e-6, 4e-6, 2.0e12, 2e-6, _USABLE, _A100_FLOPS, 25e9, 1e-5)
FLAT = Topology("flat", 370e9, 370e9, 1e-8, 0.0, 0.0, math.inf, peak_flops={VECTOR: _H100_FLOPS["bf16"]})

# Medians of processes that share two cores: a group of two takes 0.6 ms for a small gather, one of four 1.6 to 3 ms.
CPU_GLOO = Topology("cpu-gloo", 0.7e9, 0.7e9, 1e-4, 5e-4, 5e-4, 5e9, 1e-5, math.inf, {"f64": 25e9, VECTOR: 50e9})

DEFAULT = H100X8
"""What a mesh runs on unless something else is named: in the search, the planner and reports alike."""

TOPOLOGIES: dict[str, Topology] = {topology.name: topology for topology in (FLAT, H100X8, A100X8, CPU_GLOO)}
"""Name → topology. Eight accelerators to a node with one network card each; processes on one host; or `flat`,
equal links between any two ranks and local memory for free, on which what sends fewest bytes is fastest, unless it
takes a step more to save less than 3.7 kB."""


def find_topology(given: str | Topology | None) -> Topology:
    """A topology from its name or from a TOML file (a path that ends in .toml); the default one if None.

    Raises:
        UnsupportedError: there is no preset of that name.
        ParseError: the file cannot be read, lacks a constant or has another.
    """
    if given is None or isinstance(given, Topology):
        return given or DEFAULT
    require_type("topology", given, str, f"one of {', '.join(TOPOLOGIES)}, a .toml file, or a Topology")
    if given.endswith(".toml"):
        return _read(Path(given))
    if given not in TOPOLOGIES:
        raise UnsupportedError(
            f"unknown topology '{given}'; expected one of {', '.join(TOPOLOGIES)} or a .toml file"
            f"{did_you_mean(given, TOPOLOGIES)}"
        )
    return TOPOLOGIES[given]


def with_costs(topology: Topology, path: str) -> Topology:
    """Return `topology` with the measured times of the file at `path`; as it is if that is empty.

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
    """Return the machine with the constants of `table`.

    Args:
        place: where a key of the table is.
        most: the largest rate and memory.

    Raises:
        ParseError: a constant is missing, unknown or out of range; located.
    """
    fields = [field for field in attrs.fields(Topology) if field.name not in ("name", "costs")]
    expected = [field.name for field in fields]
    for key, value in table.items():
        if key not in expected:
            raise ParseError(
                f"a topology has no '{key}'; expected {', '.join(expected)}{did_you_mean(key, expected)}", place(key)
            )
        if key == "peak_flops":
            _check_peaks(value, place, most)
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= max(most, _LARGEST):
            raise ParseError(f"{key} is {shown(value)}; expected a number from 0 on, in SI units", place(key))
        if not value and key == "host_bandwidth":  # there is no way to the host
            continue
        if not value and (key.endswith("bandwidth") or key == "memory"):
            raise ParseError(f"{key} is 0; expected bytes{' a second' if key != 'memory' else ''}", place(key))
        _check_range(key, value, (0, MOST_SECONDS) if key.endswith("latency") else (RATES[0], most), place(key))
    missing = [field.name for field in fields if field.default is attrs.NOTHING and field.name not in table]
    if missing:
        raise ParseError(f"the topology lacks {', '.join(missing)}", place(""))
    return Topology(name, **table)


def _check_peaks(peaks: Any, place: Callable[[str], Location | None], most: float) -> None:
    """Raise unless `peaks` is a table of what units there are and how fast each is."""
    if not isinstance(peaks, dict):
        raise ParseError(
            f"peak_flops is {shown(peaks)}; expected a table, as in `[peak_flops]` and `bf16 = 690e12`",
            place("peak_flops"),
        )
    units = [*DTYPES, VECTOR]
    for unit, peak in peaks.items():
        if unit not in units:
            raise ParseError(
                f"unknown unit '{unit}'; expected one of {', '.join(units)}{did_you_mean(unit, units)}", place(unit)
            )
        if isinstance(peak, bool) or not isinstance(peak, (int, float)) or not 0 < peak <= max(most, _LARGEST):
            raise ParseError(f"{unit} is {shown(peak)}; expected operations a second, above 0", place(unit))
        _check_range(unit, peak, (RATES[0], most), place(unit))


def _check_range(name: str, value: float, between: tuple[float, float], place: Location | None) -> None:
    """Raise if no machine has the constant, so that times stay far from what floating point can express."""
    least, most = between
    if not least <= value <= most:
        raise ParseError(f"{name} is {shown(value)}; expected {least:g} to {most:g}, in SI units", place)
