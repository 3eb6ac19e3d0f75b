"""The sharding search on one mesh axis, the other axes fixed.

A forward sweep finds the cheapest way to make each value with each placement, a backward sweep decides from the
outputs, then nodes move to what is cheapest until nothing changes; sweeps repeat, each with what the users of a
value wish since the last one, as long as they gain. At last whole neighbourhoods move where a reshard is still paid.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from spmdir.core.mesh import Mesh
from spmdir.core.progress import say
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, shard_counts
from spmdir.search.edge_costs import Bills
from spmdir.search.problem import Node, Row
from spmdir.search.repeats import Quotient

HOPELESS = 0.5
"""A move that at first costs more than this part of all reshards is given up before what surrounds it settles."""

SWEEPS = 6
"""How often sweeps repeat at most."""


@attrs.frozen
class _Candidate:
    """A row with placements as indices and its price, compute included, in bytes."""

    row: Row
    operands: tuple[int, ...]
    results: tuple[int, ...]
    cost: float


class Unsolvable(Exception):
    """A node has no row on an axis.

    Attributes:
        node: its index in the problem.
        axis: the mesh axis.
    """

    def __init__(self, node: int, axis: str):
        super().__init__(f"node {node} has no row on axis {axis}")
        self.node, self.axis = node, axis


class AxisSearch:
    """The decision of one axis over the distinct nodes of a program.

    Args:
        others: axis → the row of each node, for the other axes; they say how large things are on a rank.
        firm: the axes among these whose rows stay, so that the rows found here have to go with them.
    """

    def __init__(
        self,
        mesh: Mesh,
        shared: Quotient,
        axis: str,
        others: Mapping[str, Sequence[Row]],
        firm: Collection[str],
    ):
        count = mesh.sizes[axis]
        self.shared, self.mesh, self.others = shared, mesh, others
        self.firm = {other: rows for other, rows in others.items() if other in firm}
        self.lifted = [
            other for other, rows in self.firm.items() if any(row.factor_placement is not None for row in rows)
        ]
        self.axis, self.count = axis, count
        self.bills = Bills(mesh, shared, count, others)
        self.offset = self.bills.offset
        self.kind, self.index = self.bills.catalogue.kind, self.bills.catalogue.index
        self.candidates = [self._candidates(index, node) for index, node in enumerate(shared.nodes)]
        self._drop_idle()
        self.decision = [-1] * len(shared.nodes)
        self.made = [0] * len(shared.values)
        self.wishes: list[dict[int, int]] = [{} for _ in shared.values]

    def _candidates(self, index: int, node: Node) -> list[_Candidate]:
        """The rows that go with the firm axes; those that do not, if what is fixed leaves no others."""
        divided = shard_counts((rows[index], self.mesh.sizes[axis]) for axis, rows in self.firm.items())
        return self._rows(index, node, divided, True) or self._rows(index, node, UNSHARDED, False)

    def _rows(self, index: int, node: Node, divided: ShardCounts, strict: bool) -> list[_Candidate]:
        work = (
            node.offer.work * self.shared.weight[index] * math.prod([r[index].fraction for r in self.others.values()])
        )
        found = []
        for row in node.offer.rows(self.axis, self.count, divided):
            operands = tuple([self.index.get(p, -1) for p in row.operands])
            results = tuple([self.index.get(p, -1) for p in row.results])
            if -1 in operands or -1 in results:
                continue
            if strict and (self._mixes(index, operands, results) or not self._leaves_lifted(index, node, row)):
                continue
            inner = 0.0
            for size, factors in row.inner_bytes:
                pieces = math.prod(divided.of(f) for f in factors)
                inner += self.bills.all_reduce(size / pieces)
            cost = work * row.fraction + inner * self.shared.weight[index]
            found.append(_Candidate(row, operands, results, cost))
        if not found and not strict:
            raise Unsolvable(self.shared.first[index], self.axis)
        return found

    def _drop_idle(self) -> None:
        """Drop the rows that only pass on a pending reduction which none of their operands can have."""
        pending: list[set[int]] = [set() for _ in self.shared.values]
        changed = True
        while changed:
            changed = False
            for index, node in enumerate(self.shared.nodes):
                for candidate in self.candidates[index]:
                    if len(self.candidates[index]) > 1 and self._idle(index, candidate, pending):
                        continue
                    for value, placement in zip(node.results, candidate.results, strict=True):
                        if self.kind[placement] is not None and placement not in pending[value]:
                            pending[value].add(placement)
                            changed = True
        for index, candidates in enumerate(self.candidates):
            self.candidates[index] = [c for c in candidates if not self._idle(index, c, pending)] or candidates

    def _idle(self, index: int, candidate: _Candidate, pending: Sequence[set[int]]) -> bool:
        if candidate.row.factor is not None or all(self.kind[placement] is None for placement in candidate.operands):
            return False
        return not any(candidate.operands[slot] in pending[value] for slot, value in self.shared.uses[index])

    def _leaves_lifted(self, index: int, node: Node, row: Row) -> bool:
        """Whether the firm rows of plug-in placements, which turn on what else is divided, are still to be had."""
        for axis in self.lifted:
            firm = self.firm[axis][index]
            if firm.factor_placement is None:
                continue
            beside = [(rows[index], self.mesh.sizes[other]) for other, rows in self.firm.items() if other != axis]
            divided = shard_counts([(row, self.count), *beside])
            if firm not in node.offer.rows(axis, self.mesh.sizes[axis], divided):
                return False
        return True

    def _mixes(self, index: int, operands: tuple[int, ...], results: tuple[int, ...]) -> bool:
        """Whether a row would make a value pend by two kinds of reduction."""
        for which, placed in (("operands", operands), ("results", results)):
            for position, placement in enumerate(placed):
                kind = self.kind[placement]
                if kind is None:
                    continue
                for rows in self.firm.values():
                    other = self.kind[self.index[getattr(rows[index], which)[position]]]
                    if other is not None and other != kind:
                        return True
        return False

    def run(self, effort: int, start: Sequence[Row] | None, tried: set[tuple[int, Row]]) -> list[Row]:
        """The row of each distinct node.

        Args:
            effort: neighbourhood moves to try.
            start: rows to begin with; those of a sweep if None, or if one of them is not to be had any more.
            tried: (node, row) of the moves tried in earlier rounds, which are not tried again; grows.
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
        return [self.candidates[index][choice].row for index, choice in enumerate(self.decision)]

    def _restart(self, start: Sequence[Row]) -> bool:
        decision = []
        for candidates, row in zip(self.candidates, start, strict=True):
            position = next((i for i, candidate in enumerate(candidates) if candidate.row == row), None)
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
            wishes, offset = self.wishes[value], self.offset[value][index, slot]
            if former >= 0:
                wish = candidates[former].operands[slot] + offset
                wishes[wish] -= 1
                if not wishes[wish]:
                    del wishes[wish]
            wish = candidates[choice].operands[slot] + offset
            wishes[wish] = wishes.get(wish, 0) + 1
        for value, placement in zip(self.shared.nodes[index].results, candidates[choice].results, strict=True):
            self.made[value] = placement

    def _sweeps(self, again: bool) -> None:
        """One forward sweep of cost-to-make, one backward decode.

        The first time the users of a value share its cost equally; `again`, each is charged what its wish adds to
        the wishes that the others have now.
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
                        wish = wanted + self.offset[value][index, slot]
                        if again and len(users[value]) > 1:
                            price = self._surcharge(value, cheapest[value], self._others(value, index), wish)
                        else:
                            share = max(len(users[value]), 1)
                            price = min([m / share + self.bills.of(value, p)[wish] for p, m in cheapest[value].items()])
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
                    cost += self.bills.grant(value, placement, decided[value])
                if cost < best_cost:
                    best, best_cost = choice, cost
            self._choose(index, best)
            for slot, value in self.shared.uses[index]:
                decided[value][self.candidates[index][best].operands[slot] + self.offset[value][index, slot]] = None

    def _surcharge(self, value: int, cheapest: Mapping[int, float], others: Sequence[int], wish: int) -> float:
        """What one more wish adds to the cost of making a value and giving it to its other users."""
        wider = others if wish in others else [*others, wish]
        without = min([made + self.bills.grant(value, placement, others) for placement, made in cheapest.items()])
        return min([made + self.bills.grant(value, placement, wider) for placement, made in cheapest.items()]) - without

    def _others(self, value: int, index: int) -> list[int]:
        """What the users of a value but for one node wish."""
        own: dict[int, int] = {}
        operands = self.candidates[index][self.decision[index]].operands
        for slot in self.shared.operands[index][value]:
            wish = operands[slot] + self.offset[value][index, slot]
            own[wish] = own.get(wish, 0) + 1
        return [wish for wish, count in self.wishes[value].items() if count > own.get(wish, 0)]

    def _costs(self, index: int) -> list[float]:
        """For each row of a node what depends on it: its compute and all reshards on its operands and results."""
        candidates, made, owned = self.candidates[index], self.made, self.shared.own[index]
        costs = [candidate.cost for candidate in candidates]
        for position, value in enumerate(self.shared.nodes[index].results):
            wishes = self.wishes[value]
            if value in owned or not wishes:
                continue
            known: dict[int, float] = {}
            for choice, candidate in enumerate(candidates):
                placement = candidate.results[position]
                if placement not in known:
                    known[placement] = self.bills.grant(value, placement, wishes)
                costs[choice] += known[placement]
        for value, slots in self.shared.operands[index].items():
            others = self._others(value, index)
            if len(slots) == 1 and value not in owned:
                slot, offset = slots[0], self.offset[value][index, slots[0]]
                bill = self.bills.of(value, made[value])
                direct = sum([bill[wish] for wish in others])
                cap = self.bills.cap(value, bill, [*others, offset])
                for choice, candidate in enumerate(candidates):
                    wish = candidate.operands[slot] + offset
                    cost = direct if wish in others else direct + bill[wish]
                    costs[choice] += cost if cost < cap else cap
                continue
            position = owned.get(value)
            for choice, candidate in enumerate(candidates):
                wishes = {*others, *(candidate.operands[slot] + self.offset[value][index, slot] for slot in slots)}
                placement = made[value] if position is None else candidate.results[position]
                costs[choice] += self.bills.grant(value, placement, wishes)
        return costs

    def _improve(self, index: int) -> float:
        """Move one node to its best row; the bytes gained, 0 if it stays."""
        if len(self.candidates[index]) == 1:
            return 0.0
        costs, now = self._costs(index), self.decision[index]
        best = min(range(len(costs)), key=costs.__getitem__)
        gain = costs[now] - costs[best]
        if gain <= 1e-6:
            return 0.0
        self._choose(index, best)
        return gain

    def _settle(
        self, start: Iterable[int], pinned: int = -1, limit: int = 0, moves: list[tuple[int, int]] | None = None
    ) -> float:
        """Improve nodes until none of those reached moves; the bytes gained.

        Args:
            pinned: a node that stays.
            limit: stop after so many moves; 0 is no limit.
            moves: takes (node, former choice) of every move, in order.
        """
        moves = [] if moves is None else moves
        gained, pending = 0.0, dict.fromkeys(start)
        while pending and not (limit and len(moves) > limit):
            index = next(iter(pending))
            del pending[index]
            former = self.decision[index]
            gain = 0.0 if index == pinned else self._improve(index)
            if gain:
                gained += gain
                moves.append((index, former))
                for neighbour in self.shared.neighbours[index]:
                    pending.setdefault(neighbour)
        return gained

    def total(self) -> float:
        """The whole program's cost on this axis, in bytes."""
        cost = sum(candidates[choice].cost for candidates, choice in zip(self.candidates, self.decision, strict=True))
        return cost + sum(
            self.bills.grant(value, self.made[value], self.wishes[value]) for value in range(len(self.made))
        )

    def _move_neighbourhoods(self, budget: int, tried: set[tuple[int, Row]]) -> None:
        """Force a node beside a paid reshard to another row, let its surroundings follow, keep what is cheaper."""
        changed = True
        while changed and budget > 0:
            changed = False
            for index in self._paying():
                for choice, candidate in enumerate(self.candidates[index]):
                    if choice == self.decision[index] or budget <= 0 or (index, candidate.row) in tried:
                        continue
                    budget -= 1
                    tried.add((index, candidate.row))
                    changed = self._try(index, choice) or changed

    def _try(self, index: int, choice: int) -> bool:
        """Force one row, let what surrounds it follow, and settle; whether that was cheaper and was kept."""
        moves: list[tuple[int, int]] = []
        bills = sum(self.bills.grant(value, made, self.wishes[value]) for value, made in enumerate(self.made))
        gained = self._follow(index, choice, moves)
        if gained < -HOPELESS * bills:
            self._undo(moves)
            return False
        reached = dict.fromkeys([index, *(moved for moved, _ in moves)])
        for moved in list(reached):
            reached.update(dict.fromkeys(self.shared.neighbours[moved]))
        gained += self._settle(reached, limit=4 * len(reached), moves=moves)
        if gained > 1e-6:
            return True
        self._undo(moves)
        return False

    def _undo(self, moves: Sequence[tuple[int, int]]) -> None:
        for moved, before in reversed(moves):
            self._choose(moved, before)

    def _follow(self, index: int, choice: int, moves: list[tuple[int, int]]) -> float:
        """Force a row, then let neighbours take the cheapest row that makes their common value free to pass.

        Stops at nodes that already agree or cannot; returns the bytes gained, as a rule a loss.
        """
        gained, visited = 0.0, {index}
        frontier = [(index, choice)]
        while frontier:
            node, row = frontier.pop(0)
            costs, former = self._costs(node), self.decision[node]
            gained += costs[former] - costs[row]
            moves.append((node, former))
            self._choose(node, row)
            candidate = self.candidates[node][row]
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
        if node in visited or self.bills.catalogue.placements[placement].trait != "shard":
            return
        rows = self.candidates[node]
        if getattr(rows[self.decision[node]], which)[position] == placement:
            return
        visited.add(node)
        agreeing = [choice for choice, row in enumerate(rows) if getattr(row, which)[position] == placement]
        if agreeing:
            frontier.append((node, min(agreeing, key=lambda choice: rows[choice].cost)))

    def _paying(self) -> list[int]:
        """The nodes beside paid reshards, dearest first, then inputs held in larger pieces than they could be."""
        bills = [(self.bills.grant(v, self.made[v], self.wishes[v]), v) for v in range(len(self.made))]
        beside: dict[int, None] = {}
        for cost, value in sorted(bills, key=lambda bill: (-bill[0], bill[1])):
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
