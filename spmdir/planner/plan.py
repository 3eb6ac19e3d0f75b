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
from spmdir.placement import Partial, Shard, chunk
from spmdir.planner.bound import lower_bound
from spmdir.planner.cost import step_cost
from spmdir.planner.steps import (
    WHOLE_MOVES,
    Step,
    leaves_average,
    make_step,
    permuted_axes,
    refinement,
    senders,
    splits_evenly,
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


@functools.cache
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
        sharding.check(mesh, len(shape))
        if sharding.mesh != mesh.name:
            raise ShardingError(f"<{sharding}> is on mesh @{sharding.mesh}; expected mesh @{mesh.name}")
        for axis, placement in sharding.entries:
            if type(placement) not in (Shard, Partial):
                raise ShardingError(f"a reshard cannot have {placement} on axis '{axis}'; expected R, S(dim) or P(op)")


def _steps(
    shape: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> tuple[Step, ...]:
    """The steps, found over the sub-axes that both sides have in common; if they have none, by way of whole axes.

    Reductions of different kinds do not commute, so one is done before another one is pending.
    """
    kinds = {"sum" if op == "avg" else op for sharding in (source, target) for _, op in sharding.partial}
    if len(kinds) > 1:
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
    try:
        fine = refinement(mesh, source, target)
    except ShardingError:
        fine = None
    if fine is mesh:
        return _search(shape, itemsize, source, target, mesh, topology)
    if fine and all(splits_evenly(sharding, fine, shape) for sharding in (source, target)):
        steps = _search(shape, itemsize, source.refined(fine), target.refined(fine), fine, topology)
        return tuple(_merged(step, mesh) for step in steps)
    split = {mesh.whole(axis) for side in (source, target) for axis, _ in side.entries if is_part(axis)}
    between = Sharding([(axis, p) for axis, p in source.entries if mesh.whole(axis) not in split], source.mesh)
    halves = [(source, between), (between, target)]
    return tuple(step for a, b in halves for step in _steps(shape, itemsize, a, b, mesh, topology))


def _reduced(sharding: Sharding) -> Sharding:
    return Sharding([(axis, p) for axis, p in sharding.entries if p.trait != "partial"], sharding.mesh)


def _merged(step: Step, mesh: Mesh) -> Step:
    """A step over sub-axes with the canonical names of what it moves."""
    source, target = step.source.merged(mesh), step.target.merged(mesh)
    return attrs.evolve(step, axes=mesh.merge(step.axes), source=source, target=target)


def _search(
    shape: tuple[int, ...], itemsize: int, source: Sharding, target: Sharding, mesh: Mesh, topology: Topology
) -> tuple[Step, ...]:
    free, dims = _free_axes(source, target, mesh), _useful_dims(shape, source, target, mesh)
    least = functools.cache(lambda here, there: _at_least(shape, itemsize, here, there, mesh, topology))
    rest = functools.partial(least, there=target)
    best: dict[Sharding, Reached] = {source: (0, 0.0, 0)}
    reached_by: dict[Sharding, Step] = {}
    order = itertools.count()
    queue = [(rest(source), next(order), best[source], source)]
    while queue:
        _, _, key, here = heapq.heappop(queue)
        if here == target:
            break
        if key > best[here]:
            continue
        steps = _moves(here, target.partial, free, dims, len(shape), mesh)
        for step in (*steps, *_exchanges(here, target, mesh)):
            if best.get(step.target, _UNREACHED) <= key or _sum(key, rest(step.target)) >= best.get(target, _UNREACHED):
                continue
            if mesh.root is not None and not splits_evenly(step.target, mesh, shape):
                continue
            if step.kind == "permute" and not _permutes(step.source, step.target, shape, mesh):
                continue
            extra = _RELAY_GAIN if step.kind == "relay" else 0
            if extra and best.get(step.target, _UNREACHED)[0] <= key[0] + extra + least(step.source, step.target)[0]:
                continue
            cost = step_cost(step, shape, itemsize, mesh, topology)
            reached = _sum(key, (round(cost.seconds / _TICK) + extra, cost.wire_bytes, 1))
            if reached < best.get(step.target, _UNREACHED):
                best[step.target], reached_by[step.target] = reached, step
                heapq.heappush(queue, (_sum(reached, rest(step.target)), next(order), reached, step.target))
    steps, here = [], target
    while here != source:
        steps.append(reached_by[here])
        here = steps[-1].source
    return tuple(reversed(steps))


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
        still.update(axis for axis, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return tuple(axis for axis in mesh.axis_names if axis not in still)


def _useful_dims(shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """The dimensions that either side divides, and the largest other one as a place to divide on the way."""
    used = {placement.dim for _, placement in (*source.entries, *target.entries) if placement.dim is not None}
    others = sorted((dim for dim in range(len(shape)) if dim not in used), key=lambda dim: (-shape[dim], dim))
    return tuple(sorted([*used, *others[:1]]))


@functools.cache
def _moves(
    source: Sharding,
    pending: tuple[tuple[str, str], ...],
    free: tuple[str, ...],
    dims: tuple[int, ...],
    rank: int,
    mesh: Mesh,
) -> tuple[Step, ...]:
    """The steps from `source` that move `free` axes within `dims`, towards the wanted `pending` reductions.

    Shapes do not come in, so the steps are found once for all tensors of one rank; permutes are those that even
    division allows.
    """
    shape = (0,) * rank
    replicated = [axis for axis in free if source[axis].trait == "replicated"]
    reducible = [axis for axis in free if source[axis].trait == "partial"]
    steps: list[Step] = []

    def add(kind: str, **given: Any) -> None:
        steps.append(make_step(kind, source, mesh, shape, **given))

    for dim in dims:
        for axes in _choices(replicated):
            add("slice", axes=axes, dim=dim)
        for axes in _choices(reducible):
            add("reduce_scatter", axes=axes, dim=dim)
        movable = tuple(itertools.takewhile(lambda axis: axis in free, reversed(source.dim_axes(dim))))[::-1]
        for start in range(len(movable)):
            add("all_gather", axes=movable[start:], dim=dim)
            for to_dim in dims:
                if to_dim != dim:
                    add("all_to_all", axes=movable[start:], dim=dim, to_dim=to_dim)
    for length in range(1, len(reducible) + 1):
        for axes in itertools.combinations(reducible, length):
            add("all_reduce", axes=axes)
    for op in dict.fromkeys(op for _, op in pending):
        axes = tuple(axis for axis, wanted in pending if wanted == op and axis in replicated)
        for length in range(1, len(axes) + 1):
            for chosen in itertools.combinations(axes, length):
                add("partition", axes=chosen, op=op)
    return (*steps, *_permutes_from(source, free, dims, mesh))


def _choices(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every ordered choice of one or more of `axes`."""
    return itertools.chain.from_iterable(itertools.permutations(axes, length + 1) for length in range(len(axes)))


def _permutes_from(source: Sharding, free: tuple[str, ...], dims: tuple[int, ...], mesh: Mesh) -> Iterator[Step]:
    """Permutes to the shardings that divide each dimension into as many pieces, by other or reordered axes."""
    still = [(axis, placement) for axis, placement in source.entries if axis not in free or placement.dim is None]
    usable = tuple(axis for axis in free if source[axis].trait != "partial")
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
    there = [(a, p) for a, p in target.entries if p.trait == "shard" and source[a].trait != "partial"]
    later = Sharding([*there, *((a, p) for a, p in source.entries if p.trait == "partial")], source.mesh)
    for wanted in dict.fromkeys((target, later)):
        kinds = ("exchange", "relay") if source.partial or wanted.partial else ("exchange",)
        for kind in kinds if not leaves_average(source, wanted) else ():
            axes = WHOLE_MOVES[kind].axes(source, wanted, mesh)
            if source != wanted and axes and mesh.group_size(axes) <= EXCHANGED_RANKS:
                yield Step(kind, axes, source, wanted)


@functools.cache
def _permutes(source: Sharding, target: Sharding, shape: tuple[int, ...], mesh: Mesh) -> bool:
    """Whether a permute that is legal under even division is legal for this shape."""
    for dim, size in enumerate(shape):
        before, after = (tuple(mesh.sizes[axis] for axis in side.dim_axes(dim)) for side in (source, target))
        if before != after and _pieces(size, before) != _pieces(size, after):
            return False
    if all(size % mesh.group_size(source.dim_axes(dim)) == 0 for dim, size in enumerate(shape)):
        return True
    try:
        senders(source, target, mesh, shape)
    except ShardingError:
        return False
    return True


@functools.cache
def _pieces(size: int, counts: tuple[int, ...]) -> list[int]:
    """Lengths of the pieces of `size` elements that are not empty, in order, cut into `counts` nested pieces."""
    lengths = [size]
    for count in counts:
        lengths = [chunk(length, count, index)[1] for length in lengths for index in range(count)]
    return [length for length in lengths if length]
