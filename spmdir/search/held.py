"""What a rank holds in memory under a decision of the search: the buffers of values, and of their resharded copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.standard import Placement
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.reshard.buffers import BUFFERS, step_buffers
from spmdir.reshard.cost import local_bytes
from spmdir.reshard.plan import plan_reshard
from spmdir.search.problem import Annotation, NodeStrategy, Problem
from spmdir.search.timeline import Buffer, Timeline, live_bytes, peak_step

Decision = Mapping[str, Sequence[NodeStrategy]]
"""Axis → the strategy of each node."""

MOST_BUFFERS = 2 * max(map(len, BUFFERS.values()))
"""More buffers than a reshard allocates."""

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
    copies: set[tuple[int, Placed]] = set()
    for index, node in enumerate(problem.nodes):
        for value, placed in zip(node.results, walk.placed(index, "results"), strict=True):
            walk.made[value] = placed
            total += problem.holding[value] * walk.size(value, placed)
        copies.update(zip(node.operands, walk.placed(index, "operands"), strict=True))
    copied = ((value, placed) for value, placed in copies if placed != walk.made[value])
    return total + sum(problem.copy_holding[value] * walk.size(value, placed) for value, placed in copied)


class _Walk:
    """Tells the nodes of a problem to a timeline, in program order."""

    def __init__(self, problem: Problem, decision: Decision):
        self.problem, self.mesh = problem, problem.mesh
        self.strategies = list(zip(*(decision[axis] for axis in self.mesh.axis_names), strict=True))
        self.timeline = Timeline()
        self.owners: list[tuple[int, bool]] = []
        self.made: dict[int, Placed] = {}
        self.buffer: dict[tuple[int, Placed], int] = {}
        self._sizes: dict[tuple[TensorMeta, Placed], float] = {}
        self._copies: dict[tuple[TensorMeta, Placed, Placed], list[float]] = {}

    def placed(self, node: int, which: str) -> list[Placed]:
        """Return the placements of the operands or results of a node."""
        return list(zip(*(getattr(strategy, which) for strategy in self.strategies[node]), strict=True))

    def node(self, index: int, is_view: bool) -> None:
        """Tell a node, and before it the reshards that it is the first to need."""
        node, source = self.problem.nodes[index], self.problem.nodes[index].source
        role = source.role if isinstance(source, Annotation) else "op"
        used = [self._operand(v, need) for v, need in zip(node.operands, self.placed(index, "operands"), strict=True)]
        if role == "op":
            self.timeline.advance()
        for buffer in used:
            self.timeline.use(buffer)
            if role == "output":
                self.timeline.keep(buffer)
        for value, placed in zip(node.results, self.placed(index, "results"), strict=True):
            shared = used[0] if used and (is_view or role == "constraint") else None
            buffer = self._hold(value, False, self.size(value, placed)) if shared is None else shared
            self.made[value] = placed
            self.buffer[value, placed] = buffer
            if role == "input":
                self.timeline.keep(buffer)

    def _operand(self, value: int, need: Placed) -> int:
        """Return the buffer of a value as a user needs it, resharded if that was not done before."""
        if (value, need) not in self.buffer:
            made = self.made[value]
            last = self.buffer[value, made]
            for size in self._stages(value, made, need):
                self.timeline.advance()
                self.timeline.use(last)
                last = self._hold(value, True, size)
            self.buffer[value, need] = last
        return self.buffer[value, need]

    def _hold(self, value: int, is_copy: bool, size: float) -> int:
        self.owners.append((value, is_copy))
        return self.timeline.hold("", size, "activations")

    def size(self, value: int, placed: Placed) -> float:
        """Return the bytes of a value on the rank that holds most of it."""
        meta = self.problem.values[value]
        key = (meta, placed)
        if key not in self._sizes:
            self._sizes[key] = local_bytes(self._sharding(placed), meta.shape, meta.dtype.itemsize, self._root)
        return self._sizes[key]

    def _stages(self, value: int, made: Placed, need: Placed) -> list[float]:
        """Return the bytes of the buffers that a reshard allocates, one after the other."""
        meta = self.problem.values[value]
        key = (meta, made, need)
        if key not in self._copies:
            problem, source, target = self.problem, self._sharding(made), self._sharding(need)
            try:
                plan = plan_reshard(
                    meta.shape,
                    meta.dtype,
                    source,
                    target,
                    self._root,
                    problem.topology,
                    collectives=problem.collectives,
                )
                found = [size for step in plan.steps for size in step_buffers(step, meta, self._root)]
            except SpmdirError:  # it depends on the nesting order, which is decided later
                found = [self.size(value, need)]
            self._copies[key] = found
        return self._copies[key]

    @property
    def _root(self) -> Mesh:
        return self.mesh.root or self.mesh

    def _sharding(self, placed: Placed) -> Sharding:
        entries = sorted(zip(self.mesh.axis_names, placed, strict=True), key=lambda entry: not entry[1].is_demanding)
        sharding = Sharding(entries, self.mesh.name)
        return sharding if self.mesh.root is None else sharding.merged(self.mesh)
