"""The edges of the search graph of a plan: the steps that lead from one sharding towards another."""

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
from spmdir.reshard.collectives import collectives_between
from spmdir.reshard.conditions import blocking_axes, can_move_together, has_declared_step
from spmdir.reshard.multi_axis_steps import find_obstacle
from spmdir.reshard.steps import Step, make_step


def free_axes(source: Sharding, target: Sharding, mesh: Mesh) -> tuple[str, ...]:
    """Return the axes that the search may move, in mesh order.

    On each dimension, the outermost axes that both shardings have in common do not move. An axis that is replicated or
    partial on both sides may move, because another collective may run on slices along it. An axis of one rank moves
    only if its placement changes.
    """
    fixed = {axis for axis, size in mesh.axes if size == 1 and source[axis] == target[axis]}
    for dim in {placement.dim for _, placement in source.entries if placement.dim is not None}:
        pairs = zip(source.dim_axes(dim), target.dim_axes(dim), strict=False)
        common_axes = itertools.takewhile(lambda pair: pair[0] == pair[1] and source[pair[0]] == target[pair[0]], pairs)
        fixed.update(axis for axis, _ in common_axes)
    return tuple(axis for axis in mesh.axis_names if axis not in fixed)


def useful_placements(
    shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh
) -> tuple[ShardPlacement, ...]:
    """Return the shard placements that the search may use.

    These are the placements of either side, `S` on each dimension that either side shards, and `S` on two others: the
    largest dimension, which shards most evenly, and the first one longer than 1, which needs no copies.
    """
    used_placements = [
        placement for _, placement in (*source.entries, *target.entries) if isinstance(placement, ShardPlacement)
    ]
    used = {placement.dim for placement in used_placements}
    unsharded_dims = [dim for dim in range(len(shape)) if dim not in used]
    largest = sorted(unsharded_dims, key=lambda dim: (-shape[dim], dim))[:1]
    first = [dim for dim in unsharded_dims if shape[dim] > 1][:1]
    return tuple(dict.fromkeys([*map(Shard, sorted({*used, *largest, *first})), *used_placements]))


@functools.lru_cache(maxsize=4096)
def find_moves(
    source: Sharding,
    partial: tuple[tuple[str, Placement], ...],
    free: tuple[str, ...],
    shard_placements: tuple[ShardPlacement, ...],
    mesh: Mesh,
    collectives: tuple[CollectiveSpec, ...],
) -> tuple[Step, ...]:
    """Return the steps from `source` that move `free` axes, except exchanges.

    The steps do not depend on the shape, so they are found once for all tensors. A permute is included if even division
    allows it; `is_legal` checks the shape. A step that a placement declares replaces the step of its trait. No step
    leads to partial values of several kinds, because reductions of different kinds do not commute.

    Args:
        partial: the placements of the target that are neither replicated nor shards, by axis.
        free: the axes that may move.
        shard_placements: the shard placements that the axes may take.
    """
    steps: list[Step] = []

    def add(spec: CollectiveSpec, axes: Sequence[str], to: Placement | None = None, **clauses: Any) -> None:
        step = _make_move(spec, source, mesh, tuple(axes), to, **clauses)
        if step is not None:
            steps.append(step)

    def of_trait(trait: str, to: Placement) -> list[str]:
        axes = [axis for axis in free if source[axis].trait == trait]
        return [axis for axis in axes if not has_declared_step(source[axis], to)]

    by_traits = functools.partial(collectives_between, collectives=collectives)
    for shard, before in itertools.product(shard_placements, ("replicated", "partial")):
        for spec in by_traits(before, "shard"):
            for axes in _choices(of_trait(before, shard)):
                add(spec, axes, shard, dim=shard.dim)
    for dim in dict.fromkeys(place.dim for place in shard_placements):
        movable = tuple(itertools.takewhile(lambda axis: axis in free, reversed(source.dim_axes(dim))))[::-1]
        for start in range(len(movable)):
            axes = movable[start:]
            for spec in by_traits("shard", "replicated") if set(axes) <= {*of_trait("shard", R)} else ():
                add(spec, axes, dim=dim)
            for spec, shard in itertools.product(by_traits("shard", "shard"), shard_placements):
                if shard.dim != dim and set(axes) <= {*of_trait("shard", shard)}:
                    add(spec, axes, shard, dim=dim, to_dim=shard.dim)
    for spec in by_traits("partial", "replicated"):
        for axes in _subsets(of_trait("partial", R)):
            add(spec, axes)
    for placement in dict.fromkeys(p for _, p in partial if isinstance(p, PartialPlacement) and p.from_replicated):
        if not source.kinds <= {placement.kind}:
            continue
        replicated = of_trait("replicated", placement)
        axes = tuple(axis for axis, wanted in partial if wanted == placement and axis in replicated)
        for spec, chosen in itertools.product(by_traits("replicated", "partial"), _subsets(axes)):
            add(spec, chosen, placement, reduction=placement.op)
    for spec in collectives:
        if spec.moves == "edge":
            steps += _declared_steps(spec, source, partial, free, shard_placements, mesh)
    for spec in collectives:
        if spec.moves == "shards":
            targets = _permuted_targets(source, free, shard_placements, mesh)
            steps += [Step(spec.name, spec.group_axes(source, to, mesh), source, to) for to in targets]
    return tuple(steps)


@functools.lru_cache(maxsize=65536)
def _make_move(
    spec: CollectiveSpec, source: Sharding, mesh: Mesh, axes: tuple[str, ...], to: Placement | None, **clauses: Any
) -> Step | None:
    """Return the step of a collective that gives `axes` the placement `to`; None if it cannot move them together.

    Args:
        clauses: further arguments of `make_step`.
    """
    target = Sharding([(axis, to) for axis in axes], source.mesh) if to is not None else None
    if not can_move_together(spec, axes, [source, *([target] if target else [])]):
        return None
    if source.has_own_type and blocking_axes(spec, axes, source, target or source):
        return None
    dims = (*(placement.dim for _, placement in source.entries), clauses.get("dim"), clauses.get("to_dim"))
    rank = 1 + max((dim for dim in dims if dim is not None), default=-1)
    return make_step(spec.name, source, mesh, (0,) * rank, axes=axes, target=target, **clauses)


def _declared_steps(
    spec: CollectiveSpec,
    source: Sharding,
    partial: tuple[tuple[str, Placement], ...],
    free: tuple[str, ...],
    shard_placements: tuple[ShardPlacement, ...],
    mesh: Mesh,
) -> Iterator[Step]:
    """Yield the steps that placements declare."""
    for before in dict.fromkeys(source[axis] for axis in free):
        declared_targets = [parse_placement(e.target) for e in before.edges() if e.target and e.target not in TRAITS]
        for after in dict.fromkeys([R, *shard_placements, *declared_targets, *(placement for _, placement in partial)]):
            if after == before or edge_between(before, after) is None:
                continue
            axes = [axis for axis in free if source[axis] == before]
            for chosen in _choices(axes) if after.dim is not None else _subsets(axes):
                other_entries = [entry for entry in source.entries if entry[0] not in chosen]
                target = Sharding([*other_entries, *((axis, after) for axis in chosen)], source.mesh)
                if len(target.kinds) > 1 or not can_move_together(spec, chosen, (source, target)):
                    continue
                if before.dim is None or source.dim_axes(before.dim)[-len(chosen) :] == chosen:
                    yield Step(spec.name, tuple(axis for axis in mesh.axis_names if axis in chosen), source, target)


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every choice of one or more of `axes`, in their order."""
    return itertools.chain.from_iterable(itertools.combinations(axes, length + 1) for length in range(len(axes)))


def _choices(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every ordered choice of one or more of `axes`."""
    return itertools.chain.from_iterable(itertools.permutations(axes, length + 1) for length in range(len(axes)))


def _permuted_targets(
    source: Sharding, free: tuple[str, ...], shard_placements: tuple[ShardPlacement, ...], mesh: Mesh
) -> Iterator[Sharding]:
    """Yield the shardings that cut each dimension into as many chunks as `source`, by other or reordered axes.

    If a placement has chunks that are not contiguous blocks, there are none: an exchange moves such chunks.
    """
    if any(source[axis].trait == "shard" and not source[axis].splits for axis in free):
        return
    fixed_entries = [
        (axis, placement) for axis, placement in source.entries if axis not in free or placement.dim is None
    ]
    usable_axes = tuple(axis for axis in free if source[axis].trait in ("replicated", "shard"))
    dims = dict.fromkeys(place.dim for place in shard_placements)
    counts = tuple((dim, mesh.group_size(axis for axis in source.dim_axes(dim) if axis in free)) for dim in dims)
    for layout in _layouts(counts, usable_axes, mesh):
        target = Sharding([*fixed_entries, *layout], source.mesh)
        if target != source:
            yield target


def _layouts(
    counts: tuple[tuple[int, int], ...], axes: tuple[str, ...], mesh: Mesh
) -> Iterator[tuple[tuple[str, Shard], ...]]:
    """Yield every way to shard each (dim, count) by an ordered choice of `axes` whose sizes multiply to count."""
    if not counts:
        yield ()
        return
    (dim, count), remaining_counts = counts[0], counts[1:]
    for chosen in _axes_of_product(count, tuple((axis, mesh.sizes[axis]) for axis in axes)):
        for remaining_layout in _layouts(remaining_counts, tuple(axis for axis in axes if axis not in chosen), mesh):
            yield (*((axis, Shard(dim)) for axis in chosen), *remaining_layout)


@functools.lru_cache(maxsize=65536)
def _axes_of_product(count: int, axes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, ...], ...]:
    """Return the ordered choices of (axis, size) pairs whose sizes multiply to `count`, shortest first."""

    def chosen(count: int, indices: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if count == 1:
            yield indices
        for index, (_, size) in enumerate(axes):
            if index not in indices and count % size == 0:
                yield from chosen(count // size, (*indices, index))

    choices = sorted(chosen(count, ()), key=lambda indices: (len(indices), indices))
    return tuple(tuple(axes[index][0] for index in indices) for indices in choices)


def find_exchanges(
    source: Sharding, target: Sharding, mesh: Mesh, collectives: tuple[CollectiveSpec, ...]
) -> Iterator[Step]:
    """Yield the exchanges from `source` to the target, and to two intermediate shardings.

    The first has the shards of the target and the partial values of the source: only reductions remain. The second is
    the target without its partial values, if source and target have reductions of different kinds: those of the source
    must be done before those of the target begin.
    """
    sharded_entries = [
        (a, p) for a, p in target.entries if p.trait == "shard" and source[a].trait not in ("partial", "other")
    ]
    unreduced = Sharding(
        [*sharded_entries, *((a, p) for a, p in source.entries if p.trait in ("partial", "other"))], source.mesh
    )
    mixed = len(source.kinds | target.kinds) > 1
    without_partials = (
        [Sharding([(axis, p) for axis, p in target.entries if p.kind is None], source.mesh)] if mixed else []
    )
    for goal in dict.fromkeys((target, unreduced, *without_partials)):
        for spec in collectives:
            if spec.moves != "elements":
                continue
            if spec.traffic.rounds > 1 and not (source.partial or goal.partial):
                continue  # there is nothing to reduce in between
            axes = spec.group_axes(source, goal, mesh)
            is_small = source != goal and axes and mesh.group_size(axes) <= EXCHANGED.most
            if is_small and find_obstacle(spec, source, goal) is None:
                yield Step(spec.name, axes, source, goal)


@functools.lru_cache(maxsize=65536)
def is_legal(step: Step, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Return whether a step is legal for `shape`. Steps that name no axes are found without the shape."""
    if step.spec.check is None:
        return True
    try:
        step.spec.check(step.spec, step.source, step.target, mesh, shape)
    except ShardingError:
        return False
    return True
