"""The buffers that a collective allocates, for one tensor or for a bucket, divided between its start and its wait.

For example, an `all_gather` along dimension 1 allocates the buffers `received` and `unpacked`. Its start allocates
`received`. Its wait allocates `unpacked`, a copy of `received` in the order of the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.reshard.buffers import ARRIVES, Sized
from spmdir.reshard.collective_spec import PACKED, CollectiveSpec


@attrs.frozen
class Allocation:
    """A buffer and the buffers that it is computed from.

    Attributes:
        bytes: size on the rank with the largest buffer.
        member: index of the tensor in the bucket. Buffers of the whole bucket have 0.
        reads: indices of earlier allocations; `~n` is operand n.
    """

    bytes: float
    member: int
    reads: tuple[int, ...]


@attrs.frozen
class Allocations:
    """The allocations of a collective.

    Attributes:
        buffers: in the order of their allocation.
        start_count: the number of buffers that the start allocates. The wait allocates the others.
        sent: indices of the buffers that must stay alive until the transfer is complete; `~n` is operand n.
        results: for each member, the index of the allocation that holds its result; `~n` is operand n.
    """

    buffers: tuple[Allocation, ...]
    start_count: int
    sent: tuple[int, ...]
    results: tuple[int, ...]


def allocate_alone(sizes: Sequence[Sized], keeps_operand: bool = False) -> Allocations:
    """Return the allocations of a collective of one tensor: each buffer is computed from the previous one.

    The start allocates all buffers up to the last received one; all if there is none. Without buffers, the result is
    the operand.

    For example, an all-gather along the last dimension has a receive buffer, and then the result, a copy in another
    order. The start allocates the first and the wait allocates the second: `start_count` is 1.

    Args:
        sizes: the result of `step_buffers`.
        keeps_operand: whether the operand is live until the last buffer is written.
    """
    operand = ~0  # as in `Allocations.sent`
    buffers: list[Allocation] = []
    for index, (_, size) in enumerate(sizes):
        reads = [operand] if index == 0 else [index - 1]
        if keeps_operand and index:
            reads.append(operand)
        buffers.append(Allocation(size, 0, tuple(reads)))
    if not buffers:
        return Allocations((), 0, (operand,), (operand,))
    received = [index for index, (name, _) in enumerate(sizes) if name == ARRIVES]
    last_of_start = received[-1] if received else len(buffers) - 1
    return Allocations(
        tuple(buffers),
        start_count=last_of_start + 1,
        sent=buffers[last_of_start].reads,
        results=(len(buffers) - 1,),
    )


def allocate_bucket(
    spec: CollectiveSpec,
    members: Sequence[Sequence[Sized]],
    sources: Sequence[float],
    targets: Sequence[float],
    keep_operands: Sequence[bool] = (),
) -> Allocations:
    """Return the allocations of a bucket, which sends one buffer and receives one.

    For example, two members of 10 and 5 bytes are gathered over 8 ranks. The bucket allocates a send buffer of 15
    bytes, a receive buffer of 120 bytes, and a copy for each result, of 80 and 40 bytes. The start allocates the first
    two.

    Args:
        members: for each member, the result of `step_buffers`.
        sources, targets: for each member, the local bytes before and after. If a member has a buffer `sent` or
            `received`, as in an exchange, the size of that buffer counts instead.
        keep_operands: for each member, whether its operand is live until its last buffer is written.
    """
    buffers: list[Allocation] = []

    def allocate(size: float, member: int, *reads: int) -> int:
        """Add an allocation, and return its index."""
        buffers.append(Allocation(size, member, reads))
        return len(buffers) - 1

    packed_members = []  # what is copied into the message: the last packed buffer of each member, or its operand
    for member, sizes in enumerate(members):
        packed = ~member  # the operand of the member, as in `Allocation.reads`
        for name, size in sizes:
            if name in PACKED:
                packed = allocate(size, member, packed)
        packed_members.append(packed)
    sent_sizes = [dict(sizes).get("sent", source) for sizes, source in zip(members, sources, strict=True)]
    received_sizes = [dict(sizes).get(ARRIVES, target) for sizes, target in zip(members, targets, strict=True)]
    sent = allocate(sum(sent_sizes), 0, *packed_members)
    received = allocate(sum(received_sizes), 0, sent)
    start_count = len(buffers)
    if not spec.is_copied_apart:
        return Allocations(tuple(buffers), start_count, (sent,), (received,) * len(members))
    results = [allocate(size, member, received) for member, size in enumerate(received_sizes)]
    for member, sizes in enumerate(members if spec.arrives_in_parts else ()):
        kept_operand = (~member,) if keep_operands and keep_operands[member] else ()
        names = [name for name, _ in sizes]
        buffers_after_arrival = sizes[names.index(ARRIVES) + 1 :] if ARRIVES in names else ()
        for _, size in buffers_after_arrival:
            results[member] = allocate(size, member, results[member], *kept_operand)
    return Allocations(tuple(buffers), start_count, (sent,), tuple(results))
