"""Choose the decision with the least scheduled time, in which hidden transfers cost nothing.

The hidden time of a transfer depends on the whole decision, because the same compute cannot hide two transfers.
So decisions are made in rounds. Each decision is scheduled, and its exposed fractions are the prices of the next one.
For example, if the schedule exposes 30 % of the reshards of a value, these reshards count 0.3 of their time next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from spmdir.search.solve import Solution
from spmdir.search.value_prices import ValuePrices

ROUNDS = 4
"""The number of decisions after the first one."""

LAST_WEIGHT = 0.5
"""The weight of the last schedule in the moving average of exposed fractions. With weight 1, decisions may alternate
between two."""

LEAST_FRACTION = 0.05
"""The least fraction that counts. A hidden transfer is not free, so no transfer is better."""


@attrs.frozen
class Scheduled:
    """A solution with its scheduled time.

    Attributes:
        seconds: the scheduled time of a step; infinite if the step cannot run.
        exposed: [value], the fraction of the time of its reshards that is not hidden.
    """

    solution: Solution
    seconds: float
    exposed: Sequence[float]


def fastest(plain: Scheduled, decide: Callable[[ValuePrices], Scheduled]) -> Scheduled:
    """Return the decision with the least scheduled time, among `plain` and `ROUNDS` others. The first wins a tie.

    Args:
        plain: the decision for full prices of reshards.
        decide: returns the decision for given prices, scheduled. It is called once a round.
    """
    expected, latest, best = [1.0] * len(plain.exposed), plain, plain
    for _ in range(ROUNDS):
        pairs = zip(latest.exposed, expected, strict=True)
        expected = [
            max(LAST_WEIGHT * exposed + (1 - LAST_WEIGHT) * previous, LEAST_FRACTION) for exposed, previous in pairs
        ]
        latest = decide(attrs.evolve(plain.solution.prices, exposed=tuple(expected)))
        best = min(best, latest, key=lambda scheduled: scheduled.seconds)
    return best
