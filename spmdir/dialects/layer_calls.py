"""Calls of equal layers, which stand for their bodies as they are: what is known of one call is known in its function.

%y = func.call @layers_forward(%x) {spmd.layer = "layers.3"} : (tensor<4x8xf32>) -> tensor<4x8xf32>
"""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from spmdir.dialects.names import full_name

LAYER = "spmd.layer"
"""The attribute of a call that stands for a layer, and of its function: which layer it is, and of which it is made."""


def layer_named(op: Operation) -> str | None:
    """Return which layer a call or a function is; None of others."""
    said = op.attributes.get(LAYER)
    return said.data if isinstance(said, StringAttr) else None


def layer_function(call: CallOp) -> FuncOp | None:
    """Return the function of the layer that a call stands for; None of another call."""
    if LAYER not in call.attributes:
        return None
    top: Any = call.parent_op()
    while top is not None and top.parent_op() is not None:
        top = top.parent_op()
    name = call.callee.string_value()
    ops = top.body.block.ops if top is not None else ()
    return next((op for op in ops if isinstance(op, FuncOp) and op.sym_name.data == name), None)


def returned_value(result: Any) -> SSAValue | None:
    """Return what the function of a layer returns for a result of its call; None of a result of another op."""
    function = layer_function(result.op) if type(result.op) is CallOp else None
    return None if function is None else function.body.block.last_op.operands[result.index]  # type: ignore[union-attr]


def taking_layer(value: SSAValue) -> str | None:
    """Return the layer whose parameter a value is: its calls alone take it, and its name says so; None of others."""
    layers = {layer_named(use.operation) for use in value.uses}
    layer = layers.pop() if len(layers) == 1 else None
    return layer if layer is not None and f"{layer}." in (full_name(value) or "") else None
