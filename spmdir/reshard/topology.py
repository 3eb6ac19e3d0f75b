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
    """Return a mapping, or an iterable of pairs, as sorted pairs."""
    return tuple(sorted(dict(table).items()))


@attrs.frozen(cache_hash=True)
class Protocol:
    """A protocol of messages: low latency with low bandwidth, or the reverse. A message takes the fastest one.

    In a TOML file, it is a table, as in `[protocols.LL]` with `base_latency = 6.6e-6`.

    Attributes:
        name: the name of the table.
        base_latency, intra_latency, inter_latency: as in Topology.
        efficiency: the fraction of the bandwidth of a link that carries data. The remainder carries flags.
        intra_limit, inter_limit: the most bytes per second that a rank sends in a group within a node, and in a group
            that spans nodes.
    """

    name: str
    base_latency: float
    intra_latency: float
    inter_latency: float
    efficiency: float = 1.0
    intra_limit: float = math.inf
    inter_limit: float = math.inf


@attrs.frozen(slots=False, cache_hash=True)
class Topology:
    """Constants of a machine, all per rank. In a TOML file, each is a key, as in `intra_bandwidth = 360e9`.

    Attributes:
        name: the name in `topology` options.
        intra_bandwidth, inter_bandwidth: bytes per second in one direction, within and between nodes.
        base_latency: seconds to start a collective.
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
        tree_efficiency: the fraction of bandwidths that a reduction along a tree over the nodes achieves; 0 if there
            are no such trees.
        protocols: further protocols. That of large messages has the latencies above, and both bandwidths in full.
        costs: measured times, which replace modelled ones; not a key of a file.
        imbalance: the most rows that a rank of experts receives, as a multiple of those with a balanced router. It is
            an assumption on data, not on the machine, so it is not a key of a file.
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
    tree_efficiency: float = 0.0
    protocols: tuple[Protocol, ...] = attrs.field(default=(), repr=lambda all: f"<{', '.join(p.name for p in all)}>")
    costs: Costs | None = None
    imbalance: float = 1.0

    def __str__(self) -> str:
        return self.name

    @cached_property
    def all_protocols(self) -> tuple[Protocol, ...]:
        """Return the protocols that a message may take. The one of large messages is the first."""
        return (Protocol("", self.base_latency, self.intra_latency, self.inter_latency), *self.protocols)

    @cached_property
    def _peaks(self) -> dict[str, float]:
        """Return `peak_flops` as a dict."""
        return dict(self.peak_flops)

    def peak(self, unit: str) -> float:
        """Return the floating-point operations per second of `unit`.

        An unknown unit has those of `vector`. Without `vector`, they are infinite, so arithmetic takes no time.
        """
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

# NCCL has three protocols: Simple is the one of large messages, LL stores a flag beside each four bytes of data, and
# LL128 beside each 120 bytes. The latencies are `baseLatencies` and `hwLatencies` of a ring in `src/graph/tuning.cc` of
# NCCL 2.30, over NVLink and over the network, with one rank in each node. So are the factors 0.92 and 0.5 of the
# bandwidth. The limits are `llMaxBws` of one node by its GPUs, and of more than two nodes with Intel processors.
_LL128 = Protocol("LL128", 14e-6, 1.9e-6, 8.5e-6, 0.92)

# Bandwidths are those of the rings that NCCL finds (`src/graph/search.cc`): whole rings of 60 GB/s (H100) and 20 GB/s
# (A100) on the NVLinks of a GPU, and 48 and 24 GB/s on a network card of 400 and 200 Gb/s. A tree achieves
# 0.92 · 0.85 of them (`src/graph/tuning.cc`).
# Pinned copies to the host, over 16 lanes of PCI Express 5 (of 63 GB/s) and 4 (of 32 GB/s).
H100X8 = Topology(
    "h100x8",
    intra_bandwidth=360e9,
    inter_bandwidth=48e9,
    base_latency=8.4e-6,
    intra_latency=3.4e-6,
    inter_latency=14e-6,
    memory_bandwidth=3.35e12,
    launch_latency=2e-6,
    memory=_USABLE,
    peak_flops=_H100_FLOPS,
    host_bandwidth=50e9,
    host_latency=1e-5,
    ranks_per_node=8,
    tree_efficiency=0.78,
    protocols=(_LL128, Protocol("LL", 6.6e-6, 0.6e-6, 5e-6, 0.5, 141e9, 20.4e9)),
)
A100X8 = attrs.evolve(
    H100X8,
    name="a100x8",
    intra_bandwidth=240e9,
    inter_bandwidth=24e9,
    memory_bandwidth=2.0e12,
    peak_flops=_A100_FLOPS,
    host_bandwidth=25e9,
    protocols=(_LL128, Protocol("LL", 6.6e-6, 0.6e-6, 5e-6, 0.5, 87.7e9, 20.4e9)),
)
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


def topology_text(topology: Topology, comment: str) -> str:
    """Return the text of a topology file: a comment, the constants in SI units, protocols and peaks.

    Example:
        >>> Path("own.toml").write_text(topology_text(topology, "two boxes in the lab"))
    """
    numbers = attrs.asdict(
        topology,
        recurse=False,
        filter=lambda field, _: field.name not in ("name", "peak_flops", "protocols", "costs", "imbalance"),
    )
    lines = [f"# {comment}", *_number_lines(numbers)]
    for protocol in topology.protocols:
        constants = attrs.asdict(protocol, filter=lambda field, _: field.name != "name")
        lines += ["", f"[protocols.{protocol.name}]", *_number_lines(constants)]
    lines += ["", "[peak_flops]", *_number_lines(dict(topology.peak_flops))]
    return "\n".join(lines) + "\n"


def _number_lines(numbers: Mapping[str, float]) -> list[str]:
    """Return the lines of finite constants."""
    return [f"{name} = {value:.4g}" for name, value in numbers.items() if value < math.inf]


def with_costs(topology: Topology, path: str) -> Topology:
    """Return `topology` with the measured times of the file at `path`; unchanged if `path` is empty.

    Raises:
        ParseError, SpmdirErrors: the file cannot be read, or lines are malformed; located.
    """
    return attrs.evolve(topology, costs=read_costs(path)) if path else topology


def _read(path: Path) -> Topology:
    """Return the topology of a TOML file. Its name is that of the file, without the ending."""
    text = read_text_file(path, f"the topology {path}")
    return topology_of_table(path.stem, read_toml(text, str(path)), lambda key: place_of(text, str(path), key))


def topology_of_table(
    name: str, table: Mapping[str, Any], place: Callable[[str], Location | None], most: float = RATES[1]
) -> Topology:
    """Return the topology with the constants of `table`.

    Args:
        table: constant → its value. `peak_flops` and `protocols` are tables.
        place: key → its location, or None.
        most: the largest rate, and the largest memory.

    Raises:
        ParseError: a constant is missing, unknown or out of range; located.
    """
    numbers = {"ranks_per_node": 0, **table}
    peaks, protocols = numbers.pop("peak_flops", {}), numbers.pop("protocols", {})
    _check_peaks(peaks, place, most)
    _check_numbers("a topology", Topology, numbers, place, most)
    if not isinstance(protocols, dict) or not all(isinstance(constants, dict) for constants in protocols.values()):
        raise ParseError(
            f"protocols is {shown(protocols)}; expected a table for each, such as `[protocols.LL]` with "
            "`base_latency = 6.6e-6`",
            place("protocols"),
        )
    for protocol, constants in protocols.items():
        _check_numbers(f"protocol {protocol}", Protocol, constants, _at_table(place, protocol), most)
    numbers["ranks_per_node"] = int(numbers["ranks_per_node"])
    all_protocols = tuple([Protocol(protocol, **constants) for protocol, constants in protocols.items()])
    return Topology(name, **numbers, peak_flops=peaks, protocols=all_protocols)


def _at_table(place: Callable[[str], Location | None], protocol: str) -> Callable[[str], Location | None]:
    """Return a function from any key to the location of the table of a protocol."""
    return lambda key: place(f"protocols.{protocol}")


_FRACTIONS = ("efficiency", "tree_efficiency")
"""The constants that are fractions."""

_ABSENT_IF_ZERO = ("host_bandwidth", "tree_efficiency")
"""The constants that may be 0: the machine has no such link or tree."""


def _check_numbers(
    owner: str,
    kind: type[Topology | Protocol],
    table: Mapping[str, Any],
    place: Callable[[str], Location | None],
    most: float,
) -> None:
    """Raise ParseError unless `table` has the constants of `kind`, other than tables, in range.

    All are numbers from 0 on. Fractions are at most 1, `ranks_per_node` is whole, and rates, sizes and latencies are in
    ranges that exclude overflow.

    Args:
        owner: the name of the table in messages.
        place, most: as of `topology_of_table`.
    """
    fields = [field for field in attrs.fields(kind) if field.name not in ("name", "costs", "imbalance")]
    expected = [field.name for field in fields]
    for key, value in table.items():
        if key not in expected:
            raise ParseError(
                f"unknown key '{key}' of {owner}; expected {', '.join(expected)}{did_you_mean(key, expected)}",
                place(key),
            )
        # This excludes NaN and, unless `most` is infinite, infinity. The exact range is checked below.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= max(most, _LARGEST):
            raise ParseError(f"{key} is {shown(value)}; expected a number from 0 on, in SI units", place(key))
        if not value and key in _ABSENT_IF_ZERO:
            continue
        if key == "ranks_per_node":
            if value % 1:
                raise ParseError(f"{key} is {shown(value)}; expected a whole number of ranks", place(key))
            continue
        if key in _FRACTIONS:
            if not 0 < value <= 1:
                raise ParseError(f"{key} is {shown(value)}; expected a fraction above 0, at most 1", place(key))
            continue
        if not value and (key.endswith(("bandwidth", "limit")) or key == "memory"):
            raise ParseError(
                f"{key} is 0; expected a positive number of bytes{' per second' if key != 'memory' else ''}", place(key)
            )
        _check_range(key, value, (0, MOST_SECONDS) if key.endswith("latency") else (RATES[0], most), place(key))
    missing = [field.name for field in fields if field.default is attrs.NOTHING and field.name not in table]
    if missing:
        raise ParseError(
            f"{owner.replace('a topology', 'the topology')} has no {', '.join(missing)}; expected a number for each",
            place(""),
        )


def _check_peaks(peaks: Any, place: Callable[[str], Location | None], most: float) -> None:
    """Raise ParseError unless `peaks` is a table of units and their operations per second, at most `most`."""
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
