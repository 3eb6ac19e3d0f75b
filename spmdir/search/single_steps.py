"""The times of single reshard steps between joint placements; here those of collectives that name axes.

A collective that names axes takes all of them from one placement to another. For example, on `h100x8` with the mesh
(a = 2, b = 4), for a value of 1024 × 1024 f32:

    <a: P(sum), b: S(0)> → <b: S(0)>    15.2 µs: all-reduce of a shard over `a`
    <b: S(0)> → <>                      27.3 µs: all-gather over `b`

`rearrangement_steps.py` adds the steps that move whole shards or single elements between ranks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import attrs
import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.cost import cost, node_count
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import COPY, Sizes, Traffic
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.placement_catalogue import LINEAR, Piece, pieces
from spmdir.search.placement_moves import Pairs, PlacementMoves, select


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


@attrs.frozen(eq=False)
class LinearTime:
    """The seconds of a step as a function of two sizes: `latency + per_held_byte · held + per_moved_byte · moved`.

    Attributes:
        latency: [piece], seconds.
        per_held_byte: [piece], seconds for each byte that a rank holds after the step.
        per_moved_byte: [piece], seconds for each byte that the busiest rank sends or receives.
    """

    latency: Numbers
    per_held_byte: Numbers
    per_moved_byte: Numbers


@attrs.frozen
class StepGroup:
    """The ranks that communicate in a step.

    Attributes:
        axes: positions of the mesh axes that they span.
        count: the number of ranks of a group.
        nodes: the number of nodes of the machine that a group spans.
    """

    axes: tuple[int, ...]
    count: int
    nodes: int


class StepTimer:
    """Computes the times of single steps on a mesh.

    Args:
        placements: the joint placements; later ones are unknown to this object.
        is_bound: whether times must be lower bounds on those of plans.
    """

    def __init__(self, mesh: Mesh, placements: JointPlacements, topology: Topology, is_bound: bool):
        self.placements, self.topology, self.is_bound = placements, topology, is_bound
        self.moves = PlacementMoves(placements)
        self.pieces = pieces(topology, is_bound)
        self.groups = list(_groups(mesh, placements))

    def steps(self, pairs: Pairs, line: LinearTime, moved: Numbers | float = 0.0) -> Steps:
        """Return the steps between `pairs` with the times of `line`.

        Args:
            moved: [pair], the fraction of the value that the busiest rank sends or receives.
        """
        latency, per_held_byte, per_moved_byte = (
            numbers[:, None] for numbers in (line.latency, line.per_held_byte, line.per_moved_byte)
        )
        slope = per_held_byte * self.moves.shares[pairs[1]] + per_moved_byte * moved
        return Steps(*pairs, np.broadcast_to(latency, slope.shape), slope)

    def permute_line(self, traffic: Traffic, group: StepGroup) -> LinearTime:
        """Return the seconds of a step that moves whole shards within groups."""
        return _line(traffic, group, self.pieces, self.topology)

    def exchange_line(self, traffic: Traffic, group: StepGroup, reduced_count: int) -> LinearTime:
        """Return the seconds of an exchange in which each rank reduces `reduced_count` partial values to one.

        A lower bound counts as if nothing were sent to other nodes.
        """
        return _line(traffic, group, self.pieces, self.topology, reduced_count, is_inside=self.is_bound)

    def copies(self, is_legal: Numbers) -> Steps:
        """Return the times of local copies between the legal pairs.

        Args:
            is_legal: [before, after], whether the pair is legal.
        """
        before, after = np.nonzero(is_legal)
        # A copy has no group. Two ranks are assumed, because a step of a group of one rank takes no time.
        return self.steps((before, after), _line(COPY, StepGroup((), 2, 1), (LINEAR,), self.topology))


def collective_steps(timer: StepTimer, collectives: tuple[CollectiveSpec, ...]) -> list[Steps]:
    """Return the times of collectives that name axes, and 0 seconds between placements with equal shards.

    Such a collective moves a set of axes that all have the same placement before, and the same one after. No other axis
    may be nested inside them, and all other axes keep their placements and nesting order.
    """
    moves = timer.moves
    rows, pairs_with_equal_shards = moves.rows, moves.touched_pairs[0]
    zeros = np.zeros((len(timer.pieces), len(pairs_with_equal_shards[0])))
    steps = [Steps(*pairs_with_equal_shards, zeros, zeros)]
    for group in timer.groups:
        axes, first_axis = group.axes, group.axes[0]
        other_axes = [axis for axis in moves.axes if axis not in axes]
        # [placement]: whether a collective over these axes may start or end there.
        have_one_placement = (rows[:, axes] == rows[:, first_axis : first_axis + 1]).all(1)
        are_innermost = ~moves.nested[:, axes][:, :, other_axes].any((1, 2))
        can_move = have_one_placement & are_innermost
        before, after = moves.moved_pairs[moves.set_of(axes)]
        before, after = select((before, after), can_move[before] & can_move[after])
        # An all-to-all from one dimension to another keeps the nesting order of its axes.
        is_all_to_all = moves.is_shard[before, first_axis] & moves.is_shard[after, first_axis]
        keeps_nesting = moves.keep_nesting(other_axes, (before, after))
        keeps_nesting &= ~is_all_to_all | moves.keep_nesting(axes, (before, after))
        before, after = select((before, after), keeps_nesting)
        # The fraction of the value that a rank would hold if `axes` were replicated.
        share = np.prod(np.where(moves.is_shard[:, other_axes], 1 / moves.counts[other_axes], 1.0), axis=1)[before]
        placement_pair = rows[before, first_axis], rows[after, first_axis]
        latency, slope = [], []
        for piece in timer.pieces:
            latency_of, slope_of = timer.placements.catalogue.latency_and_slope(
                group.count, group.nodes, collectives, timer.topology, piece
            )
            latency.append(latency_of[placement_pair])
            slope.append(slope_of[placement_pair] * share)
        steps.append(Steps(before, after, np.array(latency), np.array(slope)))
    return joined(steps)


def joined(steps: Sequence[Steps]) -> list[Steps]:
    """Return steps between disjoint pairs as a list of one `Steps`; an empty list if `steps` is empty."""
    if not steps:
        return []
    before, after = (np.concatenate([getattr(step, side) for step in steps]) for side in ("before", "after"))
    latency, slope = (np.concatenate([getattr(step, line) for step in steps], axis=1) for line in ("latency", "slope"))
    return [Steps(before, after, latency, slope)]


def _groups(mesh: Mesh, placements: JointPlacements) -> Iterator[StepGroup]:
    """Yield the group over each non-empty set of axes."""
    names = placements.axes
    for length in range(1, len(names) + 1):
        for axes in itertools.combinations(range(len(names)), length):
            count = math.prod(placements.counts[axis] for axis in axes)
            yield StepGroup(axes, count, node_count(tuple([names[axis] for axis in axes]), mesh))


@lru_cache(maxsize=4096)
def _line(
    traffic: Traffic,
    group: StepGroup,
    pieces: tuple[Piece, ...],
    topology: Topology,
    reduced_count: int = 1,
    is_inside: bool = False,
) -> LinearTime:
    """Return the seconds of a step as lines in two sizes: the bytes held after it, and the bytes moved.

    For each piece, the time is the sum of two lines. One is a line in the held bytes and one in the moved bytes, each
    through the times at the two sizes of the piece. Two lines may be added because the sent bytes of a step depend on
    either the held or the moved bytes. The other size only adds local copies, whose time is linear.

    Args:
        reduced_count: the number of partial values that a rank reduces to one.
        is_inside: whether nothing is sent to other nodes.
    """

    def seconds(held_bytes: float, moved_bytes: float) -> float:
        """Return the time of a step after which a rank holds, and in which it receives, these bytes."""
        # `cost` counts a step with a `crossing` that moves nothing as a local copy, without the latency of a message.
        moved_bytes = max(moved_bytes, 1e-6) if is_inside else moved_bytes
        crossing = 0.0 if is_inside else None
        sizes = Sizes(group.count, held_bytes, held_bytes, combined=reduced_count, moved=moved_bytes, crossing=crossing)
        return cost(traffic, sizes, group.nodes, topology).seconds

    seconds_of_empty, latencies, slopes = seconds(0.0, 0.0), [], []
    for small, large in pieces:
        # Each has two numbers: the seconds if only the held bytes grow, and if only the moved bytes grow.
        seconds_at_small = np.array([seconds(small, 0.0), seconds(0.0, small)])
        seconds_at_large = np.array([seconds(large, 0.0), seconds(0.0, large)])
        per_byte = (seconds_at_large - seconds_at_small) / (large - small)
        extra_latency = (seconds_at_small - seconds_of_empty - small * per_byte).sum()
        latencies.append(seconds_of_empty + float(extra_latency))
        slopes.append(per_byte)
    return LinearTime(np.array(latencies), *np.array(slopes).T)
