"""Collectives as graph nodes: each kind has one emitter, found in EMITTERS.

An emitter prepares the operand, leaves at most one functional collective under way and says how to finish: what to do
with the collective's result after the wait. Process groups list ranks in ascending order, which is mesh order.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import torch
from torch.fx import Node

from spmdir.errors import UnsupportedError
from spmdir.lowering.cut import (
    aten,
    flat_blocks,
    from_flat_blocks,
    join_even,
    narrow,
    pack,
    pad_end,
    split_even,
    spread,
)
from spmdir.lowering.exchange import start_exchange, start_relay
from spmdir.lowering.site import Site, Started, functional, here
from spmdir.planner.steps import PARTITION_IDENTITY, WHOLE_MOVES, permuted_axes, senders


def start(kind: str, site: Site, x: Node) -> Started:
    """Emit the collective `kind` on `x`.

    Raises:
        UnsupportedError: the reduction cannot be done on this element type.
    """
    if kind not in WHOLE_MOVES and not site.axes:
        return here(x)
    return EMITTERS[kind](site, x)


def _slice(site: Site, x: Node) -> Started:
    cut = site.cut(site.target, site.argument["dim"])
    offset, length = site.own(cut)
    return Started(x, False, lambda whole: narrow(site.emit, whole, cut.dim, offset, length, cut.extent))


def _partition(site: Site, x: Node) -> Started:
    identity = PARTITION_IDENTITY.get(site.argument["op"])
    if identity is None or site.mesh.index(site.rank, site.axes) == 0:
        return here(x)
    # Multiplying by zero would keep inf and nan.
    return here(site.emit(aten.full_like.default, x, identity))


def _all_gather(site: Site, x: Node) -> Started:
    cut = site.cut(site.source, site.argument["dim"])
    block = (*(shape := site.local(site.source))[: cut.dim], cut.step, *shape[cut.dim + 1 :])
    x = pad_end(site.emit, x, cut.dim, site.ranks, cut.step - shape[cut.dim])
    sent = site.send(functional.all_gather_into_tensor.default, x, cut.count)
    direct = cut.dim == 0 and cut.in_order
    return Started(
        sent, True, lambda result: pack(site.emit, result if direct else join_even(site.emit, result, cut, block), cut)
    )


def _all_reduce(site: Site, x: Node) -> Started:
    reduction = _reduction(site)
    sent = site.send(functional.all_reduce.default, reduction.before(x), reduction.name)
    return Started(sent, True, reduction.after)


def _reduce_scatter(site: Site, x: Node) -> Started:
    reduction = _reduction(site)
    cut = site.cut(site.target, site.argument["dim"])
    own = site.local(site.target)
    block = (*own[: cut.dim], cut.step, *own[cut.dim + 1 :])
    x = split_even(site.emit, spread(site.emit, reduction.before(x), cut, site.ranks), cut, block)
    sent = site.send(functional.reduce_scatter_tensor.default, x, reduction.name, cut.count)
    length = own[cut.dim]
    return Started(sent, True, lambda result: reduction.after(narrow(site.emit, result, cut.dim, 0, length, cut.step)))


def _all_to_all(site: Site, x: Node) -> Started:
    leaving = site.cut(site.source, site.argument["dim"])
    joining = site.cut(site.target, site.argument["to_dim"])
    before, after = site.local(site.source), site.local(site.target)
    row = math.prod(before) // before[joining.dim] if before[joining.dim] else 0
    sends = [joining.pieces[number][1] * row for number in joining.by_rank]
    column = math.prod(after) // after[leaving.dim] if after[leaving.dim] else 0
    receives = [leaving.pieces[number][1] * column for number in leaving.by_rank]
    flat = flat_blocks(site.emit, x, joining, before)
    sent = site.send(functional.all_to_all_single.default, flat, receives, sends)
    return Started(sent, True, lambda result: from_flat_blocks(site.emit, result, leaving, after))


def _permute(site: Site, x: Node) -> Started:
    axes = tuple(axis for axis in permuted_axes(site.source, site.target, site.mesh) if site.mesh.sizes[axis] > 1)
    if not axes:
        return here(x)
    shape = site.local(site.target)
    sender = senders(site.source, site.target, site.mesh, site.shape)
    group = site.mesh.group(site.rank, [axis for axis in site.mesh.axis_names if axis in axes])
    receives = [math.prod(shape) * (sender[site.rank] == member) for member in group]
    sends = [math.prod(shape) * (sender[member] == site.rank) for member in group]
    flat = site.emit(aten.reshape.default, x, [-1])
    sent = site.send(functional.all_to_all_single.default, flat, receives, sends, axes=axes)
    return Started(sent, True, lambda result: site.emit(aten.reshape.default, result, list(shape)))


def _broadcast(site: Site, x: Node) -> Started:
    sent = site.send(functional.broadcast.default, x, 0)
    return Started(sent, True, lambda result: result)


@attrs.frozen
class _Reduction:
    """A reduction as a process group does it: its name there, what to do to the operand before and to the result."""

    name: str
    before: Callable[[Node], Node]
    after: Callable[[Node], Node]


_ON_BOOL = {"any": "max", "max": "max", "all": "min", "min": "min"}
"""Reductions of truth values, as done on 0 and 1 in bytes; process groups have none for truth values."""


def _reduction(site: Site) -> _Reduction:
    pending = {site.source[axis].op for axis in site.axes}
    op = str(pending.pop()) if len(pending) == 1 else "sum"
    if site.dtype == "i1":
        return _bool_reduction(site, op)
    averaged = [axis for axis in site.axes if site.source[axis].op == "avg"]
    if averaged and site.dtype[0] not in "fbc":
        raise UnsupportedError(f"P(avg) of element type {site.dtype} has no exact mean; reduce by sum and divide")
    count = site.mesh.group_size(averaged) if op == "sum" else 1
    return _Reduction(op, lambda x: x, lambda y: y if count == 1 else site.emit(aten.div.Scalar, y, count))


def _bool_reduction(site: Site, op: str) -> _Reduction:
    if op not in _ON_BOOL:
        raise UnsupportedError(f"P({op}) of truth values is no reduction; expected P(any) or P(all)")
    return _Reduction(
        _ON_BOOL[op],
        lambda x: site.emit(aten.view.dtype, x, torch.uint8),
        lambda y: site.emit(aten.view.dtype, y, torch.bool),
    )


EMITTERS: dict[str, Callable[[Site, Node], Started]] = {
    "slice": _slice,
    "partition": _partition,
    "all_gather": _all_gather,
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "permute": _permute,
    "exchange": start_exchange,
    "relay": start_relay,
    "broadcast": _broadcast,
}
"""Kind of collective → (site, operand) → the collective started."""
