"""The steps that lead on from a sharding, towards another one: what the search of a plan goes along."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from spmdir.core.errors import ShardingError
from spmdir.core.limits import EXCHANGED
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import (
    TRAITS,
    PartialPlacement,
    Placement,
    ShardPlacement,
    edge_between,
    parse_placement,
)
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R, Shard
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.collectives import between
from spmdir.reshard.conditions import blocking_axes, has_own_step, moves_jointly
from spmdir.reshard.multi_axis_steps import unmovable
from spmdir.reshard.steps import Step, make_step


def free_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that the search may move, in mesh order.

    Kept still are, on each dimension, the outer axes that both sides have in common. An axis that is replicated, or
    partial, on both sides is free: another collective may run on slices; but not if it has one rank only.
    """
    still = {axis for axis, size in mesh.axes if size == 1 and source[axis] == target[axis]}
    for dim in {placement.dim for _, placement in source.entries if placement.dim is not None}:
        pairs = zip(source.dim_axes(dim), target.dim_axes(dim), strict=False)
        alike = itertools.takewhile(lambda pair: pair[0] == pair[1] and source[pair[0]] == target[pair[0]], pairs)
        still.update(axis for axis, _ in alike)
    return tuple(axis for axis in mesh.axis_names if axis not in still)


def useful_placements(
    shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh
) -> tuple[ShardPlacement, ...]:
    """Return how axes may shard: as they do on either side, and by S each dimension sharded there and two others.

    The largest of these can be sharded most evenly; the first longer than 1 is split and joined without copies.
    """
    used_placements = [
        placement for _, placement in (*source.entries, *target.entries) if isinstance(placement, ShardPlacement)
    ]
    used = {placement.dim for placement in used_placements}
    others = [dim for dim in range(len(shape)) if dim not in used]
    largest = sorted(others, key=lambda dim: (-shape[dim], dim))[:1]
    first = [dim for dim in others if shape[dim] > 1][:1]
    return tuple(dict.fromkeys([*map(Shard, sorted({*used, *largest, *first})), *used_placements]))


@functools.lru_cache(maxsize=4096)
def moves(
    source: Sharding,
    partial: tuple[tuple[str, Placement], ...],
    free: tuple[str, ...],
    shard_placements: tuple[ShardPlacement, ...],
    mesh: Mesh,
    collectives: tuple[CollectiveSpec, ...],
) -> tuple[Step, ...]:
    """Return the steps from `source` that move `free` axes, towards the wanted `partial` placements.

    The `collectives` are used, but for exchanges. Shapes do not come in, so the steps are found once for all tensors;
    those that move whole shards are the ones that even division allows. A step that a placement declares stands for
    the one that its trait would give. None leads to partial values of different kinds, which do not commute.
    """
    steps: list[Step] = []

    def add(spec: CollectiveSpec, axes: Sequence[str], to: Placement | None = None, **given: Any) -> None:
        step = _move(spec, source, mesh, tuple(axes), to, **given)
        if step is not None:
            steps.append(step)

    def of_trait(trait: str, to: Placement) -> list[str]:
        axes = [axis for axis in free if source[axis].trait == trait]
        return [axis for axis in axes if not has_own_step(source[axis], to)]

    known = functools.partial(between, collectives=collectives)
    for place, before in itertools.product(shard_placements, ("replicated", "partial")):
        for spec in known(before, "shard"):
            for axes in _choices(of_trait(before, place)):
                add(spec, axes, place, dim=place.dim)
    for dim in dict.fromkeys(place.dim for place in shard_placements):
        movable = tuple(itertools.takewhile(lambda axis: axis in free, reversed(source.dim_axes(dim))))[::-1]
        for start in range(len(movable)):
            axes = movable[start:]
            for spec in known("shard", "replicated") if set(axes) <= {*of_trait("shard", R)} else ():
                add(spec, axes, dim=dim)
            for spec, place in itertools.product(known("shard", "shard"), shard_placements):
                if place.dim != dim and set(axes) <= {*of_trait("shard", place)}:
                    add(spec, axes, place, dim=dim, to_dim=place.dim)
    for spec in known("partial", "replicated"):
        for axes in _subsets(of_trait("partial", R)):
            add(spec, axes)
    for placement in dict.fromkeys(p for _, p in partial if isinstance(p, PartialPlacement) and p.from_replicated):
        if not source.kinds <= {placement.kind}:
            continue
        replicated = of_trait("replicated", placement)
        axes = tuple(axis for axis, wanted in partial if wanted == placement and axis in replicated)
        for spec, chosen in itertools.product(known("replicated", "partial"), _subsets(axes)):
            add(spec, chosen, placement, reduction=placement.op)
    for spec in collectives:
        if spec.moves == "edge":
            steps += _conversions(spec, source, partial, free, shard_placements, mesh)
    for spec in collectives:
        if spec.moves == "shards":
            targets = _permuted(source, free, shard_placements, mesh)
            steps += [Step(spec.name, spec.group_axes(source, to, mesh), source, to) for to in targets]
    return tuple(steps)


@functools.lru_cache(maxsize=65536)
def _move(
    spec: CollectiveSpec, source: Sharding, mesh: Mesh, axes: tuple[str, ...], to: Placement | None, **given: Any
) -> Step | None:
    """Return the step by a collective that gives `axes` the placement `to`; None if it cannot move them together.

    Args:
        given: further arguments of `make_step`.
    """
    target = Sharding([(axis, to) for axis in axes], source.mesh) if to is not None else None
    if not moves_jointly(spec, axes, [source, *([target] if target else [])]):
        return None
    if source.has_own_type and blocking_axes(spec, axes, source, target or source):
        return None
    dims = (*(placement.dim for _, placement in source.entries), given.get("dim"), given.get("to_dim"))
    rank = 1 + max((dim for dim in dims if dim is not None), default=-1)
    return make_step(spec.name, source, mesh, (0,) * rank, axes=axes, target=target, **given)


def _conversions(
    spec: CollectiveSpec,
    source: Sharding,
    partial: tuple[tuple[str, Placement], ...],
    free: tuple[str, ...],
    shard_placements: tuple[ShardPlacement, ...],
    mesh: Mesh,
) -> Iterator[Step]:
    """Return the steps that placements declare."""
    for before in dict.fromkeys(source[axis] for axis in free):
        named = [parse_placement(e.target) for e in before.edges() if e.target and e.target not in TRAITS]
        for after in dict.fromkeys([R, *shard_placements, *named, *(placement for _, placement in partial)]):
            if after == before or edge_between(before, after) is None:
                continue
            axes = [axis for axis in free if source[axis] == before]
            for chosen in _choices(axes) if after.dim is not None else _subsets(axes):
                rest = [entry for entry in source.entries if entry[0] not in chosen]
                target = Sharding([*rest, *((axis, after) for axis in chosen)], source.mesh)
                if len(target.kinds) > 1 or not moves_jointly(spec, chosen, (source, target)):
                    continue
                if before.dim is None or source.dim_axes(before.dim)[-len(chosen) :] == chosen:
                    yield Step(spec.name, tuple(axis for axis in mesh.axis_names if axis in chosen), source, target)


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every choice of one or more of `axes`, in their order."""
    return itertools.chain.from_iterable(itertools.combinations(axes, length + 1) for length in range(len(axes)))


def _choices(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every ordered choice of one or more of `axes`."""
    return itertools.chain.from_iterable(itertools.permutations(axes, length + 1) for length in range(len(axes)))


def _permuted(
    source: Sharding, free: tuple[str, ...], shard_placements: tuple[ShardPlacement, ...], mesh: Mesh
) -> Iterator[Sharding]:
    """Yield the other shardings that shard each dimension into as many chunks, by other or reordered axes.

    Chunks that are no blocks go from rank to rank by an exchange.
    """
    if any(source[axis].trait == "shard" and not source[axis].splits for axis in free):
        return
    still = [(axis, placement) for axis, placement in source.entries if axis not in free or placement.dim is None]
    usable = tuple(axis for axis in free if source[axis].trait in ("replicated", "shard"))
    dims = dict.fromkeys(place.dim for place in shard_placements)
    counts = tuple((dim, mesh.group_size(axis for axis in source.dim_axes(dim) if axis in free)) for dim in dims)
    for layout in _layouts(counts, usable, mesh):
        target = Sharding([*still, *layout], source.mesh)
        if target != source:
            yield target


def _layouts(
    counts: tuple[tuple[int, int], ...], axes: tuple[str, ...], mesh: Mesh
) -> Iterator[tuple[tuple[str, Shard], ...]]:
    """Yield every way to shard each (dim, count) by an ordered choice of `axes` whose sizes multiply to count."""
    if not counts:
        yield ()
        return
    (dim, count), rest = counts[0], counts[1:]
    for chosen in _choices_of(count, tuple((axis, mesh.sizes[axis]) for axis in axes)):
        for tail in _layouts(rest, tuple(axis for axis in axes if axis not in chosen), mesh):
            yield (*((axis, Shard(dim)) for axis in chosen), *tail)


@functools.lru_cache(maxsize=65536)
def _choices_of(count: int, axes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, ...], ...]:
    """The ordered choices of (axis, size) pairs whose sizes multiply to `count`, shorter ones first."""

    def chosen(count: int, at: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield at
        for index, (_, size) in enumerate(axes):
            if index not in at and count % size == 0:
                yield from chosen(count // size, (*at, index))

    found = sorted(chosen(count, ()), key=lambda at: (len(at), at))
    return tuple(tuple(axes[index][0] for index in at) for at in found)


def exchanges(
    source: Sharding, target: Sharding, mesh: Mesh, collectives: tuple[CollectiveSpec, ...]
) -> Iterator[Step]:
    """Yield the exchanges to the target, to what only reductions take to it, and to what partial values are made of.

    The last one is for reductions of different kinds, of which one is done before the others begin.
    """
    there = [(a, p) for a, p in target.entries if p.trait == "shard" and source[a].trait not in ("partial", "other")]
    later = Sharding([*there, *((a, p) for a, p in source.entries if p.trait in ("partial", "other"))], source.mesh)
    mixed = len(source.kinds | target.kinds) > 1
    reduced = [Sharding([(axis, p) for axis, p in target.entries if p.kind is None], source.mesh)] if mixed else []
    for wanted in dict.fromkeys((target, later, *reduced)):
        for spec in collectives:
            if spec.moves != "elements":
                continue
            if spec.traffic.rounds > 1 and not (source.partial or wanted.partial):
                continue  # there is nothing to reduce in between
            axes = spec.group_axes(source, wanted, mesh)
            small = source != wanted and axes and mesh.group_size(axes) <= EXCHANGED.most
            if small and unmovable(spec, source, wanted) is None:
                yield Step(spec.name, axes, source, wanted)


@functools.lru_cache(maxsize=65536)
def is_legal(step: Step, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Return whether a step that names no axes, and was found without the shape of the tensor, is legal for `shape`."""
    if step.spec.check is None:
        return True
    try:
        step.spec.check(step.spec, step.source, step.target, mesh, shape)
    except ShardingError:
        return False
    return True
