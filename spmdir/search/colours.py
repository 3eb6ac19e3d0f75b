"""Colour refinement: which nodes of a program have equal surroundings, up to a number of steps away."""

from __future__ import annotations

from spmdir.search.problem import Problem


def makers_of(problem: Problem) -> list[tuple[int, int]]:
    """Return the (node, result index) that makes each value."""
    found = {value: (i, at) for i, node in enumerate(problem.nodes) for at, value in enumerate(node.results)}
    return [found[value] for value in range(len(problem.values))]


def colours(problem: Problem, depth: int) -> tuple[list[int], list[int]]:
    """Return the colour of each node by surroundings of one step less than `depth`, and of `depth` steps.

    Nodes of one colour have equal sources, and in every further step operands and users of equal colours. Where a step
    tells no more nodes apart, none after it does, and both are as fine as can be. Colours are numbered in program
    order.
    """
    makers = makers_of(problem)
    users: list[list[tuple[int, int]]] = [[] for _ in problem.values]
    for index, node in enumerate(problem.nodes):
        for slot, value in enumerate(node.operands):
            users[value].append((index, slot))
    coarse = fine = _numbered([(node.source, len(node.operands), len(node.results)) for node in problem.nodes])
    for _ in range(depth):
        coarse = fine
        made = [(coarse[node], position) for node, position in makers]
        used = [tuple(sorted([(coarse[user], slot) for user, slot in found])) for found in users]
        fine = _numbered(
            [
                (coarse[index], tuple([made[v] for v in node.operands]), tuple([used[v] for v in node.results]))
                for index, node in enumerate(problem.nodes)
            ]
        )
        if max(fine, default=0) == max(coarse, default=0):
            break
    return coarse, fine


def _numbered(keys: list[object]) -> list[int]:
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]
