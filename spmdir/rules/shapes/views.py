"""Ops whose results share the memory of their first operand, and the strides of these results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from spmdir.rules.shapes.instance import RuleInstance

_NAMES = """
aten._conj aten._neg_view aten._unsafe_view aten.adjoint aten.alias aten.as_strided aten.broadcast_to aten.chunk
aten.conj aten.contiguous aten.detach aten.diagonal aten.expand aten.expand_as aten.flatten.using_ints aten.imag
aten.lift_fresh aten.mH aten.mT aten.matrix_H aten.moveaxis.int aten.moveaxis.intlist aten.movedim.int
aten.movedim.intlist aten.narrow aten.narrow.Tensor aten.numpy_T aten.permute aten.positive aten.ravel aten.real
aten.reshape aten.reshape_as aten.resolve_conj aten.resolve_neg aten.select.int aten.slice.Tensor
aten.split.Tensor aten.split.sizes aten.split_with_sizes aten.squeeze aten.squeeze.dim aten.squeeze.dims
aten.swapaxes aten.swapdims aten.t aten.tensor_split.indices aten.tensor_split.sections aten.to.device
aten.to.dtype aten.to.dtype_layout aten.to.other aten.transpose.int aten.unbind.int aten.unflatten.int aten.unfold
aten.unsqueeze aten.view aten.view.dtype aten.view_as aten.view_as_complex aten.view_as_real
"""

VIEWS = frozenset(_NAMES.split())
"""The ops whose results may share memory with their first operand: those with an alias in the schema, and
`_unsafe_view`, which is emitted as `reshape`."""

_CONTIGUOUS = frozenset(("aten.contiguous",))
"""Ops that are views of contiguous operands only, and copy others."""

Strides = tuple[int, ...]
"""For each dimension, the distance in memory of neighbouring elements, in elements."""


def contiguous(shape: Sequence[int]) -> Strides:
    """Return the strides, in elements, of a contiguous tensor of `shape`."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def is_contiguous(shape: Sequence[int], strides: Strides) -> bool:
    """Return whether a tensor of `shape` with `strides` is contiguous."""
    pairs = zip(shape, strides, contiguous(shape), strict=True)
    return 0 in shape or all(size == 1 or stride == expected for size, stride, expected in pairs)


def view_strides(rule: RuleInstance, strides: Strides) -> tuple[Strides, ...] | None:
    """Return the strides of each result of a view of an operand with `strides`; None if the op has to copy.

    An absent result has the strides (). A view as another element type is assumed to be contiguous.
    """
    call = rule.call
    shape = call.operands[0].shape
    if rule.name in _CONTIGUOUS and not is_contiguous(shape, strides):
        return None
    changes_dtype = any(meta is not None and meta.dtype != call.operands[0].dtype for meta in call.results)
    if changes_dtype and "view" not in rule.name:  # a conversion such as `aten.to.dtype`
        return None
    if changes_dtype:
        return tuple(contiguous(meta.shape if meta else ()) for meta in call.results)
    result_strides: list[Strides] = []
    for meta, dims in zip(call.results, rule.result_dims, strict=True):
        if meta is None or dims is None:
            result_strides.append(())
            continue
        new_strides = _strides(rule, shape, strides, meta.shape, dims)
        if new_strides is None:
            return None
        result_strides.append(new_strides)
    return tuple(result_strides)


def _strides(
    rule: RuleInstance, shape: Sequence[int], strides: Strides, sizes: Sequence[int], dims: Sequence[Sequence[int]]
) -> Strides | None:
    """Return the strides of a result of shape `sizes` with factors `dims`; None if it is not a view.

    Each factor has one stride in the operand. The factors of a dimension of the result must be adjacent in memory.
    For example, an operand of shape (4, 6) with strides (6, 1) has factors r0 = 4 with stride 6, and r1 = 6 with
    stride 1. They are adjacent, because 6 == 1 * 6, so a result of shape (24,) has stride 1. The transposed operand, of
    shape (6, 4) with strides (1, 6), is copied: 1 != 6 * 4.

    Args:
        shape, strides: the shape and strides of the operand.
    """
    stride_of_factor: dict[int, int] = {}
    for factors, stride in zip(rule.operand_dims[0], strides, strict=True):
        for factor in reversed(factors):
            stride_of_factor[factor] = stride
            stride *= rule.factors[factor].size
    result_strides = []
    for dim, factors in enumerate(dims):
        larger_factors = [factor for factor in factors if rule.factors[factor].size > 1]
        operand_factors = [factor for factor in larger_factors if factor in stride_of_factor]
        for major, minor in itertools.pairwise(operand_factors):
            if stride_of_factor[major] != stride_of_factor[minor] * rule.factors[minor].size:
                return None
        if operand_factors:
            result_strides.append(stride_of_factor[operand_factors[-1]])
        elif larger_factors:
            # The factor is not in the operand: it is a slice of an operand's dimension, or an expanded dimension.
            source_dim = dim - len(sizes) + len(shape)
            result_strides.append(strides[source_dim] if source_dim >= 0 and shape[source_dim] > 1 else 0)
        else:
            result_strides.append(1)  # a dimension of size 1, whose stride is arbitrary
    return tuple(result_strides)
