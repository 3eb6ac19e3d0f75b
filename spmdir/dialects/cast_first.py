"""The note on a widening cast that its operand is cast before it is added up over ranks.

    %g = aten._to_copy(%mm) {dtype = f32} : tensor<4x8xf32> attributes {spmd.cast_first}

Gradients of bfloat16 compute are summed in float32 so.
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
"""The attribute of the cast, a unit; `propagate` goes by it."""


def note_first_casts(values: Iterable[SSAValue], rules: RuleSet) -> None:
    """Note on the casts to wider types from which `values`, such as gradients and new parameters, are made.

    They are those behind ops on tensors of as many elements, such as the additions of an optimizer and views, which
    belong to the update; what is before a cast or a matrix product is not looked at.
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
        rule = rules.instantiate(op.call()) if len(op.tensors) > 1 else None
        if rule is not None and rule.contracts:  # of square matrices, all have as many elements
            continue
        left += [operand for operand, _ in taken if operand not in known]
        known.update(operand for operand, _ in taken)


def check_first_cast(op: Operation) -> None:
    """Raise VerifyException if an op has the note and casts no floating type to a wider one."""
    note = op.attributes.get(CAST_FIRST)
    if note is not None and not (isinstance(note, UnitAttr) and is_widening(op)):
        raise VerifyException(
            f"has {CAST_FIRST}, which is for a cast to a wider floating type and has no value; expected aten._to_copy "
            "from a narrower type, or no such attribute"
        )


def is_widening(op: Operation) -> bool:
    """Return whether an op casts a floating type to a wider one."""
    if op.name != "aten._to_copy" or not op.operands:
        return False
    taken, made = meta_of(op.operands[0].type), meta_of(op.results[0].type)
    if taken is None or made is None or not (taken.dtype.is_float and made.dtype.is_float):
        return False
    return taken.dtype.itemsize < made.dtype.itemsize


def _is_part(taken: TensorMeta, made: TensorMeta) -> bool:
    return taken.dtype.is_float and taken.numel == made.numel
