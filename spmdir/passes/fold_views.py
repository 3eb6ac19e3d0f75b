"""fold-views: replace a contraction of reshaped tensors by an einsum of the original tensors.

    view(mm(view x, t w))  ⇒  einsum "abc,dc->abd" x, w

A flattened dimension can be sharded only along its outermost part. As dimensions of an einsum, batch, sequence and
heads can be sharded separately. The rules identify views and products.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.propagation.kept_values import KeptValues
from spmdir.analysis.viewed_contractions import (
    Extent,
    MaySplit,
    ViewedContraction,
    ViewedTensor,
    see_through_views,
    view_rule,
)
from spmdir.core.placement.tensor import sized_meta
from spmdir.core.symbolic.expressions import evaluate
from spmdir.dialects import ir
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import meta_of, sizes_of
from spmdir.dialects.context import IRContext
from spmdir.dialects.names import Names, copy_name
from spmdir.dialects.size_ops import SizeValues, merge_sizes, open_sizes
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.rules import RuleSet


class _Views:
    """Creates views. A second request for the same view of a value returns the first view.

    Attributes:
        hints: symbolic size → its example value.
        names: the value names of the block.
    """

    def __init__(self, sizes: SizeValues, hints: Mapping[str, int], names: Names):
        self._sizes, self.hints, self.names = sizes, hints, names
        self._views: dict[tuple[SSAValue, tuple[Extent, ...]], SSAValue] = {}

    def view(self, value: SSAValue, shape: tuple[Extent, ...], anchor: AtenOp) -> SSAValue:
        """Return a view of `value` with shape `shape`. A new view is inserted before `anchor`."""
        if (value, shape) not in self._views:
            meta = meta_of(value.type)
            assert meta is not None
            arguments, sizes = self._sizes.operands((("shape", shape),))
            view = op_class("aten.reshape").build_op(
                [value, *sizes], [sized_meta(shape, self.hints, meta.dtype)], arguments, None, None, anchor.location
            )
            Rewriter.insert_op(view, InsertPoint.before(anchor))
            self.names.assign_name(view.results[0], value, "reshape")
            self._views[value, shape] = view.results[0]
        return self._views[value, shape]


@dataclass(frozen=True)
class FoldViewsPass(FunctionPass):
    """Replaces contractions of views by einsums of the original tensors, whose dimensions can all be sharded."""

    name = "fold-views"

    needs_numbers: ClassVar = False

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        """Fold the views around every product of two tensors, and erase the views that are then unused.

        A kept operand is an argument with `spmd.keep`, or a view of one: ops must use it in its annotated sharding.
        Its views are folded only if the sharding can be kept.
        """
        block = function.body.block
        start, hints = block.first_op, open_sizes(module).hints
        assert start is not None  # a verified function has a terminator
        sizes = SizeValues(
            block.args,
            lambda size: evaluate(size, hints),
            lambda new: Rewriter.insert_op(new, InsertPoint.before(start)),
        )
        views, kept_values = _Views(sizes, hints, Names(block)), KeptValues(function, ir.mesh(module), ctx.rules)

        def may_split(value: SSAValue, shape: Sequence[Extent]) -> bool:
            """Return whether a reshape of a value preserves its kept sharding; True if the value is not kept."""
            return kept_values.can_reshape(value, [evaluate(size, hints) for size in shape])

        products = [op for op in block.ops if isinstance(op, AtenOp) and len(op.tensors) == 2]
        products_of_kept = [op for op in products if not kept_values.shardings.keys().isdisjoint(op.tensors)]
        opaque_views = _opaque_views(products_of_kept, ctx.rules, may_split)
        for op in products:
            if op.parent is not None:  # not erased by an earlier fold
                _fold(op, ctx.rules, views, may_split, opaque_views)
        for op in reversed(list(block.ops)):
            unused = isinstance(op, AtenOp) and not any(result.uses for result in op.results)
            if unused and view_rule(op, ctx.rules):
                Rewriter.erase_op(op)
        merge_sizes(block)


def _opaque_views(products: Sequence[AtenOp], rules: RuleSet, may_split: MaySplit) -> frozenset[AtenOp]:
    """Return the views that cannot be folded into `products`, the products of kept operands.

    The caller does not fold these views into other products either. For example, one product multiplies by a kept
    weight, and another computes the gradient of the weight. Both read the same view of the activation gradient, so one
    reshard of the view serves both. The gradient then has the shape of the weight.
    """
    contractions = (see_through_views(op, rules, may_split) for op in products)
    return frozenset(view for contraction in contractions if contraction for view in contraction.stops)


def _fold(op: AtenOp, rules: RuleSet, views: _Views, may_split: MaySplit, opaque_views: Collection[AtenOp]) -> None:
    """Replace a product by an einsum of unviewed tensors, if a view splits a dimension and an einsum can express it."""
    contraction = see_through_views(op, rules, may_split, opaque_views)
    if contraction is not None and contraction.split and contraction.is_einsum:
        _replace_by_einsum(op, contraction, views)


def _replace_by_einsum(op: AtenOp, contraction: ViewedContraction, views: _Views) -> None:
    """Replace `op`, and the views of its result, by an einsum of the unviewed tensors.

    The einsum has one dimension for each factor. If the last view has another shape, a view of the einsum replaces it.
    Views of operands are not erased here, because other ops may use them.
    """
    *viewed_operands, viewed_result = contraction.tensors
    operands = [_split_dimensions(tensor, contraction, op, views) for tensor in viewed_operands]
    result = viewed_result.value
    meta = meta_of(result.type)
    assert meta is not None
    shape = contraction.shape(viewed_result)
    einsum = op_class("aten.einsum").build_op(
        operands,
        [sized_meta(shape, views.hints, meta.dtype)],
        (("equation", _equation(contraction)),),
        None,
        ((1, 1),),
        op.location,
    )
    Rewriter.insert_op(einsum, InsertPoint.before(op))
    value = einsum.results[0]
    if shape != sizes_of(result.type):
        views.names.assign_name(value, result, "einsum")
        value = views.view(value, sizes_of(result.type), op)
    copy_name(value, result)
    result.replace_all_uses_with(value)
    view = result.owner
    while isinstance(view, AtenOp) and view is not op:  # the views from the result back to `op`
        previous = view.operands[0].owner
        Rewriter.erase_op(view)
        view = previous
    Rewriter.erase_op(op)


def _equation(contraction: ViewedContraction) -> str:
    """Return the equation of the einsum, such as "abc,dc->abd". A dimension without factors gets an unused letter."""
    unused_letters = iter(string.ascii_lowercase)
    letter_of_factor: dict[int, str] = {}
    terms: list[str] = []
    for tensor in contraction.tensors[:2]:
        term = ""
        for dim in tensor.dims:
            for factor in dim:
                if factor not in letter_of_factor:
                    letter_of_factor[factor] = next(unused_letters)
            term += "".join(letter_of_factor[factor] for factor in dim) or next(unused_letters)
        terms.append(term)
    result_term = "".join(letter_of_factor[factor] for dim in contraction.tensors[2].dims for factor in dim)
    return f"{terms[0]},{terms[1]}->{result_term}"


def _split_dimensions(tensor: ViewedTensor, contraction: ViewedContraction, anchor: AtenOp, views: _Views) -> SSAValue:
    """Return the tensor with one dimension for each factor, and update `tensor.dims`.

    If a dimension has several factors, the result is a view, inserted before `anchor`.
    """
    if not tensor.is_split:
        return tensor.value
    shape = contraction.shape(tensor)
    tensor.dims = [[factor] for dim in tensor.dims for factor in dim]
    return views.view(tensor.value, shape, anchor)
