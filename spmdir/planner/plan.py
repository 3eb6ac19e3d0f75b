"""The cheapest sequence of steps from one sharding to another: A* over shardings, guided by the lower bound."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from spmdir.axes import is_part
from spmdir.call import DTYPE_BYTES
from spmdir.errors import ShardingError, require_type
from spmdir.mesh import Mesh
from spmdir.pieces import length
from spmdir.placement import R, Shard
from spmdir.placement_type import TRAITS, PartialPlacement, Placement, ShardPlacement, edge_between, parse_placement
from spmdir.planner.bound import lower_bound
from spmdir.planner.cost import LOADS, Cost, least_cost, step_cost
from spmdir.planner.steps import (
    WHOLE_MOVES,
    Step,
    make_step,
    moves_jointly,
    permuted_axes,
    refinement,
    reshaped_axes,
    senders,
    splits_evenly,
    unmovable,
)
from spmdir.planner.topology import FLAT, Topology, find_topology
from spmdir.sharding import Sharding, as_sharding

_TICK = 1e-12
"""Seconds; times are added as whole ticks, so that plans of equal time tie exactly."""

_RELAY_GAIN = 4
"""Ticks that a relay must gain over other steps: more than rounding makes of a tie, which collectives are to win."""

Reached = tuple[float, float, float]
"""Ticks, wire bytes and steps."""

_UNREACHED: Reached = (math.inf, math.inf, math.inf)


@attrs.frozen
class Plan:
    """How one tensor goes from one sharding to another.

    Attributes:
        steps: in order; empty when the shardings are the same.
        wire_bytes: bytes a rank sends, ring model.
        lower_bound: bytes that the busiest rank must move whatever the algorithm.
        seconds: modelled time.
    """

    steps: tuple[Step, ...]
    wire_bytes: float
    lower_bound: float
    seconds: float

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))


def plan_reshard(
    shape: Sequence[int], dtype: Any, src: object, dst: object, mesh: Mesh, topology: Topology | str | None = None
) -> Plan:
    """The plan of least modelled time; among equals that of fewest wire bytes, then of fewest steps.

    Arguments:
        shape: the global shape.
        dtype: the element type, by its MLIR name or as a value with an `itemsize` in bytes.
        src, dst: shardings, in any form that the Python API takes.
        topology: what the mesh runs on, as a value, the name of a preset or a TOML file; `flat` if not given, so that
            the plan of fewest bytes is found.

    Raises:
        ShardingError: a sharding does not fit the mesh or the shape, or leaves an axis open.
    """
    require_type("mesh", mesh, Mesh, 'a spmdir.Mesh, as in Mesh({"dp": 2, "tp": 4})')
    if not isinstance(shape, Sequence) or not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ShardingError(f"shape is {shape!r}; expected sizes from 0 on, as in (16, 1024)")
    itemsize = DTYPE_BYTES.get(dtype) or getattr(dtype, "itemsize", None)
    if itemsize is None:
        raise ShardingError(f"unknown element type {dtype!r}; expected one of {', '.join(DTYPE_BYTES)}")
    source, target = (side if isinstance(side, Sharding) else as_sharding(side, mesh) for side in (src, dst))
    return _plan(tuple(shape), itemsize, source, target, mesh, find_topology(topology, FLAT))


@functools.lru_cache(maxsize=65536)
def _plan(
    shape: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> Plan:
    _check(shape, source, target, mesh)
    steps = _steps(shape, itemsize, source, target, mesh, topology)
    costs = [step_cost(step, shape, itemsize, mesh, topology) for step in steps]
    return Plan(
        steps,
        math.fsum(cost.wire_bytes for cost in costs),
        lower_bound(shape, itemsize, source, target, mesh),
        math.fsum(cost.seconds for cost in costs),
    )


def _check(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> None:
    for sharding in (source, target):
        sharding.check_shape(mesh, shape)
        if sharding.mesh != mesh.name:
            raise ShardingError(f"<{sharding}> is on mesh @{sharding.mesh}; expected mesh @{mesh.name}")
        for axis, placement in sharding.entries:
            if placement.trait == "open":
                raise ShardingError(f"a reshard cannot have {placement} on axis '{axis}'; expected R, S(dim) or P(op)")


def _steps(
    shape: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> tuple[Step, ...]:
    """The steps, found over the sub-axes that both sides have in common; if they have none, by way of whole axes.

    Reductions of different kinds do not commute, so one is done before another one is pending.
    """
    if len(source.kinds | target.kinds) > 1:
        betweens = (_reduced(source), _reduced(target))
        ways = [
            tuple(
                step
                for a, b in ((source, between), (between, target))
                for step in _steps(shape, itemsize, a, b, mesh, topology)
            )
            for between in betweens
        ]
        return min(ways, key=lambda way: sum(step_cost(s, shape, itemsize, mesh, topology).seconds for s in way))
    fine = _common_mesh(shape, source, target, mesh)
    if fine is mesh:
        return _search(shape, itemsize, source, target, mesh, topology)
    if fine is not None:
        steps = _search(shape, itemsize, source.refined(fine), target.refined(fine), fine, topology)
        return tuple(_merged(step, mesh) for step in steps)
    split = {mesh.whole(axis) for side in (source, target) for axis, _ in side.entries if is_part(axis)}
    between = Sharding([(axis, p) for axis, p in source.entries if mesh.whole(axis) not in split], source.mesh)
    halves = [(source, between), (between, target)]
    return tuple(step for a, b in halves for step in _steps(shape, itemsize, a, b, mesh, topology))


def _common_mesh(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> Mesh | None:
    """The mesh of the sub-axes that both sides have in common; None if there is none, or it cuts otherwise."""
    try:
        fine = refinement(mesh, source, target)
        even = fine is mesh or all(splits_evenly(sharding, fine, shape) for sharding in (source, target))
    except ShardingError:
        return None
    return fine if even else None


def _reduced(sharding: Sharding) -> Sharding:
    return Sharding([(axis, p) for axis, p in sharding.entries if p.trait != "partial"], sharding.mesh)


def _merged(step: Step, mesh: Mesh) -> Step:
    """A step over sub-axes with the canonical names of what it moves."""
    source, target = step.source.merged(mesh), step.target.merged(mesh)
    return attrs.evolve(step, axes=mesh.merge(step.axes), source=source, target=target)


def _search(
    shape: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> tuple[Step, ...]:
    free, places = _free_axes(source, target, mesh), _useful_places(shape, source, target, mesh)
    pending = tuple((axis, p) for axis, p in target.entries if p.trait not in ("shard", "replicated"))
    rest = functools.cache(lambda here: _at_least(shape, itemsize, here, target, mesh, topology))
    reshaped = bool(reshaped_axes(source, target))
    demanding = any(place.is_demanding for place in places)
    best: dict[Sharding, Reached] = {source: (0, 0.0, 0)}
    reached_by: dict[Sharding, Step] = {}
    order = itertools.count()
    queue: list[tuple[Reached, int, Reached, Sharding, Step | None]] = []

    def enqueue(key: Reached, step: Step) -> None:
        """Take the way by `step`, whose source is reached at `key`, if it is the best one to its target so far."""
        cost = step_cost(step, shape, itemsize, mesh, topology)
        reached = _sum(key, _charged(step, cost))
        if reached < best.get(step.target, _UNREACHED):
            best[step.target], reached_by[step.target] = reached, step
            heapq.heappush(queue, (_sum(reached, rest(step.target)), next(order), reached, step.target, None))

    heapq.heappush(queue, (rest(source), next(order), best[source], source, None))
    while queue:
        _, _, key, here, unpriced = heapq.heappop(queue)
        if unpriced is not None:
            enqueue(key, unpriced)
            continue
        if here == target:
            break
        if key > best[here]:
            continue
        steps = _moves(here, pending, free, places, len(shape), mesh)
        for step in (*steps, *_exchanges(here, target, mesh)):
            if reshaped and reshaped_axes(here, step.target) - set(step.axes):
                continue
            if demanding and not _is_possible(step.target, mesh, shape):
                continue
            if best.get(step.target, _UNREACHED) <= key or _sum(key, rest(step.target)) >= best.get(target, _UNREACHED):
                continue
            if mesh.root is not None and not splits_evenly(step.target, mesh, shape):
                continue
            if step.kind == "permute" and not _permutes(step.source, step.target, shape, mesh):
                continue
            if step.kind not in LOADS:
                enqueue(key, step)
                continue
            # What an exchange moves is long to find, so that is put off until no other way can be as good.
            least = _sum(key, _charged(step, least_cost(step, shape, itemsize, mesh, topology)))
            soonest = _sum(least, rest(step.target))
            if least < best.get(step.target, _UNREACHED) and soonest < best.get(target, _UNREACHED):
                heapq.heappush(queue, (soonest, next(order), key, step.target, step))
    if target not in best:
        raise ShardingError(f"no step leads from <{source}> to <{target}>; a placement declares too few edges")
    steps, here = [], target
    while here != source:
        steps.append(reached_by[here])
        here = steps[-1].source
    return tuple(reversed(steps))


@functools.cache
def _is_possible(sharding: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` can be held so, where placements ask for certain shapes."""
    try:
        sharding.check_shape(mesh, shape)
    except ShardingError:
        return False
    return True


def _charged(step: Step, cost: Cost) -> Reached:
    extra = _RELAY_GAIN if step.kind == "relay" else 0
    return (round(cost.seconds / _TICK) + extra, cost.wire_bytes, 1)


def _sum(a: Reached, b: Reached) -> Reached:
    return (a[0] + b[0], a[1] + b[1], a[2] + b[2])


def _at_least(
    shape: tuple[int, ...], itemsize: int, here: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> Reached:
    """What remains from `here` at the least: the bytes of the lower bound, at once, over the fastest links."""
    wire = lower_bound(shape, itemsize, here, target, mesh)
    if not wire:
        return (0, 0.0, float(here != target))
    # A tick less, for a plan's own times are rounded.
    seconds = topology.base_latency + wire / max(topology.intra_bandwidth, topology.inter_bandwidth)
    return (math.floor(seconds / _TICK) - 1, wire * (1 - 1e-12), 1)


def _free_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """The axes that the search may move, in mesh order.

    Kept still are, on each dimension, the outer axes that both sides have in common. An axis that is replicated, or
    pending, on both sides is free: another collective may run on slices; but not if it has one rank only.
    """
    still = {axis for axis, size in mesh.axes if size == 1 and source[axis] == target[axis]}
    for dim in {placement.dim for _, placement in source.entries if placement.dim is not None}:
        pairs = zip(source.dim_axes(dim), target.dim_axes(dim), strict=False)
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1] and source[pair[0]] == target[pair[0]], pairs)
        still.update(axis for axis, _ in alike)
    return tuple(axis for axis in mesh.axis_names if axis not in still)


def _useful_places(
    shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh
) -> tuple[ShardPlacement, ...]:
    """How axes may divide: as they do on either side, and by S each dimension that they divide there and two others.

    Of these the largest can be divided most evenly; the first longer than 1 is cut and put together without copies.
    """
    given = [placement for _, placement in (*source.entries, *target.entries) if isinstance(placement, ShardPlacement)]
    used = {placement.dim for placement in given}
    others = [dim for dim in range(len(shape)) if dim not in used]
    largest = sorted(others, key=lambda dim: (-shape[dim], dim))[:1]
    first = [dim for dim in others if shape[dim] > 1][:1]
    return tuple(dict.fromkeys([*map(Shard, sorted({*used, *largest, *first})), *given]))


@functools.cache
def _moves(
    source: Sharding,
    pending: tuple[tuple[str, Placement], ...],
    free: tuple[str, ...],
    places: tuple[ShardPlacement, ...],
    rank: int,
    mesh: Mesh,
) -> tuple[Step, ...]:
    """The steps from `source` that move `free` axes to `places`, towards the wanted `pending` placements.

    Shapes do not come in, so the steps are found once for all tensors of one rank; permutes are those that even
    division allows. A step that a placement declares stands for the one that its trait would give.
    """
    shape = (0,) * rank
    steps: list[Step] = []

    def add(kind: str, axes: Sequence[str], to: Placement | None = None, **given: Any) -> None:
        target = Sharding([(axis, to) for axis in axes], source.mesh) if to is not None else None
        if not reshaped_axes(source) and moves_jointly(axes, [source, *([target] if target else [])]):
            steps.append(make_step(kind, source, mesh, shape, axes=axes, target=target, **given))

    def of_trait(trait: str, to: Placement) -> list[str]:
        axes = [axis for axis in free if source[axis].trait == trait]
        return [axis for axis in axes if edge_between(source[axis], to) is None]

    for place in places:
        for axes in _choices(of_trait("replicated", place)):
            add("slice", axes, place, dim=place.dim)
        for axes in _choices(of_trait("partial", place)):
            add("reduce_scatter", axes, place, dim=place.dim)
    for dim in dict.fromkeys(place.dim for place in places):
        movable = tuple(itertools.takewhile(lambda axis: axis in free, reversed(source.dim_axes(dim))))[::-1]
        for start in range(len(movable)):
            axes = movable[start:]
            if set(axes) <= {*of_trait("shard", R)}:
                add("all_gather", axes, dim=dim)
            for place in places:
                if place.dim != dim and set(axes) <= {*of_trait("shard", place)}:
                    add("all_to_all", axes, place, dim=dim, to_dim=place.dim)
    reducible = of_trait("partial", R)
    for axes in _subsets(reducible):
        add("all_reduce", axes)
    for placement in dict.fromkeys(p for _, p in pending if isinstance(p, PartialPlacement) and p.holds_whole):
        replicated = of_trait("replicated", placement)
        axes = tuple(axis for axis, wanted in pending if wanted == placement and axis in replicated)
        for chosen in _subsets(axes):
            add("partition", chosen, placement, op=placement.op)
    return (*steps, *_conversions(source, pending, free, places, mesh), *_permutes_from(source, free, places, mesh))


def _conversions(
    source: Sharding,
    pending: tuple[tuple[str, Placement], ...],
    free: tuple[str, ...],
    places: tuple[ShardPlacement, ...],
    mesh: Mesh,
) -> Iterator[Step]:
    """The steps that placements declare. Inexact ones lead to a placement only where it is wanted."""
    wanted = {placement for _, placement in pending}
    for before in dict.fromkeys(source[axis] for axis in free):
        named = [parse_placement(e.target) for e in before.edges() if e.target and e.target not in TRAITS]
        for after in dict.fromkeys([R, *places, *named, *(placement for _, placement in pending)]):
            edge = edge_between(before, after) if after != before and (after in wanted or not after.error) else None
            if edge is None:
                continue
            axes = [axis for axis in free if source[axis] == before]
            for chosen in _choices(axes) if after.dim is not None else _subsets(axes):
                rest = [entry for entry in source.entries if entry[0] not in chosen]
                target = Sharding([*rest, *((axis, after) for axis in chosen)], source.mesh)
                if not moves_jointly(chosen, (source, target)):
                    continue
                if before.dim is None or source.dim_axes(before.dim)[-len(chosen) :] == chosen:
                    yield Step("convert", tuple(axis for axis in mesh.axis_names if axis in chosen), source, target)


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every choice of one or more of `axes`, in their order."""
    return itertools.chain.from_iterable(itertools.combinations(axes, length + 1) for length in range(len(axes)))


def _choices(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every ordered choice of one or more of `axes`."""
    return itertools.chain.from_iterable(itertools.permutations(axes, length + 1) for length in range(len(axes)))


def _permutes_from(
    source: Sharding, free: tuple[str, ...], places: tuple[ShardPlacement, ...], mesh: Mesh
) -> Iterator[Step]:
    """Permutes to the shardings that divide each dimension into as many pieces, by other or reordered axes.

    Pieces that are no blocks go from rank to rank by an exchange.
    """
    if any(source[axis].trait == "shard" and not source[axis].splits for axis in free):
        return
    still = [(axis, placement) for axis, placement in source.entries if axis not in free or placement.dim is None]
    usable = tuple(axis for axis in free if source[axis].trait in ("replicated", "shard"))
    dims = dict.fromkeys(place.dim for place in places)
    counts = tuple((dim, mesh.group_size(axis for axis in source.dim_axes(dim) if axis in free)) for dim in dims)
    for layout in _layouts(counts, usable, mesh):
        target = Sharding([*still, *layout], source.mesh)
        if target != source:
            yield Step("permute", permuted_axes(source, target, mesh), source, target)


def _layouts(
    counts: tuple[tuple[int, int], ...], axes: tuple[str, ...], mesh: Mesh
) -> Iterator[tuple[tuple[str, Shard], ...]]:
    """Every way to divide each (dim, count) by an ordered choice of `axes` whose sizes multiply to count."""
    if not counts:
        yield ()
        return
    (dim, count), rest = counts[0], counts[1:]
    for chosen in ((), *_choices(axes)):
        if mesh.group_size(chosen) == count:
            for tail in _layouts(rest, tuple(axis for axis in axes if axis not in chosen), mesh):
                yield (*((axis, Shard(dim)) for axis in chosen), *tail)


EXCHANGED_RANKS = 64
"""The largest group for which an exchange is planned: what each rank gets of each other one is found rank by rank."""


def _exchanges(source: Sharding, target: Sharding, mesh: Mesh) -> Iterator[Step]:
    """The exchange to the target, and the one after which only pending reductions are left to do."""
    there = [(a, p) for a, p in target.entries if p.trait == "shard" and source[a].trait not in ("partial", "other")]
    later = Sharding([*there, *((a, p) for a, p in source.entries if p.trait in ("partial", "other"))], source.mesh)
    for wanted in dict.fromkeys((target, later)):
        kinds = ("exchange", "relay") if source.partial or wanted.partial else ("exchange",)
        for kind in kinds:
            axes = WHOLE_MOVES[kind].axes(source, wanted, mesh)
            small = source != wanted and axes and mesh.group_size(axes) <= EXCHANGED_RANKS
            if small and unmovable(kind, source, wanted) is None:
                yield Step(kind, axes, source, wanted)


@functools.cache
def _permutes(source: Sharding, target: Sharding, shape: tuple[int, ...], mesh: Mesh) -> bool:
    """Whether a permute that is legal under even division is legal for this shape."""
    for dim, size in enumerate(shape):
        before, after = (_counted(side, dim, mesh) for side in (source, target))
        if before != after and _pieces(size, before) != _pieces(size, after):
            return False
    if all(size % mesh.group_size(source.dim_axes(dim)) == 0 for dim, size in enumerate(shape)):
        return True
    try:
        senders(source, target, mesh, shape)
    except ShardingError:
        return False
    return True


def _counted(sharding: Sharding, dim: int, mesh: Mesh) -> tuple[tuple[Placement, int], ...]:
    return tuple((sharding[axis], mesh.sizes[axis]) for axis in sharding.dim_axes(dim))


@functools.cache
def _pieces(size: int, cuts: tuple[tuple[Placement, int], ...]) -> list[int]:
    """Lengths of the pieces of `size` elements that are not empty, in order, cut one after the other."""
    lengths = [size]
    for placement, count in cuts:
        assert isinstance(placement, ShardPlacement)
        lengths = [length(placement.ranges(held, count, index)) for held in lengths for index in range(count)]
    return [held for held in lengths if held]
