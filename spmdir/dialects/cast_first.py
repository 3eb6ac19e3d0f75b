"""The attribute `spmd.cast_first` of a widening cast: partial values are cast before they are reduced over ranks.

    %g = aten._to_copy(%mm) {dtype = f32} : tensor<4x8xf32> attributes {spmd.cast_first}

For example, gradients of bfloat16 computations are summed in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of

if TYPE_CHECKING:  # a program that is only read needs no rules
    from spmdir.rules import RuleSet

CAST_FIRST = "spmd.cast_first"
"""The name of the attribute, a unit. `propagate` reads it."""


def note_first_casts(values: Iterable[SSAValue], rules: RuleSet) -> None:
    """Set `spmd.cast_first` on the widening casts that `values` depend on, such as gradients and new parameters.

    The search goes back from `values` through ops on tensors with as many elements, such as views and the arithmetic of
    an optimizer. It stops at casts and at matrix products.
    """
    visited, worklist = set(values), list(values)
    while worklist:
        value = worklist.pop()
        op, result_meta = value.owner, meta_of(value.type)
        if not isinstance(op, AtenOp) or result_meta is None:
            continue
        if is_widening(op):
            op.attributes[CAST_FIRST] = UnitAttr()
            continue
        rule = rules.instantiate(op.call()) if len(op.tensors) > 1 else None
        if rule is not None and rule.contracts:  # a product of square matrices has operands of the same size
            continue
        for operand in op.tensors:
            operand_meta = meta_of(operand.type)
            if operand not in visited and operand_meta and _is_float_of_equal_size(operand_meta, result_meta):
                visited.add(operand)
                worklist.append(operand)


def check_first_cast(op: Operation) -> None:
    """Raise VerifyException if an op has `spmd.cast_first` but is not a widening cast."""
    attribute = op.attributes.get(CAST_FIRST)
    if attribute is not None and not (isinstance(attribute, UnitAttr) and is_widening(op)):
        raise VerifyException(
            f"has {CAST_FIRST}; expected it without a value, on a cast to a wider floating-point type: "
            "remove the attribute, or use aten._to_copy from a narrower type"
        )


def is_widening(op: Operation) -> bool:
    """Return whether an op casts a floating-point tensor to a wider floating type."""
    if op.name != "aten._to_copy" or not op.operands:
        return False
    operand_meta, result_meta = meta_of(op.operands[0].type), meta_of(op.results[0].type)
    if operand_meta is None or result_meta is None or not (operand_meta.dtype.is_float and result_meta.dtype.is_float):
        return False
    return operand_meta.dtype.itemsize < result_meta.dtype.itemsize


def _is_float_of_equal_size(operand_meta: TensorMeta, result_meta: TensorMeta) -> bool:
    """Return whether an operand is floating-point and has as many elements as the result."""
    return operand_meta.dtype.is_float and operand_meta.numel == result_meta.numel
