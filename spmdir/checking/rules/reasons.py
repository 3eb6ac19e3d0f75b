"""What the checker leaves alone, and why: the table reasons.toml."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import attrs


@attrs.frozen
class Reason:
    """Why something holds for the strategies that match one of `strategies` of the ops that match one of `ops`."""

    ops: tuple[str, ...]
    strategies: tuple[str, ...]
    reason: str

    def covers(self, op: str, strategy: str) -> bool:
        return any(fnmatchcase(op, o) for o in self.ops) and any(fnmatchcase(strategy, s) for s in self.strategies)


@cache
def table(kind: str) -> tuple[Reason, ...]:
    """Return the entries of one kind: "left_out", "finite", "numbers" or "undetermined"."""
    entries = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text()).get(kind, [])
    return tuple(Reason(tuple(e["ops"]), tuple(e.get("strategies", ["*"])), e["reason"]) for e in entries)


def why_left_out(op: str, strategy: str) -> str | None:
    """Return why the rule of `op` leaves out `strategy`, as far as the table says; the first match counts."""
    return next((entry.reason for entry in table("left_out") if entry.covers(op, strategy)), None)


def why_undetermined(op: str) -> str | None:
    """Return why the numbers that `op` gives are not compared, if they are not."""
    return next((entry.reason for entry in table("undetermined") if entry.covers(op, "")), None)


def why_numbers_differ(op: str, strategy: str) -> str | None:
    """Return why the results of `strategy` are not compared for numbers such as 0 and inf, if they are not."""
    return next((entry.reason for entry in table("numbers") if entry.covers(op, strategy)), None)


def why_finite(op: str) -> str | None:
    """Return why `op` is not run on NaN and infinities, if it is not."""
    return next((entry.reason for entry in table("finite") if entry.covers(op, "")), None)
