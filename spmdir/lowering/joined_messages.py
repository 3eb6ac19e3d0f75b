"""The messages of buckets: one functional collective with the elements of all members.

Emitters create one message for each member, as if it were alone. This module packs their operands into one buffer, and
splits the received buffer into the results that separate collectives would return. For example, an all-reduce of x [2,
3] and y [4]:

    sent = cat([x.reshape(-1), y.reshape(-1)])                10 elements
    received = all_reduce(sent)
    x, y = received[:6].reshape(2, 3), received[6:]
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import attrs
from torch.fx import Node

from spmdir.core.errors import UnsupportedError
from spmdir.lowering.ranges import Emit, aten
from spmdir.lowering.site import Kind, Message, functional

Shape = tuple[int, ...]


@attrs.frozen
class StartedCollective:
    """An in-flight collective.

    Attributes:
        messages: the message of each member.
        arrive: emits the wait and returns the received tensor of each member.
    """

    messages: Sequence[Message]
    arrive: Callable[[], Sequence[Node]]

    @property
    def states(self) -> tuple[Node, ...]:
        """The new edge states (see docs/glossary.md) of the collective, which the op returns after its values.

        Buckets have no edge states: an op that has edge states sends one message.
        """
        return self.messages[0].states

    def wait(self, emit: Emit) -> list[Node]:
        """Emit the wait, and return the result of the op for each member."""
        return [message.compute_value(emit, x) for message, x in zip(self.messages, self.arrive(), strict=True)]


def start_collective(emit: Emit, messages: Sequence[Message], kind_of: Callable[[Node], Kind]) -> StartedCollective:
    """Send the messages of one collective, in the order of the members, with one call.

    If a message sends nothing, the members are not packed: each other message has its own call.

    Args:
        kind_of: node → (shape, element type).

    Raises:
        UnsupportedError: the functional collective has no entry in PACKINGS, as may be the case for plug-ins.
    """
    call = messages[0].call
    if len(messages) == 1 or any(message.call is None for message in messages):  # the same on all ranks
        arrivals = [message.send(emit) for message in messages]
        return StartedCollective(messages, lambda: [arrive() for arrive in arrivals])
    if call not in PACKINGS:
        raise UnsupportedError(
            f"{call} cannot send a bucket of several tensors; expected one of {', '.join(map(str, PACKINGS))}, "
            "or a single tensor"
        )
    packing, shapes = PACKINGS[call], [kind_of(message.x)[0] for message in messages]
    x, arguments = packing.pack(emit, messages, shapes)
    arrive = attrs.evolve(messages[0], x=x, arguments=arguments).send(emit)
    return StartedCollective(messages, lambda: packing.unpack(emit, arrive(), messages, shapes))


@attrs.frozen
class Packing:
    """Functions that replace one call of a functional collective per member by one call.

    Attributes:
        pack: (emit, messages, shapes of their operands) → (sent tensor, arguments of the call).
        unpack: (emit, received tensor, messages, shapes of their operands) → the result for each member.
    """

    pack: Callable[[Emit, Sequence[Message], Sequence[Shape]], tuple[Node, tuple[Any, ...]]]
    unpack: Callable[[Emit, Node, Sequence[Message], Sequence[Shape]], list[Node]]


def _join_flat(emit: Emit, messages: Sequence[Message], shapes: Sequence[Shape]) -> tuple[Node, tuple[Any, ...]]:
    """Concatenate the flattened members; see `Packing.pack`."""
    flat = [emit(aten.reshape.default, message.x, [-1]) for message in messages]
    return _cat(emit, flat), messages[0].arguments


def _split_flat(emit: Emit, x: Node, messages: Sequence[Message], shapes: Sequence[Shape]) -> list[Node]:
    """Split the received flat tensor into one view of the given shape for each member; see `Packing.unpack`."""
    parts = _split(emit, x, list(map(math.prod, shapes)))
    return [emit(aten.reshape.default, part, [*shape]) for part, shape in zip(parts, shapes, strict=True)]


def _split_by_rank(emit: Emit, x: Node, messages: Sequence[Message], shapes: Sequence[Shape]) -> list[Node]:
    """Split a gathered tensor, which has all members of the first rank, then all members of the second, and so on.

    For members a and b and two ranks, the tensor [a0, b0, a1, b1] gives [a0, a1] and [b0, b1]. These are views, or
    copies where a reshape needs one. A member with one element per rank would be a view with gaps. Some torch kernels
    ignore the strides of such a view, so it is copied here.
    """
    count, sizes = messages[0].arguments[0], list(map(math.prod, shapes))  # count: the number of ranks
    parts = _split(emit, emit(aten.reshape.default, x, [count, sum(sizes)]), sizes, 1)
    results = []
    for message, part, shape in zip(messages, parts, shapes, strict=True):
        received_shape = message.received_shape or (count * shape[0], *shape[1:])
        results.append(emit(aten.reshape.default, part, [*received_shape]))
    for index, size in enumerate(sizes):
        if size == 1 and sum(sizes) > 1:
            results[index] = emit(aten.contiguous.default, results[index])
    return results


def _join_by_rank(emit: Emit, messages: Sequence[Message], shapes: Sequence[Shape]) -> tuple[Node, tuple[Any, ...]]:
    """Concatenate the members by receiving rank: the chunks of all members for rank 0, then those for rank 1, …

    Each member is cut into chunks along dimension 0, one for each rank.
    """
    count = messages[0].arguments[-1]  # the number of ranks
    rows = [
        emit(aten.reshape.default, message.x, [count, math.prod(shape) // count])
        for message, shape in zip(messages, shapes, strict=True)
    ]
    return emit(aten.reshape.default, _cat(emit, rows, 1), [-1]), messages[0].arguments


def _split_own_chunks(emit: Emit, x: Node, messages: Sequence[Message], shapes: Sequence[Shape]) -> list[Node]:
    """Split the received tensor, which has this rank's chunk of each member, into views of the shapes of the chunks."""
    count = messages[0].arguments[-1]
    return _split_flat(emit, x, messages, [(shape[0] // count, *shape[1:]) for shape in shapes])


def _join_by_splits(emit: Emit, messages: Sequence[Message], shapes: Sequence[Shape]) -> tuple[Node, tuple[Any, ...]]:
    """Join the members of an all-to-all: for each receiving rank, the parts of all members one after the other.

    Member a has the parts a0 for rank 0 and a1 for rank 1, and member b has b0 and b1. The joined tensor is
    [a0, b0, a1, b1]. The splits of a member count rows. A row of a member has `width` elements, so the splits of the
    joined message count elements.
    """
    (receives, sends), widths = _splits(messages), [math.prod(shape[1:]) for shape in shapes]
    parts_of_members = []
    for message, splits, width in zip(messages, sends, widths, strict=True):
        flat = emit(aten.reshape.default, message.x, [-1])
        parts_of_members.append(_split(emit, flat, [size * width for size in splits]))
    ordered = list(itertools.chain.from_iterable(zip(*parts_of_members, strict=True)))
    return _cat(emit, ordered), (_add_splits(receives, widths), _add_splits(sends, widths))


def _add_splits(splits_of_members: Sequence[Sequence[int]], widths: Sequence[int]) -> list[int]:
    """Return, for each rank, the number of elements of all members together.

    Args:
        splits_of_members: the number of rows of each member for each rank, [member][rank].
        widths: the number of elements of a row of each member.

    Example:
        >>> _add_splits([[1, 2], [3, 0]], widths=[10, 100])
        [310, 20]
    """
    return [sum(map(operator.mul, rows, widths)) for rows in zip(*splits_of_members, strict=True)]


def _split_by_splits(emit: Emit, x: Node, messages: Sequence[Message], shapes: Sequence[Shape]) -> list[Node]:
    """Invert `_join_by_splits` for the received tensor: return the received rows of each member, in rank order."""
    (receives, _), widths = _splits(messages), [math.prod(shape[1:]) for shape in shapes]
    sizes = [size * width for row in zip(*receives, strict=True) for size, width in zip(row, widths, strict=True)]
    parts, results = _split(emit, x, sizes), []
    for member, shape in enumerate(shapes):
        joined = _cat(emit, parts[member :: len(shapes)])
        results.append(emit(aten.reshape.default, joined, [sum(receives[member]), *shape[1:]]))
    return results


def _splits(messages: Sequence[Message]) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Return (rows that each member receives from each rank, rows that it sends to each rank), as [member][rank]."""
    return [message.arguments[0] for message in messages], [message.arguments[1] for message in messages]


PACKINGS: dict[Any, Packing] = {
    functional.all_reduce.default: Packing(_join_flat, _split_flat),
    functional.all_gather_into_tensor.default: Packing(_join_flat, _split_by_rank),
    functional.reduce_scatter_tensor.default: Packing(_join_by_rank, _split_own_chunks),
    functional.all_to_all_single.default: Packing(_join_by_splits, _split_by_splits),
}
"""Functional collective → its packing of several tensors."""


def _cat(emit: Emit, parts: Sequence[Node], dim: int = 0) -> Node:
    """Return the concatenation of `parts` along a dimension."""
    return emit(aten.cat.default, [*parts], dim)


def _split(emit: Emit, x: Node, sizes: Sequence[int], dim: int = 0) -> list[Node]:
    """Return consecutive parts of `x`, of these sizes along a dimension."""
    parts = emit(aten.split_with_sizes.default, x, [*sizes], dim)
    return [emit(operator.getitem, parts, index) for index in range(len(sizes))]
