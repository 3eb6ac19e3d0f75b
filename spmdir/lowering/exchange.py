"""Emitters of exchanges: cut out the grids, send them in one or two all-to-alls, join them, and reduce."""

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
from spmdir.lowering.wire_types import view_as_sendable
from spmdir.reshard.exchange import exchange, exchange_loads, grid_of, partial_axes, reduced_axes
from spmdir.reshard.exchange_parts import Grid, Loads, Part
from spmdir.reshard.moved_axes import exchanged_axes, two_round_axes
from spmdir.reshard.two_round_exchange import two_round_exchange, two_round_loads
from spmdir.torch_interop.dtypes import DTYPES_OF_TORCH

PartNode = tuple[Part, Node]


def exchange_message(site: Site, x: Node) -> Message:
    """Return the message of an exchange of `x`. `spmdir.reshard.exchange` describes the `Part`s that ranks send.

    A part is a grid of elements that one rank sends to another, or keeps (sender and receiver are equal).
    """
    parts = exchange(site.source, site.target, site.mesh, site.shape, site.rank)
    grid = grid_of(site.source, site.shape, site.mesh, site.rank)
    axes = exchanged_axes(site.source, site.target, site.mesh)
    values = _Values.of(site, x, reduced_axes(site.source, site.target))
    (loads,) = exchange_loads(site.source, site.target, site.mesh, site.shape)
    sending = _send_round(
        values, axes, parts, loads, lambda part: _select_grid(site.emit, values.moved, part.grid, grid)
    )
    return sending.finish_with(lambda placed: _reduce_parts(values, placed))


def two_round_exchange_message(site: Site, x: Node) -> Message:
    """Emit the first round of a two-round exchange of `x` and the reductions; return the message of the second.

    The first round brings all partial values of a chunk to one rank, which reduces them. The second round sends the
    sums to the ranks that need them. If the target is partial too, partial values that are already on the right ranks
    (`stationary`) stay there, and the sums are added to them.
    """
    rounds = two_round_exchange(site.source, site.target, site.mesh, site.shape, site.rank)
    grid = grid_of(site.source, site.shape, site.mesh, site.rank)
    axes = two_round_axes(site.source, site.target, site.mesh)
    loads = two_round_loads(site.source, site.target, site.mesh, site.shape)
    values = _Values.of(site, x, _combined_axes(site))

    def take_part(part: Part) -> Node:
        """Return the elements of a part, cut out of the operand of this rank."""
        return _select_grid(site.emit, values.moved, part.grid, grid)

    kept_parts = [(part, take_part(part)) for part in rounds.stationary if part.receiver == site.rank]
    first_round = _send_round(values, axes, rounds.first_round, loads[0], take_part)
    gathered = first_round.unpack(first_round.message.send_and_finish(site.emit))
    grids = dict.fromkeys(part.grid for part in rounds.second_round if part.sender == site.rank)
    sums = {grid: _combine(values, _partials_of_grid(values, grid, gathered)) for grid in grids}
    second_round = _send_round(values, axes, rounds.second_round, loads[1], lambda part: sums[part.grid])
    return second_round.finish_with(lambda placed: _reduce_parts(values, [*kept_parts, *placed]))


def _combined_axes(site: Site) -> tuple[str, ...]:
    """Return the axes whose partial values a two-round exchange combines.

    These are the axes that the exchange reduces. If it reduces none, they are the axes of plug-in placements that stay
    partial, because only the placement knows how to combine its values. Values of `P(op)` need no such steps: their
    combination is again a partial value.
    """
    reduced = reduced_axes(site.source, site.target)
    return reduced or tuple(axis for axis, op in site.source.partial if op not in REDUCTIONS)


@attrs.frozen
class _Values:
    """The partial values that an exchange moves and combines.

    Attributes:
        site: the site of the exchange, with the element type of `moved`.
        operand: the local tensor before the exchange.
        moved: the operand after `before` of its placements. This is the tensor that ranks send.
        placement: the placement of the partial values that are reduced or created; P(sum) if there are none.
        brackets: the steps before and after the combination.
    """

    site: Site
    operand: Node
    moved: Node
    placement: PartialPlacement
    brackets: Brackets

    @staticmethod
    def of(site: Site, x: Node, axes: Sequence[str]) -> _Values:
        """Emit the steps before the combination of the partial values of the operand `x` over `axes`."""
        brackets_of_axes = brackets(site, axes)
        moved, (_, torch_dtype) = brackets_of_axes.before(x, (site.local(site.source), site.torch_dtype))
        if torch_dtype != site.torch_dtype:
            site = attrs.evolve(site, meta=TensorMeta(site.shape, DTYPES_OF_TORCH[torch_dtype]))
        return _Values(site, x, moved, _moved_placement(site), brackets_of_axes)

    def identities(self, shape: Sequence[int]) -> Node:
        """Return a tensor of `shape` filled with the identity of the combination, in the element type of `moved`."""
        if isinstance(self.placement, Partial):
            identity = REDUCTIONS[self.placement.reduce].identity
            assert identity is not None  # an average is computed as a sum
            return identities(self.site, self.operand, shape, identity)
        # A placement without an identity gets here only with empty chunks, so 0.0 is never combined with a value.
        operand_site = self.brackets.site
        identity_tensor = identities(operand_site, self.operand, shape, self.placement.identity or 0.0)
        return self.brackets.prepare(identity_tensor, (tuple(shape), operand_site.torch_dtype))[0]


def _moved_placement(site: Site) -> PartialPlacement:
    """Return the placement of the partial values that are reduced or created.

    If there are none, it is the placement of partial values that stay; P(sum) if nothing is partial.
    """
    changed_axes = {*reduced_axes(site.source, site.target), *partial_axes(site.source, site.target)}
    entries = (*site.source.entries, *site.target.entries)
    partials = [(axis, placement) for axis, placement in entries if isinstance(placement, PartialPlacement)]
    changed = [placement for axis, placement in partials if axis in changed_axes]
    unchanged = [placement for axis, placement in partials if axis not in changed_axes]
    return next(iter([*changed, *unchanged]), Partial("sum"))


@attrs.frozen
class _Round:
    """One all-to-all.

    Attributes:
        message: its message, with a flat result.
        unpack: flat result → the parts that this rank receives or keeps, with their nodes.
    """

    message: Message
    unpack: Callable[[Node], list[PartNode]]

    def finish_with(self, value_of: Callable[[list[PartNode]], Node]) -> Message:
        """Return the message of this round with another value: `value_of` the parts that this rank has after it."""
        finish = self.message.finish
        return attrs.evolve(self.message, finish=lambda result: value_of(self.unpack(finish(result))))


def _send_round(
    values: _Values, axes: Sequence[str], parts: Sequence[Part], loads: Loads, chunk_of: Callable[[Part], Node]
) -> _Round:
    """Emit the preparation of the chunks that this rank sends, and return the all-to-all along `axes`.

    Args:
        parts: the parts that ranks of the group send or keep.
        loads: the elements that ranks of the mesh send. If it is empty, there is no collective.
        chunk_of: part → its node.
    """
    site, x = values.site, values.moved
    kept_parts = [(part, chunk_of(part)) for part in parts if part.sender == part.receiver == site.rank]
    # All ranks of the mesh must agree on whether there is a collective, not only those of this group.
    if not loads:
        return _Round(here(x), lambda result: kept_parts)
    moved_parts = [part for part in parts if part.sender != part.receiver]
    axes = [axis for axis in axes if site.mesh.sizes[axis] > 1]
    group = sorted(site.mesh.group(site.rank, axes))
    outgoing: list[Part] = []
    incoming: list[Part] = []
    for member in group:
        outgoing += [part for part in moved_parts if (part.sender, part.receiver) == (site.rank, member)]
        incoming += [part for part in moved_parts if (part.sender, part.receiver) == (member, site.rank)]
    flat_chunks = [site.emit(aten.reshape.default, chunk_of(part), [-1]) for part in outgoing]
    empty = [] if flat_chunks else [site.emit(aten.new_empty.default, x, [0])]
    joined = flat_chunks[0] if len(flat_chunks) == 1 else site.emit(aten.cat.default, [*flat_chunks, *empty])
    receives = [sum(part.numel for part in incoming if part.sender == member) for member in group]
    sends = [sum(part.numel for part in outgoing if part.receiver == member) for member in group]
    message = site.move(
        functional.all_to_all_single.default, joined, receives, sends, axes=axes, finish=lambda result: result
    )

    def unpack(result: Node) -> list[PartNode]:
        """Return the parts that this rank keeps, then those in the flat `result`, with their nodes."""
        part_nodes, offset = list(kept_parts), 0
        for part in incoming:
            chunk = narrow(site.emit, result, 0, offset, part.numel, sum(receives))
            part_nodes.append((part, site.emit(aten.reshape.default, chunk, [length(ranges) for ranges in part.grid])))
            offset += part.numel
        return part_nodes

    return _Round(message, unpack)


def _select_grid(emit: Emit, x: Node, grid: Grid, source_grid: Grid) -> Node:
    """Return the elements of `grid`, in its order, from `x`, which has the elements of the grid `source_grid`."""
    for dim, (selected_ranges, source_ranges) in enumerate(zip(grid, source_grid, strict=True)):
        x = take(emit, x, dim, positions(selected_ranges, source_ranges), length(source_ranges))
    return x


def _partials_of_grid(values: _Values, grid: Grid, parts: Sequence[PartNode]) -> list[Node]:
    """Return the partial values of `grid`, each joined from the parts of this value that overlap the grid.

    Parts with equal numbers `partial` belong to one partial value. The values are in the order of these numbers.
    """
    partials: dict[int, list[PartNode]] = {}
    for part, node in parts:
        overlap = tuple(map(common, part.grid, grid))
        if all(overlap):
            clipped_node = _select_grid(values.site.emit, node, overlap, part.grid)
            partials.setdefault(part.partial, []).append((attrs.evolve(part, grid=overlap), clipped_node))
    return [_join(values, grid, partials[partial]) for partial in sorted(partials)]


def _reduce_parts(values: _Values, parts: Sequence[PartNode]) -> Node:
    """Return the result of the exchange on this rank, from all parts that the rank received or kept.

    The result has identities if the rank has no parts.
    """
    site = values.site
    target_grid = grid_of(site.target, site.shape, site.mesh, site.rank)
    # Partial values of which the rank receives no part would only add identities.
    parts_of_partial: dict[int, list[PartNode]] = {}
    for part, node in parts:
        parts_of_partial.setdefault(part.partial, []).append((part, node))
    to_join = [parts_of_partial[partial] for partial in sorted(parts_of_partial)] or [[]]
    result = _combine(values, [_join(values, target_grid, joined_parts) for joined_parts in to_join])
    return values.brackets.after(result, (site.local(site.target), site.torch_dtype))


def _combine(values: _Values, partials: Sequence[Node]) -> Node:
    """Return the reduction of the partial values, computed on this rank in the given order."""
    site, reduction = values.site, values.placement.reduce
    combine = functools.partial(site.emit, operator.attrgetter(REDUCTIONS[reduction].op)(aten))
    if len(partials) == 1 or not site.torch_dtype.is_complex or reduction == "product":
        return functools.reduce(combine, partials)
    # torch computes a + 1 * b, where 1 * b changes infinite parts and negative zeros. Process groups add the parts.
    parts, unpacks = zip(*(view_as_sendable(site.emit, partial, site.torch_dtype) for partial in partials), strict=True)
    return unpacks[0](functools.reduce(combine, parts))


def _join(values: _Values, grid: Grid, parts: Sequence[PartNode]) -> Node:
    """Return the elements of `grid`, in its order, joined from `parts`.

    Elements that are in no part have the identity of the combination.
    """
    sorted_grid = tuple(map(union, grid))
    return _select_grid(values.site.emit, _join_ascending(values, sorted_grid, parts), grid, sorted_grid)


def _join_ascending(values: _Values, grid: Grid, parts: Sequence[PartNode]) -> Node:
    """Return the elements of `grid`, which ascends in every dimension, joined from `parts`.

    If one part is the whole grid, it is the result. Else the grid is cut into slabs along some dimension, such that
    each part is inside one slab. Each slab is joined separately, and the slabs are concatenated.
    """
    if not parts:
        return values.identities([length(ranges) for ranges in grid])
    for part, node in parts:
        if part.grid == grid:
            return node
    for dim, ranges in enumerate(grid):
        slabs = _slabs(ranges, [part.grid[dim] for part, _ in parts])
        if len(slabs) > 1:
            joined = []
            for slab in slabs:
                parts_of_slab = [(part, node) for part, node in parts if common(part.grid[dim], slab)]
                joined.append(_join_ascending(values, (*grid[:dim], slab, *grid[dim + 1 :]), parts_of_slab))
            result = values.site.emit(aten.cat.default, joined, dim)
            order = tuple(itertools.chain.from_iterable(slabs))
            return take(values.site.emit, result, dim, positions(ranges, order), length(ranges))
    raise AssertionError(f"parts of a grid do not fit together: {grid}")


def _slabs(ranges: Ranges, parts: Sequence[Ranges]) -> list[Ranges]:
    """Cut `ranges` into as many slabs as possible, such that each part is inside one slab. Slabs may have no part.

    Example:
        >>> _slabs(((0, 10),), [((0, 4),), ((2, 6),), ((8, 10),)])
        [((0, 6),), ((6, 8),), ((8, 10),)]
    """
    slabs: list[Ranges] = []
    for part in dict.fromkeys(parts):
        overlapping = [slab for slab in slabs if common(slab, part)]
        slabs = [slab for slab in slabs if slab not in overlapping]
        slabs.append(union(part, *overlapping))
    covered = union(*slabs)
    # Positions that no part covers become slabs too: pair the end of each covered range with the start of the next.
    edges = [ranges[0][0], *itertools.chain.from_iterable(covered), ranges[-1][1]]
    gaps = [common(ranges, ((start, end),)) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return sorted([*slabs, *filter(None, gaps)])
