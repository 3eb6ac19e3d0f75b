"""The search for the cheapest steps of one reshard: A* over shardings.

A node of the search is a sharding, and an edge is a legal step. The priority of a sharding is the cost of the steps
that reach it, plus a lower bound on the cost of the remaining steps. The sharding of lowest priority is expanded next.

For example, reshard a 1024 × 1024 f32 matrix from `a: P, b: S(1)` to `a: S(0)` on the mesh (a = 2, b = 2) and the
topology `flat`. Times are in µs, as reached + bound:

    expand a: P, b: S(1), 0 + 5.68
        reduce_scatter on [a] dim 0  → a: S(0), b: S(1)   2.84 + 2.84      all_gather on [b]  → a: P      5.68 + 5.68
        all_reduce on [a]            → b: S(1)            5.68 + 0.01      exchange           → a: S(0)   8.51 + 0
    expand a: S(0), b: S(1), 2.84 + 2.84
        all_gather on [b] dim 1      → a: S(0)            5.69 + 0         this replaces the exchange
    a: S(0) is next in the queue: the plan is reduce_scatter on [a] dim 0; all_gather on [b] dim 1

Sources: A* is by Hart, Nilsson and Raphael (1968), and its weighted form, for quick searches, by Pohl (1970). Expensive
bounds are computed only when a sharding is first in the queue, as in Lazy A* (Tolpin et al., 2013).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.progress import say
from spmdir.reshard.byte_bound import lower_bound
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.conditions import blocking_axes, splits_evenly
from spmdir.reshard.cost import Cost, least_cost, step_cost
from spmdir.reshard.plan_edges import find_exchanges, find_moves, free_axes, is_legal, useful_placements
from spmdir.reshard.steps import Step
from spmdir.reshard.time_bound import QuickBound
from spmdir.reshard.topology import Topology

_TICK = 1e-12
"""Seconds of a tick. Times are added as whole ticks, so plans of equal time tie exactly."""

_ROUNDING_TICKS = 8
"""Ticks by which rounding may lower the cost of a whole plan. Lower bounds are reduced by as much."""

_TWO_ROUND_GAIN = 4
"""Ticks that a two-round exchange must save. They exceed rounding errors, so other collectives win ties."""

FEW_AXES = 4
"""The largest number of movable axes for which the plan is optimal. With more axes, it may be more expensive."""

MAX_STEPS = 8_000
"""The number of steps after which a search returns its best plan so far, if it has one.

Searches on at most FEW_AXES axes end before.
"""

MAX_STEPS_ON_MANY_AXES = 1_000
"""MAX_STEPS if more than FEW_AXES axes may move. A search without a plan by then returns the first plan that it finds.

The reshards of a Llama on sub-axes of two axes of 1024 ranks send the same bytes with 300 steps, and 0.1 % more with
60.
"""

QUICK_RATIO = 1.5
"""The weight of lower bounds in a quick search, if at least FEW_AXES axes may move.

Plans of 90 reshards took 1 % longer in the mean, and at most 16 %. There is no guarantee, because a quick search also
moves fewer axes.
"""

PlanCost = tuple[float, float, float]
"""(ticks, wire bytes, steps), compared in this order."""

_INFINITE: PlanCost = (math.inf, math.inf, math.inf)


@attrs.frozen(cache_hash=True)
class Reshard:
    """A reshard to plan.

    Attributes:
        shape: the global shape.
        itemsize: bytes of an element.
        collectives: the collectives that the plan may use.
        is_quick: whether a good plan is enough. Its steps move only axes that `source` or `target` has.
    """

    shape: tuple[int, ...]
    itemsize: int
    source: Sharding
    target: Sharding
    mesh: Mesh
    topology: Topology
    collectives: tuple[CollectiveSpec, ...]
    is_quick: bool = False


class PlanSearch:
    """The search of one plan.

    The exact cost of an exchange is expensive to compute. An exchange is queued with a lower bound of its cost, and
    priced when it is first in the queue. Similarly, a sharding has the bound of `QuickBound` until it is first.

    Attributes:
        has_many_axes: whether more than FEW_AXES axes may move.
        free: the axes that may move.
        max_steps: the number of steps after which the search returns its best plan so far.
        weight: the factor of lower bounds in priorities.
        wanted_placements: (axis, placement) pairs, the placements of the target that are neither replicated nor shards.
        converts_again: whether an axis may leave a lossy placement that it has on both sides, and enter it again.
        requires_shapes: whether a placement is legal for some shapes only.
        best: sharding → the lowest cost at which it was reached.
        last_step: sharding → the step that reaches it at that cost.
        steps_seen: the number of steps considered so far.
        is_greedy: whether the search returns the first plan that it finds.
    """

    def __init__(self, reshard: Reshard, converts_again: bool = False):
        source, target, mesh = reshard.source, reshard.target, reshard.mesh
        entries = (*source.entries, *target.entries)
        free = free_axes(source, target, mesh)
        if reshard.is_quick:
            used_axes = {axis for axis, _ in entries}
            free = tuple(axis for axis in free if axis in used_axes)
        self.reshard = reshard
        self.has_many_axes = len(free) > FEW_AXES
        self.free = _most_useful(free, source, target) if self.has_many_axes else free
        self.max_steps = MAX_STEPS_ON_MANY_AXES if self.has_many_axes else MAX_STEPS
        self.weight = QUICK_RATIO if reshard.is_quick and len(free) >= FEW_AXES else 1
        self.shard_placements = useful_placements(reshard.shape, source, target, mesh)
        self.wanted_placements = tuple(
            (axis, p) for axis, p in target.entries if p.trait not in ("shard", "replicated")
        )
        self.has_own_type = any(placement.has_own_type for _, placement in entries)
        self.has_lossy = source.has_lossy or target.has_lossy
        self.converts_again = converts_again
        self.requires_shapes = any(placement.is_demanding for _, placement in entries)
        self.best: dict[Sharding, PlanCost] = {source: (0, 0.0, 0)}
        self.last_step: dict[Sharding, Step] = {}
        self.steps_seen, self.is_greedy = 0, False
        # (priority, order of insertion, cost of the steps so far, sharding, the exchange to price that leads to it)
        self._queue: list[tuple[tuple[float, ...], int, PlanCost, Sharding, Step | None]] = []
        self._order = itertools.count()
        self._remaining: dict[Sharding, PlanCost] = {}  # sharding → a lower bound on the cost from it to the target
        self._tightly_bounded: set[Sharding] = set()  # the shardings with the more expensive, tighter bound
        self._quick_bound = QuickBound(
            reshard.shape, reshard.itemsize, target, mesh, reshard.topology, reshard.collectives
        )

    def run(self) -> tuple[Step, ...]:
        """Return the steps of the best plan.

        The entry of lowest priority leaves the queue. An exchange is priced, and its target is queued. A sharding whose
        lower bound can be improved is queued again. Any other sharding is expanded. The target ends the search.

        Raises:
            ShardingError: there is no plan.
        """
        source, target = self.reshard.source, self.reshard.target
        self._push(self._remaining_cost(source), source, self.best[source], next(self._order))
        while self._queue and (self.steps_seen < self.max_steps or target not in self.best):
            if self.has_many_axes and self.steps_seen >= self.max_steps and not self.is_greedy:
                self._search_greedily()
            _, order, reached, sharding, exchange = heapq.heappop(self._queue)
            if exchange is not None:
                self._reach(reached, exchange)
            elif sharding == target:
                break
            elif self._tighten_bound(sharding):
                self._push(_sum(reached, self._remaining_cost(sharding)), sharding, reached, order)
            else:
                say("planning {} -> {}: {} shardings reached", source, target, len(self.best))
                if reached <= self.best[sharding]:
                    self._expand(sharding, reached)
        return self._path_to_target()

    def _path_to_target(self) -> tuple[Step, ...]:
        """Return the steps that reach the target at the lowest cost so far.

        Raises:
            ShardingError: the target was not reached.
        """
        source, target = self.reshard.source, self.reshard.target
        if target not in self.best:
            raise ShardingError(
                f"no sequence of collectives leads from <{source}> to <{target}>; expected one: give one of the values "
                "another sharding, or declare more edges in the class of the plug-in placement"
            )
        steps, sharding = [], target
        while sharding != source:
            steps.append(self.last_step[sharding])
            sharding = steps[-1].source
        return tuple(reversed(steps))

    def _push(
        self, priority: PlanCost, sharding: Sharding, reached: PlanCost, order: int, exchange: Step | None = None
    ) -> None:
        """Add a sharding to the queue.

        Args:
            reached: the cost of the steps that lead to `sharding`, or to the source of `exchange`.
            order: breaks ties of the priority.
            exchange: the step to `sharding`, if its exact cost is still to be computed.
        """
        key = (_distance(sharding, self.reshard.target), *priority) if self.is_greedy else priority
        heapq.heappush(self._queue, (key, order, reached, sharding, exchange))

    def _search_greedily(self) -> None:
        """Sort the queue by the distance to the target, and return the first plan from here on."""
        target = self.reshard.target
        # Put the distance of the sharding (item 3 of an entry) first in the priority (item 0).
        self._queue = [((_distance(entry[3], target), *entry[0]), *entry[1:]) for entry in self._queue]
        heapq.heapify(self._queue)
        self.is_greedy = True

    def _expand(self, sharding: Sharding, reached: PlanCost) -> None:
        """Follow the steps from `sharding` that may belong to the best plan.

        The target of a step is queued with the exact cost of the step. Only an exchange is queued with a lower bound of
        its cost, and priced when it leaves the queue.

        Args:
            reached: the cost of the steps that lead to `sharding`.
        """
        reshard, best = self.reshard, self.best
        steps = find_moves(
            sharding, self.wanted_placements, self.free, self.shard_placements, reshard.mesh, reshard.collectives
        )
        self.steps_seen += len(steps)
        exchanges = find_exchanges(sharding, reshard.target, reshard.mesh, reshard.collectives)
        for step in self._legal(sharding, reached, (*steps, *exchanges)):
            if step.spec.loads is None:
                self._reach(reached, step)
                continue
            step_bound = least_cost(step, reshard.shape, reshard.itemsize, reshard.mesh, reshard.topology)
            reached_bound = _sum(reached, _step_price(step, step_bound))
            priority = _sum(reached_bound, self._remaining_cost(step.target))
            if reached_bound < best.get(step.target, _INFINITE) and priority < best.get(reshard.target, _INFINITE):
                self._push(priority, step.target, reached, next(self._order), step)

    def _legal(self, sharding: Sharding, reached: PlanCost, steps: tuple[Step, ...]) -> Iterator[Step]:
        """Yield the steps that are legal for this shape and may lead to a better plan than the best one so far."""
        reshard, best = self.reshard, self.best
        mesh, shape = reshard.mesh, reshard.shape
        for step in steps:
            target = step.target
            named_axes = step.axes if step.spec.moves in ("axes", "edge") else ()
            if self.has_own_type and blocking_axes(step.spec, named_axes, sharding, target):
                continue
            if self.has_lossy and self._loses_more(sharding, target):
                continue
            if self.requires_shapes and not _fits_shape(target, mesh, shape):
                continue
            if best.get(target, _INFINITE) <= reached:
                continue
            if _sum(reached, self._remaining_cost(target)) >= best.get(reshard.target, _INFINITE):
                continue
            if mesh.root is not None and not splits_evenly(target, mesh, shape):
                continue
            yield step

    def _loses_more(self, before: Sharding, after: Sharding) -> bool:
        """Return whether a step loses precision that the reshard does not require.

        It does if it enters a lossy placement on an axis where the target does not have it, or leaves one that the
        target has there. For example, from `<tp: S(0)>` to `<dp: Mx>`, a gather of `Mx` along tp would be cheap, but
        the target has no loss along tp.
        """
        target = self.reshard.target
        if any(p.error and p not in (before[axis], target[axis]) for axis, p in after.entries):
            return True
        leaves_wanted = any(p.error and target[axis] == p and after[axis] != p for axis, p in before.entries)
        return leaves_wanted and not self.converts_again

    def _reach(self, reached: PlanCost, step: Step) -> None:
        """Queue the target of `step` if this is the cheapest path to it so far. `reached` is the cost of its source."""
        reshard = self.reshard
        cost = step_cost(step, reshard.shape, reshard.itemsize, reshard.mesh, reshard.topology)
        # An exchange that sends nothing becomes a rearrange.
        if step.spec.if_local is not None and not cost.wire_bytes:
            step = attrs.evolve(step, kind=step.spec.if_local)
        total = _sum(reached, _step_price(step, cost))
        if total >= self.best.get(step.target, _INFINITE):
            return
        if is_legal(step, reshard.mesh, reshard.shape):
            self.best[step.target], self.last_step[step.target] = total, step
            self._push(_sum(total, self._remaining_cost(step.target)), step.target, total, next(self._order))

    def _remaining_cost(self, sharding: Sharding) -> PlanCost:
        """Return the current lower bound on the cost from `sharding` to the target."""
        cost = self._remaining.get(sharding)
        if cost is None:
            cost = self._remaining[sharding] = self._cost_bound(sharding, *self._quick_bound.of(sharding))
        return cost

    def _tighten_bound(self, sharding: Sharding) -> bool:
        """Improve the bound of `sharding` by the bytes that any algorithm moves; return False if done before."""
        if sharding in self._tightly_bounded:
            return False
        self._tightly_bounded.add(sharding)
        reshard = self.reshard
        wire = lower_bound(reshard.shape, reshard.itemsize, sharding, reshard.target, reshard.mesh)
        if wire:
            self._remaining[sharding] = self._cost_bound(sharding, self._quick_bound.seconds(sharding, wire), wire)
        return True

    def _cost_bound(self, sharding: Sharding, seconds: float, wire: float) -> PlanCost:
        """Return a lower bound on the cost from `sharding` to the target, lowered by the largest rounding errors.

        A quick search multiplies it by a weight, and so prefers shardings near the target (weighted A*).

        Args:
            seconds, wire: lower bounds on the seconds, and on the bytes that a rank sends.
        """
        # Any other sharding is at least one step away. With many axes, the distance replaces this bound, so shardings
        # near the target win ties.
        steps = (
            _distance(sharding, self.reshard.target) if self.has_many_axes else float(sharding != self.reshard.target)
        )
        ticks, weight = max(math.floor(seconds / _TICK) - _ROUNDING_TICKS, 0), self.weight
        return (ticks * weight, wire * (1 - 1e-12) * weight, steps)


@functools.lru_cache(maxsize=65536)
def _fits_shape(sharding: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Return whether `sharding` is legal for a tensor of `shape`."""
    try:
        sharding.check_shape(mesh, shape)
    except ShardingError:
        return False
    return True


def _step_price(step: Step, cost: Cost) -> PlanCost:
    """Return the cost of a step in ticks, bytes and steps."""
    extra = _TWO_ROUND_GAIN if step.spec.traffic.rounds > 1 else 0
    return (round(cost.seconds / _TICK) + extra, cost.wire_bytes, 1)


def _sum(cost: PlanCost, other_cost: PlanCost) -> PlanCost:
    """Return the sum of two costs, part by part."""
    (ticks, wire, steps), (other_ticks, other_wire, other_steps) = cost, other_cost
    return (ticks + other_ticks, wire + other_wire, steps + other_steps)


def _most_useful(free: tuple[str, ...], source: Sharding, target: Sharding) -> tuple[str, ...]:
    """Return the axes that both sides place differently or that shard a dimension, and others up to FEW_AXES in total.

    The others are replicated or partial on both sides. The first of `free` come first.
    """
    unchanged = [axis for axis in free if source[axis] == target[axis] and source[axis].dim is None]
    changed_count = len(free) - len(unchanged)
    omitted = unchanged[max(FEW_AXES - changed_count, 0) :]
    return tuple(axis for axis in free if axis not in omitted)


def _distance(sharding: Sharding, target: Sharding) -> int:
    """Return the number of axes that must leave or join a dimension, or become partial or stop being partial.

    For example, it is 3 from `a: S(0), b: S(0)` to `a: S(0), c: S(0), b: S(0)`: b leaves, and then c and b join.
    """
    distance = len({*sharding.partial} ^ {*target.partial})
    for dim in {placement.dim for _, placement in (*sharding.entries, *target.entries) if placement.dim is not None}:
        entries, target_entries = ([(axis, side[axis]) for axis in side.dim_axes(dim)] for side in (sharding, target))
        pairs = zip(entries, target_entries, strict=False)
        common_count = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        distance += len(entries) + len(target_entries) - 2 * common_count
    return distance
