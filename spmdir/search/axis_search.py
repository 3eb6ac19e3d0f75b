"""The sharding search on one mesh axis, the other axes fixed.

A forward sweep finds the cheapest way to make each value with each placement, a backward sweep decides from the
outputs, then nodes move to what is cheapest until nothing changes; sweeps repeat, each with what the users of a value
request since the last one, as long as they gain. At last the nodes around each remaining reshard are moved together.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.search.candidates import candidates_of
from spmdir.search.edge_costs import EdgeCosts
from spmdir.search.problem import NodeStrategy
from spmdir.search.repeats import Quotient

HOPELESS = 0.5
"""A move that at first costs more than this fraction of all reshards is undone before its neighbourhood settles."""

LEAST = 1e-14
"""Seconds that count as a gain."""

SWEEPS = 6
"""The most repetitions of the sweeps."""


class AxisSearch:
    """The decision of one axis over the distinct nodes of a program.

    Args:
        others: axis → the strategy of each node, for the other axes; local sizes follow from them.
        fixed: the axes among these whose strategies stay, with which those found here must be compatible.
    """

    def __init__(
        self,
        mesh: Mesh,
        shared: Quotient,
        axis: str,
        others: Mapping[str, Sequence[NodeStrategy]],
        fixed: Collection[str],
    ):
        self.shared, self.axis = shared, axis
        self.edges = EdgeCosts(mesh, shared, axis, others)
        self.offset = self.edges.offset
        self.candidates = candidates_of(mesh, shared, axis, others, fixed, self.edges)
        self.decision = [-1] * len(shared.nodes)
        self.made = [0] * len(shared.values)
        self.requests: list[dict[int, int]] = [{} for _ in shared.values]

    def run(
        self, effort: int, start: Sequence[NodeStrategy] | None, tried: set[tuple[int, NodeStrategy]]
    ) -> list[NodeStrategy]:
        """Return the strategy of each distinct node.

        Args:
            effort: neighbourhood moves to try.
            start: strategies to begin with; those of a sweep if None, or if one of them is not a candidate any more.
            tried: (node, strategy) of the moves tried in earlier rounds, which are not tried again; grows.
        """
        say("propagate: deciding axis '{}'", self.axis)
        everything = range(len(self.decision))
        sweeps = SWEEPS if effort or start else 0
        if start is None or not self._restart(start):
            self._sweeps(False)
        self._settle(everything)
        best, total = list(self.decision), self.total()
        for _ in range(sweeps):
            self._sweeps(True)
            self._settle(everything)
            if self.total() > total * (1 - 1e-4):
                break
            best, total = list(self.decision), self.total()
        self._assume(best)
        self._move_neighbourhoods(effort, tried)
        return [self.candidates[index][choice].strategy for index, choice in enumerate(self.decision)]

    def _restart(self, start: Sequence[NodeStrategy]) -> bool:
        decision = []
        for candidates, strategy in zip(self.candidates, start, strict=True):
            position = next((i for i, candidate in enumerate(candidates) if candidate.strategy == strategy), None)
            if position is None:
                return False
            decision.append(position)
        self._assume(decision)
        return True

    def _assume(self, decision: Sequence[int]) -> None:
        for index, choice in enumerate(decision):
            self._choose(index, choice)

    def _choose(self, index: int, choice: int) -> None:
        former = self.decision[index]
        if former == choice:
            return
        candidates = self.candidates[index]
        self.decision[index] = choice
        for slot, value in self.shared.uses[index]:
            requests, offset = self.requests[value], self.offset[value][index, slot]
            if former >= 0:
                request = candidates[former].operands[slot] + offset
                requests[request] -= 1
                if not requests[request]:
                    del requests[request]
            request = candidates[choice].operands[slot] + offset
            requests[request] = requests.get(request, 0) + 1
        for value, placement in zip(self.shared.nodes[index].results, candidates[choice].results, strict=True):
            self.made[value] = placement

    def _sweeps(self, again: bool) -> None:
        """Compute the cost to make each value in a forward sweep, then choose strategies in a backward sweep.

        The first time the users of a value share its cost equally; `again`, each is charged what its request adds to
        the requests that the others have now.
        """
        nodes, users = self.shared.nodes, self.shared.users
        cheapest: list[dict[int, float]] = [{} for _ in self.shared.values]
        totals: list[list[float]] = []
        for index, node in enumerate(nodes):
            entry: dict[tuple[int, int], float] = {}
            costs = []
            for candidate in self.candidates[index]:
                cost = candidate.cost
                for slot, wanted in enumerate(candidate.operands):
                    price = entry.get((slot, wanted))
                    if price is None:
                        value = node.operands[slot]
                        request = wanted + self.offset[value][index, slot]
                        if again and len(users[value]) > 1:
                            price = self._surcharge(value, cheapest[value], self._others(value, index), request)
                        else:
                            share = max(len(users[value]), 1)
                            made = cheapest[value].items()
                            price = min([m / share + self.edges.of(value, p)[request] for p, m in made])
                        entry[slot, wanted] = price
                    cost += price
                costs.append(cost)
                for value, placement in zip(node.results, candidate.results, strict=True):
                    known = cheapest[value].get(placement, math.inf)
                    cheapest[value][placement] = min(known, cost / len(node.results))
            totals.append(costs)
        decided: list[dict[int, None]] = [{} for _ in self.shared.values]
        for index in range(len(nodes) - 1, -1, -1):
            node, best, best_cost = nodes[index], 0, math.inf
            for choice, candidate in enumerate(self.candidates[index]):
                cost = totals[index][choice]
                for value, placement in zip(node.results, candidate.results, strict=True):
                    cost += self.edges.cost_to_satisfy(value, placement, decided[value])
                if cost < best_cost:
                    best, best_cost = choice, cost
            self._choose(index, best)
            for slot, value in self.shared.uses[index]:
                decided[value][self.candidates[index][best].operands[slot] + self.offset[value][index, slot]] = None

    def _surcharge(self, value: int, cheapest: Mapping[int, float], others: Sequence[int], request: int) -> float:
        """Return the marginal cost of one more request, beyond making a value and satisfying its other users."""

        def cheapest_for(requests: Sequence[int]) -> float:
            return min([made + self.edges.cost_to_satisfy(value, p, requests) for p, made in cheapest.items()])

        return cheapest_for(others if request in others else [*others, request]) - cheapest_for(others)

    def _others(self, value: int, index: int) -> list[int]:
        """Return the requests of the users of a value other than one node."""
        own: dict[int, int] = {}
        operands = self.candidates[index][self.decision[index]].operands
        for slot in self.shared.operands[index][value]:
            request = operands[slot] + self.offset[value][index, slot]
            own[request] = own.get(request, 0) + 1
        return [request for request, count in self.requests[value].items() if count > own.get(request, 0)]

    def _costs(self, index: int) -> list[float]:
        """Return the cost of each strategy of a node in bytes: compute and reshards of its operands and results."""
        candidates, made, owned = self.candidates[index], self.made, self.shared.own[index]
        costs = [candidate.cost for candidate in candidates]
        for position, value in enumerate(self.shared.nodes[index].results):
            requests = self.requests[value]
            if value in owned or not requests:
                continue
            known: dict[int, float] = {}
            for choice, candidate in enumerate(candidates):
                placement = candidate.results[position]
                if placement not in known:
                    known[placement] = self.edges.cost_to_satisfy(value, placement, requests)
                costs[choice] += known[placement]
        for value, slots in self.shared.operands[index].items():
            others = self._others(value, index)
            if len(slots) == 1 and value not in owned:
                slot, offset = slots[0], self.offset[value][index, slots[0]]
                per_request = self.edges.of(value, made[value])
                direct = sum([per_request[request] for request in others])
                bound = self.edges.replicate_bound(value, per_request, [*others, offset])
                for choice, candidate in enumerate(candidates):
                    request = candidate.operands[slot] + offset
                    cost = direct if request in others else direct + per_request[request]
                    costs[choice] += cost if cost < bound else bound
                continue
            position = owned.get(value)
            for choice, candidate in enumerate(candidates):
                requests = {*others, *(candidate.operands[slot] + self.offset[value][index, slot] for slot in slots)}
                placement = made[value] if position is None else candidate.results[position]
                costs[choice] += self.edges.cost_to_satisfy(value, placement, requests)
        return costs

    def _improve(self, index: int) -> float:
        """Move one node to its best strategy, and return the seconds saved, 0 if it stays."""
        if len(self.candidates[index]) == 1:
            return 0.0
        costs, now = self._costs(index), self.decision[index]
        best = min(range(len(costs)), key=costs.__getitem__)
        gain = costs[now] - costs[best]
        if gain <= LEAST:
            return 0.0
        self._choose(index, best)
        return gain

    def _settle(
        self, start: Iterable[int], pinned: int = -1, limit: int = 0, moves: list[tuple[int, int]] | None = None
    ) -> float:
        """Improve nodes until none of those reached moves, and return the seconds saved.

        Args:
            pinned: a node that stays.
            limit: stop after so many moves; 0 is no limit.
            moves: takes (node, former choice) of every move, in order.
        """
        moves = [] if moves is None else moves
        gained, waiting = 0.0, dict.fromkeys(start)
        while waiting and not (limit and len(moves) > limit):
            index = next(iter(waiting))
            del waiting[index]
            former = self.decision[index]
            gain = 0.0 if index == pinned else self._improve(index)
            if gain:
                gained += gain
                moves.append((index, former))
                for neighbour in self.shared.neighbours[index]:
                    waiting.setdefault(neighbour)
        return gained

    def total(self) -> float:
        """Return the cost of the program on this axis, in seconds."""
        cost = sum(candidates[choice].cost for candidates, choice in zip(self.candidates, self.decision, strict=True))
        return cost + sum(map(self._edge_cost, range(len(self.made))))

    def _edge_cost(self, value: int) -> float:
        """Return the seconds of the reshards of a value, as decided now."""
        return self.edges.cost_to_satisfy(value, self.made[value], self.requests[value])

    def _move_neighbourhoods(self, budget: int, tried: set[tuple[int, NodeStrategy]]) -> None:
        """Force nodes next to a reshard to another strategy, let neighbours follow, and keep what is cheaper."""
        changed = True
        while changed and budget > 0:
            changed = False
            for index in self._paying():
                for choice, candidate in enumerate(self.candidates[index]):
                    if choice == self.decision[index] or budget <= 0 or (index, candidate.strategy) in tried:
                        continue
                    budget -= 1
                    tried.add((index, candidate.strategy))
                    changed = self._try(index, choice) or changed

    def _try(self, index: int, choice: int) -> bool:
        """Force one strategy, let its neighbours follow, and settle; keep it and return True if that is cheaper."""
        moves: list[tuple[int, int]] = []
        reshards = sum(map(self._edge_cost, range(len(self.made))))
        gained = self._follow(index, choice, moves)
        if gained < -HOPELESS * reshards:
            self._undo(moves)
            return False
        reached = dict.fromkeys([index, *(moved for moved, _ in moves)])
        for moved in list(reached):
            reached.update(dict.fromkeys(self.shared.neighbours[moved]))
        gained += self._settle(reached, limit=4 * len(reached), moves=moves)
        if gained > LEAST:
            return True
        self._undo(moves)
        return False

    def _undo(self, moves: Sequence[tuple[int, int]]) -> None:
        for moved, before in reversed(moves):
            self._choose(moved, before)

    def _follow(self, index: int, choice: int, moves: list[tuple[int, int]]) -> float:
        """Force a strategy, then let neighbours take the cheapest strategy that makes their common value free to pass.

        Stops at nodes that already agree or cannot. Returns the seconds saved, usually negative.
        """
        gained, visited = 0.0, {index}
        frontier = [(index, choice)]
        while frontier:
            node, strategy = frontier.pop(0)
            costs, former = self._costs(node), self.decision[node]
            gained += costs[former] - costs[strategy]
            moves.append((node, former))
            self._choose(node, strategy)
            candidate = self.candidates[node][strategy]
            for value, made in zip(self.shared.nodes[node].results, candidate.results, strict=True):
                for user, slot in self.shared.users[value]:
                    self._invite(user, "operands", slot, made, visited, frontier)
            for slot, value in self.shared.uses[node]:
                producer, position = self.shared.producer[value]
                self._invite(producer, "results", position, candidate.operands[slot], visited, frontier)
        return gained

    def _invite(
        self, node: int, which: str, position: int, placement: int, visited: set[int], frontier: list[tuple[int, int]]
    ) -> None:
        """Put `node` on the frontier if it can agree on a placement but does not yet."""
        if node in visited or self.edges.catalogue.placements[placement].trait != "shard":
            return
        strategies = self.candidates[node]
        if getattr(strategies[self.decision[node]], which)[position] == placement:
            return
        visited.add(node)
        agreeing = [
            choice for choice, strategy in enumerate(strategies) if getattr(strategy, which)[position] == placement
        ]
        if agreeing:
            frontier.append((node, min(agreeing, key=lambda choice: strategies[choice].cost)))

    def _paying(self) -> list[int]:
        """Return the nodes next to reshards, the most expensive first, then inputs that could be sharded more."""
        paid = [(self._edge_cost(value), value) for value in range(len(self.made))]
        beside: dict[int, None] = {}
        for cost, value in sorted(paid, key=lambda edge: (-edge[0], edge[1])):
            if cost <= 0:
                break
            beside.setdefault(self.shared.producer[value][0])
            for user, _ in self.shared.users[value]:
                beside.setdefault(user)
        for index, candidates in enumerate(self.candidates):
            if not self.shared.uses[index]:
                least = min(candidate.cost for candidate in candidates)
                if least < candidates[self.decision[index]].cost:
                    beside.setdefault(index)
        return list(beside)
