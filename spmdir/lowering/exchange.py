"""The exchange as graph nodes: boxes cut out, sent in one all-to-all, put together and reduced."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from spmdir.errors import UnsupportedError
from spmdir.lowering.cut import Emit, aten, narrow
from spmdir.lowering.site import Site, Started, functional, here
from spmdir.lowering.torch_values import TORCH_DTYPES
from spmdir.planner.exchange import Box, Part, box_of, exchange, exchange_loads, reduced_axes
from spmdir.planner.steps import IDENTITY, exchanged_axes

COMBINE: dict[str, Any] = {
    "sum": aten.add.Tensor,
    "avg": aten.add.Tensor,
    "product": aten.mul.Tensor,
    "max": aten.maximum.default,
    "min": aten.minimum.default,
    "any": aten.bitwise_or.Tensor,
    "all": aten.bitwise_and.Tensor,
}
"""Pending reduction → the op that reduces two addends."""

Placed = tuple[Part, Node]


def start_exchange(site: Site, x: Node) -> Started:
    """Emit an exchange of `x`; see `spmdir.planner.exchange` for who gives what to whom."""
    parts = exchange(site.source, site.target, site.mesh, site.shape, site.rank)
    held = box_of(site.source, site.shape, site.mesh, site.rank)
    kept = [(part, _take(site.emit, x, part.box, held)) for part in parts if part.sender == part.receiver == site.rank]
    # Whether anything is sent must be the same for all ranks, not only for those of this group.
    if not exchange_loads(site.source, site.target, site.mesh, site.shape):
        return here(_reduced(site, x, kept))
    axes = [axis for axis in exchanged_axes(site.source, site.target, site.mesh) if site.mesh.sizes[axis] > 1]
    ordered = [part for part in parts if part.sender != part.receiver]
    group = sorted(site.mesh.group(site.rank, axes))
    outgoing = [[p for p in ordered if (p.sender, p.receiver) == (site.rank, member)] for member in group]
    incoming = [[p for p in ordered if (p.sender, p.receiver) == (member, site.rank)] for member in group]
    pieces = [_take(site.emit, x, part.box, held) for to in outgoing for part in to]
    flat = [site.emit(aten.reshape.default, piece, [-1]) for piece in pieces]
    nothing = [] if flat else [site.emit(aten.new_empty.default, x, [0])]
    joined = flat[0] if len(flat) == 1 else site.emit(aten.cat.default, [*flat, *nothing])
    receives, sends = ([sum(part.numel for part in parts) for parts in side] for side in (incoming, outgoing))
    sent = site.send(functional.all_to_all_single.default, joined, receives, sends, axes=tuple(axes))

    def finish(result: Node) -> Node:
        received, at = list(kept), 0
        for part in (part for parts in incoming for part in parts):
            piece = narrow(site.emit, result, 0, at, part.numel, sum(receives))
            received.append((part, site.emit(aten.reshape.default, piece, [end - start for start, end in part.box])))
            at += part.numel
        return _reduced(site, x, received)

    return Started(sent, True, finish)


def _take(emit: Emit, x: Node, box: Box, held: Box) -> Node:
    """The elements of `box` out of `x`, which is the box `held`."""
    for dim, ((start, end), (low, high)) in enumerate(zip(box, held, strict=True)):
        x = narrow(emit, x, dim, start - low, end - start, high - low)
    return x


def _reduced(site: Site, x: Node, parts: Sequence[Placed]) -> Node:
    """What the rank holds in the end, of all parts that it got or kept."""
    wanted = box_of(site.target, site.shape, site.mesh, site.rank)
    reduced = reduced_axes(site.source, site.target)
    pending = next((op for _, op in (*site.source.partial, *site.target.partial)), "sum")
    value = _identity(pending, site.dtype)
    # A rank that gets nothing of an addend would add identities only.
    given = [[(p, n) for p, n in parts if p.addend == addend] for addend in sorted({p.addend for p, _ in parts})]
    addends = [_join(site, x, wanted, of_addend, value) for of_addend in given or [[]]]
    if len(addends) > 1 and site.dtype == "i1" and pending in ("sum", "avg", "product"):
        raise UnsupportedError(f"P({pending}) of truth values is no reduction; expected P(any) or P(all)")
    whole = addends[0]
    for addend in addends[1:]:
        whole = site.emit(COMBINE[pending], whole, addend)
    averaged = site.mesh.group_size(axis for axis, op in site.source.partial if axis in reduced and op == "avg")
    if averaged > 1 and site.dtype[0] not in "fbc":
        raise UnsupportedError(f"P(avg) of element type {site.dtype} has no exact mean; reduce by sum and divide")
    return whole if averaged == 1 else site.emit(aten.div.Scalar, whole, averaged)


def _join(site: Site, x: Node, box: Box, parts: Sequence[Placed], identity: Any) -> Node:
    """`box` put together of `parts`, cut after cut right through it; what no part fills holds `identity`."""
    if not parts:
        return site.emit(aten.new_full.default, x, [end - start for start, end in box], identity)
    for part, node in parts:
        if part.box == box:
            return node
    for dim, (start, end) in enumerate(box):
        ranges = [part.box[dim] for part, _ in parts]
        edges = sorted({edge for pair in ranges for edge in pair if start < edge < end})
        cuts = [edge for edge in edges if not any(low < edge < high for low, high in ranges)]
        if cuts:
            slabs = [(*box[:dim], pair, *box[dim + 1 :]) for pair in itertools.pairwise((start, *cuts, end))]
            inside = [
                [(p, node) for p, node in parts if slab[dim][0] <= p.box[dim][0] < slab[dim][1]] for slab in slabs
            ]
            joined = [_join(site, x, slab, of, identity) for slab, of in zip(slabs, inside, strict=True)]
            return site.emit(aten.cat.default, joined, dim)
    raise AssertionError(f"parts of a box do not fit together: {box}")


def _identity(op: str, dtype: str) -> Any:
    value = IDENTITY.get(op, 0)
    kind = TORCH_DTYPES[dtype]
    if value in (0, 1) or kind.is_floating_point:
        return bool(value) if kind == torch.bool else value
    if kind == torch.bool:
        return value > 0
    limits = torch.iinfo(kind)
    return limits.min if value < 0 else limits.max
