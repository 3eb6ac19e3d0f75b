"""Tables of the least seconds from each joint placement to each other one, as sequences of steps.

A step is a collective on axes with one placement before and one after, or it moves whole shards or elements, as in
`spmdir.reshard.plan_edges`. Times equal those of the planner if all chunks have one length. Sequences pass through
placements that divide the value evenly, also through partial ones that plans exclude. Exchanges that produce partial
values or take two rounds are omitted.

As lower bounds, tables contain these exchanges too, at the time of the bytes that any algorithm sends. Sequences then
pass through all placements, and chunks count as if they had one length. So no plan is faster than the table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import attrs
import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.cost import cost, node_count
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import COPY, Sizes, Traffic
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.placement_catalogue import LINEAR, Piece, pieces

MOST_OVERLAPS = 1 << 24
"""The largest number of overlaps of shards, of all pairs of placements and all ranks, that a lower bound computes."""


@attrs.frozen(eq=False)
class Steps:
    """Pairs of joint placements that one kind of step leads between, each pair once.

    Attributes:
        before, after: [pair], numbers of placements.
        latency: [piece, pair], seconds.
        slope: [piece, pair], seconds a byte of the value. The time of a step is the least over the pieces.
    """

    before: Numbers
    after: Numbers
    latency: Numbers
    slope: Numbers


Pairs = tuple[Numbers, Numbers]
"""[pair], the numbers of joint placements before and after."""

Times = tuple[Numbers, Numbers, Numbers]
"""[piece], the latency of a step, the seconds a byte held after it, and the seconds a byte received."""

_least = np.minimum.reduce


class StepTimes:
    """The times of steps between the joint placements numbered so far.

    Args:
        is_bound: whether tables must be lower bounds on the times of all plans through the numbered placements.

    Attributes:
        shares: [placement], the fraction of a value that a rank holds.
    """

    def __init__(
        self,
        mesh: Mesh,
        placements: JointPlacements,
        collectives: tuple[CollectiveSpec, ...],
        topology: Topology,
        is_bound: bool = False,
    ):
        self._is_bound = is_bound
        self._mesh, self._placements, self._topology, self._collectives = mesh, placements, topology, collectives
        catalogue, counts = placements.catalogue, np.array(placements.counts, dtype=float)
        self._axes = range(len(counts))
        self._counts, self._rows = counts, np.array(placements.all)
        dims = np.array([-1 if p.dim is None else p.dim for p in catalogue.placements])
        self._dims = dims[self._rows]
        self._shards = self._dims >= 0
        self._standard = self._rows < len(catalogue.placements) - len(catalogue.plugins)
        self._own_type = np.array([p.has_own_type for p in catalogue.placements])[self._rows]
        self._traits = np.array([p.trait for p in catalogue.placements])[self._rows]
        self.shares = np.prod(np.where(self._shards, 1 / counts, 1.0), axis=1)
        # [before, after]: the axes that move, as bits. An extra dimension for axes would make the tables too large.
        self._bit = [np.min_scalar_type(1 << len(counts)).type(1 << axis) for axis in self._axes]
        moves = [np.where(row[:, None] != row, bit, 0) for row, bit in zip(self._rows.T, self._bit, strict=True)]
        self._moved: Numbers = np.bitwise_or.reduce(moves)
        place = np.argsort(np.array(placements.order), axis=1)
        # [placement, outer, inner]: whether both axes shard one dimension, and `outer` is outside `inner`.
        self._nested: Numbers = (
            (self._dims[:, :, None] == self._dims[:, None, :])
            & self._shards[:, :, None]
            & (place[:, :, None] < place[:, None, :])
        )
        dimensions = range(int(dims.max()) + 1)
        factors = [np.prod(np.where(self._dims == dim, counts, 1), axis=1) for dim in dimensions]
        self._parts = np.stack(factors, axis=1).astype(int) if factors else np.zeros((len(self._rows), 0), dtype=int)
        self._touched = self._find_touched()
        self._touched_pairs = _pairs_by_bits(self._touched, len(counts))
        self._pieces = pieces(topology, is_bound)
        self._last_steps: list[Steps] = []  # exchanges that only lead to the target of a plan
        self._steps = self._collective_steps()
        self._add_rearrangements()
        self._tables: dict[object, Numbers] = {}

    def table(self, meta: TensorMeta, numbers: Numbers) -> Numbers:
        """Return [before, after], the seconds of the cheapest sequence of steps for a value."""
        shape = np.ones(self._parts.shape[1], dtype=int)
        shape[: meta.rank] = meta.shape[: len(shape)]
        even = (shape % self._parts == 0).all(1)
        through = np.array(~(self._dims >= meta.rank).any(1) if self._is_bound else even)
        reach = np.array(through)
        if not self._is_bound:
            for axis in self._axes:
                occurs = np.zeros(len(self._placements.catalogue.placements), dtype=bool)
                occurs[self._rows[numbers, axis]] = True
                reach &= occurs[self._rows[:, axis]]
        reach[numbers] = True
        key = meta.bytes, reach.tobytes(), through.tobytes()
        seconds = self._tables.get(key)
        if seconds is None:
            reachable = np.flatnonzero(reach)
            seconds = self._seconds(self._steps, reachable, meta.bytes)
            _close(seconds, seconds, np.flatnonzero(through[reachable]))
            if self._last_steps:
                last = self._seconds(self._last_steps, reachable, meta.bytes)
                _close(seconds, last, range(len(reachable)))
            self._tables[key] = seconds
        position = (reach.cumsum() - 1)[numbers]
        return seconds[np.ix_(position, position)]

    def _seconds(self, steps: Sequence[Steps], reachable: Numbers, size: float) -> Numbers:
        """Return [before, after], the least seconds of steps for a value of `size` bytes."""
        seconds = np.full((len(reachable), len(reachable)), np.inf)
        position = np.full(len(self._rows), -1)
        position[reachable] = np.arange(len(reachable))
        for step in steps:
            pair = position[step.before], position[step.after]
            latency, slope = step.latency, step.slope
            if len(reachable) < len(position):
                is_reachable = np.flatnonzero((pair[0] >= 0) & (pair[1] >= 0))
                pair = pair[0][is_reachable], pair[1][is_reachable]
                latency, slope = latency[:, is_reachable], slope[:, is_reachable]
            seconds[pair] = np.minimum(seconds[pair], _least(latency + slope * size))
        if not size:
            seconds[np.isfinite(seconds)] = 0.0  # an empty message has no latency
        return seconds

    def _groups(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield each set of axes, the number of ranks of a group over them, and the number of nodes it spans."""
        names = self._placements.axes
        for length in range(1, len(names) + 1):
            for chosen in itertools.combinations(self._axes, length):
                count = math.prod(self._placements.counts[axis] for axis in chosen)
                yield chosen, count, node_count(tuple([names[axis] for axis in chosen]), self._mesh)

    def _collective_steps(self) -> list[Steps]:
        """Return the times of collectives that name axes. These axes have equal placements and are innermost."""
        rows, moved_pairs = self._rows, _pairs_by_bits(self._moved, len(self._counts))
        untouched = self._touched_pairs[0]
        unmoved = np.zeros((len(self._pieces), len(untouched[0])))
        steps = [Steps(*untouched, unmoved, unmoved)]
        for chosen, count, nodes in self._groups():
            first_axis, other_axes = chosen[0], [axis for axis in self._axes if axis not in chosen]
            alike = (rows[:, chosen] == rows[:, first_axis : first_axis + 1]).all(1)
            alike &= ~self._nested[:, chosen][:, :, other_axes].any((1, 2))
            before, after = moved_pairs[self._bits(chosen)]
            before, after = _select((before, after), alike[before] & alike[after])
            both_inside = self._shards[before, first_axis] & self._shards[after, first_axis]
            legal = self._keep_order(other_axes, before, after)
            legal &= ~both_inside | self._keep_order(chosen, before, after)
            before, after = _select((before, after), legal)
            pair = rows[before, first_axis], rows[after, first_axis]
            share = np.prod(np.where(self._shards[:, other_axes], 1 / self._counts[other_axes], 1.0), axis=1)[before]
            lines = [
                self._placements.catalogue.latency_and_slope(count, nodes, self._collectives, self._topology, piece)
                for piece in self._pieces
            ]
            latency = np.array([begin[pair] for begin, _ in lines])
            steps.append(Steps(before, after, latency, np.array([byte[pair] * share for _, byte in lines])))
        return _joined(steps)

    def _keep_order(self, axes: Sequence[int], before: Numbers, after: Numbers) -> Numbers:
        """Return [pair], whether these axes have the same nesting order before and after."""
        nested = self._nested[:, axes][:, :, axes].reshape(len(self._rows), -1)
        return (nested[before] == nested[after]).all(1)

    def _bits(self, axes: Sequence[int]) -> int:
        return sum(int(self._bit[axis]) for axis in axes)

    def _add_rearrangements(self) -> None:
        """Add the times of collectives that move shards or elements. They may reduce standard partial values."""
        shares, partial = self.shares, self._standard & (self._traits == "partial")
        movable = ~self._own_type & ((self._traits == "shard") | (self._traits == "replicated"))
        combined = np.ones(self._moved.shape)
        for axis, bit in enumerate(self._bit):
            combined[partial[:, axis, None] & ((self._moved & bit) != 0)] *= self._counts[axis]
        kept = self._kept_fraction()
        sent = shares[None, :] * (combined - kept)
        if self._is_bound:
            self._steps.append(self._local_steps(movable & self._standard, (combined == 1) & (kept > 1 - 1e-9)))
        for spec in self._collectives:
            if spec.moves == "elements" and self._is_bound:
                if spec.traffic.rounds > 1:
                    self._last_steps += self._two_round_steps(spec, movable | partial, partial, combined)
                else:
                    self._last_steps += self._creations(spec, movable | partial, partial, combined)
            if spec.moves not in ("shards", "elements") or spec.traffic.rounds > 1:
                continue
            steps = []
            for chosen, count, nodes in self._groups():
                before, after = self._touched_pairs[self._bits(chosen)]
                may_enter = movable[:, chosen].all(1)
                if spec.moves == "shards":
                    may_enter &= self._standard[:, chosen].all(1)
                    legal = may_enter[before] & may_enter[after]
                    pairs = _select((before, after), legal & (self._parts[before] == self._parts[after]).all(1))
                    steps.append(self._moves(pairs, self._times(spec.traffic, count, nodes)))
                else:
                    may_leave = (movable | partial)[:, chosen].all(1)
                    pairs = _select((before, after), may_leave[before] & may_enter[after])
                    steps += self._exchanges(spec, pairs, count, nodes, combined, sent)
            self._steps += _joined(steps)

    def _local_steps(self, movable: Numbers, is_local: Numbers) -> Steps:
        """Return the times of exchanges that send nothing."""
        return self._copies(self._may_move(movable, movable) & is_local)

    def _copies(self, legal: Numbers) -> Steps:
        """Return the times of local copies between the legal pairs."""
        before, after = np.nonzero(legal)
        return self._moves((before, after), _times(COPY, 2, 1, (LINEAR,), self._topology))

    def _moves(self, pairs: Pairs, times: Times, sent: Numbers | float = 0.0) -> Steps:
        """Return steps with these times.

        Args:
            sent: [pair], the fraction of the value that a rank sends.
        """
        latency, per_held_byte, per_sent_byte = (numbers[:, None] for numbers in times)
        slope = per_held_byte * self.shares[pairs[1]] + per_sent_byte * sent
        return Steps(*pairs, np.broadcast_to(latency, slope.shape), slope)

    def _creations(self, spec: CollectiveSpec, movable: Numbers, partial: Numbers, combined: Numbers) -> list[Steps]:
        """Return lower bounds on the times of exchanges that create partial values.

        The ranks along the created axes together need every partial value before of every element of a shard. They
        receive those that none of them has.
        """
        creates = partial[None, :] & (self._rows[:, None] != self._rows)
        holders = np.where(creates, self._counts, 1.0).prod(2)
        sent = np.maximum(combined * self.shares - self._held_by_creators(creates), 0.0) / holders
        created = (holders > 1) & self._may_move(movable, movable)
        local = self._copies(created & (sent <= 1e-12))
        return [local, *self._all_exchanges(spec, created & (sent > 1e-12), combined, sent)]

    def _held_by_creators(self, creates: Numbers) -> Numbers:
        """Return [before, after], an upper bound on the elements of a shard that ranks along created axes have before.

        Elements are a fraction of the value. The shard is the one of which they have the fewest elements.

        Args:
            creates: [before, after, axis], whether the axis becomes partial.
        """
        lengths = 1 / self._parts
        overlap = np.ones(self._moved.shape)
        for dim in range(lengths.shape[1]):
            overlap *= np.minimum(lengths[:, None, dim], lengths[None, :, dim])
        held = overlap * np.where(creates, self._counts, 1.0).prod(2)
        world = int(self._counts.prod())
        if held.size * world > MOST_OVERLAPS:
            return held
        grid = self._counts.astype(int).tolist()
        overlaps = self._overlaps(np.indices(grid).reshape(len(grid), -1)).reshape(*held.shape, *grid)
        blocks: Numbers = np.all(self._standard, axis=1)
        # Along an axis that replicates the value before, all ranks have the same elements.
        is_replicated = self._traits == "replicated"
        copies = np.where(creates & is_replicated[:, None], self._counts, 1.0).prod(2)
        axes_created = (creates * np.array(self._bit)).sum(2)
        for bits in np.unique(axes_created).tolist():
            created = tuple(2 + axis for axis in self._axes if bits >> axis & 1)
            summed = overlaps.sum(created).reshape(*held.shape, -1).min(2) / copies
            chosen = (axes_created == bits) & blocks[:, None] & blocks
            held[chosen] = np.minimum(held, summed)[chosen]
        return held

    def _all_exchanges(self, spec: CollectiveSpec, legal: Numbers, combined: Numbers, sent: Numbers) -> list[Steps]:
        """Return the times of exchanges between the legal pairs; see `_exchanges`."""
        steps = []
        for chosen, count, nodes in self._groups():
            pairs = self._touched_pairs[self._bits(chosen)]
            steps += self._exchanges(spec, _select(pairs, legal[pairs]), count, nodes, combined, sent)
        return _joined(steps)

    def _exchanges(
        self, spec: CollectiveSpec, pairs: Pairs, count: int, nodes: int, combined: Numbers, sent: Numbers
    ) -> list[Steps]:
        """Return the times of exchanges in groups of `count` ranks on `nodes` nodes.

        Args:
            combined: [before, after], the number of partial values that a rank reduces to one.
            sent: [before, after], the fraction of the value that a rank sends.
        """
        steps = []
        for several in np.unique(combined[pairs]).tolist():
            chosen_pairs = _select(pairs, combined[pairs] == several)
            times = self._times(spec.traffic, count, nodes, int(several), is_exchange=True)
            steps.append(self._moves(chosen_pairs, times, sent[chosen_pairs]))
        return steps

    def _two_round_steps(
        self, spec: CollectiveSpec, movable: Numbers, partial: Numbers, combined: Numbers
    ) -> list[Steps]:
        """Return lower bounds on the times of exchanges in two rounds, of the bytes of `reshard/bound.py`."""
        counts, world = self._counts, float(np.prod(self._counts))
        copies = np.prod(np.where(partial, counts, 1.0), axis=1)
        kept = np.ones(self._moved.shape)
        for axis, bit in enumerate(self._bit):
            kept[partial[:, axis, None] & ((self._moved & bit) == 0)] *= counts[axis]
        needers = world * self.shares / copies
        sent = (copies[:, None] - kept + needers[None, :] - 1) / world
        return self._all_exchanges(spec, (combined > 1) & self._may_move(movable, movable), combined, sent)

    def _may_move(self, before: Numbers, after: Numbers) -> Numbers:
        """Return [before, after], whether every axis that moves has a placement that allows it on both sides."""
        may_move = self._moved != 0
        for axis, bit in enumerate(self._bit):
            may_move &= ((self._moved & bit) == 0) | (before[:, axis, None] & after[None, :, axis])
        return may_move

    def _times(self, traffic: Traffic, count: int, nodes: int, combined: int = 1, is_exchange: bool = False) -> Times:
        """Return the times of a step in groups of `count` ranks. A lower bound sends nothing to other nodes."""
        is_inside = is_exchange and self._is_bound
        return _times(traffic, count, nodes, self._pieces, self._topology, combined, is_inside)

    def _find_touched(self) -> Numbers:
        """Return [before, after], the axes along which ranks exchange chunks, as bits.

        These are the axes that move, the axes with different outer axes before and after, and all axes inside these.
        For example, from <a: S(0), b: S(0)> to <b: S(0)>, only `a` moves. But `b` is inside `a` only before the step,
        so the result has both axes.
        """
        bits = np.array(self._bit)
        # [placement, axis]: the axes that the axis is inside of, as bits.
        outer_axes = (self._nested * bits[:, None]).sum(1, dtype=bits.dtype)
        touched = self._moved.copy()
        for axis, bit in enumerate(self._bit):
            touched |= np.where(outer_axes[:, None, axis] != outer_axes[:, axis], bit, 0)
        # Add the axes inside those of the result. Axes that are not in it have equal outer axes before and after.
        for _ in self._axes[1:]:
            for axis, bit in enumerate(self._bit):
                touched |= np.where(outer_axes[:, axis, None] & touched, bit, 0)
        return touched

    def _kept_fraction(self) -> Numbers:
        """Return [before, after], the least fraction of its data after a step that a rank has before it.

        For lower bounds on times, it is an upper bound of this fraction, otherwise a lower bound. Only the first and
        last ranks of each axis are compared, and the middle one if there are few axes. Shards of plug-ins need not be
        blocks: for them, the fraction is 1 or 0.
        """
        has_middle = len(self._axes) < 3 or (self._is_bound and len(self._axes) == 3)
        coordinates = [{0, int(count) // 2 if has_middle else 0, int(count) - 1} for count in self._counts]
        compared_ranks = np.array(list(itertools.product(*coordinates))).T
        # An upper bound requires the least product of overlaps, which is at least the product of the least overlaps.
        overlaps = self._overlaps(compared_ranks, is_least_by_dim=not self._is_bound)
        has_blocks: Numbers = np.all(self._standard, axis=1)
        fraction_without_blocks = 1.0 if self._is_bound else 0.0
        return np.where(has_blocks[:, None] & has_blocks, overlaps.min(2) / self.shares, fraction_without_blocks)

    def _overlaps(self, ranks: Numbers, is_least_by_dim: bool = False) -> Numbers:
        """Return [before, after, rank], the fraction of the value that a rank has before and after.

        Args:
            ranks: [axis, rank], the coordinates of ranks.
            is_least_by_dim: return instead, for one rank, the product of the least overlaps in each dimension.
        """
        places = np.arange(len(self._rows))
        begin_of_chunk = np.zeros((*self._parts.shape, ranks.shape[1]))
        length = np.ones(self._parts.shape)
        for axes in np.array(self._placements.order).T:
            dims = self._dims[places, axes]
            selected = places[dims >= 0], dims[dims >= 0]
            length[selected] /= self._counts[axes[dims >= 0]]
            begin_of_chunk[selected] += ranks[axes[dims >= 0]] * length[selected][:, None]
        overlaps = np.ones((len(places), len(places), 1 if is_least_by_dim else ranks.shape[1]))
        for dim in range(self._parts.shape[1]):
            # In one dimension, only few placements are distinct.
            cuts = np.column_stack((begin_of_chunk[:, dim], length[:, dim])).round(12)
            distinct, cut = np.unique(cuts, axis=0, return_inverse=True)
            begin, end = distinct[:, :-1], distinct[:, :-1] + distinct[:, -1:]
            both = np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin)
            both = np.maximum(both.min(2, keepdims=True) if is_least_by_dim else both, 0.0)
            overlaps *= both[cut.reshape(-1, 1), cut.reshape(-1)]
        return overlaps


def _pairs_by_bits(bits: Numbers, axes: int) -> list[Pairs]:
    """Return [set of axes as bits], the pairs (before, after) for which the matrix `bits` has this set."""
    in_order = np.argsort(bits.reshape(-1), kind="stable")
    ends = np.bincount(bits.reshape(-1), minlength=1 << axes).cumsum()
    return [(flat // len(bits), flat % len(bits)) for flat in np.split(in_order, ends[:-1])]


def _joined(steps: Sequence[Steps]) -> list[Steps]:
    """Return the steps of disjoint pairs as one; nothing if there are none."""
    if not steps:
        return []
    before, after = (np.concatenate([getattr(step, side) for step in steps]) for side in ("before", "after"))
    latency, slope = (np.concatenate([getattr(step, line) for step in steps], axis=1) for line in ("latency", "slope"))
    return [Steps(before, after, latency, slope)]


def _select(pairs: Pairs, is_selected: Numbers) -> Pairs:
    return pairs[0][is_selected], pairs[1][is_selected]


@lru_cache(maxsize=4096)
def _times(
    traffic: Traffic,
    count: int,
    nodes: int,
    pieces: tuple[Piece, ...],
    topology: Topology,
    combined: int = 1,
    is_inside: bool = False,
) -> Times:
    """Return, for each piece, the latency of a step, the seconds a byte held after it, and the seconds a byte received.

    Only one of both is sent. The time is linear in the other.

    Args:
        is_inside: whether nothing is sent to other nodes.
    """

    def seconds(held_bytes: float, moved_bytes: float) -> float:
        moved_bytes = max(moved_bytes, 1e-6) if is_inside else moved_bytes
        crossing = 0.0 if is_inside else None
        sizes = Sizes(count, held_bytes, held_bytes, combined=combined, moved=moved_bytes, crossing=crossing)
        return cost(traffic, sizes, nodes, topology).seconds

    start, latencies, slopes = seconds(0.0, 0.0), [], []
    for small, large in pieces:
        low, high = np.array([[seconds(size, 0.0), seconds(0.0, size)] for size in (small, large)])
        per_byte = (high - low) / (large - small)
        latencies.append(start + float((low - start - small * per_byte).sum()))
        slopes.append(per_byte)
    return np.array(latencies), *np.array(slopes).T


def _close(seconds: Numbers, last: Numbers, through: Iterable[int]) -> None:
    """Lower `seconds` to those of a sequence in it, followed by one in `last`, where a sequence ends in `through`."""
    passing = np.empty_like(seconds)
    for place in through:
        np.add(seconds[:, place, None], last[place], out=passing)
        np.minimum(seconds, passing, out=seconds)
