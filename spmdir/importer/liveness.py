"""Find the live nodes of a graph: those that its results, writes and random draws depend on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from spmdir.importer.running_statistics import writes_statistics
from spmdir.torch_interop.graphs import MODE_CALLS
from spmdir.torch_interop.ops import OpOverload
from spmdir.torch_interop.schemas import is_mutable, is_random


def draws_random_numbers(node: fx.Node) -> bool:
    """Return whether a node, or a node of its inner graphs, may draw numbers from the default generator."""
    if is_random(node.target):
        return node.kwargs.get("generator") is None
    return any(map(draws_random_numbers, inner_nodes(node)))


def inner_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes of the graphs that are arguments of a higher-order op; nothing for any other node."""
    if isinstance(node.target, OpOverload):
        return
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            body = getattr(node.graph.owning_module, str(argument.target), None)
            if isinstance(body, fx.GraphModule):
                yield from body.graph.nodes


def find_live_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that outputs, mutations and random draws depend on. Unused assertions are not among them."""
    roots = [
        node for node in graph.nodes if node.op == "output" or is_mutable(node.target) or draws_random_numbers(node)
    ]
    return _add_producers(graph, roots)


def _add_producers(graph: fx.Graph, nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return `nodes` and all nodes that they depend on."""
    live_nodes = set(nodes)
    for node in reversed(graph.nodes):
        if node in live_nodes:
            live_nodes.update(node.all_input_nodes)
    return live_nodes


def without_dead_code(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy of `module` without dead calls, also in its inner graphs."""
    roots = [node for node in module.graph.nodes if node.op != "get_attr" and _has_effect(node)]
    live_nodes = _add_producers(module.graph, roots)
    graph, copies = fx.Graph(), {}
    for node in module.graph.nodes:
        if node in live_nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    new_module = fx.GraphModule(module, graph)
    for node in graph.find_nodes(op="get_attr"):
        body = getattr(new_module, str(node.target), None)
        if isinstance(body, fx.GraphModule):
            setattr(new_module, str(node.target), without_dead_code(body))
    return new_module


def _has_effect(node: fx.Node) -> bool:
    """Return whether a node is needed even without users.

    Such a node is an input or output, switches a mode such as autocast, writes to a tensor, draws random numbers, or
    calls a graph that contains such a node.
    """
    if node.op in ("placeholder", "output") or getattr(node.target, "__name__", "") in MODE_CALLS:
        return True
    has_own_effect = (
        is_mutable(node.target) or writes_statistics(node.target, node.args, node.kwargs) or draws_random_numbers(node)
    )
    return has_own_effect or any(_has_effect(inner) for inner in inner_nodes(node) if inner.op == "call_function")
