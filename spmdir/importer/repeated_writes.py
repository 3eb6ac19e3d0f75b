"""Find the writes to buffers that the recomputation of a checkpointed region repeats in the backward.

The joint graph is functional: a region replaces the value `entry` of a buffer by the value `exit`. The search for these
values starts at the last value, which the graph returns:

    bn1 = batch_norm(x, mean)       region 1    entry mean, exit bn1[3]
    bn2 = batch_norm(y, bn1[3])     region 2    entry bn1[3], exit bn2[3]
    return bn2[3]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Set

import attrs
from torch import fx

from spmdir.core.errors import UnsupportedError
from spmdir.importer.locations import node_location

Region = Callable[[fx.Node], int | None]


@attrs.frozen(eq=False)
class Recomputation:
    """The extent of the recomputation of a region in eager mode.

    Attributes:
        first: the first node of the backward that reads a saved value of the region; eager recomputes the region there.
        last: the last node of the region that saves a value; eager stops there.
    """

    first: fx.Node
    last: fx.Node


@attrs.frozen(eq=False)
class Write:
    """A write of a region to a buffer: it replaces the value `entry` by the value `exit`."""

    region: int
    buffer: fx.Node
    entry: fx.Node
    exit: fx.Node


def saving_ops(graph: fx.Graph, backward: Set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Return node of the backward → op of the forward whose gradient it computes, if the op saves a value for it.

    Autograd numbers the ops that have gradients. A following op without a gradient has the same number.
    """
    ops: dict[int, fx.Node] = {}
    found = {}
    for node in graph.nodes:
        number = node.meta.get("seq_nr")
        if node.op != "call_function" or number is None:
            continue
        if node not in backward:
            ops.setdefault(number, node)
        elif number in ops and any(read not in backward for read in node.all_input_nodes):
            found[node] = ops[number]
    return found


def recomputations(graph: fx.Graph, saving: Mapping[fx.Node, fx.Node], region: Region) -> dict[int, Recomputation]:
    """Return region → its recomputation, in the order of the backward."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    found: dict[int, Recomputation] = {}
    for node, saver in saving.items():
        key = region(saver)
        if key is not None:
            before = found.setdefault(key, Recomputation(node, saver))
            found[key] = attrs.evolve(before, last=max(before.last, saver, key=order.__getitem__))
    return found


def repeated_writes(
    graph: fx.Graph, returned: Mapping[fx.Node, fx.Node], again: Mapping[int, Recomputation], region: Region
) -> list[Write]:
    """Return the writes that recomputation repeats.

    Args:
        returned: placeholder of a buffer → its last value.
        again: region → its recomputation.
        region: returns the region of a node.

    Raises:
        UnsupportedError: the graph does not determine the value of a buffer before or after a region.
    """
    if not again:
        return []
    order: dict[fx.Node, int] = {}
    for place, node in enumerate(graph.nodes):
        order[node] = order[node.args[0]] if node.target is operator.getitem else place  # type: ignore[index]
    found = []
    for buffer, last in returned.items():
        if all(region(node) is None for node in _between(buffer, last, order)):
            continue
        for write in _chain(buffer, last, order, region):
            if write.region in again:
                stop = order[again[write.region].last]
                done = [order[node] <= stop for node in _between(write.entry, write.exit, order)]
                if any(done) and not all(done):
                    raise unclear(write.buffer, "the recomputation stops between two writes")
                if all(done):
                    found.append(write)
    return found


def _chain(buffer: fx.Node, last: fx.Node, order: Mapping[fx.Node, int], region: Region) -> Iterator[Write]:
    """Yield the writes of regions to a buffer, from the last to the first."""
    while last is not buffer:
        key = region(last)
        between = _between(buffer, last, order)
        producer = last.args[0] if last.target is operator.getitem else last
        inside = {node for node in between if node in (last, producer) or (key is not None and region(node) == key)}
        read = {each for node in inside for each in node.all_input_nodes if each not in inside}
        entries = [each for each in read if each is buffer or (each in between and _is_alike(each, buffer))]
        if len(entries) > 1:
            entries = [each for each in entries if _form(each) == _form(last)]
        if len(entries) != 1:
            raise unclear(buffer, f"the write of a region begins with {len(entries)} values that may be the buffer's")
        if key is not None:
            yield Write(key, buffer, entries[0], last)
        last = entries[0]


def _between(buffer: fx.Node, last: fx.Node, order: Mapping[fx.Node, int]) -> set[fx.Node]:
    """Return the nodes on paths from `buffer` to `last`, including `last`."""
    late: set[fx.Node] = {buffer}
    for node in order:
        if order[buffer] < order[node] <= order[last] and any(read in late for read in node.all_input_nodes):
            late.add(node)
    found, open_ = set(), [last]
    while open_:
        node = open_.pop()
        if node in late and node is not buffer and node not in found:
            found.add(node)
            open_ += node.all_input_nodes
    return found


def _form(node: fx.Node) -> tuple[object, ...]:
    """Return the op of a node and, if it has several results, the index of the result."""
    producer = node.args[0] if node.target is operator.getitem else None
    return (producer.target, node.args[1]) if isinstance(producer, fx.Node) else (node.target,)


def _is_alike(node: fx.Node, buffer: fx.Node) -> bool:
    value, held = node.meta.get("val"), buffer.meta["val"]
    return getattr(value, "shape", None) == held.shape and value.dtype == held.dtype  # type: ignore[union-attr]


def unclear(buffer: fx.Node, reason: str) -> UnsupportedError:
    """Return the error of a buffer whose writes cannot be repeated."""
    return UnsupportedError(
        f"a checkpointed region writes to the buffer '{buffer.meta['desc'].target}', and {reason}; expected one write "
        "to it in each region: write to it outside torch.utils.checkpoint",
        node_location(buffer),
    )
