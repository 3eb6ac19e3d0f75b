"""The cheapest decision within a budget of memory: prices of holding a byte, raised where the peak is until it fits.

Lagrange multipliers: what is live at the peak of a decision that does not fit costs more seconds a byte from then on,
values as they are made and copies that reshards make apart. The first prices under which the decision fits are lowered
together again as far as it still does. Nothing depends on the budget until a decision fits, so that what is the least
for one budget is found, and fits, where it is the budget itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from spmdir.search.solve import Solution
from spmdir.search.worth import Worth

RAISED, LOWERED, PATIENCE = 14, 4, 8
"""How often prices are raised and lowered at most, and how often in a row they are raised to no effect."""

STEEPER = 4.0
"""The factor from one raise to the next."""


@attrs.frozen
class Held:
    """What a rank holds at the peak of its memory.

    Attributes:
        peak_bytes: the most that is live at once.
        live: (value of the problem, whether it is a copy, bytes) of each buffer that is live then, the largest first.
    """

    peak_bytes: float
    live: tuple[tuple[int, bool, float], ...]


@attrs.frozen
class Decision:
    """A solution and what a rank holds under it."""

    solution: Solution
    held: Held


Decide = Callable[[Worth], Decision]
"""What holding is worth → the decision for that."""


def cheapest_within(free: Decision, budget: float, values: int, decide: Decide) -> Decision:
    """Return the cheapest decision found that holds at most `budget` bytes; if none does, the one that holds least.

    Args:
        free: the decision where holding costs nothing.
        values: how many the problem has.
    """
    if free.held.peak_bytes <= budget:
        return free
    prices, copy_prices = [0.0] * values, [0.0] * values
    found = least = free
    worth = free.solution.worth
    step, in_vain = free.solution.cost / free.held.peak_bytes / RAISED, 0
    for _ in range(RAISED):
        for value, is_copy, _ in found.held.live:
            (copy_prices if is_copy else prices)[value] += step
        step *= STEEPER
        found = decide(attrs.evolve(worth, holding=tuple(prices), copy_holding=tuple(copy_prices)))
        in_vain = in_vain + 1 if found.held.peak_bytes >= least.held.peak_bytes else 0
        least = least if in_vain else found
        if least.held.peak_bytes <= budget or in_vain == PATIENCE:
            break
    if least.held.peak_bytes > budget:
        return least
    best, low, high = least, STEEPER**-2, 1.0
    for _ in range(LOWERED):
        scale = math.sqrt(low * high)
        holding, copies = ([scale * price for price in each] for each in (prices, copy_prices))
        found = decide(attrs.evolve(worth, holding=holding, copy_holding=copies))
        if found.held.peak_bytes <= budget:
            high, best = scale, min(best, found, key=lambda one: one.solution.cost)
        else:
            low = scale
    return best
