"""What propagate minimised and proved, noted on the function; the notes are not part of the program's text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.func import FuncOp

if TYPE_CHECKING:
    from spmdir.search.certificate.certificate import Certificate


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
