"""Contractions over reshaped tensors become einsums over the tensors themselves.

    view(mm(view x, t w))  ⇒  einsum "abc,dc->abd" x, w

A flattened dimension can be sharded only along its outermost part; as dimensions of an einsum, batch, sequence
and heads are sharded separately. The rules say which ops are views and which are products of their operands.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from spmdir.analysis.type_check import rule_of
from spmdir.core.placement.tensor import sized_meta
from spmdir.core.symbolic.expressions import Size, apply, evaluate, is_symbolic, product
from spmdir.dialects.aten import AtenOp, op_class
from spmdir.dialects.attributes import is_sized, meta_of, sizes_of
from spmdir.dialects.context import IRContext
from spmdir.dialects.names import Names, take_name
from spmdir.dialects.sizes import SizeValues, merge_sizes, open_sizes
from spmdir.pipeline.base_passes import FunctionPass
from spmdir.rules import OpRule, RuleSet

Letters = list[int]
"""The factors of one dimension, major first."""

Extent = int | Size
"""The size of a factor; an op is folded only if that is right for all symbolic sizes."""


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
        views = _Views(sizes, hints, Names(block))
        for candidate in list(block.ops):
            if isinstance(candidate, AtenOp) and candidate.parent is not None and len(candidate.tensors) == 2:
                _fold(candidate, ctx.rules, views)
        for candidate in reversed(list(block.ops)):
            unused = isinstance(candidate, AtenOp) and not any(result.uses for result in candidate.results)
            if unused and _view(candidate, ctx.rules):
                Rewriter.erase_op(candidate)
        merge_sizes(block)


@dataclass
class _Tensor:
    """An operand or the result of the contraction, seen through views.

    Attributes:
        value: the tensor.
        dims: per dimension, its factors.
    """

    value: SSAValue
    dims: list[Letters]


@dataclass
class _Contraction:
    """A contraction being folded.

    Attributes:
        sizes: factor → size.
        tensors: the two operands, then the result.
    """

    sizes: dict[int, Extent]
    tensors: list[_Tensor]
    split: dict[int, Letters] = field(default_factory=dict)

    def partition(self, letters: Letters, sizes: Sequence[Extent]) -> list[Letters] | None:
        """Return `letters` in parts of these `sizes`, splitting letters where a part ends inside one; None if
        impossible."""
        parts: list[Letters] = []
        rest = list(letters)
        for size in sizes:
            part: Letters = []
            while is_symbolic(size) or size > 1:  # type: ignore[operator]
                if not rest:
                    return None
                first = rest.pop(0)
                left = _quotient(size, self.sizes[first])
                if left is not None:
                    size = left
                    part.append(first)
                elif _quotient(self.sizes[first], size) is not None:
                    major, minor = self.split_letter(first, size)
                    part.append(major)
                    rest.insert(0, minor)
                    size = 1
                else:
                    return None
            parts.append(part)
        return parts if not rest else None

    def split_letter(self, letter: int, major: Extent) -> tuple[int, int]:
        """Replace a letter everywhere by two, the first of size `major`."""
        new = max(self.sizes) + 1
        minor = _quotient(self.sizes[letter], major)
        assert minor is not None  # the caller has checked it
        self.sizes[new], self.sizes[new + 1] = major, minor
        for tensor in self.tensors:
            tensor.dims = [
                [m for old in dim for m in ((new, new + 1) if old == letter else (old,))] for dim in tensor.dims
            ]
        self.split[letter] = [new, new + 1]
        return new, new + 1

    def expand(self, letters: Letters) -> Letters:
        """Return `letters` with the splits made since."""
        return [
            m for letter in letters for m in (self.expand(self.split[letter]) if letter in self.split else [letter])
        ]


def _quotient(size: Extent, divisor: Extent) -> Extent | None:
    """Return `size / divisor` if that is an integer for all values of symbolic sizes; else None."""
    if divisor == 0:
        return None
    if type(size) is int and type(divisor) is int:
        return None if size % divisor else size // divisor
    quotient: Any = apply("floordiv", size, divisor)
    return quotient if apply("mul", quotient, divisor) == size else None


def _factor_sizes(op: AtenOp, rule: OpRule) -> dict[int, Extent] | None:
    """Return factor → size; None if the factors fit the op only at the example values of its symbolic sizes."""
    sizes: dict[int, Extent] = {index: factor.size for index, factor in enumerate(rule.factors)}
    types = [value.type for value in (*op.tensors, *op.results)]
    if not any(map(is_sized, types)):
        return sizes
    dims = [
        (factors, size)
        for type_, listed in zip(types, (*rule.operand_dims, *rule.result_dims), strict=True)
        for factors, size in zip(listed or (), sizes_of(type_), strict=True)
    ]
    sizes.update((factors[0], size) for factors, size in dims if len(factors) == 1)
    return sizes if all(product(sizes[factor] for factor in factors) == size for factors, size in dims) else None


def _product(op: Operation, rules: RuleSet) -> OpRule | None:
    """Return the rule of `op` if it is a product of its operands."""
    rule = _rule(op, rules, "multilinear")
    return rule if rule is not None and rule.is_product else None


def _view(op: Operation | Block, rules: RuleSet) -> OpRule | None:
    """Return the rule of `op` if it is a view."""
    rule = _rule(op, rules, "moves")
    return rule if rule is not None and rule.is_view else None


def _rule(op: Operation | Block, rules: RuleSet, kind: str) -> OpRule | None:
    """Return the rule of `op` if it has one result, of open sharding, and a clause of that kind."""
    if not isinstance(op, AtenOp) or kind not in rules.kinds(op.name):
        return None
    return rule_of(op, rules) if len(op.results) == 1 and op.sharding is None else None


def _fold(op: AtenOp, rules: RuleSet, views: _Views) -> None:
    rule = _product(op, rules)
    sizes = _factor_sizes(op, rule) if rule is not None else None
    if rule is None or sizes is None:
        return
    start = [*zip(op.tensors, rule.operand_dims, strict=True), (op.results[0], rule.result_dims[0] or ())]
    work = _Contraction(
        sizes,
        [_Tensor(value, [[f for f in dim if sizes[f] != 1] for dim in dims]) for value, dims in start],
    )
    for position in (0, 1):
        while _through_producer(work, position, rules):
            pass
    while _through_user(work, rules):
        pass
    if work.split and _is_einsum(work):
        _emit(op, work, views)


def _through_producer(work: _Contraction, position: int, rules: RuleSet) -> bool:
    """Look through the view that makes operand `position`; return whether there is one."""
    owner = work.tensors[position].value.owner
    rule = _view(owner, rules)
    return rule is not None and _look_behind(work, position, owner, rule, forward=False)  # type: ignore


def _through_user(work: _Contraction, rules: RuleSet) -> bool:
    """Look through the view that is the only user of the result; return whether there is one."""
    users = [use.operation for use in work.tensors[2].value.uses]
    rule = _view(users[0], rules) if len(users) == 1 else None
    return rule is not None and _look_behind(work, 2, users[0], rule, forward=True)  # type: ignore


def _look_behind(work: _Contraction, position: int, view: AtenOp, rule: OpRule, forward: bool) -> bool:
    value = view.results[0] if forward else view.operands[0]
    sizes = _factor_sizes(view, rule)
    near, far = (rule.operand_dims[0], rule.result_dims[0]) if forward else (rule.result_dims[0], rule.operand_dims[0])
    if sizes is None or near is None or far is None or any(f.kind == "unsharded" for f in rule.factors):
        return False
    before = dict(work.sizes), dict(work.split), [tensor.dims for tensor in work.tensors]
    found: dict[int, Letters] = {}
    for dim, factors in enumerate(near):
        parts = work.partition(work.tensors[position].dims[dim], [sizes[f] for f in factors])
        if parts is None:
            break
        found.update(zip(factors, parts, strict=True))
    else:
        needed = {f for factors in far for f in factors if sizes[f] != 1}
        if needed <= set(found):
            dims = [[m for f in factors for m in work.expand(found.get(f, []))] for factors in far]
            work.tensors[position] = _Tensor(value, dims)
            return True
    work.sizes, work.split, former = before
    for tensor, dims in zip(work.tensors, former, strict=True):
        tensor.dims = dims
    return False


def _is_einsum(work: _Contraction) -> bool:
    """Return whether every letter of the result is in an operand, and all fit into an equation's alphabet."""
    operands = {letter for tensor in work.tensors[:2] for dim in tensor.dims for letter in dim}
    result = {letter for dim in work.tensors[2].dims for letter in dim}
    alone = [letter for letter in operands - result if not all(_holds(tensor, letter) for tensor in work.tensors[:2])]
    dropped = set(work.sizes) - set(work.split) - operands - result
    summed_away = [letter for letter in dropped if work.sizes[letter] != 1]
    return result <= operands and not alone and not summed_away and len(operands) <= 20


def _holds(tensor: _Tensor, letter: int) -> bool:
    return any(letter in dim for dim in tensor.dims)


def _emit(op: AtenOp, work: _Contraction, views: _Views) -> None:
    names = iter(string.ascii_lowercase)
    letters: dict[int, str] = {}
    terms, operands = [], []
    result = work.tensors[2].value
    anchor = op
    for tensor in work.tensors[:2]:
        operands.append(_separated(tensor, work.sizes, anchor, views))
        term = ""
        for dim in tensor.dims:
            for letter in dim:
                letters.setdefault(letter, "")
                letters[letter] = letters[letter] or next(names)
            term += "".join(letters[letter] for letter in dim) or next(names)
        terms.append(term)
    out = "".join(letters[letter] for dim in work.tensors[2].dims for letter in dim)
    meta = meta_of(result.type)
    assert meta is not None
    shape = tuple(work.sizes[letter] for dim in work.tensors[2].dims for letter in dim)
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


def _separated(tensor: _Tensor, sizes: dict[int, Extent], anchor: AtenOp, views: _Views) -> SSAValue:
    """Return the tensor with one dimension per letter; a view splits dimensions of several letters."""
    if all(len(dim) <= 1 for dim in tensor.dims):
        return tensor.value
    shape = tuple(sizes[letter] for dim in tensor.dims for letter in dim)
    tensor.dims = [[letter] for dim in tensor.dims for letter in dim]
    return views.view(tensor.value, shape, anchor)
