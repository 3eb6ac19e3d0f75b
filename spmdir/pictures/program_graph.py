"""The ops of a program as nodes of a graph, with where they come from: what viewers of programs show."""

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
from spmdir.pipeline.finish import bind_examples, inline_calls, remaining_passes
from spmdir.pipeline.pipeline import After, Pipeline, run_passes

ARGUMENT = "argument"
"""What the op of an argument is called."""


def partitioned(
    module: ModuleOp, pipeline: Pipeline, after: After = lambda name, module: None
) -> tuple[ModuleOp, Pipeline]:
    """Return a copy of a module at any stage as it is before it is that of one rank, and what is left of a pipeline.

    Symbolic sizes have the numbers of their examples, and calls are inlined.

    Args:
        after: as of `run_passes`.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    module = inline_calls(bind_examples(module, pipeline)).clone()
    needed = remaining_passes(pipeline, ir.main_function(module))
    first = needed.before("localize")
    return run_passes(module, first, after=after), needed.with_steps(needed.steps[len(first.steps) :])


@attrs.frozen
class GraphNode:
    """An op with what it makes, or an argument.

    Attributes:
        name: of the first result, as in the text.
        op: its name, or ARGUMENT.
        meta: global type of the first result; None if it is no tensor.
        sharding: of it; None where that is not decided.
        axes: of the groups of a collective.
        path: of the module that it belongs to.
        location: in the source, or else in the text.
        operands: numbers of the nodes that make what it reads.
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
    """Return the arguments of a function and its ops, in order."""
    nodes: list[GraphNode] = []
    number: dict[SSAValue, int] = {}
    paths = module_paths(function)
    for argument in function.args:
        number[argument] = len(nodes)
        nodes.append(_node(argument, ARGUMENT, (), mesh, paths[argument], location_of(function), ()))
    for op in function.body.block.ops:
        if not op.results:
            continue
        number.update(dict.fromkeys(op.results, len(nodes)))
        operands = tuple(dict.fromkeys(number[operand] for operand in op.operands))
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
    return GraphNode(text_name(value), op, global_type(value, mesh), sharding_of(value), axes, path, location, operands)
