"""Combine a contraction with the views of its operands and its result: find an equal einsum of the unviewed tensors.

    view(mm(view x, t w))  ⇒  "abc,dc->abd" of x, w

A factor of a dimension is a letter of the einsum. Each dimension is a list of letters, which views split and regroup.

A kept operand (`spmd.keep`) must stay shardable by its annotation, so a view that splits its dimension in another way
ends the search. For example, two ranks can have two heads of four each, but not one and a half of the three matrices of
a fused projection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from spmdir.analysis.type_check import rule_of
from spmdir.core.symbolic.expressions import Size, apply, is_symbolic, product
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import is_sized, sizes_of
from spmdir.rules import OpRule, RuleSet

Letters = list[int]
"""The letters of one dimension, major first, as numbers."""

Extent = int | Size
"""The size of a factor. A view is combined only if the result is correct for all values of symbolic sizes."""

MaySplit = Callable[[SSAValue, Sequence[Extent]], bool]
"""(value, shape) → whether the value may be reshaped to a shape that splits its dimensions."""


@dataclass
class ViewedTensor:
    """An operand or the result of a contraction, without the views between.

    Attributes:
        value: the tensor.
        dims: for each dimension, its factors, major first.
    """

    value: SSAValue
    dims: list[Letters]

    @property
    def is_split(self) -> bool:
        """Return whether some dimension has several factors."""
        return any(len(dim) > 1 for dim in self.dims)


@dataclass
class ViewedContraction:
    """A contraction of unviewed tensors. Methods change it in place.

    Attributes:
        sizes: letter → size. Letters that were split remain.
        tensors: the two operands, then the result.
        split: letter → the two letters that it was split into.
        stops: the views that were not combined, because they split a kept operand in another way.
    """

    sizes: dict[int, Extent]
    tensors: list[ViewedTensor]
    split: dict[int, Letters] = field(default_factory=dict)
    stops: list[AtenOp] = field(default_factory=list)

    @property
    def is_einsum(self) -> bool:
        """Return whether the contraction is an einsum of at most 20 letters.

        Each letter of the result must be in an operand. Each other letter of size above 1 must be in both operands.
        """
        left, right, result = ({letter for dim in tensor.dims for letter in dim} for tensor in self.tensors)
        operands = left | right
        summed_in_one_operand = operands - result - (left & right)
        unused = set(self.sizes) - set(self.split) - operands - result
        has_unused_letters = any(self.sizes[letter] != 1 for letter in unused)
        if not result <= operands or summed_in_one_operand or has_unused_letters:
            return False
        return len(operands) <= 20

    def shape(self, tensor: ViewedTensor) -> tuple[Extent, ...]:
        """Return the shape of a tensor with a dimension for each letter."""
        return tuple(self.sizes[letter] for dim in tensor.dims for letter in dim)

    def partition(self, letters: Letters, sizes: Sequence[Extent]) -> list[Letters] | None:
        """Return `letters` in parts with the given `sizes`; None if impossible. A letter across two parts is split.

        For example, the letter a of size 6 in parts of the sizes 2 and 3 is split into b of size 2 and c of size 3: the
        parts are [b] and [c].
        """
        parts: list[Letters] = []
        remaining = list(letters)
        for size in sizes:
            part: Letters = []
            while is_symbolic(size) or size > 1:  # type: ignore[operator]
                if not remaining:
                    return None
                letter = remaining.pop(0)
                quotient = _quotient(size, self.sizes[letter])
                if quotient is not None:
                    size = quotient
                    part.append(letter)
                elif _quotient(self.sizes[letter], size) is not None:
                    major, minor = self.split_letter(letter, size)
                    part.append(major)
                    remaining.insert(0, minor)
                    size = 1
                else:
                    return None
            parts.append(part)
        return parts if not remaining else None

    def split_letter(self, letter: int, major: Extent) -> tuple[int, int]:
        """Replace a letter in all tensors by two new letters, and return these. The first one has size `major`."""
        major_letter = max(self.sizes) + 1
        minor_letter = major_letter + 1
        minor = _quotient(self.sizes[letter], major)
        assert minor is not None  # the caller has checked it
        self.sizes[major_letter], self.sizes[minor_letter] = major, minor
        replacement = {letter: [major_letter, minor_letter]}
        for tensor in self.tensors:
            tensor.dims = [[new for old in dim for new in replacement.get(old, [old])] for dim in tensor.dims]
        self.split[letter] = [major_letter, minor_letter]
        return major_letter, minor_letter

    def expand(self, letters: Letters) -> Letters:
        """Return `letters` with each letter that was split replaced by its parts, and these by theirs."""
        expanded: Letters = []
        for letter in letters:
            expanded += self.expand(self.split[letter]) if letter in self.split else [letter]
        return expanded


def see_through_views(
    op: AtenOp, rules: RuleSet, may_split: MaySplit, closed: Collection[AtenOp] = ()
) -> ViewedContraction | None:
    """Return the contraction `op`, combined with as many views as possible; None if it is no product of two tensors.

    From each operand, the walk follows producers that are views. From the result, it follows users, as long as there is
    one. A letter is a dimension of the contraction, as in einsum. For example, in `y = view(x, [6, 4]); mm(y, w)`, the
    product of y [6, 4] and w [4, 5] becomes one of x [2, 3, 4] and w, with the letters ab, c and d: abc, cd -> abd.

    Args:
        may_split: whether a value may be reshaped to a shape with a dimension for each letter.
        closed: the views that must not be combined.
    """
    rule = _product_rule(op, rules)
    sizes = _factor_sizes(op, rule) if rule is not None else None
    if rule is None or sizes is None:
        return None
    tensors: list[ViewedTensor] = []
    for value, dims in zip((*op.tensors, op.results[0]), (*rule.operand_dims, rule.result_dims[0] or ()), strict=True):
        tensors.append(ViewedTensor(value, [[factor for factor in dim if sizes[factor] != 1] for dim in dims]))
    contraction = ViewedContraction(sizes, tensors)
    for position in range(3):  # the two operands and the result
        view = _view_at(contraction, position)
        while (
            view is not None
            and view not in closed
            and _look_through_view(contraction, position, view, rules, may_split)
        ):
            view = _view_at(contraction, position)
    return contraction


def view_rule(op: Operation | Block, rules: RuleSet) -> OpRule | None:
    """Return the rule of `op` if it is a view whose result has no sharding yet; else None."""
    rule = _rule(op, rules, "moves")
    return rule if rule is not None and rule.is_view else None


def _product_rule(op: Operation, rules: RuleSet) -> OpRule | None:
    """Return the rule of `op` if it is a product of its operands whose result has no sharding yet; else None."""
    rule = _rule(op, rules, "multilinear")
    return rule if rule is not None and rule.is_product else None


def _rule(op: Operation | Block, rules: RuleSet, kind: str) -> OpRule | None:
    """Return the rule of `op` if it has one result without a sharding, and a clause of the given kind; else None."""
    if not isinstance(op, AtenOp) or kind not in rules.kinds(op.name):
        return None
    return rule_of(op, rules) if len(op.results) == 1 and op.sharding is None else None


def _view_at(contraction: ViewedContraction, position: int) -> AtenOp | None:
    """Return the producer of an operand (position 0 or 1), or the only user of the result (position 2).

    None if it is no torch op, or if the result has several users.
    """
    value = contraction.tensors[position].value
    users = [use.operation for use in value.uses] if position == 2 else [value.owner]
    return users[0] if len(users) == 1 and isinstance(users[0], AtenOp) else None


def _look_through_view(
    contraction: ViewedContraction, position: int, view: AtenOp, rules: RuleSet, may_split: MaySplit
) -> bool:
    """Combine the tensor at `position` with `view`. Return False if that is not legal; then only `stops` may change.

    The view connects the tensor of the contraction with another tensor, which replaces it. Each factor of the view is
    one or several letters of the contraction.
    """
    rule = view_rule(view, rules)
    if rule is None:
        return False
    sizes = _factor_sizes(view, rule)
    if position == 2:
        new_value, old_dims, new_dims = view.results[0], rule.operand_dims[0], rule.result_dims[0]
    else:
        new_value, old_dims, new_dims = view.operands[0], rule.result_dims[0], rule.operand_dims[0]
    if sizes is None or old_dims is None or new_dims is None or any(f.kind == "unsharded" for f in rule.factors):
        return False
    old_sizes, old_split = dict(contraction.sizes), dict(contraction.split)
    old_tensors = [ViewedTensor(tensor.value, tensor.dims) for tensor in contraction.tensors]
    letters_of = _letters_of_factors(contraction, contraction.tensors[position], old_dims, sizes)
    new_factors = {factor for factors in new_dims for factor in factors if sizes[factor] != 1}
    if letters_of is not None and new_factors <= letters_of.keys():
        letters_by_dim = [
            [letter for factor in factors for letter in contraction.expand(letters_of.get(factor, []))]
            for factors in new_dims
        ]
        contraction.tensors[position] = ViewedTensor(new_value, letters_by_dim)
        split_tensors = [tensor for tensor in contraction.tensors if tensor.is_split]
        if all(may_split(tensor.value, contraction.shape(tensor)) for tensor in split_tensors):
            return True
        contraction.stops.append(view)
    contraction.sizes, contraction.split, contraction.tensors = old_sizes, old_split, old_tensors
    return False


def _letters_of_factors(
    contraction: ViewedContraction, tensor: ViewedTensor, dims: Sequence[Sequence[int]], sizes: Mapping[int, Extent]
) -> dict[int, Letters] | None:
    """Return factor of a view → its letters in `tensor`; None if the letters do not fit. Letters may be split.

    Args:
        dims: for each dimension of the tensor, its factors in the rule of the view.
        sizes: factor → size.
    """
    letters_of: dict[int, Letters] = {}
    for dim, factors in enumerate(dims):
        parts = contraction.partition(tensor.dims[dim], [sizes[factor] for factor in factors])
        if parts is None:
            return None
        letters_of.update(zip(factors, parts, strict=True))
    return letters_of


def _factor_sizes(op: AtenOp, rule: OpRule) -> dict[int, Extent] | None:
    """Return factor → size; None if the sizes match the op only at the example values of its symbolic sizes.

    A factor that is a whole dimension has the symbolic size of this dimension.
    """
    sizes: dict[int, Extent] = {index: factor.size for index, factor in enumerate(rule.factors)}
    types = [value.type for value in (*op.tensors, *op.results)]
    if not any(map(is_sized, types)):
        return sizes
    dims: list[tuple[tuple[int, ...], Extent]] = []  # (factors of a dimension, its size)
    for type_, factors_by_dim in zip(types, (*rule.operand_dims, *rule.result_dims), strict=True):
        dims += zip(factors_by_dim or (), sizes_of(type_), strict=True)
    sizes.update({factors[0]: size for factors, size in dims if len(factors) == 1})
    is_general = all(product(sizes[factor] for factor in factors) == size for factors, size in dims)
    return sizes if is_general else None


def _quotient(size: Extent, divisor: Extent) -> Extent | None:
    """Return `size / divisor` if that is an integer for all values of symbolic sizes; else None."""
    if divisor == 0:
        return None
    if type(size) is int and type(divisor) is int:
        return None if size % divisor else size // divisor
    quotient: Any = apply("floordiv", size, divisor)
    return quotient if apply("mul", quotient, divisor) == size else None
