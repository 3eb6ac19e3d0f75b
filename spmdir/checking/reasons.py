"""Why rules leave out strategies that would be right: the table reasons.toml."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import attrs


@attrs.frozen
class Reason:
    """`reason` is why ops that match one of `ops` leave out the strategies that match one of `strategies`."""

    ops: tuple[str, ...]
    strategies: tuple[str, ...]
    reason: str


@cache
def table() -> tuple[Reason, ...]:
    """The entries of reasons.toml."""
    entries = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text()).get("leave_out", [])
    return tuple(Reason(tuple(e["ops"]), tuple(e.get("strategies", ["*"])), e["reason"]) for e in entries)


def reason_for(op: str, strategy: str) -> str | None:
    """Why the rule of `op` leaves out `strategy`, as far as the table says; the first entry that matches counts."""
    for entry in table():
        if any(fnmatchcase(op, o) for o in entry.ops) and any(fnmatchcase(strategy, s) for s in entry.strategies):
            return entry.reason
    return None
