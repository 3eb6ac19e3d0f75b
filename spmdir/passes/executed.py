"""Which passes have run on a module, noted on it in memory; the note is no part of the program's text."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp


def note_executed(module: ModuleOp, name: str) -> None:
    """Note that the pass `name` has run on `module`."""
    note_all(module, (*executed(module), name))


def note_all(module: ModuleOp, names: tuple[str, ...]) -> None:
    """Note that the passes `names`, in that order, are all that have run on `module`."""
    object.__setattr__(module, "_executed", names)


def executed(module: ModuleOp) -> tuple[str, ...]:
    """Return the names of the passes that `run_passes` has run on `module` or on what it is a copy of, in order."""
    return module.__dict__.get("_executed", ())
