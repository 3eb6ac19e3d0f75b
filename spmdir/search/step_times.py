"""Tables of the seconds to reshard a value from each joint placement to each other, by the fastest sequence of steps.

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

`single_steps.py` and `rearrangement_steps.py` compute the times of the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spmdir.core.mesh import Mesh
from spmdir.core.placement.tensor import TensorMeta
from spmdir.reshard.collective_spec import CollectiveSpec
from spmdir.reshard.topology import Topology
from spmdir.search.joint_placements import JointPlacements, Numbers
from spmdir.search.rearrangement_steps import rearrangement_steps
from spmdir.search.single_steps import Steps, StepTimer, collective_steps


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
        self._placements, self._is_bound = placements, is_bound
        timer = StepTimer(mesh, placements, topology, is_bound)
        self._moves, self.shares = timer.moves, timer.moves.shares
        rearrangements, self._last_steps = rearrangement_steps(timer, collectives)
        self._steps = [*collective_steps(timer, collectives), *rearrangements]
        self._tables: dict[object, Numbers] = {}

    def table(self, meta: TensorMeta, numbers: Numbers) -> Numbers:
        """Return an array [before, after]: the seconds of the cheapest sequence of steps for a value, or infinity.

        Sequences of an estimate pass through placements that divide the value evenly. On each axis, they use only the
        placements that occur in `numbers` on that axis, so the table takes less time to compute.

        Args:
            meta: the type of the value on one device.
            numbers: the joint placements of the rows and columns. They need not divide the value evenly.
        """
        is_passable = self._find_passable(meta)
        # [placement]: whether it has a row in the internal table.
        is_included = np.array(is_passable)
        if not self._is_bound:
            is_included &= self._consists_of(numbers)
        is_included[numbers] = True
        key = meta.bytes, is_included.tobytes(), is_passable.tobytes()
        if key not in self._tables:
            included = np.flatnonzero(is_included)
            self._tables[key] = self._shortest_sequences(included, is_passable[included], meta.bytes)
        row = (is_included.cumsum() - 1)[numbers]  # the rows of `numbers` in the internal table
        return self._tables[key][np.ix_(row, row)]

    def _find_passable(self, meta: TensorMeta) -> Numbers:
        """Return for each joint placement whether a sequence may pass through it.

        In a lower bound, it must shard only dimensions that the value has. In an estimate, its chunks must also have
        equal lengths.
        """
        if self._is_bound:
            return np.array(~(self._moves.dims >= meta.rank).any(1))
        # The sizes of all dimensions that some placement shards. Size 1 rejects shards of dimensions that are missing.
        shape = np.ones(self._moves.chunks.shape[1], dtype=int)
        shape[: meta.rank] = meta.shape[: len(shape)]
        return np.array((shape % self._moves.chunks == 0).all(1))

    def _consists_of(self, numbers: Numbers) -> Numbers:
        """Return for each joint placement whether its placement on each axis occurs in `numbers` on that axis."""
        rows = self._moves.rows
        result = np.ones(len(rows), dtype=bool)
        for axis in self._moves.axes:
            occurs = np.zeros(len(self._placements.catalogue.placements), dtype=bool)
            occurs[rows[numbers, axis]] = True
            result &= occurs[rows[:, axis]]
        return result

    def _shortest_sequences(self, included: Numbers, is_passable: Numbers, size: float) -> Numbers:
        """Return an array [before, after]: the seconds of the fastest sequence of steps, or infinity if there is none.

        Args:
            included: the joint placements of the rows and columns.
            is_passable: [row], whether a sequence may pass through this placement.
            size: bytes of the value on one device.
        """
        seconds = self._one_step_seconds(self._steps, included, size)
        _append_steps(seconds, seconds, np.flatnonzero(is_passable))
        if self._last_steps:
            last_step_seconds = self._one_step_seconds(self._last_steps, included, size)
            _append_steps(seconds, last_step_seconds, range(len(included)))
        return seconds

    def _one_step_seconds(self, steps: Sequence[Steps], included: Numbers, size: float) -> Numbers:
        """Return an array [before, after]: the seconds of the fastest single step for a value, or infinity.

        Args:
            included: the joint placements of the rows and columns.
            size: bytes of the value on one device. An empty value takes no time.
        """
        seconds = np.full((len(included), len(included)), np.inf)
        row_of_placement = np.full(len(self._moves.rows), -1)  # -1 if it is not included
        row_of_placement[included] = np.arange(len(included))
        for step in steps:
            row, column = row_of_placement[step.before], row_of_placement[step.after]
            latency, slope = step.latency, step.slope
            if len(included) < len(row_of_placement):
                kept_pairs = np.flatnonzero((row >= 0) & (column >= 0))
                row, column = row[kept_pairs], column[kept_pairs]
                latency, slope = latency[:, kept_pairs], slope[:, kept_pairs]
            step_seconds = np.minimum.reduce(latency + slope * size)
            seconds[row, column] = np.minimum(seconds[row, column], step_seconds)
        if not size:
            seconds[np.isfinite(seconds)] = 0.0  # an empty message has no latency
        return seconds


def _append_steps(seconds: Numbers, last_seconds: Numbers, passable: Iterable[int]) -> None:
    """Lower `seconds` in place by joining two sequences of steps, where a passable placement ends the first sequence.

    For example, with `seconds` P → S = 15 and P → R = 50, and `last_seconds` S → R = 27, P → R becomes 42 if S is
    passable. If both arrays are the same one, this is the Floyd–Warshall algorithm for shortest paths.

    Args:
        seconds, last_seconds: [before, after], of the first and of the second sequence.
        passable: the placements in which the first sequence may end.
    """
    seconds_through = np.empty_like(seconds)
    for number in passable:
        np.add(seconds[:, number, None], last_seconds[number], out=seconds_through)
        np.minimum(seconds, seconds_through, out=seconds)
