"""The note on a widening cast that its operand is cast before it is added up over ranks.

    %g = aten._to_copy(%mm) {dtype = f32} : tensor<4x8xf32> attributes {spmd.cast_first}

Gradients of bfloat16 compute are summed in float32 so.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue

from spmdir.core.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import meta_of

CAST_FIRST = "spmd.cast_first"
"""The attribute of the cast; `propagate` goes by it."""


def note_first_casts(values: Iterable[SSAValue]) -> None:
    """Note on the casts to wider types from which `values`, such as gradients and new parameters, are made.

    They are those behind ops on tensors of as many elements, such as the additions of an optimizer and views, which
    belong to the update; what is before a cast is not looked at.
    """
    known, left = set(values), list(values)
    while left:
        value = left.pop()
        op, made = value.owner, meta_of(value.type)
        if not isinstance(op, AtenOp) or made is None:
            continue
        taken = [(operand, meta) for operand in op.tensors if (meta := meta_of(operand.type)) and _is_part(meta, made)]
        if is_widening(op):
            op.attributes[CAST_FIRST] = UnitAttr()
            continue
        left += [operand for operand, _ in taken if operand not in known]
        known.update(operand for operand, _ in taken)


def is_widening(op: Operation) -> bool:
    """Return whether an op casts a floating type to a wider one."""
    if op.name != "aten._to_copy":
        return False
    taken, made = meta_of(op.operands[0].type), meta_of(op.results[0].type)
    is_floating = taken is not None and made is not None and taken.dtype.is_float and made.dtype.is_float
    return is_floating and taken.dtype.itemsize < made.dtype.itemsize  # type: ignore  # neither is None


def _is_part(taken: TensorMeta, made: TensorMeta) -> bool:
    return taken.dtype.is_float and taken.numel == made.numel
