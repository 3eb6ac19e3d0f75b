"""What a function was decided for and how good the decision is, as attributes of the function.

    attributes {spmd.topology = {name = "lab", intra_bandwidth = 3.7e+11 : f64, ...},
                spmd.certificate = {objective = 2.1e-04 : f64, lower_bound = 2.0e-04 : f64, floor = 1.5e-04 : f64}}

`spmd.topology` holds the constants of a machine that is no preset of spmdir, so a text needs no other file.
`spmd.certificate` holds what `propagate{certify}` proved, and `spmd.objective` what a decision costs that was made for
overlap: its reshards are lowered to other collectives than the objective counts.
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
from spmdir.reshard.topology import TOPOLOGIES, Topology, topology_of_table

if TYPE_CHECKING:
    from spmdir.search.certificate.certificate import Certificate

TOPOLOGY = "spmd.topology"
"""The attribute of a function with the constants of the machine that it was decided for."""

OBJECTIVE = "spmd.objective"
"""The attribute of a function with what propagate minimised, where the times of the program have another sum."""

CERTIFICATE = "spmd.certificate"
"""The attribute of a function with the lower bound on the cost of all its decisions."""

_PEAK = "peak_flops."
"""What the keys of a topology's peaks start with."""


@attrs.frozen
class Machine:
    """What a function runs on.

    Attributes:
        topology: how long computing and sending take.
        memory: the bytes that a rank may hold at once.
    """

    topology: Topology
    memory: float


def write_topology(function: FuncOp, topology: Topology) -> None:
    """Write the constants of `topology` on `function`, unless it is a preset; omit defaults."""
    function.attributes.pop(TOPOLOGY, None)
    plain = attrs.evolve(topology, costs=None)
    if TOPOLOGIES.get(topology.name) != plain:
        values = attrs.asdict(
            plain, recurse=False, filter=lambda field, value: field.name != "peak_flops" and value != field.default
        )
        values |= {f"{_PEAK}{unit}": peak for unit, peak in topology.peak_flops}
        function.attributes[TOPOLOGY] = _dictionary(values)


def written_topology(function: FuncOp) -> Topology | None:
    """Return the machine whose constants `function` holds; None if it holds none.

    Raises:
        ParseError: the attribute is malformed; located.
    """
    values = _values(function, TOPOLOGY)
    if values is None:
        return None
    table: dict[str, Any] = {name: value for name, value in values.items() if not name.startswith(_PEAK)}
    table["peak_flops"] = {name.removeprefix(_PEAK): value for name, value in values.items() if name.startswith(_PEAK)}
    name, place = table.pop("name", ""), location_of(function)
    try:
        return topology_of_table(name, table, lambda _: place, math.inf)
    except ParseError as error:
        raise error.at(place, TOPOLOGY) from None


def write_objective(function: FuncOp, seconds: float) -> None:
    """Write on `function` the modelled seconds of a step, with nine digits."""
    function.attributes[OBJECTIVE] = FloatAttr(float(f"{seconds:.9g}"), f64)


def written_objective(function: FuncOp) -> float | None:
    """Return the objective that `function` holds, in seconds; None if it holds none.

    Raises:
        ParseError: the attribute is malformed; located.
    """
    attribute = function.attributes.get(OBJECTIVE)
    if attribute is None or isinstance(attribute, FloatAttr):
        return None if attribute is None else attribute.value.data
    raise ParseError(f"{OBJECTIVE} is {attribute}; expected seconds, as in 1.0e-03 : f64", location_of(function))


def write_certificate(function: FuncOp, certificate: Certificate) -> None:
    """Write on `function` how good its decision is, with nine digits: further ones differ between processors."""
    values = attrs.asdict(certificate)
    rounded = {name: float(f"{value:.9g}") if isinstance(value, float) else value for name, value in values.items()}
    function.attributes[CERTIFICATE] = _dictionary(
        {name: value for name, value in rounded.items() if value not in ("", "none")}
    )


def written_certificate(function: FuncOp) -> Certificate | None:
    """Return the certificate that `function` holds; None if it holds none.

    Raises:
        ParseError: the attribute is malformed; located.
    """
    values = _values(function, CERTIFICATE)
    if values is None:
        return None
    from spmdir.search.certificate.certificate import Certificate  # numpy, which few functions need

    try:
        return Certificate(**values)  # type: ignore[arg-type]  # checked
    except TypeError as error:
        raise ParseError(f"{CERTIFICATE}: {error}; expected it as propagate writes it", location_of(function)) from None


def _dictionary(values: dict[str, float | str]) -> DictionaryAttr:
    def attribute(value: float | str) -> Attribute:
        return StringAttr(value) if isinstance(value, str) else FloatAttr(value, f64)

    return DictionaryAttr({name: attribute(value) for name, value in values.items()})


def _values(function: FuncOp, name: str) -> dict[str, float | str] | None:
    attribute = function.attributes.get(name)
    if attribute is None:
        return None
    values: dict[str, float | str] = {}
    for key, entry in attribute.data.items() if isinstance(attribute, DictionaryAttr) else [("", attribute)]:
        is_text = key in ("name", "mesh", "overlap")
        if not isinstance(entry, StringAttr if is_text else FloatAttr):
            raise ParseError(
                f"'{key}' of {name} is {entry}; expected {'a string' if is_text else 'a number as in 1.0e+00 : f64'}",
                location_of(function),
            )
        values[key] = entry.data if isinstance(entry, StringAttr) else entry.value.data  # type: ignore[union-attr]
    return values
