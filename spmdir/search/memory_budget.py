"""Find the cheapest decision within a memory budget, by prices of holding a byte (Lagrange multipliers).

If a decision exceeds the budget, the buffers that are live at its peak get a higher price for the next decision.
Values and the copies that reshards make have separate prices. Once a decision fits, all prices are lowered together as
far as it still fits.

For example, a step takes 2 s and holds values u and v of 8 and 6 GB. To shard u takes 1 s more and frees 4 GB; to
shard v takes 2 s more and frees 3 GB. The budget is 10 GB. Prices are those of both values in s per GB:

    raised     0.010, 0.051 and 0.214: 14 GB, as sharding u pays from 0.25 on. 0.867: both are sharded, 7 GB, 5 s
    lowered    0.217: 14 GB. 0.434: only u is sharded, 10 GB, 3 s. 0.307 and 0.258: the same
    result     u is sharded: 10 GB, 3 s

As long as no decision fits, the raises do not depend on the budget. So a user may set the budget to the smallest peak
that an error reported for another budget: the search finds this decision again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from spmdir.search.solve import Solution
from spmdir.search.value_prices import ValuePrices

RAISED, LOWERED, PATIENCE = 14, 4, 8
"""The most times that prices are raised, are lowered, and are raised in a row without effect."""

STEEPER = 4.0
"""The factor from one raise to the next. The first raise is the cost of a step divided by its peak and by `RAISED`."""


@attrs.frozen
class PeakMemory:
    """The memory of a rank at its peak.

    Attributes:
        peak_bytes: the largest sum of live buffers, in bytes.
        live: (value of the problem, whether it is a copy, bytes) of each buffer live at the peak, largest first.
    """

    peak_bytes: float
    live: tuple[tuple[int, bool, float], ...]


@attrs.frozen
class Decision:
    """A solution and its peak of memory."""

    solution: Solution
    memory: PeakMemory


Decide = Callable[[ValuePrices], Decision]
"""A function from prices to the decision for them."""


def cheapest_within(unpriced: Decision, budget: float, values: int, decide: Decide) -> Decision:
    """Return the cheapest decision found within `budget` bytes; if none is found, the one with the smallest peak.

    Args:
        unpriced: the decision without prices of holding.
        values: the number of values of the problem.
        decide: returns the decision for given prices.
    """
    if unpriced.memory.peak_bytes <= budget:
        return unpriced
    smallest, latest_prices = _raise_prices(unpriced, budget, values, decide)
    if smallest.memory.peak_bytes > budget:
        return smallest
    return _lower_prices(smallest, latest_prices, budget, decide)


def _raise_prices(unpriced: Decision, budget: float, values: int, decide: Decide) -> tuple[Decision, ValuePrices]:
    """Raise the prices of the buffers at the peak until a decision fits, or until raises have no effect.

    The arguments are those of `cheapest_within`.

    Returns: the decision with the smallest peak, and the last prices.
    """
    prices, copy_prices = [0.0] * values, [0.0] * values
    latest = smallest = unpriced
    latest_prices = unpriced.solution.prices
    raise_by = unpriced.solution.cost / unpriced.memory.peak_bytes / RAISED  # seconds per byte
    tries_in_vain = 0
    for _ in range(RAISED):
        for value, is_copy, _ in latest.memory.live:
            if is_copy:
                copy_prices[value] += raise_by
            else:
                prices[value] += raise_by
        raise_by *= STEEPER
        latest_prices = attrs.evolve(latest_prices, holding=tuple(prices), copy_holding=tuple(copy_prices))
        latest = decide(latest_prices)
        if latest.memory.peak_bytes < smallest.memory.peak_bytes:
            smallest, tries_in_vain = latest, 0
        else:
            tries_in_vain += 1
        if smallest.memory.peak_bytes <= budget or tries_in_vain == PATIENCE:
            break
    return smallest, latest_prices


def _lower_prices(fitting: Decision, prices: ValuePrices, budget: float, decide: Decide) -> Decision:
    """Multiply all prices by one factor, bisect for the lowest factor that fits, and return the cheapest decision.

    For example, the factors 1/4, 1/2, 0.35 and 0.30 are tried if decisions fit from 0.29 on.

    Args:
        fitting: the decision for `prices`, which fits.
    """
    # The lowest factor gives about the prices of two raises ago, which are assumed to be too low.
    best, too_low, high_enough = fitting, STEEPER**-2, 1.0
    for _ in range(LOWERED):
        scale = math.sqrt(too_low * high_enough)  # the middle on a logarithmic scale
        scaled_prices = [scale * price for price in prices.holding]
        scaled_copy_prices = [scale * price for price in prices.copy_holding]
        latest = decide(attrs.evolve(prices, holding=scaled_prices, copy_holding=scaled_copy_prices))
        if latest.memory.peak_bytes <= budget:
            high_enough, best = scale, min(best, latest, key=lambda decision: decision.solution.cost)
        else:
            too_low = scale
    return best
