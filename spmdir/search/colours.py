"""Colour refinement: which nodes of a program have equal surroundings, up to a number of steps away.

Nodes are merged only if their surroundings are equal, wherever they are in the text. `core/repetition.py` compares
windows of the text, and would merge nodes whose users differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spmdir.search.problem import Node, Problem


def makers_of(problem: Problem) -> list[tuple[int, int]]:
    """Return the (node, result index) that makes each value."""
    found = {value: (i, at) for i, node in enumerate(problem.nodes) for at, value in enumerate(node.results)}
    return [found[value] for value in range(len(problem.values))]


class Colours:
    """The colours of the nodes of a problem after each round of refinement.

    Attributes:
        rounds: the colour of each node by its source, then by surroundings of one step more each. Where a step tells no
            more nodes apart, none after it does, and it is the last.
    """

    def __init__(self, problem: Problem, depth: int):
        self._problem, self._depth, self._makers = problem, depth, makers_of(problem)
        self._users: list[list[tuple[int, int]]] = [[] for _ in problem.values]
        for index, node in enumerate(problem.nodes):
            for slot, value in enumerate(node.operands):
                self._users[value].append((index, slot))
        self.rounds: list[list[int]] = []
        self._numbers: list[dict[object, int]] = []
        self._add([_ends(node) for node in problem.nodes])
        for _ in range(depth):
            coarse = self.rounds[-1]
            self._add([self._key(index, coarse) for index in range(len(problem.nodes))])
            if len(self._numbers[-1]) == len(self._numbers[-2]):
                break

    def of(self, problem: Problem) -> list[int]:
        """Return the last colours of the same nodes where some have other sources, as in `Colours(problem, depth)`.

        Only nodes that are near enough to see these are told apart again.
        """
        if len(self.rounds) <= self._depth:
            return Colours(problem, self._depth).rounds[-1]
        nodes, former = problem.nodes, self._problem.nodes
        near = dict.fromkeys(index for index, node in enumerate(nodes) if node.source is not former[index].source)
        found = list(self.rounds[0])
        _recolour(found, {index: _ends(nodes[index]) for index in near}, self._numbers[0])
        for old, numbers in zip(self.rounds[1:], self._numbers[1:], strict=True):
            for index in list(near):
                near.update(dict.fromkeys(self._makers[value][0] for value in nodes[index].operands))
                near.update(dict.fromkeys(user for value in nodes[index].results for user, _ in self._users[value]))
            keys = {index: self._key(index, found) for index in near}
            found = list(old)
            _recolour(found, keys, numbers)
        return _numbered(found, {})

    def _add(self, keys: Sequence[object]) -> None:
        self._numbers.append({})
        self.rounds.append(_numbered(keys, self._numbers[-1]))

    def _key(self, index: int, colours: Sequence[int]) -> object:
        """Return what the next colour of a node says."""
        node = self._problem.nodes[index]
        made = tuple([(colours[self._makers[v][0]], self._makers[v][1]) for v in node.operands])
        used = tuple([tuple(sorted([(colours[user], slot) for user, slot in self._users[v]])) for v in node.results])
        return colours[index], made, used


def colours(problem: Problem, depth: int) -> tuple[list[int], list[int]]:
    """Return the colour of each node by surroundings of one step less than `depth`, and of `depth` steps.

    Nodes of one colour have equal sources, and in every further step operands and users of equal colours. Where a step
    tells no more nodes apart, both are as fine as can be. Colours are numbered in program order.
    """
    rounds = Colours(problem, depth).rounds
    return rounds[-2:][0], rounds[-1]


def _ends(node: Node) -> object:
    return node.source, len(node.operands), len(node.results)


def _numbered(keys: Sequence[object], numbers: dict[object, int]) -> list[int]:
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _recolour(colours: list[int], keys: Mapping[int, object], numbers: Mapping[object, int]) -> None:
    """Give nodes the colours of their keys, those that are not numbered the next ones."""
    added: dict[object, int] = {}
    for index, key in keys.items():
        found = numbers.get(key)
        colours[index] = found if found is not None else added.setdefault(key, len(numbers) + len(added))
