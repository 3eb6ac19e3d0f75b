"""The cost of one collective: bytes on the wire, local copies, kernels, and the fraction of bytes between nodes."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from spmdir.core.arguments import AMOUNT, COUNT, FLAG, TEXT, Kind
from spmdir.core.declared_fields import Function, check_fields


@attrs.frozen
class Sizes:
    """The sizes of a step on the busiest rank.

    Attributes:
        group: the number of ranks in a group.
        source: local bytes before.
        target: local bytes after.
        chunk: for all_to_all, bytes that one rank sends to each other rank. For halo and halo_reduce, bytes of both
            halos. For rotate, all bytes that a rank sends.
        dim, to_dim: as in Step.
        combined: for exchanges, the number of partial values that a receiving rank reduces to one; 1 for other steps.
        moved: for exchanges, bytes that the busiest rank sends or receives, over all rounds.
        crossing: for exchanges, the part of these bytes to or from other nodes. None if it follows from `wire`.
    """

    group: int
    source: float
    target: float
    chunk: float = 0
    dim: int | None = None
    to_dim: int | None = None
    combined: int = 1
    moved: float = 0
    crossing: float | None = None


@attrs.frozen
class Traffic:
    """The cost model of a collective: functions from the sizes of a step to bytes, copies and kernels.

    `cost.terms` evaluates it on a topology.

    Attributes:
        wire: bytes that a rank sends.
        copied: bytes that a rank copies locally. Chunks along a dimension other than the first are packed or unpacked.
        packed: the part of `copied` that one kernel copies before the transfer.
        kernels: the number of kernels that pack, unpack and reduce.
        crossing: (ranks, nodes) → the fraction of a rank's bytes that leaves its node; None for a local collective.
        passes: the number of times that data passes all other ranks, one hop each: 1 for once round a ring, or for one
            message to each peer. 0 if a rank sends to one or two peers only.
        sends_at_once: whether a rank sends its messages to all peers at once. Then only one of the hops waits for the
            latency between nodes.
        may_use_tree: whether the ranks may instead reduce, and send the result, along a tree over the nodes.
        rounds: the number of sequential transfers.
        keeps_bounds: whether its bytes and hops are at least those of the ring model that `QuickBound` assumes. If a
            collective has no such guarantee, bounds on seconds are 0.
        name: the name of the collective in tables of measured times; by default, the name of its spec.
    """

    wire: Callable[[Sizes], float] = lambda sizes: 0.0
    copied: Callable[[Sizes], float] = lambda sizes: 0.0
    packed: Callable[[Sizes], float] = lambda sizes: 0.0
    kernels: Callable[[Sizes], int] = lambda sizes: 0
    crossing: Callable[[int, int], float] | None = None
    passes: int = 0
    sends_at_once: bool = False
    may_use_tree: bool = False
    rounds: int = 1
    keeps_bounds: bool = False
    name: str = ""

    def __repr__(self) -> str:
        return f"<Traffic: {self.name}>"

    def __attrs_post_init__(self) -> None:
        check_fields(self, _FIELDS)


_AMOUNT = Function("sizes", returns=AMOUNT)
_FIELDS = {
    "wire": _AMOUNT,
    "copied": _AMOUNT,
    "packed": _AMOUNT,
    "kernels": Function("sizes", returns=COUNT),
    "crossing": Function(
        "ranks",
        "nodes",
        returns=Kind(lambda value: AMOUNT.holds(value) and value <= 1, "a number from 0 to 1"),
        optional=True,
    ),
    "passes": COUNT,
    "sends_at_once": FLAG,
    "may_use_tree": FLAG,
    "rounds": Kind(lambda value: COUNT.holds(value) and value >= 1, "an integer from 1 on"),
    "keeps_bounds": FLAG,
    "name": TEXT,
}
"""Field → valid values."""


COPY = Traffic(copied=lambda sizes: sizes.target, kernels=lambda sizes: 1, keeps_bounds=True)
"""The cost of a local collective that writes its result."""


def ring(ranks: int, nodes: int) -> float:
    """Return the fraction of bytes that leaves a node on a ring, where one rank of each node sends to the next node.

    There is one ring for each rank of a node, and each leaves the node at another rank.

    Args:
        ranks: the number of ranks in the group.
        nodes: the number of nodes that the group spans.

    Raises:
        ZeroDivisionError: the group has no rank.

    Example:
        >>> spmdir.placement.ring(8, 2)
        0.25
    """
    return (nodes if nodes > 1 else 0) / ranks


def direct(ranks: int, nodes: int) -> float:
    """Return the fraction of bytes that leaves a node if each rank sends to all peers.

    Args:
        ranks: the number of ranks in the group.
        nodes: the number of nodes that the group spans.

    Raises:
        ZeroDivisionError: the group has one rank, which sends nothing.

    Example:
        >>> spmdir.placement.direct(8, 2)
        0.5714285714285714
    """
    return (ranks - ranks // nodes) / (ranks - 1)


def anywhere(ranks: int, nodes: int) -> float:
    """Return 1 if the group spans several nodes, because a rank may send its whole shard to another node; else 0.

    Args:
        ranks: the number of ranks in the group.
        nodes: the number of nodes that the group spans.

    Raises:
        TypeError: these are not numbers.

    Example:
        >>> spmdir.placement.anywhere(8, 2)
        1.0
    """
    return float(nodes > 1)
