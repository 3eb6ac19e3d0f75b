"""The price of moving one mesh axis from placement to placement: what the propagation search pays an edge with."""

from __future__ import annotations

import math

from spmdir.placement import Placement
from spmdir.planner.cost import TRAFFIC, Sizes

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

_LOCAL = (("avg", "sum"),)
"""Pending reductions that become one another without a step: each rank divides what it has."""


def axis_price(source: Placement, target: Placement, local_bytes: float, count: int) -> float:
    """Wire bytes a rank sends to move one axis of `count` ranks from `source` to `target`.

    `local_bytes` are those of the tensor on a rank with this axis replicated and the other axes as they are.
    Illegal moves, of open placements, cost infinity.
    """
    if source == target:
        return 0.0
    route = (source.trait, target.trait)
    if route not in _ROUTES:
        return math.inf
    kind = None if (source.op, target.op) in _LOCAL else _ROUTES[route]
    if (source.trait, target.op) == ("shard", "avg"):
        kind = "all_gather"  # R comes between, since a piece among zeros would count for less
    if kind is None:
        return 0.0
    piece = local_bytes / count
    before = piece if source.trait == "shard" else local_bytes
    after = piece if target.trait == "shard" else local_bytes
    return TRAFFIC[kind].wire(Sizes(count, before, after, piece / count))
