"""What a collective allocates, buffer by buffer, and which of it a wait does: of one tensor, and of several at once."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.reshard.buffers import ARRIVES, Sized
from spmdir.reshard.collective_spec import PACKED, CollectiveSpec


@attrs.frozen
class Allocation:
    """A buffer, and what it is made of.

    Attributes:
        bytes: on the rank that holds most.
        member: the tensor that it is for.
        reads: numbers of earlier allocations; `~n` is operand n.
    """

    bytes: float
    member: int
    reads: tuple[int, ...]


@attrs.frozen
class Allocations:
    """What a collective allocates.

    Attributes:
        made: in order.
        arrived: how many of these there are when a start has started; a wait makes the others.
        sent: what has to be there until all has arrived.
        results: for each member, the allocation that its result is, or is a view of; `~n` is operand n.
    """

    made: tuple[Allocation, ...]
    arrived: int
    sent: tuple[int, ...]
    results: tuple[int, ...]


def alone(sizes: Sequence[Sized], keeps_operand: bool = False) -> Allocations:
    """Return the allocations of a collective of one tensor: each buffer is made of the one before.

    Args:
        sizes: as `step_buffers` gives them.
        keeps_operand: whether the operand is needed until the last one is made.
    """
    made: list[Allocation] = []
    kept = (~0,) if keeps_operand else ()
    for at, (_, size) in enumerate(sizes):
        made.append(Allocation(size, 0, (at - 1, *kept) if at else (~0,)))
    names = [name for name, _ in sizes]
    arrived = len(names) - names[::-1].index(ARRIVES) if ARRIVES in names else len(names)
    sent = made[arrived - 1].reads if made else (~0,)
    return Allocations(tuple(made), arrived, sent, (len(made) - 1,))  # ~0 if there are none


def together(
    spec: CollectiveSpec,
    members: Sequence[Sequence[Sized]],
    sources: Sequence[float],
    targets: Sequence[float],
    keep_operands: Sequence[bool] = (),
) -> Allocations:
    """Return the allocations of a collective of several tensors, which sends one buffer and receives one.

    Args:
        members: what each allocates alone, as `step_buffers` gives it.
        sources, targets: the local bytes of each before and after; an exchange sends and receives what it allocates
            for that.
        keep_operands: whether the operand of each is needed until its last buffer is made.
    """
    made: list[Allocation] = []

    def allocate(size: float, member: int, *reads: int) -> int:
        made.append(Allocation(size, member, reads))
        return len(made) - 1

    packed = []
    for member, sizes in enumerate(members):
        at = ~member
        for name, size in sizes:
            if name in PACKED:
                at = allocate(size, member, at)
        packed.append(at)
    sends, receives = (
        [dict(sizes).get(name, size) for sizes, size in zip(members, whole, strict=True)]
        for name, whole in (("sent", sources), (ARRIVES, targets))
    )
    sent = allocate(sum(sends), 0, *packed)
    received = allocate(sum(receives), 0, sent)
    if not spec.is_copied_apart:
        return Allocations(tuple(made), len(made), (sent,), (received,) * len(members))
    arrived = len(made)
    results = [allocate(size, member, received) for member, size in enumerate(receives)]
    for member, sizes in enumerate(members if spec.arrives_in_parts else ()):
        kept = (~member,) if keep_operands and keep_operands[member] else ()
        names = [name for name, _ in sizes]
        for _, size in sizes[names.index(ARRIVES) + 1 :] if ARRIVES in names else ():
            results[member] = allocate(size, member, results[member], *kept)
    return Allocations(tuple(made), arrived, (sent,), tuple(results))
