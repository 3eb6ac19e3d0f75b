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

RegionOf = Callable[[fx.Node], int | None]


@attrs.frozen(eq=False)
class Recomputation:
    """The start and end of the recomputation of a region in eager mode.

    Attributes:
        first: the first backward node that reads a saved value of the region. Eager starts the recomputation there.
        last: the last forward node of the region that saves a value for the backward. Eager recomputes no later nodes.
    """

    first: fx.Node
    last: fx.Node


@attrs.frozen(eq=False)
class Write:
    """A write of a checkpointed region to a buffer.

    Attributes:
        region: the id of the region.
        buffer: the placeholder of the buffer.
        entry: the value of the buffer before the region.
        exit: the value of the buffer after the region.
    """

    region: int
    buffer: fx.Node
    entry: fx.Node
    exit: fx.Node


def find_saving_ops(graph: fx.Graph, backward: Set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Return node of the backward → op of the forward whose gradient it computes, if the op saves a value for it.

    The metadata `seq_nr` of a node is its number in autograd. An op and its gradient have equal numbers. An op without
    a gradient has the number of the op before it, so the first op with a number counts.
    """
    ops: dict[int, fx.Node] = {}
    saving_ops = {}
    for node in graph.nodes:
        number = node.meta.get("seq_nr")
        if node.op != "call_function" or number is None:
            continue
        if node not in backward:
            ops.setdefault(number, node)
        elif number in ops and any(operand not in backward for operand in node.all_input_nodes):
            saving_ops[node] = ops[number]
    return saving_ops


def find_recomputations(
    graph: fx.Graph, saving_ops: Mapping[fx.Node, fx.Node], region_of: RegionOf
) -> dict[int, Recomputation]:
    """Return region → its recomputation, in the order in which the backward recomputes regions.

    Args:
        saving_ops: the result of `find_saving_ops`.
        region_of: node → its checkpointed region; None outside of regions.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    recomputations: dict[int, Recomputation] = {}
    for node, saver in saving_ops.items():
        region = region_of(saver)
        if region is not None:
            recomputation = recomputations.setdefault(region, Recomputation(node, saver))
            last = max(recomputation.last, saver, key=order.__getitem__)
            recomputations[region] = attrs.evolve(recomputation, last=last)
    return recomputations


def find_repeated_writes(
    graph: fx.Graph,
    last_values: Mapping[fx.Node, fx.Node],
    recomputations: Mapping[int, Recomputation],
    region_of: RegionOf,
) -> list[Write]:
    """Return the writes to buffers that the recomputation of their region repeats.

    Eager stops a recomputation after the last value that the backward needs, so it repeats a write only if all ops of
    the write come before.

    Args:
        last_values: placeholder of a buffer → its last value.
        recomputations: region → its recomputation.
        region_of: returns the region of a node.

    Raises:
        UnsupportedError: the graph does not determine the value of a buffer before or after a region.
    """
    if not recomputations:
        return []
    order: dict[fx.Node, int] = {}
    for index, node in enumerate(graph.nodes):
        # An item of a tuple has the position of the op that computes the tuple.
        order[node] = order[node.args[0]] if node.target is operator.getitem else index  # type: ignore[index]
    writes = []
    for buffer, last_value in last_values.items():
        if all(region_of(node) is None for node in _nodes_between(buffer, last_value, order)):
            continue
        for write in _find_writes(buffer, last_value, order, region_of):
            if write.region in recomputations:
                end = order[recomputations[write.region].last]
                is_repeated = [order[node] <= end for node in _nodes_between(write.entry, write.exit, order)]
                if any(is_repeated) and not all(is_repeated):
                    raise unclear_write_error(write.buffer, "the recomputation stops between two writes")
                if all(is_repeated):
                    writes.append(write)
    return writes


def _find_writes(buffer: fx.Node, value: fx.Node, order: Mapping[fx.Node, int], region_of: RegionOf) -> Iterator[Write]:
    """Yield the writes of regions to a buffer, from the last to the first.

    Each turn of the loop starts at a value of the buffer, and finds the value before the region, or before the op
    outside of regions, that computed it. In the example of this file, the turns are bn2[3] → bn1[3] and bn1[3] → mean.

    Args:
        value: the last value of the buffer.
        order: node → its position in the graph.
        region_of: returns the region of a node; None outside of regions.

    Raises:
        UnsupportedError: several values, or none, may be the value of the buffer before a region.
    """
    while value is not buffer:
        region = region_of(value)
        path = _nodes_between(buffer, value, order)
        producer = value.args[0] if value.target is operator.getitem else value
        nodes = {node for node in path if node in (value, producer)}
        if region is not None:
            nodes |= {node for node in path if region_of(node) == region}
        # The value of the buffer before these nodes is an operand of them, and looks like the buffer.
        operands = {operand for node in nodes for operand in node.all_input_nodes if operand not in nodes}
        entries = []
        for operand in operands:
            if operand is buffer or (operand in path and _has_same_meta(operand, buffer)):
                entries.append(operand)
        # Several operands may look like the buffer, such as the mean and the variance of a batch norm. The value before
        # a write is then the same result of an earlier call of the same op.
        if len(entries) > 1:
            entries = [candidate for candidate in entries if _op_and_index(candidate) == _op_and_index(value)]
        if len(entries) != 1:
            reason = f"{len(entries)} values may be that of the buffer before the region"
            raise unclear_write_error(buffer, reason)
        if region is not None:
            yield Write(region, buffer, entries[0], value)
        value = entries[0]


def _nodes_between(start: fx.Node, end: fx.Node, order: Mapping[fx.Node, int]) -> set[fx.Node]:
    """Return the nodes on paths from `start` to `end`, including `end`.

    Args:
        order: node → its position in the graph.
    """
    dependents: set[fx.Node] = {start}
    for node in order:
        is_in_range = order[start] < order[node] <= order[end]
        if is_in_range and any(operand in dependents for operand in node.all_input_nodes):
            dependents.add(node)
    nodes, worklist = set(), [end]
    while worklist:
        node = worklist.pop()
        if node in dependents and node is not start and node not in nodes:
            nodes.add(node)
            worklist += node.all_input_nodes
    return nodes


def _op_and_index(node: fx.Node) -> tuple[object, ...]:
    """Return the op of a node and, if it has several results, the index of the result."""
    producer = node.args[0] if node.target is operator.getitem else None
    return (producer.target, node.args[1]) if isinstance(producer, fx.Node) else (node.target,)


def _has_same_meta(node: fx.Node, buffer: fx.Node) -> bool:
    """Return whether a node has a tensor of the shape and dtype of the buffer."""
    value, buffer_value = node.meta.get("val"), buffer.meta["val"]
    return getattr(value, "shape", None) == buffer_value.shape and value.dtype == buffer_value.dtype  # type: ignore[union-attr]


def unclear_write_error(buffer: fx.Node, reason: str) -> UnsupportedError:
    """Return the error for a buffer whose writes cannot be repeated."""
    return UnsupportedError(
        f"a checkpointed region writes to the buffer '{buffer.meta['desc'].target}', and {reason}; expected one write "
        "to it in each region: write to it outside torch.utils.checkpoint",
        node_location(buffer),
    )
