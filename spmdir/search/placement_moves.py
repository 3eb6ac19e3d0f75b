"""Changes between joint placements, for all pairs at once: the axes that move, and the elements that ranks keep.

For example, on the mesh (a = 2, b = 4), a reshard from <a: S(0), b: S(0)> to <b: S(0)> moves the axis `a`: its
placement changes. It *touches* both axes. `b` cuts the chunks of `a` before, and the whole dimension after, so ranks
exchange chunks along both. A rank has 1/8 of the value before and 1/4 after. The rank that keeps least has no element
of its new shard.

Sets of axes are bits: 0b01 is {a}, 0b10 is {b}. [before, after] is an array over all pairs of joint placements.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from spmdir.search.joint_placements import JointPlacements, Numbers

Pairs = tuple[Numbers, Numbers]
"""[pair], the numbers of joint placements before and after."""


class PlacementMoves:
    """The changes between the joint placements that have a number when the object is created.

    Attributes:
        axes: the positions of the axes.
        axis_bits: [axis], the set that contains only this axis.
        counts: [axis], its number of ranks.
        rows: [placement, axis], the number of the axis's placement in the catalogue.
        dims: [placement, axis], the dimension that the axis shards, or -1.
        is_shard, is_standard, has_own_type: [placement, axis], whether the axis shards a dimension, whether its
            placement is no plug-in's, and whether the placement changes the element type of the local tensor.
        traits: [placement, axis], the trait of the axis's placement.
        shares: [placement], the fraction of a value that a rank holds.
        chunks: [placement, dimension], the number of chunks of the dimension.
        nested: [placement, outer, inner], whether both axes shard one dimension, and `outer` is outside `inner`.
        moved: [before, after], the set of the axes whose placement changes.
        touched: [before, after], the set of the axes along which ranks exchange chunks.
        moved_pairs, touched_pairs: [set of axes], the pairs (before, after) that move or touch exactly this set.
    """

    def __init__(self, placements: JointPlacements):
        self._placements, catalogue = placements, placements.catalogue
        self.counts, self.rows = np.array(placements.counts, dtype=float), np.array(placements.all)
        self.axes = range(len(self.counts))
        # Look up properties of the placement of each axis: [number in the catalogue] becomes [placement, axis].
        dim_of_number = np.array([-1 if p.dim is None else p.dim for p in catalogue.placements])
        self.dims = dim_of_number[self.rows]
        self.is_shard = self.dims >= 0
        self.is_standard = self.rows < len(catalogue.placements) - len(catalogue.plugins)
        self.has_own_type = np.array([p.has_own_type for p in catalogue.placements])[self.rows]
        self.traits = np.array([p.trait for p in catalogue.placements])[self.rows]
        self.shares = np.prod(np.where(self.is_shard, 1 / self.counts, 1.0), axis=1)
        self.chunks = np.ones((len(self.rows), int(dim_of_number.max()) + 1), dtype=int)
        for dim in range(self.chunks.shape[1]):
            self.chunks[:, dim] = np.prod(np.where(self.dims == dim, self.counts, 1), axis=1)
        self.nested = self._find_nested()
        # Sets are bits because an array with an extra dimension for axes would be too large.
        bit_type = np.min_scalar_type(1 << len(self.axes)).type
        self.axis_bits = [bit_type(1 << axis) for axis in self.axes]
        self.moved: Numbers = np.bitwise_or.reduce(
            [np.where(row[:, None] != row, bit, 0) for row, bit in zip(self.rows.T, self.axis_bits, strict=True)]
        )
        self.touched = self._find_touched()
        self.moved_pairs = _pairs_by_set(self.moved, len(self.axes))
        self.touched_pairs = _pairs_by_set(self.touched, len(self.axes))

    def _find_nested(self) -> Numbers:
        """Return an array [placement, outer, inner]: whether two axes shard one dimension, `outer` outside `inner`."""
        nesting_position = np.argsort(np.array(self._placements.order), axis=1)  # [placement, axis], 0 is outermost
        shard_one_dim = (self.dims[:, :, None] == self.dims[:, None, :]) & self.is_shard[:, :, None]
        is_outside: Numbers = nesting_position[:, :, None] < nesting_position[:, None, :]
        return shard_one_dim & is_outside

    def _find_touched(self) -> Numbers:
        """Return an array [before, after]: the set of the axes along which ranks exchange chunks, as bits.

        These are the axes that move, the axes with different outer axes before and after, and all axes inside these.
        """
        bits = np.array(self.axis_bits)
        # [placement, axis]: the set of the axes that the axis is inside of.
        outer_axes = (self.nested * bits[:, None]).sum(1, dtype=bits.dtype)
        touched = self.moved.copy()
        for axis, bit in enumerate(self.axis_bits):
            touched |= np.where(outer_axes[:, None, axis] != outer_axes[:, axis], bit, 0)
        # Add the axes inside those of the result. Axes that are not in it have equal outer axes before and after.
        for _ in self.axes[1:]:
            for axis, bit in enumerate(self.axis_bits):
                touched |= np.where(outer_axes[:, axis, None] & touched, bit, 0)
        return touched

    def set_of(self, axes: Sequence[int]) -> int:
        """Return a set of axes as bits."""
        return sum(int(self.axis_bits[axis]) for axis in axes)

    def keep_nesting(self, axes: Sequence[int], pairs: Pairs) -> Numbers:
        """Return for each pair whether both sides nest several of `axes` in the same dimensions and the same order."""
        before, after = pairs
        nested = self.nested[:, axes][:, :, axes].reshape(len(self.rows), -1)
        return (nested[before] == nested[after]).all(1)

    def may_move(self, is_allowed_before: Numbers, is_allowed_after: Numbers) -> Numbers:
        """Return an array [before, after]: whether axes move, and all that move have allowed placements.

        Args:
            is_allowed_before, is_allowed_after: [placement, axis], whether an axis may move from, or to, its placement.
        """
        may_move = self.moved != 0
        for axis, bit in enumerate(self.axis_bits):
            is_unmoved = (self.moved & bit) == 0
            may_move &= is_unmoved | (is_allowed_before[:, axis, None] & is_allowed_after[None, :, axis])
        return may_move

    def kept_fraction(self, is_bound: bool) -> Numbers:
        """Return an array [before, after]: for the rank that keeps least, the fraction of its new shard that it keeps.

        A rank keeps the elements that it has both before and after a step.

        To save time, only the first and last ranks of each axis are compared, and the middle one if there are few axes.
        Shards of plug-ins need not be blocks: for them, the fraction is 1 in a lower bound, otherwise 0.

        Args:
            is_bound: whether the result must be at least the fraction, for lower bounds on times. Otherwise it is at
                most that of the compared ranks.
        """
        has_middle = len(self.axes) < 3 or (is_bound and len(self.axes) == 3)
        coordinates = [{0, int(count) // 2 if has_middle else 0, int(count) - 1} for count in self.counts]
        compared_ranks = np.array(list(itertools.product(*coordinates))).T
        # Overlaps are multiplied over dimensions. The product of the least overlaps of each dimension takes less memory
        # than the least product. It is never larger, so only an estimate may use it.
        overlaps = self.overlaps(compared_ranks, is_least_by_dim=not is_bound)
        has_blocks: Numbers = np.all(self.is_standard, axis=1)
        fraction_without_blocks = 1.0 if is_bound else 0.0
        return np.where(has_blocks[:, None] & has_blocks, overlaps.min(2) / self.shares, fraction_without_blocks)

    def overlaps(self, ranks: Numbers, is_least_by_dim: bool = False) -> Numbers:
        """Return an array [before, after, rank]: the fraction of the value that the rank has both before and after.

        For example, on the mesh (b = 4), rank 1 has [1/4, 1/2) of the rows by S(0), and the same part of the columns by
        S(1). It has 1/16 of the value by both.

        Args:
            ranks: [axis, rank], the coordinates of ranks.
            is_least_by_dim: return one number for all `ranks`: the product over dimensions of the least overlap.
        """
        numbers = np.arange(len(self.rows))
        # [placement, dim, rank] and [placement, dim]: chunks, as fractions of the dimension. Outer axes cut first.
        begin_of_chunk = np.zeros((*self.chunks.shape, ranks.shape[1]))
        length = np.ones(self.chunks.shape)
        for axes in np.array(self._placements.order).T:  # the next inner axis of each placement
            dims = self.dims[numbers, axes]
            selected = numbers[dims >= 0], dims[dims >= 0]
            length[selected] /= self.counts[axes[dims >= 0]]
            begin_of_chunk[selected] += ranks[axes[dims >= 0]] * length[selected][:, None]
        overlaps = np.ones((len(numbers), len(numbers), 1 if is_least_by_dim else ranks.shape[1]))
        for dim in range(self.chunks.shape[1]):
            # Many placements cut this dimension in the same way. Compute the overlaps of distinct ways only.
            # Rounding makes cuts equal that differ by rounding errors only.
            cuts = np.column_stack((begin_of_chunk[:, dim], length[:, dim])).round(12)
            distinct_cuts, cut_of_placement = np.unique(cuts, axis=0, return_inverse=True)
            begin, end = distinct_cuts[:, :-1], distinct_cuts[:, :-1] + distinct_cuts[:, -1:]
            overlap = np.minimum(end[:, None], end) - np.maximum(begin[:, None], begin)
            overlap = np.maximum(overlap.min(2, keepdims=True) if is_least_by_dim else overlap, 0.0)
            overlaps *= overlap[cut_of_placement.reshape(-1, 1), cut_of_placement.reshape(-1)]
        return overlaps


def select(pairs: Pairs, is_selected: Numbers) -> Pairs:
    """Return the pairs for which `is_selected`, [pair], is true."""
    return pairs[0][is_selected], pairs[1][is_selected]


def _pairs_by_set(sets: Numbers, axes: int) -> list[Pairs]:
    """Return for each set of axes the pairs (before, after) for which the matrix `sets` contains this set.

    Args:
        sets: [before, after], sets of axes as bits.
        axes: the number of axes.
    """
    sorted_pairs = np.argsort(sets.reshape(-1), kind="stable")  # a pair is the number before · len(sets) + after
    ends = np.bincount(sets.reshape(-1), minlength=1 << axes).cumsum()
    return [(pairs // len(sets), pairs % len(sets)) for pairs in np.split(sorted_pairs, ends[:-1])]
