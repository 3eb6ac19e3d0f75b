"""Read the graph of one rank: torch ops and functional collectives become ops of the IR with local types.

A collective is an op named like its functional collective, such as `_c10d_functional.all_reduce`. Its wait is left out:
the result of the collective is the received tensor. These ops are only an intermediate form. They never reach a module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx
from xdsl.ir import Operation, SSAValue

from spmdir.core.errors import UnsupportedError
from spmdir.dialects.aten import op_class
from spmdir.dialects.value_op import ValueOp
from spmdir.importer.fx_arguments import bind_arguments, op_name, op_signature
from spmdir.importer.graph_builder import GraphBuilder, tensor_meta
from spmdir.importer.locations import location_attribute, node_location
from spmdir.torch_interop.ops import OpOverload

FUNCTIONAL = "_c10d_functional."
"""The prefix of the ops that represent functional collectives."""

_NAMESPACES = {"_c10d_functional": FUNCTIONAL, "_c10d_functional_autograd": FUNCTIONAL, "_dtensor": "_dtensor."}
_SUPPORTED = {
    "_c10d_functional.all_gather_into_tensor",
    "_c10d_functional.all_gather_into_tensor_out",
    "_c10d_functional.all_reduce",
    "_c10d_functional.all_to_all_single",
    "_c10d_functional.reduce_scatter_tensor",
    "_dtensor.shard_dim_alltoall",
}
_WAIT = "_c10d_functional.wait_tensor"
_COALESCED = "_coalesced"
_OTHER_COLLECTIVES = ("c10d.", "fsdp.", "symm_mem.", "c10d_functional.", *_NAMESPACES.values())


class RankGraphBuilder(GraphBuilder):
    """Builds ops with local types."""

    def _build_node(self, node: fx.Node, graph: fx.Graph, values: dict[fx.Node, Any]) -> Any:
        """Build the ops of a node: an op for each tensor of a functional collective, and none for its wait."""
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            return super()._build_node(node, graph, values)
        name = op_name(node.target)
        namespace, _, base = name.partition(".")
        name = _NAMESPACES.get(namespace, f"{namespace}.") + base
        if not name.startswith(_OTHER_COLLECTIVES):
            return super()._build_node(node, graph, values)
        args = [_substitute(argument, values) for argument in node.args]
        if name == _WAIT:
            return args[0]
        if name.removesuffix(_COALESCED) not in _SUPPORTED:
            raise UnsupportedError(
                f"'{node.name}' calls {name}, which has no counterpart in the IR; expected functional collectives such "
                "as _c10d_functional.all_reduce: use torch.distributed._functional_collectives",
                node_location(node),
            )
        if not name.endswith(_COALESCED):
            return self._build_collective(node, name, args, _result(node))
        entries = zip(args[0], _result(node), strict=True)
        name = name.removesuffix(_COALESCED)
        return tuple(self._build_collective(node, name, [entry, *args[1:]], result) for entry, result in entries)

    def _build_collective(self, node: fx.Node, name: str, args: list[Any], result: Tensor) -> SSAValue:
        """Build the op of one collective on one tensor."""
        location = node_location(node)
        overload = getattr(getattr(torch.ops, name.partition(".")[0]), name.partition(".")[2]).default
        metas = (tensor_meta(result, node, self.symbols, location),)
        call = bind_arguments(op_signature(overload), args, {}, metas, location)
        op = op_class(name).build_op(
            call.operands[:1], call.results, tuple(sorted(call.arguments.items())), location=location_attribute(node)
        )
        return self._append(op, node)[0]


def _result(node: fx.Node) -> Any:
    """Return the example value of a node."""
    if "val" not in node.meta:
        raise UnsupportedError(
            f"node '{node.name}' has no meta['val']; expected an example value with a shape: trace the graph again",
            node_location(node),
        )
    return node.meta["val"]


def _substitute(argument: Any, values: Mapping[fx.Node, Any]) -> Any:
    """Return `argument` with the value of each node in place of the node."""
    if isinstance(argument, fx.Node):
        return values[argument]
    return [_substitute(entry, values) for entry in argument] if isinstance(argument, (list, tuple)) else argument


def is_collective(op: Operation) -> bool:
    """Return whether an op is the intermediate form of a functional collective."""
    return isinstance(op, ValueOp) and op.name.startswith((FUNCTIONAL, "_dtensor."))
