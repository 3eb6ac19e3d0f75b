"""The edges of the search graph of a plan: the steps that lead from one sharding towards another."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from spmdir.core.errors import ShardingError
from spmdir.core.limits import EXCHANGED
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import TRAITS, PartialPlacement, Placement, edge_between, parse_placement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.shards import ShardPlacement
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
        for source_axis, target_axis in zip(source.dim_axes(dim), target.dim_axes(dim), strict=False):
            if source_axis != target_axis or source[source_axis] != target[source_axis]:
                break
            fixed.add(source_axis)
    return tuple(axis for axis in mesh.axis_names if axis not in fixed)


def useful_placements(
    shape: tuple[int, ...], source: Sharding, target: Sharding, mesh: Mesh
) -> tuple[ShardPlacement, ...]:
    """Return the shard placements that the search may use.

    These are the placements of either side, and `S` on each dimension that either side shards. `S` on two other
    dimensions follows: on the largest one, which shards most evenly, and on the first one longer than 1, which needs no
    copies.
    """
    if any(placement.is_routed for side in (source, target) for _, placement in side.entries):
        return ()
    used_placements = [
        placement for _, placement in (*source.entries, *target.entries) if isinstance(placement, ShardPlacement)
    ]
    sharded_dims = {placement.dim for placement in used_placements}
    unsharded_dims = [dim for dim in range(len(shape)) if dim not in sharded_dims]
    largest = sorted(unsharded_dims, key=lambda dim: (-shape[dim], dim))[:1]
    first = [dim for dim in unsharded_dims if shape[dim] > 1][:1]
    useful_dims = sorted({*sharded_dims, *largest, *first})
    return tuple(dict.fromkeys([*map(Shard, useful_dims), *used_placements]))


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

    For example, if `a` may move, and values may be sharded on dimension 0, `<a: P(sum)>` has the steps all_reduce to
    `<>` and reduce_scatter to `<a: S(0)>`.

    The steps do not depend on the shape, so they are found once for all tensors. A permute is included if even division
    allows it; `is_legal` checks the shape. A step that a placement declares replaces the step of its trait. No step
    leads to partial values of several kinds, because reductions of different kinds do not commute.

    Args:
        partial: (axis, placement) pairs, the placements of the target that are neither replicated nor shards.
        free: the axes that may move.
        shard_placements: the shard placements that the axes may take.
    """
    finder = _MoveFinder(source, partial, free, shard_placements, mesh, collectives)
    return (
        *finder.to_shards(),
        *finder.from_shards(),
        *finder.all_reduces(),
        *finder.partitions(),
        *finder.declared_steps(),
        *finder.permutes(),
    )


@attrs.frozen
class _MoveFinder:
    """Yields the steps of `find_moves`, one kind of step after the other. The attributes are its arguments."""

    source: Sharding
    partial: tuple[tuple[str, Placement], ...]
    free: tuple[str, ...]
    shard_placements: tuple[ShardPlacement, ...]
    mesh: Mesh
    collectives: tuple[CollectiveSpec, ...]

    def to_shards(self) -> Iterator[Step]:
        """Yield slices and reduce_scatters: replicated or partial axes become shards."""
        for shard, before in itertools.product(self.shard_placements, ("replicated", "partial")):
            for spec in collectives_between(before, "shard", self.collectives):
                for axes in _ordered_subsets(self._movable_axes(before, shard)):
                    yield from self._moves(spec, axes, shard, dim=shard.dim)

    def from_shards(self) -> Iterator[Step]:
        """Yield all_gathers and all_to_alls, of the innermost axes of a dimension."""
        gathers = collectives_between("shard", "replicated", self.collectives)
        all_to_alls = collectives_between("shard", "shard", self.collectives)
        for dim in dict.fromkeys(placement.dim for placement in self.shard_placements):
            for axes in _free_inner_axes(self.source, dim, self.free):
                if set(axes) <= {*self._movable_axes("shard", R)}:
                    for spec in gathers:
                        yield from self._moves(spec, axes, dim=dim)
                for spec, shard in itertools.product(all_to_alls, self.shard_placements):
                    if shard.dim != dim and set(axes) <= {*self._movable_axes("shard", shard)}:
                        yield from self._moves(spec, axes, shard, dim=dim, to_dim=shard.dim)

    def all_reduces(self) -> Iterator[Step]:
        """Yield all_reduces: partial axes become replicated."""
        for spec in collectives_between("partial", "replicated", self.collectives):
            for axes in _subsets(self._movable_axes("partial", R)):
                yield from self._moves(spec, axes)

    def partitions(self) -> Iterator[Step]:
        """Yield partitions: replicated axes get a partial placement that the target has there."""
        specs = collectives_between("replicated", "partial", self.collectives)
        for wanted in dict.fromkeys(placement for _, placement in self.partial):
            if not isinstance(wanted, PartialPlacement) or not wanted.from_replicated:
                continue
            if not self.source.kinds <= {wanted.kind}:
                continue  # the value would have partial values of two kinds
            replicated_axes = self._movable_axes("replicated", wanted)
            wanted_axes = [axis for axis, placement in self.partial if placement == wanted and axis in replicated_axes]
            for spec, axes in itertools.product(specs, _subsets(wanted_axes)):
                yield from self._moves(spec, axes, wanted, reduction=wanted.op)

    def declared_steps(self) -> Iterator[Step]:
        """Yield the steps that placements declare as edges."""
        for spec in self.collectives:
            if spec.moves == "edge":
                yield from _declared_steps(spec, self.source, self.partial, self.free, self.shard_placements, self.mesh)

    def permutes(self) -> Iterator[Step]:
        """Yield permutes: other axes, or the same in another order, cut dimensions into as many chunks."""
        for spec in self.collectives:
            if spec.moves == "shards":
                for target in _permuted_targets(self.source, self.free, self.shard_placements, self.mesh):
                    yield Step(spec.name, spec.group_axes(self.source, target, self.mesh), self.source, target)

    def _movable_axes(self, trait: str, to: Placement) -> list[str]:
        """Return the free axes of `trait` that no declared step takes to the placement `to`."""
        axes = [axis for axis in self.free if self.source[axis].trait == trait]
        return [axis for axis in axes if not has_declared_step(self.source[axis], to)]

    def _moves(
        self, spec: CollectiveSpec, axes: tuple[str, ...], to: Placement | None = None, **clauses: Any
    ) -> Iterator[Step]:
        """Yield the step that gives `axes` the placement `to`, if `spec` can move them together."""
        step = _make_move(spec, self.source, self.mesh, axes, to, **clauses)
        if step is not None:
            yield step


def _free_inner_axes(source: Sharding, dim: int, free: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the innermost axes of a dimension that may move together, the longest choice first.

    For example, if `a`, `b` and `c` shard the dimension in this order, and `a` may not move: (b, c) and (c).
    """
    axes = source.dim_axes(dim)
    count = len(list(itertools.takewhile(lambda axis: axis in free, reversed(axes))))
    for start in range(len(axes) - count, len(axes)):
        yield tuple(axes[start:])


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
    # The sizes do not matter here: any tensor with all these dimensions will do.
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
    """Yield the steps that placements declare as edges. The arguments are those of `find_moves`.

    For example, `Mx` on a and b declares an edge to R. If `Mx` may be on several axes at once (`splits`), the steps
    take a, b, or both to R.
    """
    for before in dict.fromkeys(source[axis] for axis in free):
        # An edge may also name a trait as its target. R, shards and the placements of the target are tried below.
        declared_targets = [parse_placement(e.target) for e in before.edges() if e.target and e.target not in TRAITS]
        wanted_placements = [placement for _, placement in partial]
        for after in dict.fromkeys([R, *shard_placements, *declared_targets, *wanted_placements]):
            if after == before or edge_between(before, after) is None:
                continue
            axes = [axis for axis in free if source[axis] == before]
            # The order of axes matters only if they shard a dimension after the step.
            for moved in _ordered_subsets(axes) if after.dim is not None else _subsets(axes):
                unmoved_entries = [entry for entry in source.entries if entry[0] not in moved]
                target = Sharding([*unmoved_entries, *((axis, after) for axis in moved)], source.mesh)
                if len(target.kinds) > 1 or not can_move_together(spec, moved, (source, target)):
                    continue
                are_innermost = before.dim is None or source.dim_axes(before.dim)[-len(moved) :] == moved
                if are_innermost:
                    yield Step(spec.name, tuple(axis for axis in mesh.axis_names if axis in moved), source, target)


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every subset of one or more of `axes`, in their order: (a), (b) and (a, b) of [a, b]."""
    return itertools.chain.from_iterable(itertools.combinations(axes, length + 1) for length in range(len(axes)))


def _ordered_subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield every subset of one or more of `axes`, in every order: (a), (b), (a, b) and (b, a) of [a, b]."""
    return itertools.chain.from_iterable(itertools.permutations(axes, length + 1) for length in range(len(axes)))


def _permuted_targets(
    source: Sharding, free: tuple[str, ...], shard_placements: tuple[ShardPlacement, ...], mesh: Mesh
) -> Iterator[Sharding]:
    """Yield the shardings that cut each dimension into as many chunks as `source`, by other or reordered axes.

    For example, `a: S(0), b: S(0)` on the mesh (a = 2, b = 2, c = 2) leads to `b: S(0), a: S(0)`, and to every other
    ordered pair of the three axes.

    If a placement has chunks that are not contiguous blocks, nothing is yielded: an exchange moves such chunks.
    """
    if any(source[axis].trait == "shard" and not source[axis].splits for axis in free):
        return
    fixed_entries = [
        (axis, placement) for axis, placement in source.entries if axis not in free or placement.dim is None
    ]
    usable_axes = tuple(axis for axis in free if source[axis].trait in ("replicated", "shard"))
    dims = dict.fromkeys(placement.dim for placement in shard_placements)
    chunk_counts = tuple((dim, mesh.group_size(axis for axis in source.dim_axes(dim) if axis in free)) for dim in dims)
    for layout in _layouts(chunk_counts, usable_axes, mesh):
        target = Sharding([*fixed_entries, *layout], source.mesh)
        if target != source:
            yield target


def _layouts(
    chunk_counts: tuple[tuple[int, int], ...], axes: tuple[str, ...], mesh: Mesh
) -> Iterator[tuple[tuple[str, Shard], ...]]:
    """Yield every way to cut dimensions into the given numbers of chunks by different axes, as (axis, placement) pairs.

    Args:
        chunk_counts: (dim, number of chunks) pairs.
    """
    if not chunk_counts:
        yield ()
        return
    dim, count = chunk_counts[0]
    for dim_axes in _axes_of_product(count, tuple((axis, mesh.sizes[axis]) for axis in axes)):
        unused_axes = tuple(axis for axis in axes if axis not in dim_axes)
        for layout_of_other_dims in _layouts(chunk_counts[1:], unused_axes, mesh):
            yield (*((axis, Shard(dim)) for axis in dim_axes), *layout_of_other_dims)


@functools.lru_cache(maxsize=65536)
def _axes_of_product(count: int, axes: tuple[tuple[str, int], ...]) -> tuple[tuple[str, ...], ...]:
    """Return the ordered choices of axes whose sizes multiply to `count`, shortest first.

    For example, (a = 2, b = 2, c = 4) has three choices for 4: (c), (a, b) and (b, a).

    Args:
        axes: (axis, size) pairs.
    """

    def extend(indices: tuple[int, ...], remaining: int) -> Iterator[tuple[int, ...]]:
        """Yield the choices that begin with `indices`. The sizes of further axes multiply to `remaining`."""
        if remaining == 1:
            yield indices
        for index, (_, size) in enumerate(axes):
            if index not in indices and remaining % size == 0:
                yield from extend((*indices, index), remaining // size)

    choices = sorted(extend((), count), key=lambda indices: (len(indices), indices))
    return tuple(tuple(axes[index][0] for index in indices) for indices in choices)


def find_exchanges(
    source: Sharding, target: Sharding, mesh: Mesh, collectives: tuple[CollectiveSpec, ...]
) -> Iterator[Step]:
    """Yield the exchanges from `source` to the target, and to two intermediate shardings.

    The first has the shards of the target and the partial values of the source: only reductions remain. The second is
    the target without its partial values. It is needed if source and target have reductions of different kinds: those
    of the source must be done before those of the target begin.
    """
    unreduced_entries = [(axis, p) for axis, p in source.entries if p.trait in ("partial", "other")]
    unreduced_axes = {axis for axis, _ in unreduced_entries}
    sharded_entries = [(axis, p) for axis, p in target.entries if p.trait == "shard" and axis not in unreduced_axes]
    goals = [target, Sharding([*sharded_entries, *unreduced_entries], source.mesh)]
    if len(source.kinds | target.kinds) > 1:
        goals.append(Sharding([(axis, p) for axis, p in target.entries if p.kind is None], source.mesh))
    for goal, spec in itertools.product(dict.fromkeys(goals), collectives):
        if spec.moves != "elements":
            continue
        if spec.traffic.rounds > 1 and not (source.partial or goal.partial):
            continue  # there is nothing to reduce in between
        axes = spec.group_axes(source, goal, mesh)
        is_possible = source != goal and axes and mesh.group_size(axes) <= EXCHANGED.most
        if is_possible and find_obstacle(spec, source, goal) is None:
            yield Step(spec.name, axes, source, goal)


@functools.lru_cache(maxsize=65536)
def is_legal(step: Step, mesh: Mesh, shape: tuple[int, ...]) -> bool:
    """Return whether a step is legal for `shape`.

    A step that names axes was legal when it was made. The other steps were found without the shape, so the check of
    their spec decides.
    """
    if step.spec.check is None:
        return True
    try:
        step.spec.check(step.spec, step.source, step.target, mesh, shape)
    except ShardingError:
        return False
    return True
