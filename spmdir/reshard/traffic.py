"""The cost of one collective: bytes on the wire, local copies, kernels, and how many of the bytes leave a node."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from spmdir.core.arguments import AMOUNT, COUNT, FLAG, TEXT, Kind
from spmdir.core.declared_fields import Function, check_fields


@attrs.frozen
class Sizes:
    """What a step handles on the busiest rank.

    Attributes:
        group: the number of ranks in a group.
        source: local bytes before.
        target: local bytes after.
        chunk: bytes that one rank sends to one other in a direct exchange; for all_to_all. For halo and halo_reduce,
            those of both halos; for rotate, all.
        dim, to_dim: as in Step.
        combined: how many partial values a rank that receives an exchange reduces to one; 1 for other steps.
        moved, crossing: for exchanges, bytes that the busiest rank sends or receives, in all and to or from other
            nodes; over all rounds. What crosses in other steps follows from what they send.
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
    """The cost of a collective.

    Attributes:
        wire: bytes a rank sends.
        copied: bytes that are copied locally beside that: chunks along a dimension other than the first are packed or
            unpacked, and all but one of them while others are on the wire.
        packed: bytes of these that are copied before anything is sent, by one kernel.
        kernels: how many kernels pack, unpack and reduce these.
        crossing: (ranks, nodes) → the part of a rank's bytes that leaves its node; None where nothing is sent.
        passes: how often a rank has to do with each of the others, one hop apart: once round a ring, or with one
            message to each where ranks exchange directly; 0 where it sends to one or two of them only.
        rounds: how many collectives it takes, one after the other.
        keeps_bounds: whether it never sends less, or in fewer hops, than the ring model that `QuickBound` assumes. For
            others, bounds on seconds are 0.
        name: by which measured times are found; that of the collective unless given.
    """

    wire: Callable[[Sizes], float] = lambda sizes: 0.0
    copied: Callable[[Sizes], float] = lambda sizes: 0.0
    packed: Callable[[Sizes], float] = lambda sizes: 0.0
    kernels: Callable[[Sizes], int] = lambda sizes: 0
    crossing: Callable[[int, int], float] | None = None
    passes: int = 0
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
    "rounds": Kind(lambda value: COUNT.holds(value) and value >= 1, "an integer from 1 on"),
    "keeps_bounds": FLAG,
    "name": TEXT,
}
"""Field → its kind."""


COPY = Traffic(copied=lambda sizes: sizes.target, kernels=lambda sizes: 1, keeps_bounds=True)
"""The cost of a local collective that writes its result."""


def ring(ranks: int, nodes: int) -> float:
    """Return the part of a rank's bytes that leaves its node on a ring: ranks of a node are neighbours.

    Args:
        ranks: of the group.
        nodes: that they are on.

    Raises:
        ZeroDivisionError: there is one rank, which sends nothing.

    Example:
        >>> spmdir.placement.ring(8, 2)
        0.14285714285714285
    """
    return (nodes - 1) / (ranks - 1)


def direct(ranks: int, nodes: int) -> float:
    """Return the part of a rank's bytes that leaves its node where each rank sends to each other one.

    Args:
        ranks: of the group.
        nodes: that they are on.

    Raises:
        ZeroDivisionError: there is one rank, which sends nothing.

    Example:
        >>> spmdir.placement.direct(8, 2)
        0.5714285714285714
    """
    return (ranks - ranks // nodes) / (ranks - 1)


def anywhere(ranks: int, nodes: int) -> float:
    """Return 1 if there are several nodes, since all that a rank sends may leave its node; else 0.

    Args:
        ranks: of the group.
        nodes: that they are on.

    Raises:
        TypeError: these are not numbers.

    Example:
        >>> spmdir.placement.anywhere(8, 2)
        1.0
    """
    return float(nodes > 1)
