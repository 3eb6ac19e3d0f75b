"""The price of moving one mesh axis from placement to placement: what the propagation search pays an edge with."""

from __future__ import annotations

import math

from spmdir.core.placement.base import Edge, PartialPlacement, Placement, edge_between
from spmdir.core.placement.standard import R
from spmdir.reshard.cost import TRAFFIC, Sizes

_ROUTES: dict[tuple[str, str], str | None] = {
    ("replicated", "replicated"): None,
    ("replicated", "shard"): "slice",
    ("replicated", "partial"): "partition",
    ("shard", "replicated"): "all_gather",
    ("shard", "shard"): "all_to_all",
    ("shard", "partial"): None,
    ("partial", "replicated"): "all_reduce",
    ("partial", "shard"): "reduce_scatter",
    ("partial", "partial"): "all_reduce",
}
"""Traits before and after → the one step that is paid, if any: a piece may stand among identities."""

ITEMSIZE = 4
"""Bytes of an element, where only those of a tensor are known."""


def axis_price(source: Placement, target: Placement, local_bytes: float, count: int) -> float:
    """Wire bytes a rank sends to move one axis of `count` ranks from `source` to `target`.

    `local_bytes` are those of the tensor on a rank with this axis replicated and the other axes as they are. A step
    that a placement declares comes first, then that of the traits, then R in between. Moves that there are not, and
    those of open placements, cost infinity.
    """
    if source == target:
        return 0.0
    if edge := edge_between(source, target):
        return _edge_price(edge, source, target, local_bytes, count)
    route = (source.trait, target.trait)
    if "open" in route:
        return math.inf
    if route in _ROUTES and not _needs_whole(source, target):
        return _step_price(_ROUTES[route], source, target, local_bytes, count)
    if R in (source, target):
        return math.inf
    return axis_price(source, R, local_bytes, count) + axis_price(R, target, local_bytes, count)


def _needs_whole(source: Placement, target: Placement) -> bool:
    """Whether a piece among others cannot stand for the value, or a placement has its own way to R."""
    alone = isinstance(target, PartialPlacement) and target.identity is None and source.trait == "shard"
    return alone or edge_between(source, R) is not None


def _step_price(kind: str | None, source: Placement, target: Placement, local_bytes: float, count: int) -> float:
    if kind is None:
        return 0.0
    piece = local_bytes / count
    before = piece if source.trait == "shard" else local_bytes
    after = piece if target.trait == "shard" else local_bytes
    return TRAFFIC[kind].wire(Sizes(count, before, after, piece / count))


def _edge_price(edge: Edge, source: Placement, target: Placement, local_bytes: float, count: int) -> float:
    scale = 1.0 if edge.itemsize is None else edge.itemsize / ITEMSIZE
    return _step_price(edge.by, source, target, local_bytes * scale, count)
