"""The one-shot exchange: every rank gets what it lacks straight from ranks that hold it, in one all-to-all.

The box of the tensor that a rank holds afterwards is cut into *cells*, one for each source piece that it meets in each
dimension. Where the source is a pending reduction that the target is not, each *addend* is fetched and the rank reduces
them itself. Where the target is a pending reduction that the source is not, each cell goes to some of the ranks
along its axes, preferably to those that have it, and the others hold the reduction's identity; equally for all ranks
along other axes, for what these replicate must be the same.

A cell that some ranks lack is held by others alike, who share the sending evenly, so that a cell may come in several
parts. Then the busiest rank moves no more than the lower bound asks where division is even and no reduction pends.
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
    """All parts that the ranks of the group of `rank` give each other and keep, by receiver, addend and position."""
    fine = refinement(mesh, source, target)
    if fine is not mesh:
        return exchange(source.refined(fine), target.refined(fine), fine, shape, rank)
    group = mesh.group(rank, exchanged_axes(source, target, mesh))
    reduced, pending = reduced_axes(source, target), pending_axes(source, target)
    held = {member: box_of(source, shape, mesh, member) for member in group}
    cuts = [sorted({box[dim] for box in held.values()}) for dim in range(len(shape))]
    holders: dict[tuple[int, Box], list[int]] = {}
    needers: dict[Box, list[list[int]]] = {}
    for member in group:
        holders.setdefault((mesh.index(member, reduced), held[member]), []).append(member)
        places = needers.setdefault(box_of(target, shape, mesh, member), [[] for _ in range(mesh.group_size(pending))])
        places[mesh.index(member, pending)].append(member)
    parts: list[Part] = []
    for box, places in needers.items():
        for cell, owner in _cells(box, cuts):
            for addend in range(mesh.group_size(reduced)):
                own = set(holders[addend, owner])
                having = [len(own.intersection(members)) for members in places]
                chosen = [members for members, have in zip(places, having, strict=True) if have == max(having)]
                for piece, members in zip(_split(cell, len(chosen)), chosen, strict=True):
                    parts += [Part(member, member, addend, piece) for member in members if member in own]
                    parts += _shared(addend, piece, [m for m in members if m not in own], sorted(own))
    parts = [part for part in parts if part.numel]
    return tuple(sorted(parts, key=lambda part: (part.receiver, part.addend, part.box)))


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


def _split(box: Box, count: int) -> list[Box]:
    """`box` in `count` pieces of about the same size along its longest dimension; some may be empty."""
    if not box or count == 1:
        return [box, *[((0, 0),)] * (count - 1)]
    dim = _longest(box)
    start, length = box[dim][0], box[dim][1] - box[dim][0]
    edges = [start + length * number // count for number in range(count + 1)]
    return [(*box[:dim], pair, *box[dim + 1 :]) for pair in itertools.pairwise(edges)]


def _longest(box: Box) -> int:
    return max(range(len(box)), key=lambda dim: box[dim][1] - box[dim][0])


def _shared(addend: int, box: Box, lacking: Sequence[int], holders: Sequence[int]) -> Iterator[Part]:
    """What each of the ranks that are `lacking` gets of `box` from each of the `holders`.

    Laid end to end, what all get is cut into one stretch for each holder.
    """
    if not lacking:
        return
    # The line is as many units long as both numbers divide.
    line = math.lcm(len(lacking), len(holders))
    whole, share = line // len(lacking), line // len(holders)
    if not box:
        for low in range(0, line, whole):
            yield Part(holders[low // share], lacking[low // whole], addend, box)
        return
    dim = _longest(box)
    start, length = box[dim][0], box[dim][1] - box[dim][0]
    edges = sorted({*range(0, line, share), *range(0, line, whole), line})
    for low, high in itertools.pairwise(edges):
        first = low - low % whole
        begin, end = start + length * (low - first) // whole, start + length * (high - first) // whole
        yield Part(holders[low // share], lacking[low // whole], addend, (*box[:dim], (begin, end), *box[dim + 1 :]))
