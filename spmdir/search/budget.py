"""The cheapest decision within a budget of memory: prices of holding a byte, raised where the peak is until it fits.

Lagrange multipliers: what is live at the peak of a decision that does not fit costs more seconds a byte from then on,
values as they are made and copies that reshards make apart. The first prices under which the decision fits are lowered
together again as far as it still does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs

from spmdir.search.held import Held, held, most, worth
from spmdir.search.problem import Problem
from spmdir.search.solve import Solution

RAISED, LOWERED, PATIENCE = 14, 4, 8
"""How often prices are raised and lowered at most, and how often in a row they are raised to no effect."""

STEEPER = 4.0
"""The factor from one raise to the next."""

Search = Callable[[Problem], Solution]


class OverBudget(Exception):
    """No decision was found that fits into the budget.

    Attributes:
        least: the decision that needs least.
        held: what a rank holds under it.
    """

    def __init__(self, least: Solution, held: Held):
        super().__init__(f"needs {held.peak_bytes} bytes")
        self.least, self.held = least, held


def solve_within(problem: Problem, budget: float, search: Search, views: Callable[[], Sequence[bool]]) -> Solution:
    """Return the decision that `search` finds; if that needs more than `budget` bytes, the cheapest found that fits.

    Args:
        views: called → by node, whether its results share the memory of its first operand.

    Raises:
        OverBudget: none fits.
    """
    free = search(problem)
    if math.isinf(budget) or most(problem) <= budget:
        return free
    shared = views()
    found = held(problem, free.strategies, shared)
    if found.peak_bytes <= budget:
        return free
    prices, copy_prices = [0.0] * len(problem.values), [0.0] * len(problem.values)
    least, best, step, in_vain = (free, found), None, free.cost / found.peak_bytes / RAISED, 0

    def priced(scale: float) -> tuple[Solution, Held]:
        """Return the decision at these prices, its cost without them, and what it holds."""
        own, copies = (tuple(scale * price for price in some) for some in (prices, copy_prices))
        problem_now = attrs.evolve(problem, holding=own, copy_holding=copies)
        solution = search(problem_now)
        cost = solution.cost - worth(problem_now, solution.strategies)
        return attrs.evolve(solution, cost=cost), held(problem, solution.strategies, shared)

    for _ in range(RAISED):
        for value, is_copy, _ in found.live:
            (copy_prices if is_copy else prices)[value] += step
        step *= STEEPER
        solution, found = priced(1.0)
        in_vain = in_vain + 1 if found.peak_bytes >= least[1].peak_bytes else 0
        least = least if in_vain else (solution, found)
        if found.peak_bytes <= budget:
            best = solution
        if best is not None or in_vain == PATIENCE:
            break
    if best is None:
        raise OverBudget(*least)
    low, high = STEEPER**-2, 1.0
    for _ in range(LOWERED):
        scale = math.sqrt(low * high)
        solution, found = priced(scale)
        if found.peak_bytes <= budget:
            high, best = scale, min(best, solution, key=lambda one: one.cost)
        else:
            low = scale
    return best
