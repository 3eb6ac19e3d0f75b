"""Checkpointed regions of a joint graph: the backward computes their values again instead of reading them.

In eager, the recomputation also repeats the writes of a region to buffers, such as the running statistics of a batch
norm. It starts from the value of the buffer at the time of the backward, so this value is an argument of the backward:

    forward(mean)             → y, mean'           mean' = 0.9 mean + 0.1 average(x)
    backward(dy, late.mean)   → dx, late.mean'     late.mean' = 0.9 late.mean + 0.1 average(x)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import attrs
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from spmdir.importer.repeated_writes import (
    Write,
    find_recomputations,
    find_repeated_writes,
    find_saving_ops,
    unclear_write_error,
)
from spmdir.torch_interop.schemas import is_random

_RECOMPUTED = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


@attrs.frozen
class LateBuffer:
    """The descriptor of a buffer as an argument of the backward."""

    target: str


@attrs.frozen
class LateWrite:
    """The descriptor of the new value of a buffer, if the backward writes to it.

    Attributes:
        buffer: the buffer.
        sources: the indices of the outputs; the backward writes if it has a gradient of one of them.
    """

    buffer: LateBuffer
    sources: frozenset[int]


def find_tangent_dependencies(graph: fx.Graph, tangents: Mapping[fx.Node, int]) -> dict[fx.Node, frozenset[int]]:
    """Return node → indices of the outputs on whose gradients the node depends.

    Args:
        tangents: placeholder of the gradient of an output → index of the output.
    """
    dependencies: dict[fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        own_tangent = frozenset({tangents[node]}) if node in tangents else frozenset[int]()
        dependencies[node] = own_tangent.union(*(dependencies[operand] for operand in node.all_input_nodes))
    return dependencies


def repeat_regions(
    graph: fx.Graph, new_buffer_values: Mapping[fx.Node, fx.Node], tangents: Mapping[fx.Node, int]
) -> None:
    """Recompute checkpointed regions: the backward reads copies of the nodes that `torch.utils.checkpoint` marked.

    If the backward reads `h = relu(x @ w)` of a region, it gets a copy of both ops on x and w, and h is not kept. The
    graph changes in place. As in eager mode, these values are kept and not recomputed: the inputs of a region,
    values that the forward reads outside of the region, and random numbers.

    A region that writes to a buffer writes again when it is recomputed. For each such buffer, the graph gets an
    argument with the buffer's value before the backward (`LateBuffer`), and a result with the new value (`LateWrite`).

    Args:
        new_buffer_values: placeholder of a buffer that the forward writes to → its new value.
        tangents: placeholder of the gradient of an output → index of the output.

    Raises:
        UnsupportedError: the graph does not determine the value of a buffer before or after a region, or regions that
            write to one buffer are recomputed for different outputs.
    """
    backward = {node for node in graph.nodes if node.meta.get("partitioner_tag") == "is_backward"}
    saving_ops_by_node = find_saving_ops(graph, backward)  # backward node → forward op whose gradient it computes
    recomputations_by_region = find_recomputations(graph, saving_ops_by_node, _recomputed_region)
    writes = find_repeated_writes(graph, new_buffer_values, recomputations_by_region, _recomputed_region)
    copied_nodes = {node for node in graph.nodes if node not in backward and _is_recomputed(node, backward)}
    exits = {write.exit for write in writes}  # new values of buffers; the recomputation also computes them
    copies = _Copies(copied_nodes | exits)
    late_values = _add_late_arguments(graph, writes)
    region_starts = {recomputations_by_region[write.region].first: write.region for write in writes}
    for node in list(graph.nodes):
        if node in backward and node.op == "call_function":
            # If the recomputation of a region starts here, it reads the present values of its buffers and writes them.
            region_writes = [write for write in writes if write.region == region_starts.get(node)]
            for write in region_writes:
                copies.entries[write.entry, write.region] = late_values[write.buffer]
            for write in region_writes:
                late_values[write.buffer] = copies.copy_of(write.exit, node)
            # Nodes of the backward read copies. Only the backward of a region reads the copy of a buffer's new value.
            saving_region = _recomputed_region(saving_ops_by_node[node]) if node in saving_ops_by_node else None
            for operand in node.all_input_nodes:
                if operand in copied_nodes or (operand in exits and _recomputed_region(operand) == saving_region):
                    node.replace_input_with(operand, copies.copy_of(operand, node))
    _return_late_buffers(graph, late_values, _find_sources(graph, writes, saving_ops_by_node, tangents))


def _recomputed_region(node: fx.Node) -> int | None:
    """Return the region with which `node` is recomputed; None if its value is kept."""
    is_recomputed = node.op == "call_function" and node.meta.get("recompute") in _RECOMPUTED
    return node.meta.get("ac_graph_id") if is_recomputed else None


def _is_recomputed(node: fx.Node, backward: Set[fx.Node]) -> bool:
    """Return whether the backward recomputes `node` instead of reading its value.

    The node must be in a region and draw no random numbers, and only its region and the backward may use it.
    """
    region = _recomputed_region(node)
    if region is None or is_random(node.target):
        return False
    return all(user in backward or user.meta.get("ac_graph_id") == region for user in node.users)


@attrs.define(eq=False)
class _Copies:
    """The copies of forward nodes that the backward computes again, instead of reading the values of the forward.

    A node has at most one copy, which all backward nodes share. Copies are inserted on demand, see `copy_of`.

    Attributes:
        copied_nodes: the nodes that may be copied. All other operands of copies are kept values, which copies read.
        entries: (value of a buffer that a region reads first, region) → the value that the copy of this region reads
            instead: the buffer's value at the time of the backward.
        _copies: node → its copy, for the nodes that were copied so far.
    """

    copied_nodes: Set[fx.Node]
    entries: dict[tuple[fx.Node, Any], fx.Node] = attrs.field(factory=dict)
    _copies: dict[fx.Node, fx.Node] = attrs.field(factory=dict)

    def copy_of(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """Return the copy of `node`.

        If there is none yet, copy `node`, and those of its transitive producers that are recomputed with the same
        region, and insert the copies before the node `before`.
        """
        if node not in self._copies:
            region = _recomputed_region(node)
            operands = {operand: self._copy_operand(operand, region, before) for operand in node.all_input_nodes}
            with before.graph.inserting_before(before):
                self._copies[node] = before.graph.node_copy(node, operands.__getitem__)
        return self._copies[node]

    def _copy_operand(self, operand: fx.Node, region: Any, before: fx.Node) -> fx.Node:
        """Return what the copy of a node of `region` reads instead of `operand`.

        This is the late value of a buffer (see `entries`), or the copy of `operand`, or `operand` if it is kept.
        """
        if (operand, region) in self.entries:
            return self.entries[operand, region]
        is_copied = operand in self.copied_nodes and _recomputed_region(operand) == region
        return self.copy_of(operand, before) if is_copied else operand


def _add_late_arguments(graph: fx.Graph, writes: Sequence[Write]) -> dict[fx.Node, fx.Node]:
    """Return placeholder of a buffer → new placeholder of its value in the backward, for each buffer with writes."""
    late_arguments: dict[fx.Node, fx.Node] = {}
    for buffer in dict.fromkeys(write.buffer for write in writes):
        last_placeholder = [node for node in graph.nodes if node.op == "placeholder"][-1]
        with graph.inserting_after(last_placeholder):
            late_arguments[buffer] = graph.placeholder(f"late_{buffer.name}")
        late_arguments[buffer].meta = {**buffer.meta, "desc": LateBuffer(buffer.meta["desc"].target)}
    return late_arguments


def _find_sources(
    graph: fx.Graph,
    writes: Sequence[Write],
    saving_ops_by_node: Mapping[fx.Node, fx.Node],
    tangents: Mapping[fx.Node, int],
) -> dict[fx.Node, frozenset[int]]:
    """Return placeholder of a buffer → indices of the outputs whose gradients need the regions that write to it.

    Raises:
        UnsupportedError: regions that write to one buffer are needed for the gradients of different outputs.
    """
    dependencies = find_tangent_dependencies(graph, tangents) if writes else {}
    sources_by_region: dict[int | None, frozenset[int]] = {}
    for node, saver in saving_ops_by_node.items():
        region = _recomputed_region(saver)
        sources_by_region[region] = sources_by_region.get(region, frozenset()) | dependencies.get(node, frozenset())
    sources: dict[fx.Node, frozenset[int]] = {}
    for write in writes:
        if sources.setdefault(write.buffer, sources_by_region[write.region]) != sources_by_region[write.region]:
            raise unclear_write_error(write.buffer, "another region that writes to it is recomputed for other outputs")
    return sources


def _return_late_buffers(
    graph: fx.Graph, late_values: Mapping[fx.Node, fx.Node], sources: Mapping[fx.Node, frozenset[int]]
) -> None:
    """Append the last values of buffers to the results of the graph.

    Args:
        late_values: placeholder of a buffer → its last value in the backward.
        sources: placeholder of a buffer → indices of the outputs whose gradients need its writes.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    descriptors = [LateWrite(LateBuffer(buffer.meta["desc"].target), sources[buffer]) for buffer in late_values]
    output.args = ([*output.args[0], *late_values.values()],)  # type: ignore[misc]
    output.meta["desc"] = [*output.meta["desc"], *descriptors]
