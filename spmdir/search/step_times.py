"""Tables of the seconds to reshard a value from each joint placement to each other, by the fastest sequence of steps.

A step is one of two kinds. A collective that names axes takes all of them from one placement to another. A permute or
an exchange moves whole shards or single elements between ranks, as in `spmdir.reshard.plan_edges`.

For example, on `h100x8` with the mesh (a = 2, b = 4), for a value of 1024 × 1024 f32:

    <a: P(sum), b: S(0)> → <b: S(0)>    15.2 µs: all-reduce of a shard over `a`
    <b: S(0)> → <>                      27.3 µs: all-gather over `b`
    <a: P(sum), b: S(0)> → <>           42.6 µs: both. The other order takes 27.3 + 26.9 µs.

A table is an *estimate* or a *lower bound* on the seconds of the planner's plans:

- The steps of an estimate take the planner's time if all chunks have one length. Sequences pass through placements that
  divide the value evenly, among them partial ones that plans exclude. Exchanges that produce partial values, and those
  of two rounds, are omitted.
- A lower bound contains these exchanges too, with the fewest bytes that any algorithm sends. Its sequences pass through
  all placements, and all chunks count as if they had one length. So no plan is faster than the table.
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
"""The largest number of overlaps of shards, over all pairs of placements and all ranks, that a lower bound computes.

If there are more, the bound uses the lengths of the shards instead, which makes it lower.
"""


@attrs.frozen(eq=False)
class Steps:
    """The times of one kind of step, for all pairs of joint placements that it leads between. Each pair occurs once.

    The step takes `latency + slope · bytes` seconds for a value of `bytes` bytes on one device. With several pieces, as
    of `placement_catalogue.pieces`, it takes the least of these times.

    Attributes:
        before, after: [pair], numbers of joint placements.
        latency: [piece, pair], seconds.
        slope: [piece, pair], seconds for each byte of the value.
    """

    before: Numbers
    after: Numbers
    latency: Numbers
    slope: Numbers


Pairs = tuple[Numbers, Numbers]
"""[pair], the numbers of joint placements before and after."""

Times = tuple[Numbers, Numbers, Numbers]
"""Each as [piece]: the latency of a step, its seconds for each byte that a rank holds after it, and its seconds for
each byte that a rank sends or receives."""

_least = np.minimum.reduce


class StepTimes:
    """The times of steps between the joint placements that have a number when the object is created.

    Args:
        placements: the joint placements; later ones are unknown to this object.
        collectives: those by which values may be resharded.
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
        # The next arrays are [placement, axis].
        self._shards = self._dims >= 0
        self._standard = self._rows < len(catalogue.placements) - len(catalogue.plugins)
        self._own_type = np.array([p.has_own_type for p in catalogue.placements])[self._rows]
        self._traits = np.array([p.trait for p in catalogue.placements])[self._rows]
        self.shares = np.prod(np.where(self._shards, 1 / counts, 1.0), axis=1)
        # [before, after]: the axes with another placement after, as bits. An array with an extra dimension for axes
        # would be too large.
        self._bit = [np.min_scalar_type(1 << len(counts)).type(1 << axis) for axis in self._axes]
        moves = [np.where(row[:, None] != row, bit, 0) for row, bit in zip(self._rows.T, self._bit, strict=True)]
        self._moved: Numbers = np.bitwise_or.reduce(moves)
        nesting_position = np.argsort(np.array(placements.order), axis=1)
        # [placement, outer, inner]: whether both axes shard one dimension, and `outer` is outside `inner`.
        self._nested: Numbers = (
            (self._dims[:, :, None] == self._dims[:, None, :])
            & self._shards[:, :, None]
            & (nesting_position[:, :, None] < nesting_position[:, None, :])
        )
        dimensions = range(int(dims.max()) + 1)
        factors = [np.prod(np.where(self._dims == dim, counts, 1), axis=1) for dim in dimensions]
        # [placement, dim]: the number of chunks of the dimension.
        self._parts = np.stack(factors, axis=1).astype(int) if factors else np.zeros((len(self._rows), 0), dtype=int)
        self._touched = self._find_touched()
        self._touched_pairs = _pairs_by_bits(self._touched, len(counts))
        self._pieces = pieces(topology, is_bound)
        self._last_steps: list[Steps] = []  # exchanges that can only be the last step of a plan
        self._steps = self._collective_steps()
        self._add_rearrangements()
        self._tables: dict[object, Numbers] = {}

    def table(self, meta: TensorMeta, numbers: Numbers) -> Numbers:
        """Return [before, after], the seconds of the cheapest sequence of steps for a value; infinite if there is none.

        Sequences of an estimate pass through placements that divide the value evenly. On each axis, they use only the
        placements that occur in `numbers` on that axis, so the table takes less time to compute.

        Args:
            meta: the type of the value on one device.
            numbers: the joint placements of the rows and columns. They need not divide the value evenly.
        """
        shape = np.ones(self._parts.shape[1], dtype=int)
        shape[: meta.rank] = meta.shape[: len(shape)]
        is_even = (shape % self._parts == 0).all(1)
        # [placement]: whether a sequence may pass through it.
        is_passable = np.array(~(self._dims >= meta.rank).any(1) if self._is_bound else is_even)
        # [placement]: whether it has a row in the internal table.
        is_included = np.array(is_passable)
        if not self._is_bound:
            for axis in self._axes:
                occurs = np.zeros(len(self._placements.catalogue.placements), dtype=bool)
                occurs[self._rows[numbers, axis]] = True
                is_included &= occurs[self._rows[:, axis]]
        is_included[numbers] = True
        key = meta.bytes, is_included.tobytes(), is_passable.tobytes()
        seconds = self._tables.get(key)
        if seconds is None:
            included = np.flatnonzero(is_included)
            seconds = self._one_step_seconds(self._steps, included, meta.bytes)
            _append_steps(seconds, seconds, np.flatnonzero(is_passable[included]))
            if self._last_steps:
                last_step_seconds = self._one_step_seconds(self._last_steps, included, meta.bytes)
                _append_steps(seconds, last_step_seconds, range(len(included)))
            self._tables[key] = seconds
        position = (is_included.cumsum() - 1)[numbers]
        return seconds[np.ix_(position, position)]

    def _one_step_seconds(self, steps: Sequence[Steps], included: Numbers, size: float) -> Numbers:
        """Return [before, after], the seconds of the fastest single step for a value; infinite if there is none.

        Args:
            included: the joint placements of the rows and columns.
            size: bytes of the value on one device. An empty value takes no time.
        """
        seconds = np.full((len(included), len(included)), np.inf)
        position = np.full(len(self._rows), -1)
        position[included] = np.arange(len(included))
        for step in steps:
            pair = position[step.before], position[step.after]
            latency, slope = step.latency, step.slope
            if len(included) < len(position):
                kept_pairs = np.flatnonzero((pair[0] >= 0) & (pair[1] >= 0))
                pair = pair[0][kept_pairs], pair[1][kept_pairs]
                latency, slope = latency[:, kept_pairs], slope[:, kept_pairs]
            seconds[pair] = np.minimum(seconds[pair], _least(latency + slope * size))
        if not size:
            seconds[np.isfinite(seconds)] = 0.0  # an empty message has no latency
        return seconds

    def _groups(self) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """Yield each non-empty set of axes, the number of ranks of a group over them, and the nodes of a group."""
        names = self._placements.axes
        for length in range(1, len(names) + 1):
            for chosen in itertools.combinations(self._axes, length):
                count = math.prod(self._placements.counts[axis] for axis in chosen)
                yield chosen, count, node_count(tuple([names[axis] for axis in chosen]), self._mesh)

    def _collective_steps(self) -> list[Steps]:
        """Return the times of collectives that name axes, and 0 seconds between placements with equal shards.

        Such a collective moves a set of axes that all have the same placement before, and the same one after. No other
        axis may be nested inside them, and all other axes keep their placements and nesting order.
        """
        rows, moved_pairs = self._rows, _pairs_by_bits(self._moved, len(self._counts))
        untouched = self._touched_pairs[0]
        zeros = np.zeros((len(self._pieces), len(untouched[0])))
        steps = [Steps(*untouched, zeros, zeros)]
        for chosen, count, nodes in self._groups():
            first_axis, other_axes = chosen[0], [axis for axis in self._axes if axis not in chosen]
            have_one_placement = (rows[:, chosen] == rows[:, first_axis : first_axis + 1]).all(1)
            are_innermost = ~self._nested[:, chosen][:, :, other_axes].any((1, 2))
            can_move = have_one_placement & are_innermost
            before, after = moved_pairs[self._bits(chosen)]
            before, after = _select((before, after), can_move[before] & can_move[after])
            # An all-to-all from one dimension to another keeps the nesting order of its axes.
            shard_on_both_sides = self._shards[before, first_axis] & self._shards[after, first_axis]
            is_legal = self._keep_order(other_axes, before, after)
            is_legal &= ~shard_on_both_sides | self._keep_order(chosen, before, after)
            before, after = _select((before, after), is_legal)
            pair = rows[before, first_axis], rows[after, first_axis]
            # The fraction of the value that a rank would hold if the chosen axes were replicated.
            share = np.prod(np.where(self._shards[:, other_axes], 1 / self._counts[other_axes], 1.0), axis=1)[before]
            lines = [
                self._placements.catalogue.latency_and_slope(count, nodes, self._collectives, self._topology, piece)
                for piece in self._pieces
            ]
            latency = np.array([line_latency[pair] for line_latency, _ in lines])
            slope = np.array([line_slope[pair] * share for _, line_slope in lines])
            steps.append(Steps(before, after, latency, slope))
        return _joined(steps)

    def _keep_order(self, axes: Sequence[int], before: Numbers, after: Numbers) -> Numbers:
        """Return [pair], whether `axes` shard the same dimensions together, in the same nesting order, on both sides.

        Args:
            before, after: [pair], numbers of joint placements.
        """
        nested = self._nested[:, axes][:, :, axes].reshape(len(self._rows), -1)
        return (nested[before] == nested[after]).all(1)

    def _bits(self, axes: Sequence[int]) -> int:
        """Return a set of axes as bits."""
        return sum(int(self._bit[axis]) for axis in axes)

    def _add_rearrangements(self) -> None:
        """Add the times of permutes and of exchanges to the steps. An exchange may reduce standard partial values.

        Lower bounds get more steps: local copies wherever an exchange between standard placements may send nothing. Two
        kinds of exchanges are added as last steps: those that create partial values, and those of two rounds.
        """
        shares = self.shares
        # [placement, axis]: whether the axis is partial, and whether an exchange may lead to or from its placement.
        partial = self._standard & (self._traits == "partial")
        may_be_after = ~self._own_type & ((self._traits == "shard") | (self._traits == "replicated"))
        may_be_before = may_be_after | partial
        # [before, after]: the number of partial values that a rank reduces to one.
        combined = np.ones(self._moved.shape)
        for axis, bit in enumerate(self._bit):
            combined[partial[:, axis, None] & ((self._moved & bit) != 0)] *= self._counts[axis]
        kept = self._kept_fraction()
        # [before, after]: the fraction of the value that the busiest rank receives.
        sent = shares[None, :] * (combined - kept)
        if self._is_bound:
            may_permute = may_be_after & self._standard
            sends_nothing = (combined == 1) & (kept > 1 - 1e-9)
            self._steps.append(self._copies(self._may_move(may_permute, may_permute) & sends_nothing))
        for spec in self._collectives:
            if spec.moves == "elements" and self._is_bound:
                if spec.traffic.rounds > 1:
                    self._last_steps += self._two_round_steps(spec, may_be_before, partial, combined)
                else:
                    self._last_steps += self._creations(spec, may_be_before, partial, combined)
            if spec.moves not in ("shards", "elements") or spec.traffic.rounds > 1:
                continue
            steps = []
            for chosen, count, nodes in self._groups():
                before, after = self._touched_pairs[self._bits(chosen)]
                may_end = may_be_after[:, chosen].all(1)
                if spec.moves == "shards":
                    # A permute leads between placements that cut each dimension into the same number of chunks.
                    may_end &= self._standard[:, chosen].all(1)
                    has_equal_counts = (self._parts[before] == self._parts[after]).all(1)
                    pairs = _select((before, after), may_end[before] & may_end[after] & has_equal_counts)
                    steps.append(self._moves(pairs, self._times(spec.traffic, count, nodes)))
                else:
                    may_start = may_be_before[:, chosen].all(1)
                    pairs = _select((before, after), may_start[before] & may_end[after])
                    steps += self._exchanges(spec, pairs, count, nodes, combined, sent)
            self._steps += _joined(steps)

    def _copies(self, legal: Numbers) -> Steps:
        """Return the times of local copies between the legal pairs.

        Args:
            legal: [before, after], whether the pair is legal.
        """
        before, after = np.nonzero(legal)
        return self._moves((before, after), _times(COPY, 2, 1, (LINEAR,), self._topology))

    def _moves(self, pairs: Pairs, times: Times, sent: Numbers | float = 0.0) -> Steps:
        """Return steps between `pairs` with these times.

        Args:
            sent: [pair], the fraction of the value that the busiest rank sends or receives.
        """
        latency, per_held_byte, per_sent_byte = (numbers[:, None] for numbers in times)
        slope = per_held_byte * self.shares[pairs[1]] + per_sent_byte * sent
        return Steps(*pairs, np.broadcast_to(latency, slope.shape), slope)

    def _creations(self, spec: CollectiveSpec, movable: Numbers, partial: Numbers, combined: Numbers) -> list[Steps]:
        """Return lower bounds on the times of exchanges after which some axes are partial that were not before.

        Take the ranks that differ only along these axes. Together they need every element of one shard, and every
        partial value of it from before the step. They receive all that none of them has, and the busiest of them
        receives at least the mean.

        Args:
            movable: [placement, axis], whether an exchange may move the axis.
            partial: [placement, axis], whether the axis has a standard partial placement.
            combined: as of `_exchanges`.
        """
        creates = partial[None, :] & (self._rows[:, None] != self._rows)
        creators = np.where(creates, self._counts, 1.0).prod(2)  # the number of these ranks
        sent = np.maximum(combined * self.shares - self._held_by_creators(creates), 0.0) / creators
        is_legal = (creators > 1) & self._may_move(movable, movable)
        copies = self._copies(is_legal & (sent <= 1e-12))
        return [copies, *self._all_exchanges(spec, is_legal & (sent > 1e-12), combined, sent)]

    def _held_by_creators(self, creates: Numbers) -> Numbers:
        """Return [before, after], an upper bound on the part of a shard that the ranks of `_creations` have before.

        The part is a fraction of the value on one device, and the smallest one over all shards. With more than
        `MOST_OVERLAPS` overlaps, or with placements of plug-ins, the bound follows from the lengths of shards alone.

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
        has_blocks: Numbers = np.all(self._standard, axis=1)
        # Along an axis that replicates the value before, all ranks have the same elements.
        is_replicated = self._traits == "replicated"
        copies = np.where(creates & is_replicated[:, None], self._counts, 1.0).prod(2)
        created_bits = (creates * np.array(self._bit)).sum(2)
        for bits in np.unique(created_bits).tolist():
            created_axes = tuple(2 + axis for axis in self._axes if bits >> axis & 1)
            smallest_part = overlaps.sum(created_axes).reshape(*held.shape, -1).min(2) / copies
            chosen = (created_bits == bits) & has_blocks[:, None] & has_blocks
            held[chosen] = np.minimum(held, smallest_part)[chosen]
        return held

    def _all_exchanges(self, spec: CollectiveSpec, legal: Numbers, combined: Numbers, sent: Numbers) -> list[Steps]:
        """Return the times of exchanges between the legal pairs, in groups over the axes along which chunks move.

        Args:
            legal: [before, after], whether the pair is legal.
            combined, sent: as of `_exchanges`.
        """
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
            sent: [before, after], the fraction of the value that the busiest rank sends or receives.
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
        """Return lower bounds on the times of exchanges in two rounds, which reduce partial values.

        Bytes are those of `spmdir.reshard.byte_bound` if m < k: an element takes at least (k − m) + (r − 1) messages.
        The arguments are those of `_creations`.
        """
        counts, world = self._counts, float(np.prod(self._counts))
        partial_values = np.prod(np.where(partial, counts, 1.0), axis=1)  # [placement]: k before the step
        own_partial_values = np.ones(self._moved.shape)  # [before, after]: m
        for axis, bit in enumerate(self._bit):
            own_partial_values[partial[:, axis, None] & ((self._moved & bit) == 0)] *= counts[axis]
        needers = world * self.shares / partial_values  # [placement]: r after the step
        sent = (partial_values[:, None] - own_partial_values + needers[None, :] - 1) / world
        return self._all_exchanges(spec, (combined > 1) & self._may_move(movable, movable), combined, sent)

    def _may_move(self, before: Numbers, after: Numbers) -> Numbers:
        """Return [before, after], whether some axis moves, and each that moves has an allowed placement on both sides.

        Args:
            before, after: [placement, axis], whether the placement of the axis allows the move on that side.
        """
        may_move = self._moved != 0
        for axis, bit in enumerate(self._bit):
            may_move &= ((self._moved & bit) == 0) | (before[:, axis, None] & after[None, :, axis])
        return may_move

    def _times(self, traffic: Traffic, count: int, nodes: int, combined: int = 1, is_exchange: bool = False) -> Times:
        """Return the times of a step in groups of `count` ranks on `nodes` nodes.

        An exchange of a lower bound counts as if it sent nothing to other nodes.
        """
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
        """Return [before, after], the fraction of its new shard that a rank has before a step, for the rank with least.

        To save time, only the first and last ranks of each axis are compared, and the middle one if there are few axes.
        For lower bounds on times, the result is at least the fraction. Otherwise it is at most that of the compared
        ranks. Shards of plug-ins need not be blocks: for them, it is 1 in a lower bound, otherwise 0.
        """
        has_middle = len(self._axes) < 3 or (self._is_bound and len(self._axes) == 3)
        coordinates = [{0, int(count) // 2 if has_middle else 0, int(count) - 1} for count in self._counts]
        compared_ranks = np.array(list(itertools.product(*coordinates))).T
        # Overlaps are multiplied over dimensions. The product of the least overlaps of each dimension takes less memory
        # than the least product. It is never larger, so only an estimate may use it.
        overlaps = self._overlaps(compared_ranks, is_least_by_dim=not self._is_bound)
        has_blocks: Numbers = np.all(self._standard, axis=1)
        fraction_without_blocks = 1.0 if self._is_bound else 0.0
        return np.where(has_blocks[:, None] & has_blocks, overlaps.min(2) / self.shares, fraction_without_blocks)

    def _overlaps(self, ranks: Numbers, is_least_by_dim: bool = False) -> Numbers:
        """Return [before, after, rank], the fraction of the value that a rank has before and after.

        Args:
            ranks: [axis, rank], the coordinates of ranks.
            is_least_by_dim: return one number for all `ranks`: the product over dimensions of the least overlap.
        """
        numbers = np.arange(len(self._rows))
        # [placement, dim, rank] and [placement, dim]: chunks, as fractions of the dimension. Outer axes cut first.
        begin_of_chunk = np.zeros((*self._parts.shape, ranks.shape[1]))
        length = np.ones(self._parts.shape)
        for axes in np.array(self._placements.order).T:  # the next inner axis of each placement
            dims = self._dims[numbers, axes]
            selected = numbers[dims >= 0], dims[dims >= 0]
            length[selected] /= self._counts[axes[dims >= 0]]
            begin_of_chunk[selected] += ranks[axes[dims >= 0]] * length[selected][:, None]
        overlaps = np.ones((len(numbers), len(numbers), 1 if is_least_by_dim else ranks.shape[1]))
        for dim in range(self._parts.shape[1]):
            # Many placements cut this dimension in the same way. Compute the overlaps of distinct ways only.
            cuts = np.column_stack((begin_of_chunk[:, dim], length[:, dim])).round(12)
            distinct_cuts, cut_of_placement = np.unique(cuts, axis=0, return_inverse=True)
            begin, end = distinct_cuts[:, :-1], distinct_cuts[:, :-1] + distinct_cuts[:, -1:]
            overlap = np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin)
            overlap = np.maximum(overlap.min(2, keepdims=True) if is_least_by_dim else overlap, 0.0)
            overlaps *= overlap[cut_of_placement.reshape(-1, 1), cut_of_placement.reshape(-1)]
        return overlaps


def _pairs_by_bits(bits: Numbers, axes: int) -> list[Pairs]:
    """Return [set of axes as bits], the pairs (before, after) for which the matrix `bits` has this set.

    Args:
        bits: [before, after], sets of axes as bits.
        axes: the number of axes.
    """
    sorted_pairs = np.argsort(bits.reshape(-1), kind="stable")  # a pair is the number before · len(bits) + after
    ends = np.bincount(bits.reshape(-1), minlength=1 << axes).cumsum()
    return [(pairs // len(bits), pairs % len(bits)) for pairs in np.split(sorted_pairs, ends[:-1])]


def _joined(steps: Sequence[Steps]) -> list[Steps]:
    """Return steps between disjoint pairs as a list of one `Steps`; an empty list if `steps` is empty."""
    if not steps:
        return []
    before, after = (np.concatenate([getattr(step, side) for step in steps]) for side in ("before", "after"))
    latency, slope = (np.concatenate([getattr(step, line) for step in steps], axis=1) for line in ("latency", "slope"))
    return [Steps(before, after, latency, slope)]


def _select(pairs: Pairs, is_selected: Numbers) -> Pairs:
    """Return the pairs for which `is_selected`, [pair], is true."""
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
    """Return the times of a step as a function of two sizes: the bytes held after it, and the bytes received.

    For each piece, the time is a line in each of both sizes, through the times at the two sizes of the piece. The lines
    can be added, because a step sends bytes that depend on one of both sizes only. The other size counts for local
    copies, whose time is linear.

    Args:
        count, nodes: the ranks of a group, and the nodes that it spans.
        combined: the number of partial values that a rank reduces to one.
        is_inside: whether nothing is sent to other nodes.
    """

    def seconds(held_bytes: float, moved_bytes: float) -> float:
        """Return the time of a step after which a rank holds, and in which it receives, these bytes."""
        # `cost` counts a step with a `crossing` that moves nothing as a local copy, without the latency of a message.
        moved_bytes = max(moved_bytes, 1e-6) if is_inside else moved_bytes
        crossing = 0.0 if is_inside else None
        sizes = Sizes(count, held_bytes, held_bytes, combined=combined, moved=moved_bytes, crossing=crossing)
        return cost(traffic, sizes, nodes, topology).seconds

    seconds_of_empty, latencies, slopes = seconds(0.0, 0.0), [], []
    for small, large in pieces:
        # Each has two numbers: the seconds if only bytes held grow, and if only bytes received grow.
        seconds_at_small, seconds_at_large = np.array(
            [[seconds(size, 0.0), seconds(0.0, size)] for size in (small, large)]
        )
        per_byte = (seconds_at_large - seconds_at_small) / (large - small)
        extra_latency = (seconds_at_small - seconds_of_empty - small * per_byte).sum()
        latencies.append(seconds_of_empty + float(extra_latency))
        slopes.append(per_byte)
    return np.array(latencies), *np.array(slopes).T


def _append_steps(seconds: Numbers, last_seconds: Numbers, passable: Iterable[int]) -> None:
    """Lower `seconds` in place to those of a sequence to a passable placement and one more sequence from there.

    If both arrays are the same one, this is the Floyd–Warshall algorithm: the second sequence has any length too.

    Args:
        seconds, last_seconds: [before, after], of the first and of the second sequence.
        passable: the placements in which the first sequence may end.
    """
    seconds_through = np.empty_like(seconds)
    for number in passable:
        np.add(seconds[:, number, None], last_seconds[number], out=seconds_through)
        np.minimum(seconds, seconds_through, out=seconds)
