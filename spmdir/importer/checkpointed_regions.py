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

from spmdir.importer.repeated_writes import Write, recomputations, repeated_writes, saving_ops, unclear
from spmdir.torch_interop.schemas import is_random

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


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


def tangents_read(graph: fx.Graph, tangents: Mapping[fx.Node, int]) -> dict[fx.Node, frozenset[int]]:
    """Return node → indices of the outputs whose gradients it depends on.

    Args:
        tangents: placeholder of the gradient of an output → index of the output.
    """
    found: dict[fx.Node, frozenset[int]] = {}
    for node in graph.nodes:
        own = frozenset({tangents[node]}) if node in tangents else frozenset[int]()
        found[node] = own.union(*(found[read] for read in node.all_input_nodes))
    return found


def repeat_regions(graph: fx.Graph, renewed: Mapping[fx.Node, fx.Node], tangents: Mapping[fx.Node, int]) -> None:
    """Let the backward read copies of the nodes that `torch.utils.checkpoint` marked in the forward.

    As in eager mode, the inputs of regions are kept, and so are values that other parts of the forward read. Random ops
    are not repeated, so the backward reads the numbers that the forward drew. Writes of a region to buffers are
    repeated: the graph gets an additional argument and result for each of these buffers, `LateBuffer` and `LateWrite`.

    Args:
        renewed: placeholder of a buffer that the forward writes to → its new value.
        tangents: placeholder of the gradient of an output → index of the output.

    Raises:
        UnsupportedError: the graph does not determine the value of a buffer before or after a region; or regions that
            write to one buffer are recomputed for different outputs.
    """
    backward = {node for node in graph.nodes if node.meta.get("partitioner_tag") == "is_backward"}
    saving = saving_ops(graph, backward)
    again = recomputations(graph, saving, _region)
    writes = repeated_writes(graph, renewed, again, _region)
    inside = {node for node in graph.nodes if node not in backward and _is_repeated(node, backward)}
    exits = {write.exit for write in writes}
    copies = _Copies(inside | exits)
    late = _late_arguments(graph, writes)
    begins = {again[write.region].first: write.region for write in writes}
    for node in list(graph.nodes):
        if node in backward and node.op == "call_function":
            of_region = [write for write in writes if write.region == begins.get(node)]
            for write in of_region:
                copies.entries[write.entry, write.region] = late[write.buffer]
            for write in of_region:
                late[write.buffer] = copies.of(write.exit, node)
            of_op = _region(saving[node]) if node in saving else None
            for read in node.all_input_nodes:
                if read in inside or (read in exits and _region(read) == of_op):
                    node.replace_input_with(read, copies.of(read, node))
    _return_late(graph, late, _sources(graph, writes, saving, tangents))


def _region(node: fx.Node) -> int | None:
    """Return the region with which `node` is recomputed; None if its value is kept."""
    return node.meta.get("ac_graph_id") if node.op == "call_function" and node.meta.get("recompute") in _AGAIN else None


def _is_repeated(node: fx.Node, backward: Set[fx.Node]) -> bool:
    region = _region(node)
    if region is None or is_random(node.target):
        return False
    return all(user in backward or user.meta.get("ac_graph_id") == region for user in node.users)


@attrs.define(eq=False)
class _Copies:
    """The copies of nodes of regions.

    Attributes:
        inside: the nodes that are copied.
        entries: (value of a buffer, a region that begins with it) → the value that the copy of the region begins with.
    """

    inside: Set[fx.Node]
    entries: dict[tuple[fx.Node, Any], fx.Node] = attrs.field(factory=dict)
    _made: dict[fx.Node, fx.Node] = attrs.field(factory=dict)

    def of(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """Return the copy of `node`, made before another one with all that it needs of its region."""
        if node not in self._made:
            region = _region(node)
            given = {read: self._given(read, region, before) for read in node.all_input_nodes}
            with before.graph.inserting_before(before):
                self._made[node] = before.graph.node_copy(node, given.__getitem__)
        return self._made[node]

    def _given(self, read: fx.Node, region: Any, before: fx.Node) -> fx.Node:
        if (read, region) in self.entries:
            return self.entries[read, region]
        return self.of(read, before) if read in self.inside and _region(read) == region else read


def _late_arguments(graph: fx.Graph, writes: Sequence[Write]) -> dict[fx.Node, fx.Node]:
    """Return the placeholders for the buffers that are written to again, by those of the forward."""
    found: dict[fx.Node, fx.Node] = {}
    for buffer in dict.fromkeys(write.buffer for write in writes):
        last = [node for node in graph.nodes if node.op == "placeholder"][-1]
        with graph.inserting_after(last):
            found[buffer] = graph.placeholder(f"late_{buffer.name}")
        found[buffer].meta = {**buffer.meta, "desc": LateBuffer(buffer.meta["desc"].target)}
    return found


def _sources(
    graph: fx.Graph, writes: Sequence[Write], saving: Mapping[fx.Node, fx.Node], tangents: Mapping[fx.Node, int]
) -> dict[fx.Node, frozenset[int]]:
    """Return buffer → the places of the outputs for whose gradients its regions are computed again."""
    read = tangents_read(graph, tangents) if writes else {}
    of_region: dict[int | None, frozenset[int]] = {}
    for node, saver in saving.items():
        key = _region(saver)
        of_region[key] = of_region.get(key, frozenset()) | read.get(node, frozenset())
    found: dict[fx.Node, frozenset[int]] = {}
    for write in writes:
        if found.setdefault(write.buffer, of_region[write.region]) != of_region[write.region]:
            raise unclear(write.buffer, "another region that writes to it is computed again for other outputs")
    return found


def _return_late(graph: fx.Graph, late: Mapping[fx.Node, fx.Node], sources: Mapping[fx.Node, frozenset[int]]) -> None:
    """Return the last values of buffers after all other results."""
    end = next(node for node in graph.nodes if node.op == "output")
    written = [LateWrite(LateBuffer(buffer.meta["desc"].target), sources[buffer]) for buffer in late]
    end.args = ([*end.args[0], *late.values()],)  # type: ignore[misc]
    end.meta["desc"] = [*end.meta["desc"], *written]
