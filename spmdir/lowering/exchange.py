"""Exchanges as graph nodes: grids are cut out, sent in one all-to-all or two, put together and reduced."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence

import attrs
from torch.fx import Node

from spmdir.core.intervals import Ranges, common, length, positions, union
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.reductions import REDUCTIONS
from spmdir.core.placement.standard import Partial
from spmdir.core.placement.tensor import TensorMeta
from spmdir.lowering.ranges import Emit, aten, narrow, take
from spmdir.lowering.reductions import Brackets, brackets, identities
from spmdir.lowering.site import Message, Site, functional, here
from spmdir.lowering.wire import packed
from spmdir.reshard.exchange import exchange, exchange_loads, grid_of, partial_axes, reduced_axes
from spmdir.reshard.moved_axes import exchanged_axes, two_round_axes
from spmdir.reshard.parts import Grid, Loads, Part
from spmdir.reshard.two_round_exchange import two_round_exchange, two_round_loads
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

Placed = tuple[Part, Node]


def exchange_message(site: Site, x: Node) -> Message:
    """Return what an exchange sends of `x`; see `spmdir.reshard.exchange` for who gives what to whom."""
    parts = exchange(site.source, site.target, site.mesh, site.shape, site.rank)
    grid = grid_of(site.source, site.shape, site.mesh, site.rank)
    axes = exchanged_axes(site.source, site.target, site.mesh)
    values = _Values.of(site, x, reduced_axes(site.source, site.target))
    (loads,) = exchange_loads(site.source, site.target, site.mesh, site.shape)
    sending = _round(values, axes, parts, loads, lambda part: _take(site.emit, values.moved, part.grid, grid))
    return sending.ending_in(lambda placed: _reduced(values, placed))


def two_round_exchange_message(site: Site, x: Node) -> Message:
    """Emit the first round of a two-round exchange of `x` and what this rank reduces for others; return the second."""
    moved = two_round_exchange(site.source, site.target, site.mesh, site.shape, site.rank)
    grid = grid_of(site.source, site.shape, site.mesh, site.rank)
    axes = two_round_axes(site.source, site.target, site.mesh)
    loads = two_round_loads(site.source, site.target, site.mesh, site.shape)
    values = _Values.of(site, x, _combined_axes(site))

    def own(part: Part) -> Node:
        return _take(site.emit, values.moved, part.grid, grid)

    kept = [(part, own(part)) for part in moved.kept if part.receiver == site.rank]
    first = _round(values, axes, moved.gathered, loads[0], own)
    gathered = first.received(first.message.sent_and_finished(site.emit))
    grids = dict.fromkeys(part.grid for part in moved.spread if part.sender == site.rank)
    sums = {grid: _combined(values, _within(values, grid, gathered)) for grid in grids}
    second = _round(values, axes, moved.spread, loads[1], lambda part: sums[part.grid])
    return second.ending_in(lambda placed: _reduced(values, [*kept, *placed]))


def _combined_axes(site: Site) -> tuple[str, ...]:
    """Return the axes whose partial values a two-round exchange combines: those that stay partial too.

    Sums of some partial values of `P(op)` are partial values as they are.
    """
    reduced = reduced_axes(site.source, site.target)
    return reduced or tuple(axis for axis, op in site.source.partial if op not in REDUCTIONS)


@attrs.frozen
class _Values:
    """The partial values that an exchange moves and combines.

    Attributes:
        site: the exchange; its element type is that of what moves.
        operand: what the rank holds.
        moved: that, as it is combined: with `before` of its placements done.
        placement: of the partial values that are reduced or made; P(sum) if there are none.
        brackets: what is done before and after they are combined.
    """

    site: Site
    operand: Node
    moved: Node
    placement: PartialPlacement
    brackets: Brackets

    @staticmethod
    def of(site: Site, x: Node, axes: Sequence[str]) -> _Values:
        """Return the values of the operand `x`, of which those over `axes` are combined."""
        around = brackets(site, axes)
        moved, (_, torch_dtype) = around.before(x, (site.local(site.source), site.torch_dtype))
        if torch_dtype != site.torch_dtype:
            site = attrs.evolve(site, meta=TensorMeta(site.shape, DTYPES_OF_TORCH[torch_dtype]))
        return _Values(site, x, moved, _moved_placement(site), around)

    def identities(self, shape: Sequence[int]) -> Node:
        """Return `shape` full of what changes no partial value."""
        if isinstance(self.placement, Partial):
            identity = REDUCTIONS[self.placement.reduce].identity
            assert identity is not None  # a sum stands for an average
            return identities(self.site, self.operand, shape, identity)
        # Of a placement without an identity only empty chunks are.
        outer = self.brackets.site
        neutral = identities(outer, self.operand, shape, self.placement.identity or 0.0)
        return self.brackets.prepared(neutral, (tuple(shape), outer.torch_dtype))[0]


def _moved_placement(site: Site) -> PartialPlacement:
    """Return the placement of the partial values that are reduced or made, else of those that stay."""
    moved = {*reduced_axes(site.source, site.target), *partial_axes(site.source, site.target)}
    entries = sorted((*site.source.entries, *site.target.entries), key=lambda entry: entry[0] not in moved)
    return next((p for _, p in entries if isinstance(p, PartialPlacement)), Partial("sum"))


@attrs.frozen
class _Round:
    """One all-to-all.

    Attributes:
        message: what it sends; what it gives is flat.
        received: what it gives → the parts that this rank gets or keeps.
    """

    message: Message
    received: Callable[[Node], list[Placed]]

    def ending_in(self, value_of: Callable[[list[Placed]], Node]) -> Message:
        """Return its message, for what `value_of` makes of the parts."""
        finish = self.message.finish
        return attrs.evolve(self.message, finish=lambda result: value_of(self.received(finish(result))))


def _round(
    values: _Values, axes: Sequence[str], parts: Sequence[Part], loads: Loads, chunk_of: Callable[[Part], Node]
) -> _Round:
    """Send what `chunk_of` gives of `parts` along `axes`; nothing is sent if no rank of the mesh has `loads`."""
    site, x = values.site, values.moved
    kept = [(part, chunk_of(part)) for part in parts if part.sender == part.receiver == site.rank]
    # Whether anything is sent must be the same for all ranks, not only for those of this group.
    if not loads:
        return _Round(here(x), lambda result: kept)
    ordered = [part for part in parts if part.sender != part.receiver]
    axes = [axis for axis in axes if site.mesh.sizes[axis] > 1]
    group = sorted(site.mesh.group(site.rank, axes))
    outgoing = [[p for p in ordered if (p.sender, p.receiver) == (site.rank, member)] for member in group]
    incoming = [[p for p in ordered if (p.sender, p.receiver) == (member, site.rank)] for member in group]
    flat = [site.emit(aten.reshape.default, chunk_of(part), [-1]) for to in outgoing for part in to]
    nothing = [] if flat else [site.emit(aten.new_empty.default, x, [0])]
    joined = flat[0] if len(flat) == 1 else site.emit(aten.cat.default, [*flat, *nothing])
    receives, sends = ([sum(part.numel for part in parts) for parts in side] for side in (incoming, outgoing))
    message = site.move(
        functional.all_to_all_single.default, joined, receives, sends, axes=axes, finish=lambda result: result
    )

    def received(result: Node) -> list[Placed]:
        placed, at = list(kept), 0
        for part in (part for parts in incoming for part in parts):
            chunk = narrow(site.emit, result, 0, at, part.numel, sum(receives))
            placed.append((part, site.emit(aten.reshape.default, chunk, [length(ranges) for ranges in part.grid])))
            at += part.numel
        return placed

    return _Round(message, received)


def _take(emit: Emit, x: Node, grid: Grid, own: Grid) -> Node:
    """The elements of `grid` out of `x`, which is the grid `own`, in the order of `grid`."""
    for dim, (wanted, ranges) in enumerate(zip(grid, own, strict=True)):
        x = take(emit, x, dim, positions(wanted, ranges), length(ranges))
    return x


def _within(values: _Values, grid: Grid, parts: Sequence[Placed]) -> list[Node]:
    """The partials of `grid`, each put together of those of its `parts` that meet the grid."""
    partials: dict[int, list[Placed]] = {}
    for part, node in parts:
        overlap = tuple(common(a, b) for a, b in zip(part.grid, grid, strict=True))
        if all(overlap):
            met = attrs.evolve(part, grid=overlap)
            partials.setdefault(part.partial, []).append((met, _take(values.site.emit, node, overlap, part.grid)))
    return [_join(values, grid, partials[partial]) for partial in sorted(partials)]


def _reduced(values: _Values, parts: Sequence[Placed]) -> Node:
    """What the rank holds in the end, of all parts that it got or kept."""
    site = values.site
    wanted = grid_of(site.target, site.shape, site.mesh, site.rank)
    # A rank that gets nothing of a partial value would add identities only.
    partials = [[(p, n) for p, n in parts if p.partial == partial] for partial in sorted({p.partial for p, _ in parts})]
    result = _combined(values, [_join(values, wanted, of_partial) for of_partial in partials or [[]]])
    return values.brackets.after(result, (site.local(site.target), site.torch_dtype))


def _combined(values: _Values, partials: Sequence[Node]) -> Node:
    site, reduction = values.site, values.placement.reduce
    combine = functools.partial(site.emit, operator.attrgetter(REDUCTIONS[reduction].op)(aten))
    if len(partials) == 1 or not site.torch_dtype.is_complex or reduction == "product":
        return functools.reduce(combine, partials)
    # torch adds 1 * b to a, which is not b for infinite parts and negative zeros; process groups add parts.
    parts, unpacks = zip(*(packed(site.emit, partial, site.torch_dtype) for partial in partials), strict=True)
    return unpacks[0](functools.reduce(combine, parts))


def _join(values: _Values, grid: Grid, parts: Sequence[Placed]) -> Node:
    """`grid` put together of `parts`; what no part fills holds what changes no partial value."""
    ascending = tuple(map(union, grid))
    return _take(values.site.emit, _joined_chunks(values, ascending, parts), grid, ascending)


def _joined_chunks(values: _Values, grid: Grid, parts: Sequence[Placed]) -> Node:
    """`_join` of a grid that is ascending in every dimension: joined along one that no part goes right through."""
    if not parts:
        return values.identities([length(ranges) for ranges in grid])
    for part, node in parts:
        if part.grid == grid:
            return node
    for dim, own in enumerate(grid):
        slabs = _slabs(own, [part.grid[dim] for part, _ in parts])
        if len(slabs) > 1:
            inside = [[(p, node) for p, node in parts if common(p.grid[dim], slab)] for slab in slabs]
            grids = [(*grid[:dim], slab, *grid[dim + 1 :]) for slab in slabs]
            made = [_joined_chunks(values, *of) for of in zip(grids, inside, strict=True)]
            result = values.site.emit(aten.cat.default, made, dim)
            order = tuple(itertools.chain.from_iterable(slabs))
            return take(values.site.emit, result, dim, positions(own, order), length(own))
    raise AssertionError(f"parts of a grid do not fit together: {grid}")


def _slabs(own: Ranges, parts: Sequence[Ranges]) -> list[Ranges]:
    """`own` in as many slabs as there are that every part is in entirely, those that no part fills among them."""
    slabs: list[Ranges] = []
    for part in dict.fromkeys(parts):
        met = [slab for slab in slabs if common(slab, part)]
        slabs = [slab for slab in slabs if slab not in met]
        slabs.append(union(part, *met))
    covered = union(*slabs)
    edges = [own[0][0], *itertools.chain.from_iterable(covered), own[-1][1]]
    gaps = [common(own, ((start, end),)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return sorted([*slabs, *filter(None, gaps)])
