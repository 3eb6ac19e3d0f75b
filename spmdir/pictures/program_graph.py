"""The graph of a program for viewers: ops as nodes, with their modules and source locations."""

from __future__ import annotations

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from spmdir.analysis.module_paths import module_paths
from spmdir.core.errors import Location
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.collectives import Collective
from spmdir.dialects.locations import location_of
from spmdir.dialects.names import text_name
from spmdir.dialects.values import global_type, sharding_of
from spmdir.pipeline.pipeline import After, Pipeline, run_passes
from spmdir.pipeline.remaining_passes import bind_examples, inline_calls, remaining_passes

ARGUMENT = "argument"
"""The op name of the node of an argument."""


def partition(
    module: ModuleOp, pipeline: Pipeline, after: After = lambda name, module: None
) -> tuple[ModuleOp, Pipeline]:
    """Partition a copy of a module up to localize, and return it with the remaining pipeline.

    Symbolic sizes have the values of their examples, and calls are inlined.

    Args:
        module: a program at any stage.
        pipeline: the pipeline whose remaining passes run.
        after: called after each pass, as in `run_passes`.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    module = inline_calls(bind_examples(module, pipeline)).clone()
    remaining = remaining_passes(pipeline, ir.main_function(module))
    partitioning = remaining.before("localize")
    later_steps = remaining.steps[len(partitioning.steps) :]
    return run_passes(module, partitioning, after=after), remaining.with_steps(later_steps)


@attrs.frozen
class GraphNode:
    """An op or an argument.

    Attributes:
        name: the first result, as in the text.
        op: the name of the op, or ARGUMENT.
        meta: the global type of the first result; None if it is not a tensor.
        sharding: the sharding of the first result; None if undecided.
        axes: the mesh axes of the groups of a collective.
        path: the path of its module.
        location: its location in the source, or else in the text.
        operands: the indices of the nodes that produce its operands.
    """

    name: str
    op: str
    meta: TensorMeta | None
    sharding: Sharding | None
    axes: tuple[str, ...]
    path: str
    location: Location | None
    operands: tuple[int, ...]


def program_graph(function: FuncOp, mesh: Mesh) -> tuple[GraphNode, ...]:
    """Return the nodes of the arguments and ops of a function, in order."""
    nodes: list[GraphNode] = []
    node_of_value: dict[SSAValue, int] = {}
    paths = module_paths(function)
    for argument in function.args:
        node_of_value[argument] = len(nodes)
        nodes.append(_node(argument, ARGUMENT, (), mesh, paths[argument], location_of(function), ()))
    for op in function.body.block.ops:
        if not op.results:
            continue  # the return
        node_of_value.update(dict.fromkeys(op.results, len(nodes)))
        operands = tuple(dict.fromkeys(node_of_value[operand] for operand in op.operands))
        axes = op.axes if isinstance(op, Collective) else ()
        nodes.append(_node(op.results[0], op.name, axes, mesh, paths[op], location_of(op), operands))
    return tuple(nodes)


def _node(
    value: SSAValue,
    op: str,
    axes: tuple[str, ...],
    mesh: Mesh,
    path: str,
    location: Location | None,
    operands: tuple[int, ...],
) -> GraphNode:
    """Return the node of an op or argument, described by its first value."""
    return GraphNode(text_name(value), op, global_type(value, mesh), sharding_of(value), axes, path, location, operands)
