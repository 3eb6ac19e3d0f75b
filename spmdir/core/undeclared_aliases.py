"""The torch ops that may return memory of an operand although their schemas declare no alias.

A schema such as `t(Tensor(a) self) -> Tensor(a)` declares that the result shares memory with `self`. The ops below lack
this declaration: they return an operand, or a view of it, for some calls only. For example `dropout` does so if it does
not train, `type_as` if the element type is equal, and `einsum` if it has one operand. Writes into memory must count
these results as views. A test compares the table with torch.
"""

from __future__ import annotations

_NAMES = """
    aten._cast_Byte aten._cast_Char aten._cast_Double aten._cast_Float aten._cast_Half aten._cast_Int
    aten._cast_Long aten._cast_Short aten._to_dense aten._unsafe_view aten.alpha_dropout aten.atleast_1d
    aten.atleast_1d.Sequence aten.atleast_2d aten.atleast_2d.Sequence aten.atleast_3d aten.atleast_3d.Sequence
    aten.broadcast_tensors aten.cartesian_prod aten.conj_physical aten.cumprod_backward aten.data aten.dropout
    aten.feature_alpha_dropout aten.feature_dropout aten.flatten_dense_tensors aten.lift aten.meshgrid
    aten.meshgrid.indexing aten.sum_to_size aten.to_dense aten.to_dense_backward aten.type_as
    aten.unflatten_dense_tensors aten.unsafe_chunk aten.unsafe_split.Tensor aten.unsafe_split_with_sizes"""
UNDECLARED = frozenset(_NAMES.split())
"""The ops that may do so with any number of operands."""

_OF_ONE_OPERAND = frozenset(["aten.einsum"])


def may_return_operand(name: str, operands: int) -> bool:
    """Return whether a result of op `name`, called with a number of tensors, may be memory of an undeclared operand."""
    return name in UNDECLARED or (operands < 2 and name in _OF_ONE_OPERAND)
