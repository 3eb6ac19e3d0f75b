"""Calls of outlined layers. The shardings of a call are those inside its function.

%y = func.call @layers_forward(%x) {spmd.layer = "layers.3"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.dialects.names import full_name

LAYER = "spmd.layer"
"""The attribute of a call, and of the outlined function that it calls, with the path of the layer."""


def layer_named(op: Operation) -> str | None:
    """Return the path of the layer of a call or a function; None if it has none."""
    attribute = op.attributes.get(LAYER)
    return attribute.data if isinstance(attribute, StringAttr) else None


def layer_function(call: CallOp) -> FuncOp | None:
    """Return the function that a call of an outlined layer calls; None for other calls."""
    if LAYER not in call.attributes:
        return None
    top: Any = call.parent_op()
    while top is not None and top.parent_op() is not None:
        top = top.parent_op()
    name = call.callee.string_value()
    ops = top.body.block.ops if top is not None else ()
    return next((op for op in ops if isinstance(op, FuncOp) and op.sym_name.data == name), None)


def returned_value(result: Any) -> SSAValue | None:
    """Return the value inside the layer's function that is the result of its call; None for results of other ops."""
    function = layer_function(result.op) if type(result.op) is CallOp else None
    return None if function is None else function.body.block.last_op.operands[result.index]  # type: ignore[union-attr]


def layer_of_parameter(value: SSAValue) -> str | None:
    """Return the path of the layer of a parameter; None if it belongs to no single layer.

    All users of the parameter must be calls of this layer, and the path must be part of the name of the parameter.
    """
    layers = {layer_named(use.operation) for use in value.uses}
    layer = layers.pop() if len(layers) == 1 else None
    return layer if layer is not None and f"{layer}." in (full_name(value) or "") else None
