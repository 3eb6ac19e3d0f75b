"""The ops of a program as nodes of a graph, with where they come from: what viewers of programs show."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import attrs
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from spmdir.core.errors import Location
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.core.tensor import TensorMeta
from spmdir.dialects.collectives import Collective, WaitOp
from spmdir.dialects.names import text_name
from spmdir.dialects.reshard_ops import LayoutOp
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.source_places import places_of
from spmdir.dialects.syntax.context import location_of
from spmdir.dialects.values import global_type, sharding_of, signature_name
from spmdir.passes.finish import bound, copied, inlined, rest
from spmdir.passes.pipeline import Pipeline, run_passes

_LAYER = re.compile(r"(?:.*?\.)?[a-z_]*[0-9]+(?=\.)")
"""The part of a parameter's name that names its layer: `model.layers.3` of `model.layers.3.mlp.up.weight`."""

ARGUMENT = "argument"
"""What the op of an argument is called."""


def partitioned(
    module: ModuleOp, pipeline: Pipeline, after: Callable[[str, ModuleOp], None] = lambda name, module: None
) -> tuple[ModuleOp, Pipeline]:
    """Return a copy of a module at any stage as it is before it is that of one rank, and what is left of a pipeline.

    Symbolic sizes have the numbers of their examples, and calls are inlined.

    Args:
        after: called with the name of each pass that is run, and the module.

    Raises:
        SpmdirError: a pass rejects the module.
    """
    if examples := open_sizes(module).hints:
        module = bound(module, examples, pipeline)
    module = copied(inlined(module))
    needed = rest(pipeline, module)
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
    """Return the arguments of a function and its ops, in order.

    Where a location names no module, as that of an op of an optimizer, the path is that of the parameter that it is
    computed from, by the parameter's name. Where no location names one, it is the layer of the parameter that the op,
    or one before it, reads.
    """
    nodes: list[GraphNode] = []
    number: dict[SSAValue, int] = {}
    names = [signature_name(function, "arg_attrs", index) or "" for index in range(len(function.args))]
    paths = _Paths(names, any(places_of(op.location).paths for op in function.body.block.ops))
    for argument, name in zip(function.args, names, strict=True):
        number[argument] = len(nodes)
        path = paths.of_argument(argument, name)
        nodes.append(_node(argument, ARGUMENT, (), mesh, path, location_of(function), ()))
    for op in function.body.block.ops:
        if not op.results:
            continue
        path = paths.of_op(op)
        number.update(dict.fromkeys(op.results, len(nodes)))
        operands = tuple(dict.fromkeys(number[operand] for operand in op.operands))
        axes = op.axes if isinstance(op, Collective) else ()
        nodes.append(_node(op.results[0], op.name, axes, mesh, path, location_of(op), operands))
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


class _Paths:
    """Module paths of ops, op by op in their order."""

    def __init__(self, names: Collection[str], are_said: bool) -> None:
        self._names, self._are_said = {*names}, are_said
        self._modules: dict[SSAValue, str] = {}
        self._made: dict[SSAValue, str] = {}
        self._last = ""

    def of_argument(self, argument: BlockArgument, name: str) -> str:
        """Return the path of the module, or where no op says one of the layer, of a parameter or what is kept for
        it."""
        own = name.partition(".")[2]
        is_told = f"parameters.{own}" in self._names
        layer = _LAYER.match(own if is_told else name)
        found = (own.rpartition(".")[0] if is_told else "") if self._are_said else layer[0] if layer else ""
        if found:
            self._modules[argument] = found
        return found

    def of_op(self, op: Operation) -> str:
        """Return the path of the module of an op; a reshard is of that of the value."""
        said = places_of(op.location).paths
        read = [self._modules[operand] for operand in op.operands if operand in self._modules]
        is_reshard = isinstance(op, (Collective, WaitOp, LayoutOp))
        if read and (is_reshard or (self._are_said and not said)):
            self._modules.update(dict.fromkeys(op.results, read[0]))
        made = [self._made[operand] for operand in op.operands if is_reshard and operand in self._made]
        if not said and not self._are_said:
            self._last = read[0] if read else self._last
        found = (*said, *read, *made, "")[0] if said or self._are_said else self._last
        self._made.update(dict.fromkeys(op.results, found))
        return found
