"""The exceptions of the checker with their reasons, from the table reasons.toml."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import attrs


@attrs.frozen
class Reason:
    """The reason for an exception. It applies to strategies and ops that match one of the patterns."""

    ops: tuple[str, ...]
    strategies: tuple[str, ...]
    reason: str

    def covers(self, op: str, strategy: str) -> bool:
        """Return whether the exception applies to a strategy of an op."""
        covers_op = any(fnmatchcase(op, pattern) for pattern in self.ops)
        return covers_op and any(fnmatchcase(strategy, pattern) for pattern in self.strategies)


@cache
def load_reasons(kind: str) -> tuple[Reason, ...]:
    """Return the entries of one kind: "left_out", "finite", "numbers" or "undetermined"."""
    entries = tomllib.loads((Path(__file__).parent / "reasons.toml").read_text()).get(kind, [])
    return tuple(
        Reason(tuple(entry["ops"]), tuple(entry.get("strategies", ["*"])), entry["reason"]) for entry in entries
    )


def why_left_out(op: str, strategy: str) -> str | None:
    """Return the reason why the rule of `op` omits `strategy`, from the first matching entry; else None."""
    return next((entry.reason for entry in load_reasons("left_out") if entry.covers(op, strategy)), None)


def why_undetermined(op: str) -> str | None:
    """Return the reason why the results of `op` are compared only in shape; None if they are compared."""
    return next((entry.reason for entry in load_reasons("undetermined") if entry.covers(op, "")), None)


def why_numbers_differ(op: str, strategy: str) -> str | None:
    """Return the reason why results are not compared for numbers such as 0 and inf; None if they are compared."""
    return next((entry.reason for entry in load_reasons("numbers") if entry.covers(op, strategy)), None)


def why_finite(op: str) -> str | None:
    """Return the reason why `op` is not run on NaN and infinities; None if it is run."""
    return next((entry.reason for entry in load_reasons("finite") if entry.covers(op, "")), None)
