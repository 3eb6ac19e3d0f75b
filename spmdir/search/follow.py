"""Moves that one part starts: it takes another state, and the parts around it follow where that saves a reshard."""

from __future__ import annotations

from collections import deque

from spmdir.search.assignment import Assignment
from spmdir.search.joint_states import JointPlacements


class Follower:
    """Moves parts on one axis, their strategies on the other axes as they are."""

    def __init__(self, now: Assignment, placements: JointPlacements):
        self.now, self.catalogue = now, placements.catalogue
        self.axes = range(len(placements.axes))
        known: dict[int, list[tuple[int, ...]]] = {}
        self.keys: list[list[tuple[int, ...]]] = []
        for states in now.states:
            if id(states) not in known:
                numbered: list[dict[object, int]] = [{} for _ in self.axes]
                known[id(states)] = [
                    tuple(numbered[axis].setdefault(one.placed, len(numbered[axis])) for axis, one in enumerate(joint))
                    for joint in states.joints
                ]
            self.keys.append(known[id(states)])
        self.beside: list[dict[tuple[int, int], list[int]]] = [{} for _ in now.choice]
        self._followed: dict[tuple[int, int, int, int, bool, int], int | None] = {}
        self._shard = self.catalogue.shards
        on_axis = list(zip(*placements.all, strict=True))
        self.placed = [[[on[number] for number in numbers] for numbers in now.numbers] for on in on_axis]

    def states_beside(self, part: int, state: int, axis: int) -> list[int]:
        """Return the states of a part that differ from one on an axis alone."""
        found = self.beside[part].get((state, axis))
        if found is None:
            key = self.keys[part][state]
            rest = key[:axis], key[axis + 1 :]
            found = [
                other
                for other, own in enumerate(self.keys[part])
                if other != state and (own[:axis], own[axis + 1 :]) == rest
            ]
            order = self.now.states[part].order
            found.sort(key=lambda other: order[other] != order[state])
            self.beside[part][state, axis] = found
        return found

    def state_with(self, part: int, state: int, axis: int, key: int) -> int | None:
        """Return the state of a part that has another strategy, by its key, on one axis; None if there is none."""
        for other in self.states_beside(part, state, axis):
            if self.keys[part][other][axis] == key:
                return other
        return None

    def follow(self, part: int, state: int, axis: int) -> dict[int, int]:
        """Move a part to a state and let others follow on an axis; return the former states of those that moved."""
        now = self.now
        former = {part: now.choice[part]}
        now.choose(part, state)
        frontier = deque([part])
        visited = {part}
        users, producer = now.shared.users, now.shared.producer
        while frontier:
            here = frontier.popleft()
            for value in now.touched[here]:
                placed = self.placed[axis][value]
                maker = producer[value][0]
                if maker == here:
                    made = placed[now.made[value]]
                    if self._shard[made]:
                        for user, _ in users[value]:
                            if user not in visited:
                                self._invite(user, value, False, made, axis, former, frontier, visited)
                if maker not in visited:
                    wanted = placed[now.need_rows[here][value][0][now.choice[here]]]
                    if self._shard[wanted]:
                        self._invite(maker, value, True, wanted, axis, former, frontier, visited)
        return former

    def _invite(
        self,
        part: int,
        value: int,
        makes: bool,
        wanted: int,
        axis: int,
        former: dict[int, int],
        frontier: deque[int],
        visited: set[int],
    ) -> None:
        """Move a part that makes or needs a value otherwise than wanted, if it can."""
        state = self.now.choice[part]
        key = part, state, axis, value, makes, wanted
        if key not in self._followed:
            self._followed[key] = self._agreeing(*key)
        best = self._followed[key]
        if best == state:
            return
        visited.add(part)
        if best is not None:
            former[part] = state
            self.now.choose(part, best)
            frontier.append(part)

    def _agreeing(self, part: int, state: int, axis: int, value: int, makes: bool, wanted: int) -> int | None:
        """Return the cheapest state of a part beside one that makes or needs a value as wanted; None if there is none.

        It is the one that the part has, if that does.
        """
        now, placed = self.now, self.placed[axis][value]
        rows = [now.make_rows[part][value]] if makes else now.need_rows[part][value]

        def agrees(other: int) -> bool:
            return all(placed[row[other]] == wanted for row in rows)

        if agrees(state):
            return state
        costs = now.cost_rows[part]
        return min(filter(agrees, self.states_beside(part, state, axis)), key=costs.__getitem__, default=None)
