"""Find the cheapest decision within a memory budget, by prices of holding a byte (Lagrange multipliers).

If a decision exceeds the budget, the buffers that are live at its peak get a higher price for the next decision.
Values and the copies that reshards make have separate prices. Once a decision fits, all prices are lowered together as
far as it still fits. For example, a budget of 10 GB and a decision with a peak of 14 GB in activations raise the price
of these activations until the search shards or reshards them differently.

Before a decision fits, the steps do not depend on the budget. So the smallest peak found for one budget is found again
if it is the budget.
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
"""The factor from one raise to the next."""


@attrs.frozen
class PeakMemory:
    """The memory of a rank at its peak.

    Attributes:
        peak_bytes: the largest sum of live buffers.
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
    """Return the cheapest decision found within `budget` bytes; if there is none, the one with the smallest peak.

    Args:
        unpriced: the decision without prices of holding.
        values: how many the problem has.
    """
    if unpriced.memory.peak_bytes <= budget:
        return unpriced
    prices, copy_prices = [0.0] * values, [0.0] * values
    latest = smallest = unpriced
    worth = unpriced.solution.worth
    step, tries_in_vain = unpriced.solution.cost / unpriced.memory.peak_bytes / RAISED, 0
    for _ in range(RAISED):
        for value, is_copy, _ in latest.memory.live:
            (copy_prices if is_copy else prices)[value] += step
        step *= STEEPER
        latest = decide(attrs.evolve(worth, holding=tuple(prices), copy_holding=tuple(copy_prices)))
        tries_in_vain = tries_in_vain + 1 if latest.memory.peak_bytes >= smallest.memory.peak_bytes else 0
        smallest = smallest if tries_in_vain else latest
        if smallest.memory.peak_bytes <= budget or tries_in_vain == PATIENCE:
            break
    if smallest.memory.peak_bytes > budget:
        return smallest
    best, low, high = smallest, STEEPER**-2, 1.0
    for _ in range(LOWERED):
        scale = math.sqrt(low * high)
        scaled_prices = [scale * price for price in prices]
        scaled_copy_prices = [scale * price for price in copy_prices]
        latest = decide(attrs.evolve(worth, holding=scaled_prices, copy_holding=scaled_copy_prices))
        if latest.memory.peak_bytes <= budget:
            high, best = scale, min(best, latest, key=lambda decision: decision.solution.cost)
        else:
            low = scale
    return best
