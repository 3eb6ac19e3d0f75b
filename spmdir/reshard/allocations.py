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
        member: index of the tensor in the bucket.
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
        sent: indices of the buffers that must stay alive until the transfer is complete.
        results: for each member, the index of the allocation that holds its result; `~n` is operand n.
    """

    buffers: tuple[Allocation, ...]
    start_count: int
    sent: tuple[int, ...]
    results: tuple[int, ...]


def allocate_alone(sizes: Sequence[Sized], keeps_operand: bool = False) -> Allocations:
    """Return the allocations of a collective of one tensor: each buffer is computed from the previous one.

    Args:
        sizes: the result of `step_buffers`.
        keeps_operand: whether the operand is live until the last buffer is written.
    """
    buffers: list[Allocation] = []
    kept_operand = (~0,) if keeps_operand else ()
    for index, (_, size) in enumerate(sizes):
        buffers.append(Allocation(size, 0, (index - 1, *kept_operand) if index else (~0,)))
    names = [name for name, _ in sizes]
    arrived = len(names) - names[::-1].index(ARRIVES) if ARRIVES in names else len(names)
    sent = buffers[arrived - 1].reads if buffers else (~0,)
    return Allocations(tuple(buffers), arrived, sent, (len(buffers) - 1,))  # ~0 if there are none


def allocate_bucket(
    spec: CollectiveSpec,
    members: Sequence[Sequence[Sized]],
    sources: Sequence[float],
    targets: Sequence[float],
    keep_operands: Sequence[bool] = (),
) -> Allocations:
    """Return the allocations of a bucket, which sends one buffer and receives one.

    Args:
        members: for each member, the result of `step_buffers`.
        sources, targets: for each member, the local bytes before and after. If a member has a buffer `sent` or
            `received`, as in an exchange, the size of that buffer counts instead.
        keep_operands: for each member, whether its operand is live until its last buffer is written.
    """
    buffers: list[Allocation] = []

    def allocate(size: float, member: int, *reads: int) -> int:
        buffers.append(Allocation(size, member, reads))
        return len(buffers) - 1

    packed = []
    for member, sizes in enumerate(members):
        packed_buffer = ~member
        for name, size in sizes:
            if name in PACKED:
                packed_buffer = allocate(size, member, packed_buffer)
        packed.append(packed_buffer)
    sends, receives = (
        [dict(sizes).get(name, size) for sizes, size in zip(members, default_sizes, strict=True)]
        for name, default_sizes in (("sent", sources), (ARRIVES, targets))
    )
    sent = allocate(sum(sends), 0, *packed)
    received = allocate(sum(receives), 0, sent)
    if not spec.is_copied_apart:
        return Allocations(tuple(buffers), len(buffers), (sent,), (received,) * len(members))
    start_count = len(buffers)
    results = [allocate(size, member, received) for member, size in enumerate(receives)]
    for member, sizes in enumerate(members if spec.arrives_in_parts else ()):
        kept_operand = (~member,) if keep_operands and keep_operands[member] else ()
        names = [name for name, _ in sizes]
        for _, size in sizes[names.index(ARRIVES) + 1 :] if ARRIVES in names else ():
            results[member] = allocate(size, member, results[member], *kept_operand)
    return Allocations(tuple(buffers), start_count, (sent,), tuple(results))
