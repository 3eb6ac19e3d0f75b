"""Which nodes of a graph its results, writes and random draws depend on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import fx

from spmdir.importer.running_statistics import writes_statistics
from spmdir.torch_interop.graphs import MODE_CALLS
from spmdir.torch_interop.ops import OpOverload
from spmdir.torch_interop.schemas import is_mutable, is_random


def draws(node: fx.Node) -> bool:
    """Return whether a node may take numbers from the random stream that all random ops share."""
    if is_random(node.target):
        return node.kwargs.get("generator") is None
    return any(map(draws, inner_nodes(node)))


def inner_nodes(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes of the graphs that a node is given, which plain ops take none of."""
    for argument in () if isinstance(node.target, OpOverload) else node.all_input_nodes:
        body = getattr(node.graph.owning_module, str(argument.target), None) if argument.op == "get_attr" else None
        if isinstance(body, fx.GraphModule):
            yield from body.graph.nodes


def live(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that outputs, mutations and later draws depend on; assertions, guards and metadata are not."""
    return _with_inputs(graph, (n for n in graph.nodes if n.op == "output" or is_mutable(n.target) or draws(n)))


def _with_inputs(graph: fx.Graph, nodes: Iterable[fx.Node]) -> set[fx.Node]:
    found = set(nodes)
    for node in reversed(graph.nodes):
        if node in found:
            found.update(node.all_input_nodes)
    return found


def without_dead_code(module: fx.GraphModule) -> fx.GraphModule:
    """Return a copy whose calls are those that results, writes and draws depend on, inner graphs included."""
    needed = _with_inputs(module.graph, (n for n in module.graph.nodes if n.op != "get_attr" and _has_effect(n)))
    graph, copies = fx.Graph(), {}
    for node in module.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    new = fx.GraphModule(module, graph)
    for node in graph.find_nodes(op="get_attr"):
        body = getattr(new, str(node.target), None)
        if isinstance(body, fx.GraphModule):
            setattr(new, str(node.target), without_dead_code(body))
    return new


def _has_effect(node: fx.Node) -> bool:
    if node.op in ("placeholder", "output") or getattr(node.target, "__name__", "") in MODE_CALLS:
        return True
    own = is_mutable(node.target) or writes_statistics(node.target, node.args, node.kwargs) or draws(node)
    return own or any(_has_effect(n) for n in inner_nodes(node) if n.op == "call_function")
