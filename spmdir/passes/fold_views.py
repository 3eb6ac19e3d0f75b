"""Contractions over reshaped tensors become einsums over the tensors themselves.

    view(mm(view x, t w))  ⇒  einsum "abc,dc->abd" x, w

A flattened dimension can be sharded only along its outermost part; as dimensions of an einsum, batch, sequence
and heads are sharded separately. The rules say which ops are views and which are products of their operands.
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

from spmdir.analysis.propagation.kept import KeptValues
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
from spmdir.dialects.names import Names, take_name
from spmdir.dialects.sizes import SizeValues, merge_sizes, open_sizes
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.rules import RuleSet


class _Views:
    """The views that have been made; equal ones are shared.

    Attributes:
        hints: examples of symbolic sizes.
        names: the names of the block in which they are made.
    """

    def __init__(self, sizes: SizeValues, hints: Mapping[str, int], names: Names):
        self._sizes, self.hints, self.names = sizes, hints, names
        self._made: dict[tuple[SSAValue, tuple[Extent, ...]], SSAValue] = {}

    def view(self, value: SSAValue, shape: tuple[Extent, ...], anchor: AtenOp) -> SSAValue:
        """Return `value` as `shape`, by an op before `anchor` if there is none yet."""
        if (value, shape) not in self._made:
            meta = meta_of(value.type)
            assert meta is not None
            arguments, sizes = self._sizes.operands((("shape", shape),))
            view = op_class("aten.reshape").build_op(
                [value, *sizes], [sized_meta(shape, self.hints, meta.dtype)], arguments, None, None, anchor.location
            )
            Rewriter.insert_op(view, InsertPoint.before(anchor))
            self.names.give(view.results[0], value, "reshape")
            self._made[value, shape] = view.results[0]
        return self._made[value, shape]


@dataclass(frozen=True)
class FoldViewsPass(FunctionPass):
    """Turns contractions over views into einsums over what is viewed, so that each dimension can be sharded."""

    name = "fold-views"

    needs_numbers: ClassVar = False

    def run_on_function(self, ctx: IRContext, module: ModuleOp, function: FuncOp) -> None:
        block = function.body.block
        start, hints = block.first_op, open_sizes(module).hints
        assert start is not None  # a verified function has a terminator
        sizes = SizeValues(
            block.args,
            lambda size: evaluate(size, hints),
            lambda new: Rewriter.insert_op(new, InsertPoint.before(start)),
        )
        views, kept = _Views(sizes, hints, Names(block)), KeptValues(function, ir.mesh(module), ctx.rules)

        def may_split(value: SSAValue, shape: Sequence[Extent]) -> bool:
            return kept.can_reshape(value, [evaluate(size, hints) for size in shape])

        products = [op for op in block.ops if isinstance(op, AtenOp) and len(op.tensors) == 2]
        closed = _stops(
            [op for op in products if not kept.shardings.keys().isdisjoint(op.tensors)], ctx.rules, may_split
        )
        for op in products:
            if op.parent is not None:
                _fold(op, ctx.rules, views, may_split, closed)
        for op in reversed(list(block.ops)):
            unused = isinstance(op, AtenOp) and not any(result.uses for result in op.results)
            if unused and view_rule(op, ctx.rules):
                Rewriter.erase_op(op)
        merge_sizes(block)


def _stops(products: Sequence[AtenOp], rules: RuleSet, may_split: MaySplit) -> frozenset[AtenOp]:
    """Return the views that products of kept operands are not seen through.

    Other products are not seen through them either. The gradient of a kept weight is then computed in the shape of the
    weight, from the reshard of the activation gradient that the product with the weight needs anyway.
    """
    seen = (see_through_views(op, rules, may_split) for op in products)
    return frozenset(view for contraction in seen if contraction for view in contraction.stops)


def _fold(op: AtenOp, rules: RuleSet, views: _Views, may_split: MaySplit, closed: Collection[AtenOp]) -> None:
    contraction = see_through_views(op, rules, may_split, closed)
    if contraction is not None and contraction.split and contraction.is_einsum:
        _emit(op, contraction, views)


def _emit(op: AtenOp, contraction: ViewedContraction, views: _Views) -> None:
    names = iter(string.ascii_lowercase)
    letters: dict[int, str] = {}
    terms, operands = [], []
    result = contraction.tensors[2].value
    anchor = op
    for tensor in contraction.tensors[:2]:
        operands.append(_separated(tensor, contraction, anchor, views))
        term = ""
        for dim in tensor.dims:
            for letter in dim:
                letters.setdefault(letter, "")
                letters[letter] = letters[letter] or next(names)
            term += "".join(letters[letter] for letter in dim) or next(names)
        terms.append(term)
    out = "".join(letters[letter] for dim in contraction.tensors[2].dims for letter in dim)
    meta = meta_of(result.type)
    assert meta is not None
    shape = contraction.shape(contraction.tensors[2])
    equation = f"{terms[0]},{terms[1]}->{out}"
    einsum = op_class("aten.einsum").build_op(
        operands,
        [sized_meta(shape, views.hints, meta.dtype)],
        (("equation", equation),),
        None,
        ((1, 1),),
        op.location,
    )
    Rewriter.insert_op(einsum, InsertPoint.before(anchor))
    value = einsum.results[0]
    if shape != sizes_of(result.type):
        views.names.give(value, result, "einsum")
        value = views.view(value, sizes_of(result.type), anchor)
    take_name(value, result)
    result.replace_all_uses_with(value)
    users = result.owner
    while isinstance(users, AtenOp) and users is not op:
        before = users.operands[0].owner
        Rewriter.erase_op(users)
        users = before
    Rewriter.erase_op(op)


def _separated(tensor: ViewedTensor, contraction: ViewedContraction, anchor: AtenOp, views: _Views) -> SSAValue:
    """Return the tensor with one dimension per letter; a view splits dimensions of several letters."""
    if not tensor.is_split:
        return tensor.value
    shape = contraction.shape(tensor)
    tensor.dims = [[letter] for dim in tensor.dims for letter in dim]
    return views.view(tensor.value, shape, anchor)
