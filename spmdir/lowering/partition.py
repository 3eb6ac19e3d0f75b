"""How the ranks of a group cut one dimension, and the graph nodes that split and join tensors along the cut.

Pieces are numbered in nesting order; the ranks of a process group ascend in mesh order, which may be another. A
nested uneven cut leaves holes when its pieces are padded to one length, since any piece may be short. Where pieces are
not stretches of the block, the block is laid out anew first, piece behind piece; after a gather that is undone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import attrs
from torch.fx import Node

from spmdir.core.intervals import Ranges, joined, length, positions, select
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.lowering.ranges import Emit, aten, narrow, take

Shape = tuple[int, ...]


@attrs.define(frozen=True, slots=False)
class Cut:
    """The pieces of a block of `extent` elements of dimension `dim`.

    Attributes:
        counts: the number of pieces along each axis, in nesting order.
        order: for each of these axes in mesh order, its position in nesting order.
        held: the positions that each piece has of the block, in nesting order.
    """

    dim: int
    extent: int
    counts: Shape
    order: Shape
    held: tuple[Ranges, ...]

    @property
    def count(self) -> int:
        return len(self.held)

    @cached_property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """(offset, length) of each piece in the block that has been `laid`."""
        lengths = [length(ranges) for ranges in self.held]
        return tuple(zip(itertools.accumulate(lengths, initial=0), lengths, strict=False))

    @cached_property
    def laid(self) -> Ranges:
        """The positions of the block, piece behind piece."""
        return joined(pair for ranges in self.held for pair in ranges)

    @cached_property
    def step(self) -> int:
        """The length of the longest piece."""
        return max(length for _, length in self.pieces)

    @cached_property
    def even(self) -> bool:
        return self.extent == self.step * self.count

    @cached_property
    def in_order(self) -> bool:
        """Whether nesting order is mesh order."""
        return self.order == tuple(range(len(self.order)))

    @cached_property
    def by_rank(self) -> Shape:
        """For each rank of the group, the number of its piece."""
        numbers = []
        for point in itertools.product(*(range(self.counts[position]) for position in self.order)):
            nested = dict(zip(self.order, point, strict=True))
            number = 0
            for position, count in enumerate(self.counts):
                number = number * count + nested[position]
            numbers.append(number)
        return tuple(numbers)

    @cached_property
    def runs(self) -> tuple[tuple[int, int, int], ...]:
        """(first piece, offset, size) of each stretch that stays unbroken when pieces are padded to `step`."""
        runs: list[tuple[int, int, int]] = []
        for number, (offset, size) in enumerate(self.pieces):
            if runs and runs[-1][0] * self.step + runs[-1][2] == number * self.step:
                runs[-1] = (*runs[-1][:2], runs[-1][2] + size)
            elif size or not runs:
                runs.append((number, offset, size))
        return tuple(runs)


def cut_of(sharding: Sharding, dim: int, axes: Sequence[str], size: int, mesh: Mesh, rank: int) -> Cut:
    """How `axes`, the innermost of `dim` in `sharding`, cut the block that the outer axes leave to `rank`."""
    outer = Sharding([(a, p) for a, p in sharding.entries if a not in axes], sharding.mesh)
    extent = length(outer.local_ranges(dim, size, mesh, mesh.coordinate(rank)))
    counts = tuple(mesh.sizes[axis] for axis in axes)
    order = tuple(axes.index(axis) for axis in mesh.axis_names if axis in axes)
    return Cut(dim, extent, counts, order, _held(tuple(sharding[axis] for axis in axes), counts, extent))


@lru_cache(maxsize=4096)
def _held(placements: tuple[Any, ...], counts: Shape, extent: int) -> tuple[Ranges, ...]:
    """What each rank holds of a block that `placements` divide, the first one major."""
    held: list[Ranges] = [((0, extent),)]
    for placement, count in zip(placements, counts, strict=True):
        held = [
            select(ranges, placement.ranges(length(ranges), count, index)) for ranges in held for index in range(count)
        ]
    return tuple(map(joined, held))


def lay(emit: Emit, x: Node, cut: Cut) -> Node:
    """The block `x` with the pieces of the cut one behind the other."""
    return take(emit, x, cut.dim, cut.laid, cut.extent)


def restore(emit: Emit, x: Node, cut: Cut) -> Node:
    """The inverse of `lay`."""
    return take(emit, x, cut.dim, positions(joined([(0, cut.extent)]), cut.laid), cut.extent)


def pad_end(emit: Emit, x: Node, dim: int, rank: int, amount: int) -> Node:
    """`x`, of `rank` dimensions, with `amount` zeros behind dimension `dim`."""
    if not amount:
        return x
    return emit(aten.constant_pad_nd.default, x, [0, 0] * (rank - 1 - dim) + [0, amount])


def spread(emit: Emit, x: Node, cut: Cut, rank: int) -> Node:
    """Pad each piece of the cut dimension to `cut.step`."""
    if cut.even:
        return x
    starts = [number for number, _, _ in cut.runs] + [cut.count]
    parts = []
    for (number, offset, size), following in zip(cut.runs, starts[1:], strict=True):
        part = narrow(emit, x, cut.dim, offset, size, cut.extent)
        parts.append(pad_end(emit, part, cut.dim, rank, (following - number) * cut.step - size))
    return parts[0] if len(parts) == 1 else emit(aten.cat.default, parts, cut.dim)


def pack(emit: Emit, x: Node, cut: Cut) -> Node:
    """The inverse of `spread`: drop the padding behind each piece."""
    whole = cut.count * cut.step
    parts = [narrow(emit, x, cut.dim, number * cut.step, size, whole) for number, _, size in cut.runs]
    return parts[0] if len(parts) == 1 else emit(aten.cat.default, parts, cut.dim)


def split_even(emit: Emit, x: Node, cut: Cut, block: Shape) -> Node:
    """Blocks of shape `block`, one a piece, joined along dimension 0 in rank order."""
    rank, nest = len(block), len(cut.counts)
    joined = [cut.count * block[0], *block[1:]]
    if cut.in_order and all(size == 1 for size in block[: cut.dim]):
        return x if cut.dim == 0 else emit(aten.reshape.default, x, joined)
    shape = [*block[: cut.dim], *cut.counts, *block[cut.dim :]]
    front = [cut.dim + position for position in cut.order]
    rest = [dim for dim in range(rank + nest) if dim not in front]
    x = emit(aten.permute.default, emit(aten.reshape.default, x, shape), [*front, *rest])
    return emit(aten.reshape.default, x, joined)


def join_even(emit: Emit, x: Node, cut: Cut, block: Shape) -> Node:
    """The inverse of `split_even`, for `x` with the blocks in rank order, of any shape."""
    rank, nest = len(block), len(cut.counts)
    whole = [*block[: cut.dim], cut.count * block[cut.dim], *block[cut.dim + 1 :]]
    if cut.in_order and all(size == 1 for size in block[: cut.dim]):
        return emit(aten.reshape.default, x, whole)
    x = emit(aten.reshape.default, x, [*(cut.counts[position] for position in cut.order), *block])
    nested = [cut.order.index(position) for position in range(nest)]
    dims = [*range(nest, nest + cut.dim), *nested, *range(nest + cut.dim, nest + rank)]
    return emit(aten.reshape.default, emit(aten.permute.default, x, dims), whole)


def flat_blocks(emit: Emit, x: Node, cut: Cut, block: Shape) -> Node:
    """The pieces of `x` in rank order, flattened and joined; `block` is the shape of a piece but for its own length."""
    if cut.even:
        return emit(aten.reshape.default, split_even(emit, x, cut, _with(block, cut.dim, cut.step)), [-1])
    if cut.in_order and all(size == 1 for size in block[: cut.dim]):
        return emit(aten.reshape.default, x, [-1])
    pieces = [cut.pieces[number] for number in cut.by_rank]
    parts = [narrow(emit, x, cut.dim, offset, size, cut.extent) for offset, size in pieces]
    return emit(aten.cat.default, [emit(aten.reshape.default, part, [-1]) for part in parts])


def from_flat_blocks(emit: Emit, x: Node, cut: Cut, block: Shape) -> Node:
    """The inverse of `flat_blocks`."""
    if cut.even:
        return join_even(emit, x, cut, _with(block, cut.dim, cut.step))
    shapes = [_with(block, cut.dim, cut.pieces[number][1]) for number in cut.by_rank]
    ends = list(itertools.accumulate(map(math.prod, shapes)))
    parts: dict[int, Node] = {}
    for number, shape, end in zip(cut.by_rank, shapes, ends, strict=True):
        part = narrow(emit, x, 0, end - math.prod(shape), math.prod(shape), ends[-1])
        parts[number] = emit(aten.reshape.default, part, list(shape))
    return emit(aten.cat.default, [parts[number] for number in range(cut.count)], cut.dim)


def _with(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])
