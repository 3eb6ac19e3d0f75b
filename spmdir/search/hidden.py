"""The decision that takes least time when it is scheduled: what a schedule hides of a reshard costs nothing.

How much that is depends on the whole decision: a transfer is hidden by what is computed meanwhile, which may be spent
on another one. So decisions are scheduled and timed as they are, and each tells the next one what to expect: the
reshards of a value count by the part of their time that schedules of the decisions before left exposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from spmdir.search.solve import Solution
from spmdir.search.worth import Worth

ROUNDS = 4
"""How many decisions are scheduled after the first one."""

LAST = 0.5
"""What the last schedule weighs in what is expected of the next one: without the ones before, decisions alternate
between two that each hide what the other sends."""

LEAST = 0.05
"""The least part that counts: to send nothing is better than what may be hidden."""


@attrs.frozen
class Scheduled:
    """A solution as it runs scheduled.

    Attributes:
        seconds: of a step; infinite if it cannot run.
        exposed: by value, the part of the time of its reshards that is not hidden.
    """

    solution: Solution
    seconds: float
    exposed: Sequence[float]


def fastest(plain: Scheduled, decide: Callable[[Worth], Scheduled]) -> Scheduled:
    """Return the decision found that takes least time scheduled.

    Args:
        plain: the decision where nothing is hidden.
        decide: returns the decision where reshards, and what is held, are worth so much.
    """
    expected, found, best = [1.0] * len(plain.exposed), plain, plain
    for _ in range(ROUNDS):
        parts = zip(found.exposed, expected, strict=True)
        expected = [max(LAST * last + (1 - LAST) * before, LEAST) for last, before in parts]
        found = decide(attrs.evolve(plain.solution.worth, exposed=tuple(expected)))
        best = min(best, found, key=lambda one: one.seconds)
    return best
