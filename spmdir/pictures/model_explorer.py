"""Export a program as JSON for Model Explorer: modules are layers, and each mesh axis marks the edges that it shards.

Field names are those of `model_explorer.graph_builder` and of its edge overlays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spmdir.core.axis_colors import axis_color
from spmdir.core.garbage_collector import collector_paused
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.pictures.program_graph import GraphNode, partition, program_graph
from spmdir.pipeline.pipeline import Pipeline

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp


def write_model_explorer(module: ModuleOp, pipeline: Pipeline, title: str) -> str:
    """Return the JSON text of a program at any stage, with its collectives.

    Raises:
        SpmdirError: a pass rejects the program.
    """
    with collector_paused(), pipeline.rules:
        module, _ = partition(module, pipeline)
        return model_explorer(program_graph(ir.main_function(module), ir.mesh(module)), ir.mesh(module), title)


def model_explorer(nodes: Sequence[GraphNode], mesh: Mesh, title: str) -> str:
    """Return the JSON text of one collection with one graph."""
    graph = {
        "id": "main",
        "nodes": [_node(index, node, nodes) for index, node in enumerate(nodes)],
        "groupNodeAttributes": {"": {"mesh": str(mesh)}},
        "tasksData": {
            "edgeOverlaysDataListLeftPane": [
                {"type": "edge_overlays", "name": "shardings", "overlays": _overlays(nodes, mesh)}
            ]
        },
    }
    return json.dumps({"label": title, "graphs": [graph]}, separators=(",", ":")) + "\n"


def _node(index: int, node: GraphNode, nodes: Sequence[GraphNode]) -> dict[str, Any]:
    """Return a node in the JSON format of Model Explorer."""
    attributes = {
        "value": node.name,
        "type": "" if node.meta is None else str(node.meta),
        "sharding": "not decided" if node.sharding is None else f"<{node.sharding}>",
        "axes": ", ".join(node.axes),
        "source": "" if node.location is None else f"{node.location.file}:{node.location.line}",
    }
    shown = [key for key in ("type", "sharding") if attributes[key]]
    tag = {"key": "__tensor_tag", "value": node.name}
    output = {"id": "0", "attrs": [tag, *({"key": key, "value": attributes[key]} for key in shown)]}
    return {
        "id": str(index),
        "label": node.op,
        "namespace": node.path.replace("/", "_").replace(".", "/"),
        "attrs": [{"key": key, "value": value} for key, value in attributes.items() if value],
        "incomingEdges": [
            {"sourceNodeId": str(source), "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
            for place, source in enumerate(node.operands)
        ],
        "outputsMetadata": [output],
    }


def _overlays(nodes: Sequence[GraphNode], mesh: Mesh) -> list[dict[str, Any]]:
    """Return an overlay for each axis that shards values: the edges of these values, with their placements."""
    edges: dict[str, list[dict[str, str]]] = {axis: [] for axis in mesh.axis_names}
    for index, node in enumerate(nodes):
        for source in node.operands:
            sharding = nodes[source].sharding
            for axis, placement in () if sharding is None else sharding.entries:
                edge = {"sourceNodeId": str(source), "targetNodeId": str(index), "label": f"{axis}: {placement}"}
                edges[mesh.root_axis(axis)].append(edge)
    return [
        {"name": axis, "edgeColor": axis_color(axis, mesh.axis_names), "edgeWidth": 3, "edges": axis_edges}
        for axis, axis_edges in edges.items()
        if axis_edges
    ]
