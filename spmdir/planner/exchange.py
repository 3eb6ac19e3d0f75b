"""The one-shot exchange: every rank gets what it lacks straight from ranks that hold it, in one all-to-all.

The box of the tensor that a rank holds afterwards is cut into *cells*, one for each source piece that it meets in each
dimension. Where the source is a pending reduction that the target is not, each *addend* is fetched and the rank reduces
them itself. Where the target is a pending reduction that the source is not, the ranks along its axes together are one
*needer*: each element goes to one of them, and the others hold the reduction's identity.

A cell that a needer lacks is held by some ranks alike and lacked by some needers alike. Holders share the sending
evenly, and the ranks of a needer the receiving, so that a cell may come in several parts. Then the busiest rank
moves no more than the lower bound asks where division is even and no more than two addends meet.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import attrs

from spmdir.mesh import Mesh
from spmdir.planner.steps import exchanged_axes, refinement
from spmdir.sharding import Sharding

Range = tuple[int, int]
"""(start, end) of global positions in one dimension."""

Box = tuple[Range, ...]
"""One range a dimension."""


@attrs.frozen
class Part:
    """What one rank gives another, or keeps: the elements of a box, of one addend."""

    sender: int
    receiver: int
    addend: int
    cell: Box
    box: Box

    @property
    def numel(self) -> int:
        return math.prod(end - start for start, end in self.box)


def reduced_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """The axes whose pending reduction an exchange does."""
    return tuple(axis for axis, op in source.partial if (axis, op) not in target.partial)


def pending_axes(source: Sharding, target: Sharding) -> tuple[str, ...]:
    """The axes whose reduction an exchange leaves pending."""
    return tuple(axis for axis, op in target.partial if (axis, op) not in source.partial)


@functools.lru_cache(maxsize=4096)
def exchange(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...], rank: int) -> tuple[Part, ...]:
    """All parts that the ranks of the group of `rank` give each other and keep, by receiver, addend and position.

    The cells of one receiver and addend lie side by side, in row-major order; parts of one cell along one dimension.
    """
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return exchange(source.refined(fine), target.refined(fine), fine, shape, rank)
    group = mesh.group(rank, exchanged_axes(source, target, mesh))
    reduced, pending = reduced_axes(source, target), pending_axes(source, target)
    lasting = [axis for axis in mesh.axis_names if axis not in pending]
    held = {member: box_of(source, shape, mesh, member) for member in group}
    cuts = [sorted({box[dim] for box in held.values()}) for dim in range(len(shape))]
    holders: dict[tuple[int, Box], list[int]] = {}
    needers: dict[Box, dict[int, list[int]]] = {}
    for member in group:
        holders.setdefault((mesh.index(member, reduced), held[member]), []).append(member)
        of_box = needers.setdefault(box_of(target, shape, mesh, member), {})
        of_box.setdefault(mesh.index(member, lasting), []).append(member)
    parts: list[Part] = []
    for box, of_box in needers.items():
        for cell, owner in _cells(box, cuts):
            for addend in range(mesh.group_size(reduced)):
                own = holders[addend, owner]
                lacking = []
                for members in of_box.values():
                    keeper = next((member for member in members if member in own), None)
                    if keeper is None:
                        lacking.append(members)
                    else:
                        parts.append(Part(keeper, keeper, addend, cell, cell))
                parts += _shared(addend, cell, lacking, own)
    return tuple(sorted(parts, key=lambda part: (part.receiver, part.addend, part.cell, part.box)))


def exchange_loads(source: Sharding, target: Sharding, mesh: Mesh, shape: tuple[int, ...]) -> dict[Range, int]:
    """(sender, receiver) → elements, over the whole mesh; under even division, over one group that stands for all."""
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return exchange_loads(source.refined(fine), target.refined(fine), fine, shape)
    even = all(
        size % mesh.group_size(sharding.dim_axes(dim)) == 0
        for sharding in (source, target)
        for dim, size in enumerate(shape)
    )
    axes = exchanged_axes(source, target, mesh)
    fixed = [axis for axis in mesh.axis_names if axis not in axes]
    ranks = [r for r in range(mesh.world_size) if mesh.index(r, axes) == 0 and (not even or mesh.index(r, fixed) == 0)]
    loads: dict[Range, int] = {}
    for rank in ranks:
        for part in exchange(source, target, mesh, shape, rank):
            if part.sender != part.receiver:
                pair = part.sender, part.receiver
                loads[pair] = loads.get(pair, 0) + part.numel
    return loads


def box_of(sharding: Sharding, shape: Sequence[int], mesh: Mesh, rank: int) -> Box:
    """What `rank` holds of a tensor of global `shape`."""
    coordinate = mesh.coordinate(rank)
    held = (sharding.local_range(dim, size, mesh, coordinate) for dim, size in enumerate(shape))
    return tuple((offset, offset + length) for offset, length in held)


def _cells(box: Box, cuts: Sequence[Sequence[Range]]) -> Iterator[tuple[Box, Box]]:
    """Each cell of `box` that is not empty, with the source box that it is of."""
    if not box:
        yield (), ()
        return
    start, end = box[0]
    for owner in cuts[0]:
        low, high = max(start, owner[0]), min(end, owner[1])
        if low < high:
            for cell, owners in _cells(box[1:], cuts[1:]):
                yield ((low, high), *cell), (owner, *owners)


def _shared(addend: int, cell: Box, lacking: Sequence[Sequence[int]], holders: Sequence[int]) -> Iterator[Part]:
    """What the ranks of each needer that is `lacking` get of `cell` from each of the `holders`.

    Laid end to end, what all get is cut into one stretch for each holder and one for each rank that receives.
    """
    receivers = [member for members in lacking for member in members]
    if not receivers:
        return
    # The line is as many units long as holders and receivers both divide.
    line = math.lcm(len(receivers), len(holders))
    whole, share, each = line // len(lacking), line // len(holders), line // len(receivers)
    dim = max(range(len(cell)), key=lambda d: cell[d][1] - cell[d][0], default=None)
    if dim is None:
        for low in range(0, line, whole):
            yield Part(holders[low // share], receivers[low // each], addend, cell, cell)
        return
    start, length = cell[dim][0], cell[dim][1] - cell[dim][0]
    edges = sorted({*range(0, line, share), *range(0, line, each), line})
    for low, high in itertools.pairwise(edges):
        first = low - low % whole
        begin, end = start + length * (low - first) // whole, start + length * (high - first) // whole
        if begin < end:
            box = (*cell[:dim], (begin, end), *cell[dim + 1 :])
            yield Part(holders[low // share], receivers[low // each], addend, cell, box)
