"""What a function was decided for, and what propagate minimised and proved, noted on it in memory.

The notes are no part of the program's text; `spmd.decided_by` is what the text says of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from xdsl.dialects.func import FuncOp

from spmdir.reshard.topology import Topology

if TYPE_CHECKING:
    from spmdir.search.certificate.certificate import Certificate

_NOTES = ("_objective", "_certificate", "_machine")


@attrs.frozen
class Machine:
    """What a function runs on.

    Attributes:
        topology: how long computing and sending take.
        memory: the bytes that a rank may hold at once.
    """

    topology: Topology
    memory: float


def note_objective(function: FuncOp, cost: float) -> None:
    """Note `cost`: modelled seconds of one step of a rank."""
    object.__setattr__(function, "_objective", cost)


def objective_of(function: FuncOp) -> float | None:
    """Return the cost noted on `function`; None if propagate did not decide it in this process."""
    return function.__dict__.get("_objective")


def note_certificate(function: FuncOp, certificate: Certificate) -> None:
    """Note how good the decision is."""
    object.__setattr__(function, "_certificate", certificate)


def certificate_of(function: FuncOp) -> Certificate | None:
    """Return the certificate noted on `function`; None if propagate did not prove it in this process."""
    return function.__dict__.get("_certificate")


def note_machine(function: FuncOp, machine: Machine) -> None:
    """Note the machine that `function` is decided for."""
    object.__setattr__(function, "_machine", machine)


def noted_machine(function: FuncOp) -> Machine | None:
    """Return the machine noted on `function`; None if propagate did not decide it in this process."""
    return function.__dict__.get("_machine")


def copy_notes(old: FuncOp, new: FuncOp) -> None:
    """Note on `new`, a copy of `old`, all that is noted on that."""
    for note in _NOTES:
        if note in old.__dict__:
            object.__setattr__(new, note, old.__dict__[note])
