"""The first decision of the search: what each value costs to make, forward, then a state for each part, backward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdir.search.assignment import Assignment
from spmdir.search.forest import least_by
from spmdir.search.joint_states import Numbers


def sweep(now: Assignment) -> list[int]:
    """Return a state for each part.

    Forward, the users of a value share what it costs to make; backward, each part takes the state that is cheapest
    beside the users that are decided.
    """
    shared = now.shared
    made: list[Numbers] = [np.zeros(len(numbers)) for numbers in now.numbers]
    sharing = [max(len(users), 1) for users in shared.users]
    totals: list[Numbers] = []
    for part, node in enumerate(shared.nodes):
        cost = now.cost[part]
        for value, slots in now.needs[part].items():
            if shared.producer[value][0] == part:
                continue
            reach = ((made[value] / sharing[value])[:, None] + now.price[value]).min(0)
            for needs in slots:
                cost = cost + reach[needs]
        for value, makes in now.makes[part].items():
            made[value] = least_by(makes, cost / len(node.results), len(made[value]))
        totals.append(cost)
    decided: list[dict[int, None]] = [{} for _ in shared.values]
    choice = [0] * len(shared.nodes)
    for part in range(len(shared.nodes) - 1, -1, -1):
        cost = totals[part]
        for value, makes in now.makes[part].items():
            if decided[value]:
                cost = cost + _satisfied(now.price[value], list(decided[value]))[makes]
        choice[part] = state = int(cost.argmin())
        for value, slots in now.need_rows[part].items():
            for needs in slots:
                decided[value][needs[state]] = None
    return choice


def _satisfied(price: Numbers, wanted: Sequence[int]) -> Numbers:
    """Return, by placement that a value is made in, what it costs to give its users what they want."""
    direct = price[:, wanted].sum(1)
    if len(wanted) == 1:
        return direct
    return np.minimum(direct, (price[:, wanted] + direct[wanted]).min(1))
