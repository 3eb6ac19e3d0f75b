"""Attributes of a decided function: the topology that it was decided for, its cost, and its certificate.

    attributes {spmd.topology = {name = "lab", intra_bandwidth = 3.7e+11 : f64, ...},
                spmd.certificate = {objective = 2.1e-04 : f64, lower_bound = 2.0e-04 : f64, floor = 1.5e-04 : f64}}

`spmd.topology` contains the constants of a topology that is not a preset of spmdir, so the text needs no other file.
`spmd.certificate` contains the lower bound that `propagate{certify}` proved. `spmd.objective` contains the cost of a
decision that was made for overlap. It cannot be computed again from the program, because the reshards are lowered to
other collectives than the objective counts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
from xdsl.dialects.builtin import DictionaryAttr, FloatAttr, StringAttr, f64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute

from spmdir.core.errors import ParseError
from spmdir.dialects.locations import location_of
from spmdir.reshard.topology import TOPOLOGIES, Protocol, Topology, topology_of_table

if TYPE_CHECKING:
    from spmdir.search.certificate.certificate import Certificate

TOPOLOGY = "spmd.topology"
"""The attribute with the constants of the topology that the function was decided for."""

OBJECTIVE = "spmd.objective"
"""The attribute with the minimised cost, if it differs from the sum of the times of the ops."""

CERTIFICATE = "spmd.certificate"
"""The attribute with the lower bound on the cost of all decisions."""

_PEAK = "peak_flops."
"""The prefix of the keys of a topology's peaks, as in `peak_flops.bf16`."""

_PROTOCOL = "protocols."
"""The prefix of the keys of a topology's protocols, as in `protocols.LL.base_latency`."""


@attrs.frozen
class Machine:
    """The hardware that a function runs on.

    Attributes:
        topology: the model of compute and communication times.
        memory: the memory of a rank, in bytes.
    """

    topology: Topology
    memory: float


def write_topology(function: FuncOp, topology: Topology) -> None:
    """Write the constants of `topology` that are not defaults on `function`. For a preset, remove the attribute."""
    function.attributes.pop(TOPOLOGY, None)
    constants_only = attrs.evolve(topology, costs=None, imbalance=1.0)
    if TOPOLOGIES.get(topology.name) != constants_only:
        values = _non_default_constants(constants_only, ("peak_flops", "protocols"))
        values |= {f"{_PEAK}{unit}": peak for unit, peak in topology.peak_flops}
        for protocol in topology.protocols:
            constants = _non_default_constants(protocol, ("name",))
            values |= {f"{_PROTOCOL}{protocol.name}.{key}": value for key, value in constants.items()}
        function.attributes[TOPOLOGY] = _dictionary_attr(values)


def recorded_topology(function: FuncOp) -> Topology | None:
    """Return the topology in the attribute of `function`; None without the attribute.

    Raises:
        ParseError: the attribute is malformed; located.
    """
    values = _recorded_values(function, TOPOLOGY)
    if values is None:
        return None
    table: dict[str, Any] = {name: value for name, value in values.items() if not name.startswith((_PEAK, _PROTOCOL))}
    table["peak_flops"] = {name.removeprefix(_PEAK): value for name, value in values.items() if name.startswith(_PEAK)}
    protocols: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith(_PROTOCOL):
            protocol, _, key = name.removeprefix(_PROTOCOL).rpartition(".")
            protocols.setdefault(protocol, {})[key] = value
    table["protocols"] = protocols
    name, location = table.pop("name", ""), location_of(function)
    try:
        # All constants have the location of the function. The attribute may exceed the limits of topology files.
        return topology_of_table(name, table, lambda _: location, math.inf)
    except ParseError as error:
        raise error.at(location, TOPOLOGY) from None


def write_objective(function: FuncOp, seconds: float) -> None:
    """Write on `function` the modelled seconds of a step, with nine digits."""
    function.attributes[OBJECTIVE] = FloatAttr(float(f"{seconds:.9g}"), f64)


def recorded_objective(function: FuncOp) -> float | None:
    """Return the objective in the attribute of `function`, in seconds; None without the attribute.

    Raises:
        ParseError: the attribute is malformed; located.
    """
    attribute = function.attributes.get(OBJECTIVE)
    if attribute is None or isinstance(attribute, FloatAttr):
        return None if attribute is None else attribute.value.data
    raise ParseError(f"{OBJECTIVE} is {attribute}; expected seconds, as in 1.0e-03 : f64", location_of(function))


def write_certificate(function: FuncOp, certificate: Certificate) -> None:
    """Write the certificate of the decision on `function`, with nine digits: further ones differ between processors."""
    values = attrs.asdict(certificate)
    rounded = {name: float(f"{value:.9g}") if isinstance(value, float) else value for name, value in values.items()}
    # Absent values, "" and "none" are the defaults of `Certificate`.
    function.attributes[CERTIFICATE] = _dictionary_attr(
        {name: value for name, value in rounded.items() if value not in ("", "none", None)}
    )


def recorded_certificate(function: FuncOp) -> Certificate | None:
    """Return the certificate in the attribute of `function`; None without the attribute.

    Raises:
        ParseError: the attribute is malformed; located.
    """
    values = _recorded_values(function, CERTIFICATE)
    if values is None:
        return None
    from spmdir.search.certificate.certificate import Certificate  # it imports numpy, which few functions need

    try:
        return Certificate(**values)  # type: ignore[arg-type]  # checked
    except TypeError as error:
        raise ParseError(f"{CERTIFICATE}: {error}; expected it as propagate writes it", location_of(function)) from None


def _non_default_constants(constants: Topology | Protocol, left_out: tuple[str, ...]) -> dict[str, Any]:
    """Return name → value of the constants that differ from their defaults, without the names in `left_out`."""
    return attrs.asdict(
        constants, recurse=False, filter=lambda field, value: field.name not in left_out and value != field.default
    )


def _dictionary_attr(values: dict[str, float | str]) -> DictionaryAttr:
    """Return the attribute of a dict of numbers and texts."""

    def attribute(value: float | str) -> Attribute:
        return StringAttr(value) if isinstance(value, str) else FloatAttr(value, f64)

    return DictionaryAttr({name: attribute(value) for name, value in values.items()})


def _recorded_values(function: FuncOp, name: str) -> dict[str, float | str] | None:
    """Return the numbers and texts in the dictionary attribute `name`; None without the attribute.

    Raises:
        ParseError: an entry has the wrong type; located.
    """
    attribute = function.attributes.get(name)
    if attribute is None:
        return None
    values: dict[str, float | str] = {}
    # An attribute that is not a dictionary gets the key "", and is an error below.
    for key, entry in attribute.data.items() if isinstance(attribute, DictionaryAttr) else [("", attribute)]:
        is_text = key in ("name", "mesh", "overlap")
        if not isinstance(entry, StringAttr if is_text else FloatAttr):
            raise ParseError(
                f"'{key}' of {name} is {entry}; expected {'a string' if is_text else 'a number as in 1.0e+00 : f64'}",
                location_of(function),
            )
        values[key] = entry.data if isinstance(entry, StringAttr) else entry.value.data  # type: ignore[union-attr]
    return values
