"""The times of permutes and exchanges between joint placements, which move whole shards or single elements.

An exchange takes as long as its busiest rank. This rank needs its new shard, once for each partial value that it
reduces, and receives what it lacks. For example, on the mesh (a = 2, b = 4), fractions of the value:

    <b: S(0)> → <b: S(1)>               needs 1/4, has 1/4 of that: receives 1/4 − 1/16 = 3/16
    <a: P(sum), b: S(0)> → <b: S(1)>    reduces 2 partial values, needs 2/4, has 1/16: receives 7/16

Lower bounds contain more exchanges, with the fewest bytes that any algorithm sends: those that create partial values,
and those of two rounds. A plan contains these only as its last step.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import numpy as np

from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.search.joint_placements import Numbers
from spmdir.search.placement_moves import Pairs, select
from spmdir.search.single_steps import StepGroup, Steps, StepTimer, joined

MOST_OVERLAPS = 1 << 24
"""The largest number of overlaps of shards, over all pairs of placements and all ranks, that a lower bound computes.

If there are more, the bound uses the lengths of the shards instead, which makes it lower.
"""


@attrs.frozen(eq=False)
class _Ends:
    """The placements that exchanges lead between.

    Attributes:
        partial: [placement, axis], whether the axis has a standard partial placement.
        may_be_before, may_be_after: [placement, axis], whether an exchange may move the axis from or to its placement.
        reduced_count: [before, after], the number of partial values that a rank reduces to one.
    """

    partial: Numbers
    may_be_before: Numbers
    may_be_after: Numbers
    reduced_count: Numbers


def rearrangement_steps(timer: StepTimer, collectives: Iterable[CollectiveSpec]) -> tuple[list[Steps], list[Steps]]:
    """Return the times of permutes and of exchanges, and those of steps that can only be the last one of a plan.

    An exchange may reduce standard partial values. Lower bounds also have local copies wherever an exchange between
    standard placements may send nothing.
    """
    moves = timer.moves
    ends = _find_ends(timer)
    kept_fraction = moves.kept_fraction(timer.is_bound)
    received = moves.shares[None, :] * (ends.reduced_count - kept_fraction)  # by the busiest rank
    steps: list[Steps] = []
    last_steps: list[Steps] = []
    if timer.is_bound:
        may_permute = ends.may_be_after & moves.is_standard
        receives_nothing = (ends.reduced_count == 1) & (kept_fraction > 1 - 1e-9)
        steps.append(timer.copies(moves.may_move(may_permute, may_permute) & receives_nothing))
    for spec in collectives:
        has_one_round = spec.traffic.rounds == 1
        if spec.moves == "shards" and has_one_round:
            steps += _permutes(timer, spec, ends)
        elif spec.moves == "elements" and has_one_round:
            if timer.is_bound:
                last_steps += _creating_exchanges(timer, spec, ends)
            steps += _plain_exchanges(timer, spec, ends, received)
        elif spec.moves == "elements" and timer.is_bound:
            last_steps += _two_round_exchanges(timer, spec, ends)
    return steps, last_steps


def _find_ends(timer: StepTimer) -> _Ends:
    """Return the placements that exchanges lead between."""
    moves = timer.moves
    partial = moves.is_standard & (moves.traits == "partial")
    may_be_after = ~moves.has_own_type & ((moves.traits == "shard") | (moves.traits == "replicated"))
    reduced_count = np.ones(moves.moved.shape)
    for axis, bit in enumerate(moves.axis_bits):
        is_reduced = partial[:, axis, None] & ((moves.moved & bit) != 0)
        reduced_count[is_reduced] *= moves.counts[axis]
    return _Ends(partial, may_be_after | partial, may_be_after, reduced_count)


def _permutes(timer: StepTimer, spec: CollectiveSpec, ends: _Ends) -> list[Steps]:
    """Return the times of permutes, between placements that cut each dimension into the same number of chunks."""
    moves, steps = timer.moves, []
    for group in timer.groups:
        may_be_end = np.array((ends.may_be_after & moves.is_standard)[:, group.axes].all(1))
        before, after = moves.touched_pairs[moves.set_of(group.axes)]
        has_equal_counts = (moves.chunks[before] == moves.chunks[after]).all(1)
        pairs = select((before, after), may_be_end[before] & may_be_end[after] & has_equal_counts)
        steps.append(timer.steps(pairs, timer.permute_line(spec.traffic, group)))
    return joined(steps)


def _plain_exchanges(timer: StepTimer, spec: CollectiveSpec, ends: _Ends, received: Numbers) -> list[Steps]:
    """Return the times of exchanges that create no partial values.

    Args:
        received: [before, after], the fraction of the value that the busiest rank receives.
    """
    moves, steps = timer.moves, []
    for group in timer.groups:
        before, after = moves.touched_pairs[moves.set_of(group.axes)]
        may_start = np.array(ends.may_be_before[:, group.axes].all(1))
        may_end = np.array(ends.may_be_after[:, group.axes].all(1))
        pairs = select((before, after), may_start[before] & may_end[after])
        steps += _exchanges(timer, spec, pairs, group, ends.reduced_count, received)
    return joined(steps)


def _exchanges(
    timer: StepTimer, spec: CollectiveSpec, pairs: Pairs, group: StepGroup, reduced_count: Numbers, moved: Numbers
) -> list[Steps]:
    """Return the times of exchanges between `pairs` within groups.

    Args:
        reduced_count: as of `_Ends`.
        moved: [before, after], the fraction of the value that the busiest rank sends or receives.
    """
    steps = []
    for count in np.unique(reduced_count[pairs]).tolist():
        pairs_with_count = select(pairs, reduced_count[pairs] == count)
        line = timer.exchange_line(spec.traffic, group, int(count))
        steps.append(timer.steps(pairs_with_count, line, moved[pairs_with_count]))
    return steps


def _exchanges_between(
    timer: StepTimer, spec: CollectiveSpec, is_legal: Numbers, reduced_count: Numbers, moved: Numbers
) -> list[Steps]:
    """Return the times of exchanges between the legal pairs, in groups over the axes along which chunks move.

    Args:
        is_legal: [before, after], whether the pair is legal.
        reduced_count, moved: as of `_exchanges`.
    """
    steps = []
    for group in timer.groups:
        pairs = timer.moves.touched_pairs[timer.moves.set_of(group.axes)]
        steps += _exchanges(timer, spec, select(pairs, is_legal[pairs]), group, reduced_count, moved)
    return joined(steps)


def _creating_exchanges(timer: StepTimer, spec: CollectiveSpec, ends: _Ends) -> list[Steps]:
    """Return lower bounds on the times of exchanges after which some axes are partial that were not before.

    The ranks that differ only along these axes are the *creators* of one shard: its partial values are added up over
    them. Together they need all elements of the shard, and all partial values of these from before the step. They
    receive what none of them has, and the busiest of them receives at least the mean.

    For example, from <a: S(0)> to <a: P(sum)> on the mesh (a = 2), both ranks are creators of the whole value. Each has
    one half of it, so they receive nothing, and the bound is the time of a local copy.
    """
    moves = timer.moves
    becomes_partial = ends.partial[None, :] & (moves.rows[:, None] != moves.rows)  # [before, after, axis]
    creator_count = np.where(becomes_partial, moves.counts, 1.0).prod(2)  # [before, after]
    # [before, after], fractions of the value: what the creators need and lack, and what the busiest one receives
    needed = ends.reduced_count * moves.shares
    received = np.maximum(needed - _held_by_creators(timer, becomes_partial), 0.0) / creator_count
    is_legal = (creator_count > 1) & moves.may_move(ends.may_be_before, ends.may_be_before)
    receives_nothing = received <= 1e-12
    copies = timer.copies(is_legal & receives_nothing)
    exchanges = _exchanges_between(timer, spec, is_legal & ~receives_nothing, ends.reduced_count, received)
    return [copies, *exchanges]


def _held_by_creators(timer: StepTimer, becomes_partial: Numbers) -> Numbers:
    """Return an array [before, after]: an upper bound on the part of a shard that its creators have before the step.

    The part is a fraction of the value on one device. If shards are blocks, it is that of the shard whose creators have
    least. Otherwise, and with more than `MOST_OVERLAPS` overlaps, it follows from the lengths of shards alone.

    For example, on the mesh (a = 2, b = 2), the two ranks along `a` create a shard of <a: P(sum), b: S(0)>: half of the
    value. From <b: S(1)>, both have the same half of it: 1/4 of the value. From <b: S(0), a: S(0)>, they have different
    halves of it: 1/4 + 1/4.

    Args:
        becomes_partial: [before, after, axis], whether the axis becomes partial.
    """
    moves = timer.moves
    held = _held_by_lengths(timer, becomes_partial)
    rank_count = int(moves.counts.prod())
    if held.size * rank_count > MOST_OVERLAPS:
        return held
    axis_sizes = moves.counts.astype(int).tolist()
    coordinates = np.indices(axis_sizes).reshape(len(axis_sizes), -1)  # [axis, rank]
    overlaps = moves.overlaps(coordinates).reshape(*held.shape, *axis_sizes)  # [before, after, index on each axis…]
    has_blocks: Numbers = np.all(moves.is_standard, axis=1)
    # Along an axis that replicates the value before, all creators have the same elements.
    is_replicated = moves.traits == "replicated"
    copies = np.where(becomes_partial & is_replicated[:, None], moves.counts, 1.0).prod(2)
    created_axes = (becomes_partial * np.array(moves.axis_bits)).sum(2)  # [before, after], a set of axes as bits
    for axis_set in np.unique(created_axes).tolist():
        # Add up the overlaps of the creators of each shard, and take the shard whose creators have least.
        summed_dims = tuple(2 + axis for axis in moves.axes if axis_set >> axis & 1)
        least_held = overlaps.sum(summed_dims).reshape(*held.shape, -1).min(2) / copies
        is_exact = (created_axes == axis_set) & has_blocks[:, None] & has_blocks
        held[is_exact] = np.minimum(held, least_held)[is_exact]
    return held


def _held_by_lengths(timer: StepTimer, becomes_partial: Numbers) -> Numbers:
    """Return `_held_by_creators` from the lengths of shards: the largest possible overlap of each creator, added up."""
    moves = timer.moves
    lengths = 1 / moves.chunks  # [placement, dimension], fractions of the dimension
    largest_overlap = np.ones(moves.moved.shape)
    for dim in range(lengths.shape[1]):
        largest_overlap *= np.minimum(lengths[:, None, dim], lengths[None, :, dim])
    return largest_overlap * np.where(becomes_partial, moves.counts, 1.0).prod(2)


def _two_round_exchanges(timer: StepTimer, spec: CollectiveSpec, ends: _Ends) -> list[Steps]:
    """Return lower bounds on the times of exchanges in two rounds, which reduce partial values.

    Before the step, there are k partial values of an element, and a rank that needs it has at most m of them. After the
    step, it is in r different places. So it takes at least (k − m) + (r − 1) messages, by the argument of
    `spmdir.reshard.byte_bound`. For example, <a: P(sum)> → <> on the mesh (a = 4) has k = 4, m = 1 and r = 4. That is 6
    messages for each element, and 6/4 of the value for each rank.
    """
    moves, rank_count = timer.moves, float(np.prod(timer.moves.counts))
    partial_counts = np.prod(np.where(ends.partial, moves.counts, 1.0), axis=1)  # [placement]: k if it is before
    own_partial_counts = np.ones(moves.moved.shape)  # [before, after]: m
    for axis, bit in enumerate(moves.axis_bits):
        is_unmoved_partial = ends.partial[:, axis, None] & ((moves.moved & bit) == 0)
        own_partial_counts[is_unmoved_partial] *= moves.counts[axis]
    place_counts = rank_count * moves.shares / partial_counts  # [placement]: r if it is after
    sent = (partial_counts[:, None] - own_partial_counts + place_counts[None, :] - 1) / rank_count
    is_legal = (ends.reduced_count > 1) & moves.may_move(ends.may_be_before, ends.may_be_before)
    return _exchanges_between(timer, spec, is_legal, ends.reduced_count, sent)
