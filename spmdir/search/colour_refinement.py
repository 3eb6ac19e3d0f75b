"""Colour refinement: which nodes of a program have equal neighbourhoods, up to a number of steps away.

For example, a chain of an input, five equal ops and an output has the colours 0 1 1 1 1 1 2 in round 0. In round 1, the
first op differs by its producer and the last op by its user: 0 1 2 2 2 3 4.

Nodes are merged only if their neighbourhoods are equal, wherever they are in the text. `core/repetition.py` would not
do: it compares windows of the text, and would merge nodes whose users differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spmdir.search.problem import Node, Problem


def producers_of(problem: Problem) -> list[tuple[int, int]]:
    """Return the (node, result index) that produces each value."""
    producers = {
        value: (index, result_index)
        for index, node in enumerate(problem.nodes)
        for result_index, value in enumerate(node.results)
    }
    return [producers[value] for value in range(len(problem.values))]


class Colours:
    """The colours of the nodes of a problem after each round of refinement.

    Args:
        depth: the largest number of rounds after round 0.

    Attributes:
        rounds: [round][node], colours. Round 0 distinguishes nodes by their sources, each further round by neighbours
            one step farther away. The list ends at the first round that distinguishes no more nodes.
    """

    def __init__(self, problem: Problem, depth: int):
        self._problem, self._depth, self._producers = problem, depth, producers_of(problem)
        self._users: list[list[tuple[int, int]]] = [[] for _ in problem.values]  # value → (node, operand index) pairs
        for index, node in enumerate(problem.nodes):
            for operand_index, value in enumerate(node.operands):
                self._users[value].append((index, operand_index))
        self.rounds: list[list[int]] = []
        self._numbers: list[dict[object, int]] = []  # [round], the key of a node → its colour
        self._add_round([_first_key(node) for node in problem.nodes])
        for _ in range(depth):
            last_colours = self.rounds[-1]
            self._add_round([self._key(index, last_colours) for index in range(len(problem.nodes))])
            if len(self._numbers[-1]) == len(self._numbers[-2]):
                break

    def of(self, problem: Problem) -> list[int]:
        """Return the last colours for the same nodes after some sources changed, as `Colours(problem, depth)` would.

        Only nodes within `depth` steps of a changed source are coloured again. If the rounds ended before `depth`, a
        changed source may need more rounds, so all nodes are.

        Args:
            problem: equal to the problem of this object, apart from sources. A changed source is another object.
        """
        if len(self.rounds) <= self._depth:
            return Colours(problem, self._depth).rounds[-1]
        nodes, previous_nodes = problem.nodes, self._problem.nodes
        affected = dict.fromkeys(
            index for index, node in enumerate(nodes) if node.source is not previous_nodes[index].source
        )
        colours = list(self.rounds[0])
        _recolour(colours, {index: _first_key(nodes[index]) for index in affected}, self._numbers[0])
        for previous_colours, numbers in zip(self.rounds[1:], self._numbers[1:], strict=True):
            for index in list(affected):
                affected.update(dict.fromkeys(self._producers[value][0] for value in nodes[index].operands))
                affected.update(dict.fromkeys(user for value in nodes[index].results for user, _ in self._users[value]))
            keys = {index: self._key(index, colours) for index in affected}
            colours = list(previous_colours)
            _recolour(colours, keys, numbers)
        return _numbered(colours, {})  # number the colours in program order again

    def _add_round(self, keys: Sequence[object]) -> None:
        """Add a round in which nodes with equal keys have one colour.

        Args:
            keys: [node].
        """
        self._numbers.append({})
        self.rounds.append(_numbered(keys, self._numbers[-1]))

    def _key(self, index: int, colours: Sequence[int]) -> object:
        """Return the key of the next colour of a node: its colour, and those of its producers and users.

        Producers come with the index of the result, users with the index of the operand.
        """
        node = self._problem.nodes[index]
        producers = [self._producers[value] for value in node.operands]
        operands = tuple([(colours[producer], result_index) for producer, result_index in producers])
        users_of_results = [self._users[value] for value in node.results]
        users = tuple(
            [
                tuple(sorted([(colours[user], operand_index) for user, operand_index in users]))
                for users in users_of_results
            ]
        )
        return colours[index], operands, users


def colours(problem: Problem, depth: int) -> tuple[list[int], list[int]]:
    """Return the colours of the nodes after `depth - 1` and after `depth` rounds.

    Nodes of one colour have equal sources, and in each round operands and users of equal colours. If a round
    distinguishes no more nodes, both results are the final partition. Colours are numbered in program order.
    """
    rounds = Colours(problem, depth).rounds
    return rounds[-2:][0], rounds[-1]  # with `depth` 0, both are round 0


def _first_key(node: Node) -> object:
    """Return the key of the colour of a node in round 0."""
    return node.source, len(node.operands), len(node.results)


def _numbered(keys: Sequence[object], numbers: dict[object, int]) -> list[int]:
    """Return the number of each key. New keys get the next numbers, which are added to `numbers`."""
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _recolour(colours: list[int], keys: Mapping[int, object], numbers: Mapping[object, int]) -> None:
    """Give nodes the colours of their keys. Keys without a colour get the next free numbers."""
    added: dict[object, int] = {}
    for index, key in keys.items():
        number = numbers.get(key)
        colours[index] = number if number is not None else added.setdefault(key, len(numbers) + len(added))
