"""The search for the cheapest steps of one reshard: A* over shardings, guided by the lower bound."""

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
from spmdir.reshard.bound import lower_bound
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.conditions import blocking_axes, splits_evenly
from spmdir.reshard.cost import Cost, least_cost, step_cost
from spmdir.reshard.moves import exchanges, free_axes, is_legal, moves, useful_placements
from spmdir.reshard.quick_bound import QuickBound
from spmdir.reshard.steps import Step
from spmdir.reshard.topology import Topology

_TICK = 1e-12
"""Seconds; times are added as whole ticks, so that plans of equal time tie exactly."""

_ROUNDED = 8
"""Ticks by which the steps of a plan together may be rounded down; a lower bound is as much less."""

_TWO_ROUND_GAIN = 4
"""Ticks that a two-round exchange must save: more than rounding errors, so that collectives win ties."""

FEW_AXES = 4
"""Up to this many axes that may move the cheapest plan is found; beyond, a good one."""

EFFORT = 8_000
"""The most steps that the search of one plan looks at once it knows a plan; then the best so far is taken.

Plans on few axes take fewer.
"""

MANY_EFFORT = 1_000
"""EFFORT where more than FEW_AXES may move. A search that knows no plan by then takes the first that it finds.

The reshards of a Llama on sub-axes of two axes of 1024 ranks send as many bytes with 300 steps, and 0.1 % more with 60.
"""

QUICK_RATIO = 1.5
"""What a quick search takes its bounds times where FEW_AXES may move.

Plans of 90 reshards took 1 % longer in the mean and 16 % at most; nothing is proved, since the axes are fewer too.
"""

PlanCost = tuple[float, float, float]
"""A cost to minimise, in this order: ticks, wire bytes, steps."""

_INFINITE: PlanCost = (math.inf, math.inf, math.inf)


@attrs.frozen(cache_hash=True)
class Reshard:
    """A reshard to plan.

    Attributes:
        shape: the global shape.
        itemsize: bytes of an element.
        collectives: the ones that the plan may use.
        is_quick: a good plan will do, found soon: of steps that move only axes that one side places.
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

    The exact cost of an exchange is expensive, so exchanges are queued at a lower bound of their cost and priced when
    they come first in the queue. So are shardings, whose bound on what remains is a quick one until they come first.

    Attributes:
        best: sharding → the least cost at which it has been reached.
        last_step: sharding → the step that reaches it at that cost.
        converts_again: whether an axis may leave a lossy placement that it has on both sides, and enter it again.
        seen: steps that have been looked at.
        hurried: the search takes the first plan that it finds.
    """

    def __init__(self, reshard: Reshard, converts_again: bool = False):
        source, target, mesh = reshard.source, reshard.target, reshard.mesh
        entries = (*source.entries, *target.entries)
        free = free_axes(source, target, mesh)
        if reshard.is_quick:
            placed = {axis for axis, _ in entries}
            free = tuple(axis for axis in free if axis in placed)
        self.reshard = reshard
        self.many = len(free) > FEW_AXES
        self.free = _most_useful(free, source, target) if self.many else free
        self.effort = MANY_EFFORT if self.many else EFFORT
        self.weight = QUICK_RATIO if reshard.is_quick and len(free) >= FEW_AXES else 1
        self.shard_placements = useful_placements(reshard.shape, source, target, mesh)
        self.wanted = tuple((axis, p) for axis, p in target.entries if p.trait not in ("shard", "replicated"))
        self.has_own_type = any(placement.has_own_type for _, placement in entries)
        self.has_lossy = source.has_lossy or target.has_lossy
        self.converts_again = converts_again
        self.is_demanding = any(placement.is_demanding for _, placement in entries)
        self.best: dict[Sharding, PlanCost] = {source: (0, 0.0, 0)}
        self.last_step: dict[Sharding, Step] = {}
        self.seen, self.hurried = 0, False
        self._queue: list[tuple[tuple[float, ...], int, PlanCost, Sharding, Step | None]] = []
        self._order = itertools.count()
        self._remaining: dict[Sharding, PlanCost] = {}
        self._bounded: set[Sharding] = set()
        self._quick = QuickBound(reshard.shape, reshard.itemsize, target, mesh, reshard.topology, reshard.collectives)

    def run(self) -> tuple[Step, ...]:
        """Return the steps of the best plan found.

        Raises:
            ShardingError: no steps lead to the target.
        """
        source, target = self.reshard.source, self.reshard.target
        self._push(self._to_go(source), source, self.best[source], next(self._order))
        while self._queue and (self.seen < self.effort or target not in self.best):
            if self.many and self.seen >= self.effort and not self.hurried:
                self._hurry()
            _, order, reached, here, exchange = heapq.heappop(self._queue)
            if exchange is not None:
                self._reach(reached, exchange)
            elif here == target:
                break
            elif self._bound_closer(here):
                self._push(_sum(reached, self._to_go(here)), here, reached, order)
            else:
                say("planning {} -> {}: {} shardings reached", source, target, len(self.best))
                if reached <= self.best[here]:
                    self._expand(here, reached)
        return self._steps()

    def _steps(self) -> tuple[Step, ...]:
        source, target = self.reshard.source, self.reshard.target
        if target not in self.best:
            raise ShardingError(f"no step leads from <{source}> to <{target}>; a placement declares too few edges")
        steps, here = [], target
        while here != source:
            steps.append(self.last_step[here])
            here = steps[-1].source
        return tuple(reversed(steps))

    def _push(
        self, priority: PlanCost, sharding: Sharding, reached: PlanCost, order: int, exchange: Step | None = None
    ) -> None:
        first = (_distance(sharding, self.reshard.target), *priority) if self.hurried else priority
        heapq.heappush(self._queue, (first, order, reached, sharding, exchange))

    def _hurry(self) -> None:
        """Reorder the queue so that the first plan found is taken: shardings nearest to the target come first."""
        target = self.reshard.target
        self._queue = [((_distance(entry[3], target), *entry[0]), *entry[1:]) for entry in self._queue]
        heapq.heapify(self._queue)
        self.hurried = True

    def _expand(self, here: Sharding, reached: PlanCost) -> None:
        """Take or queue the steps from `here`, which costs `reached` to reach, that may belong to the best plan."""
        reshard, best = self.reshard, self.best
        steps = moves(here, self.wanted, self.free, self.shard_placements, reshard.mesh, reshard.collectives)
        self.seen += len(steps)
        direct = exchanges(here, reshard.target, reshard.mesh, reshard.collectives)
        for step in self._legal(here, reached, (*steps, *direct)):
            if step.spec.loads is None:
                self._reach(reached, step)
                continue
            cost = least_cost(step, reshard.shape, reshard.itemsize, reshard.mesh, reshard.topology)
            least = _sum(reached, _charged(step, cost))
            priority = _sum(least, self._to_go(step.target))
            if least < best.get(step.target, _INFINITE) and priority < best.get(reshard.target, _INFINITE):
                self._push(priority, step.target, reached, next(self._order), step)

    def _legal(self, here: Sharding, reached: PlanCost, steps: tuple[Step, ...]) -> Iterator[Step]:
        """Yield those of `steps` that are legal on this shape and do not lead to a plan worse than one known."""
        reshard, best = self.reshard, self.best
        mesh, shape = reshard.mesh, reshard.shape
        for step in steps:
            target = step.target
            named = step.axes if step.spec.moves in ("axes", "edge") else ()
            if self.has_own_type and blocking_axes(step.spec, named, here, target):
                continue
            if self.has_lossy and self._loses_more(here, target):
                continue
            if self.is_demanding and not _is_possible(target, mesh, shape):
                continue
            if best.get(target, _INFINITE) <= reached:
                continue
            if _sum(reached, self._to_go(target)) >= best.get(reshard.target, _INFINITE):
                continue
            if mesh.root is not None and not splits_evenly(target, mesh, shape):
                continue
            yield step

    def _loses_more(self, here: Sharding, there: Sharding) -> bool:
        """Return whether a step enters a lossy placement that the target lacks on that axis, or leaves one that it has.

        A cheap way may lead through bytes, as from `<tp: S(0)>` to `<dp: Mx>` by a gather in `Mx` on tp; nobody asked
        for that loss.
        """
        wanted = self.reshard.target
        enters = any(p.error and p not in (here[axis], wanted[axis]) for axis, p in there.entries)
        return enters or (
            not self.converts_again
            and any(p.error and wanted[axis] == p and there[axis] != p for axis, p in here.entries)
        )

    def _reach(self, reached: PlanCost, step: Step) -> None:
        """Queue the target of `step`, whose source costs `reached`, if this is the cheapest way to it so far."""
        reshard = self.reshard
        cost = step_cost(step, reshard.shape, reshard.itemsize, reshard.mesh, reshard.topology)
        if step.spec.if_local is not None and not cost.wire_bytes:
            step = attrs.evolve(step, kind=step.spec.if_local)
        total = _sum(reached, _charged(step, cost))
        if total >= self.best.get(step.target, _INFINITE):
            return
        if is_legal(step, reshard.mesh, reshard.shape):
            self.best[step.target], self.last_step[step.target] = total, step
            self._push(_sum(total, self._to_go(step.target)), step.target, total, next(self._order))

    def _to_go(self, here: Sharding) -> PlanCost:
        """Return the least that remains from `here` to the target, as far as it is known."""
        found = self._remaining.get(here)
        if found is None:
            found = self._remaining[here] = self._at_least(here, *self._quick.of(here))
        return found

    def _bound_closer(self, here: Sharding) -> bool:
        """Bound what remains from `here` by the bytes that any algorithm moves; return whether that was not done."""
        if here in self._bounded:
            return False
        self._bounded.add(here)
        reshard = self.reshard
        wire = lower_bound(reshard.shape, reshard.itemsize, here, reshard.target, reshard.mesh)
        if wire:
            self._remaining[here] = self._at_least(here, self._quick.seconds(here, wire), wire)
        return True

    def _at_least(self, here: Sharding, seconds: float, wire: float) -> PlanCost:
        """Return the cost from `here` to the target that these bounds prove, whatever is rounded.

        A quick search takes them to be higher, and so goes on from what is nearer to the target (weighted A*).
        """
        steps = _distance(here, self.reshard.target) if self.many else float(here != self.reshard.target)
        ticks, weight = max(math.floor(seconds / _TICK) - _ROUNDED, 0), self.weight
        return (ticks * weight, wire * (1 - 1e-12) * weight, steps)


@functools.lru_cache(maxsize=65536)
def _is_possible(sharding: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of `shape` can be laid out by `sharding`, where placements require certain shapes."""
    try:
        sharding.check_shape(mesh, shape)
    except ShardingError:
        return False
    return True


def _charged(step: Step, cost: Cost) -> PlanCost:
    extra = _TWO_ROUND_GAIN if step.spec.traffic.rounds > 1 else 0
    return (round(cost.seconds / _TICK) + extra, cost.wire_bytes, 1)


def _sum(a: PlanCost, b: PlanCost) -> PlanCost:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _most_useful(free: tuple[str, ...], source: Sharding, target: Sharding) -> tuple[str, ...]:
    """Return the axes whose placement differs between the two sides, and further ones up to FEW_AXES in all."""
    alike = [axis for axis in free if source[axis] == target[axis] and source[axis].dim is None]
    spare = max(FEW_AXES - (len(free) - len(alike)), 0)
    return tuple(axis for axis in free if axis not in alike[spare:])


def _distance(here: Sharding, target: Sharding) -> int:
    """Return how many axes have to leave or join a dimension, or become or cease to be partial."""
    distance = len({*here.partial} ^ {*target.partial})
    for dim in {placement.dim for side in (here, target) for _, placement in side.entries if placement.dim is not None}:
        own, wanted = ([(axis, side[axis]) for axis in side.dim_axes(dim)] for side in (here, target))
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(own, wanted, strict=False)))
        distance += len(own) + len(wanted) - 2 * alike
    return distance
