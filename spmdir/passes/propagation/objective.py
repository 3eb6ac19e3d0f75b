"""The cost that propagate minimised, noted on the function; the note is not part of the program's text."""

from __future__ import annotations

from xdsl.dialects.func import FuncOp


def note_objective(function: FuncOp, cost: float) -> None:
    """Note `cost`: modelled seconds of one step of a rank."""
    object.__setattr__(function, "_objective", cost)


def objective_of(function: FuncOp) -> float | None:
    """Return what was noted on `function`; None if propagate did not decide it in this process."""
    return function.__dict__.get("_objective")
