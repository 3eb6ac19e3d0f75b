"""Checkpointed regions of a joint graph: the backward computes their values again instead of reading them."""

from __future__ import annotations

from collections.abc import Set

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from spmdir.torch_interop.schemas import is_random

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def repeat_regions(graph: fx.Graph) -> None:
    """Let the backward read copies of the nodes that `torch.utils.checkpoint` marked in the forward.

    As in eager, what other parts of the forward read of a region is kept, and what regions read; random ops are not
    repeated, so that backward has the numbers that forward drew.
    """
    backward = {node for node in graph.nodes if node.meta.get("partitioner_tag") == "is_backward"}
    inside = {node for node in graph.nodes if node not in backward and _is_repeated(node, backward)}
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node in backward and node.op == "call_function":
            for read in node.all_input_nodes:
                if read in inside:
                    node.replace_input_with(read, _again(read, inside, copies, node))


def _is_repeated(node: fx.Node, backward: Set[fx.Node]) -> bool:
    region = node.meta.get("ac_graph_id")
    if node.op != "call_function" or node.meta.get("recompute") not in _AGAIN or is_random(node.target):
        return False
    return all(user in backward or user.meta.get("ac_graph_id") == region for user in node.users)


def _again(node: fx.Node, inside: Set[fx.Node], copies: dict[fx.Node, fx.Node], before: fx.Node) -> fx.Node:
    """Return the copy of `node`, made before another one with all that it needs of its region."""
    if node not in copies:
        for read in node.all_input_nodes:
            if read in inside:
                _again(read, inside, copies, before)
        with before.graph.inserting_before(before):
            copies[node] = before.graph.node_copy(node, lambda read: copies.get(read, read) if read in inside else read)
    return copies[node]
