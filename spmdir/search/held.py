"""What a rank holds in memory under a decision of the search: the buffers of values, and of their resharded copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.standard import Placement
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.buffers import BUFFERS, keeps_operand, step_buffers
from spmdir.reshard.cost import local_bytes
from spmdir.reshard.plan_tree import Planner, plan_tree
from spmdir.reshard.steps import Step
from spmdir.search.problem import Annotation, NodeStrategy, Problem
from spmdir.search.timeline import Buffer, Timeline, live_bytes, peak_step

Decision = Mapping[str, Sequence[NodeStrategy]]
"""Axis → the strategy of each node."""

MOST_BUFFERS = 4 * max(map(len, BUFFERS.values()))
"""How often the bytes of a value a reshard allocates at the most; an exchange brings some partial values at once."""

Ends = tuple[tuple[Sharding, ...], tuple[Sharding, ...]]
"""The shardings of the operands and of the results of a node."""

Placed = tuple[Placement, ...]
"""The placement of a value on each axis."""


@attrs.frozen
class Held:
    """What a rank holds at the peak of its memory.

    Attributes:
        peak_bytes: the most that is live at once.
        live: (value, whether it is a copy, bytes) of each buffer that is live then, the largest first.
    """

    peak_bytes: float
    live: tuple[tuple[int, bool, float], ...]


def held(problem: Problem, decision: Decision, views: Sequence[bool]) -> Held:
    """Return what a rank holds at the peak of its memory under `decision`.

    Args:
        views: by node, whether its results share the memory of its first operand.
    """
    walk = _Walk(problem, decision)
    for index, is_view in enumerate(views):
        walk.node(index, is_view)
    buffers = walk.timeline.buffers()
    at = peak_step(buffers)
    live = [(walk.owners[number], buffer) for number, buffer in enumerate(buffers) if _is_live(buffer, at)]
    live.sort(key=lambda entry: -entry[1].bytes)
    return Held(max(live_bytes(buffers)), tuple((*owner, buffer.bytes) for owner, buffer in live))


def _is_live(buffer: Buffer, step: int) -> bool:
    return buffer.first <= step <= buffer.last and buffer.bytes > 0


def most(problem: Problem) -> float:
    """Return a bound on `held(…).peak_bytes` that is quick to find, for any decision: nothing is sharded or freed."""
    sizes = [meta.bytes for meta in problem.values]
    copied = sum(sizes[value] for node in problem.nodes for value in node.operands)
    return sum(sizes) + MOST_BUFFERS * copied


def worth(problem: Problem, decision: Decision) -> float:
    """Return the seconds that `holding` and `copy_holding` of the problem add to the cost of `decision`."""
    walk, total = _Walk(problem, decision), 0.0
    copies: set[tuple[int, Sharding]] = set()
    for node, (operands, results) in zip(problem.nodes, walk.ends, strict=True):
        for value, made in zip(node.results, results, strict=True):
            walk.made[value] = made
            total += problem.holding[value] * walk.size(value, made)
        copies.update(zip(node.operands, operands, strict=True))
    copied = ((value, sharding) for value, sharding in copies if sharding != walk.made[value])
    return total + sum(problem.copy_holding[value] * walk.size(value, sharding) for value, sharding in copied)


class _Walk:
    """Tells the nodes of a problem to a timeline, in program order."""

    def __init__(self, problem: Problem, decision: Decision):
        self.problem, self.mesh = problem, problem.mesh
        self.timeline = Timeline()
        self.owners: list[tuple[int, bool]] = []
        self.made: dict[int, Sharding] = {}
        self.buffer: dict[tuple[int, Sharding], int] = {}
        self.planner = Planner(self.mesh.root or self.mesh, problem.topology, problem.collectives)
        self._shardings: dict[Placed, Sharding] = {}
        self._known: dict[tuple[int, ...], Ends] = {}
        self.ends = list(map(self._ends_of, zip(*(decision[axis] for axis in self.mesh.axis_names), strict=True)))
        self._sizes: dict[tuple[TensorMeta, Sharding], float] = {}
        self._needs: dict[int, dict[Sharding, None]] = {}
        for node, (operands, _) in zip(problem.nodes, self.ends, strict=True):
            for value, need in zip(node.operands, operands, strict=True):
                self._needs.setdefault(value, {}).setdefault(need)
        self._steps: dict[int, Mapping[Sharding, Step]] = {}

    def _ends_of(self, strategies: Sequence[NodeStrategy]) -> Ends:
        """Return the shardings of operands and results under one strategy an axis."""
        key = tuple(map(id, strategies))  # equal layers share strategies, whose comparison takes long
        found = self._known.get(key)
        if found is None:
            operands = tuple(map(self._sharding, zip(*(s.operands for s in strategies), strict=True)))
            results = tuple(map(self._sharding, zip(*(s.results for s in strategies), strict=True)))
            found = self._known[key] = (operands, results)
        return found

    def node(self, index: int, is_view: bool) -> None:
        """Tell a node, and before it the reshards that it is the first to need."""
        node, source = self.problem.nodes[index], self.problem.nodes[index].source
        role = source.role if isinstance(source, Annotation) else "op"
        operands, results = self.ends[index]
        used = [self._resharded(value, need) for value, need in zip(node.operands, operands, strict=True)]
        if role == "op":
            self.timeline.advance()
        for buffer in used:
            self.timeline.use(buffer)
            if role == "output":
                self.timeline.keep(buffer)
        for value, sharding in zip(node.results, results, strict=True):
            shared = used[0] if used and (is_view or role == "constraint") else None
            buffer = self._hold(value, False, self.size(value, sharding)) if shared is None else shared
            self.made[value] = sharding
            self.buffer[value, sharding] = buffer
            if role == "input":
                self.timeline.keep(buffer)

    def _resharded(self, value: int, need: Sharding) -> int:
        """Return the buffer of a value as a user needs it, after the steps to it that were not done before."""
        if (value, need) not in self.buffer:
            meta, step = self.problem.values[value], self._tree(value).get(need)
            last = first = self.buffer[value, self.made[value]] if step is None else self._resharded(value, step.source)
            sizes = [self.size(value, need)] if step is None else step_buffers(step, meta, self.planner.mesh)
            is_kept = step is not None and keeps_operand(step, meta, self.planner.mesh)
            for size in sizes:
                self.timeline.advance()
                for buffer in (first, last) if is_kept else (last,):
                    self.timeline.use(buffer)
                last = self._hold(value, True, size)
            self.buffer[value, need] = last
        return self.buffer[value, need]

    def _tree(self, value: int) -> Mapping[Sharding, Step]:
        """Return the steps of all reshards of a value, as lower-reshard takes them; none where there is no plan."""
        if value not in self._steps:
            made = self.made[value]
            targets = tuple(need for need in self._needs[value] if need != made)
            try:
                self._steps[value] = plan_tree(self.problem.values[value], made, targets, self.planner).steps
            except SpmdirError:  # it depends on the nesting order, which is decided later
                self._steps[value] = {}
        return self._steps[value]

    def _hold(self, value: int, is_copy: bool, size: float) -> int:
        self.owners.append((value, is_copy))
        return self.timeline.hold("", size, "activations")

    def size(self, value: int, sharding: Sharding) -> float:
        """Return the bytes of a value on the rank that holds most of it."""
        meta = self.problem.values[value]
        key = (meta, sharding)
        if key not in self._sizes:
            self._sizes[key] = local_bytes(sharding, meta.shape, meta.dtype.itemsize, self.planner.mesh)
        return self._sizes[key]

    def _sharding(self, placed: Placed) -> Sharding:
        """Return the sharding of a value with these placements; nested in mesh order, as the order is decided later."""
        if placed not in self._shardings:
            placements = zip(self.mesh.axis_names, placed, strict=True)
            sharding = Sharding(sorted(placements, key=lambda entry: not entry[1].is_demanding), self.mesh.name)
            self._shardings[placed] = sharding if self.mesh.root is None else sharding.merged(self.mesh)
        return self._shardings[placed]
