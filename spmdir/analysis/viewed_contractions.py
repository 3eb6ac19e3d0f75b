"""A contraction seen through the views around it: the einsum that it is of the viewed tensors.

    view(mm(view x, t w))  ⇒  "abc,dc->abd" of x, w

Each dimension is a list of factors, which views split and regroup. A kept operand must stay shardable as it is kept, so
a view that splits its dimension otherwise ends the search: two ranks can each have 2 of 4 heads, but not one and a half
of the 3 matrices of a fused projection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from xdsl.ir import Block, Operation, SSAValue

from spmdir.analysis.type_check import rule_of
from spmdir.core.symbolic.expressions import Size, apply, is_symbolic, product
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.attributes import is_sized, sizes_of
from spmdir.rules import OpRule, RuleSet

Letters = list[int]
"""The factors of one dimension, major first."""

Extent = int | Size
"""The size of a factor; a view is looked through only if that is right for all symbolic sizes."""

MaySplit = Callable[[SSAValue, Sequence[Extent]], bool]
"""Returns whether a value may be viewed in a shape that splits its dimensions."""


@dataclass
class ViewedTensor:
    """An operand or the result of a contraction, seen through views.

    Attributes:
        value: the tensor.
        dims: per dimension, its factors.
    """

    value: SSAValue
    dims: list[Letters]

    @property
    def is_split(self) -> bool:
        """Return whether some dimension has several factors."""
        return any(len(dim) > 1 for dim in self.dims)


@dataclass
class ViewedContraction:
    """A contraction, and how far it is seen through views.

    Attributes:
        sizes: factor → size.
        tensors: the two operands, then the result.
        split: factor → the two that it was split into.
        stops: the views that are not looked through, because they would split a kept operand otherwise.
    """

    sizes: dict[int, Extent]
    tensors: list[ViewedTensor]
    split: dict[int, Letters] = field(default_factory=dict)
    stops: list[AtenOp] = field(default_factory=list)

    @property
    def is_einsum(self) -> bool:
        """Return whether every letter of the result is in an operand, and all fit into an equation's alphabet."""
        first, second, result = ({letter for dim in tensor.dims for letter in dim} for tensor in self.tensors)
        operands = first | second
        alone = operands - result - (first & second)
        dropped = set(self.sizes) - set(self.split) - operands - result
        summed_away = [letter for letter in dropped if self.sizes[letter] != 1]
        return result <= operands and not alone and not summed_away and len(operands) <= 20

    def shape(self, tensor: ViewedTensor) -> tuple[Extent, ...]:
        """Return the shape of a tensor with a dimension for each factor."""
        return tuple(self.sizes[letter] for dim in tensor.dims for letter in dim)

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


def see_through_views(
    op: AtenOp, rules: RuleSet, may_split: MaySplit, closed: Collection[AtenOp] = ()
) -> ViewedContraction | None:
    """Return a contraction seen through as many views as possible; None of an op that is no product of two operands.

    Args:
        closed: views that are not looked through.
    """
    rule = _product_rule(op, rules)
    sizes = _factor_sizes(op, rule) if rule is not None else None
    if rule is None or sizes is None:
        return None
    start = [*zip(op.tensors, rule.operand_dims, strict=True), (op.results[0], rule.result_dims[0] or ())]
    seen = ViewedContraction(
        sizes, [ViewedTensor(value, [[f for f in dim if sizes[f] != 1] for dim in dims]) for value, dims in start]
    )
    for position in range(3):
        while (view := _view_at(seen, position)) is not None and view not in closed:
            if not _look_behind(seen, position, view, rules, may_split):
                break
    return seen


def view_rule(op: Operation | Block, rules: RuleSet) -> OpRule | None:
    """Return the rule of `op` if it is a view."""
    rule = _rule(op, rules, "moves")
    return rule if rule is not None and rule.is_view else None


def _product_rule(op: Operation, rules: RuleSet) -> OpRule | None:
    """Return the rule of `op` if it is a product of its operands."""
    rule = _rule(op, rules, "multilinear")
    return rule if rule is not None and rule.is_product else None


def _rule(op: Operation | Block, rules: RuleSet, kind: str) -> OpRule | None:
    """Return the rule of `op` if it has one result, of open sharding, and a clause of that kind."""
    if not isinstance(op, AtenOp) or kind not in rules.kinds(op.name):
        return None
    return rule_of(op, rules) if len(op.results) == 1 and op.sharding is None else None


def _view_at(seen: ViewedContraction, position: int) -> AtenOp | None:
    """Return the op that makes an operand, or that alone uses the result, which is at position 2."""
    value = seen.tensors[position].value
    users = [use.operation for use in value.uses] if position == 2 else [value.owner]
    return users[0] if len(users) == 1 and isinstance(users[0], AtenOp) else None


def _look_behind(seen: ViewedContraction, position: int, view: AtenOp, rules: RuleSet, may_split: MaySplit) -> bool:
    """See the tensor at `position` through an op; return whether that can be, as if it is a view."""
    rule = view_rule(view, rules)
    if rule is None:
        return False
    forward = position == 2
    value = view.results[0] if forward else view.operands[0]
    sizes = _factor_sizes(view, rule)
    near, far = (rule.operand_dims[0], rule.result_dims[0]) if forward else (rule.result_dims[0], rule.operand_dims[0])
    if sizes is None or near is None or far is None or any(f.kind == "unsharded" for f in rule.factors):
        return False
    before = dict(seen.sizes), dict(seen.split), [(tensor.value, tensor.dims) for tensor in seen.tensors]
    found: dict[int, Letters] = {}
    for dim, factors in enumerate(near):
        parts = seen.partition(seen.tensors[position].dims[dim], [sizes[f] for f in factors])
        if parts is None:
            break
        found.update(zip(factors, parts, strict=True))
    else:
        needed = {f for factors in far for f in factors if sizes[f] != 1}
        if needed <= set(found):
            dims = [[m for f in factors for m in seen.expand(found.get(f, []))] for factors in far]
            seen.tensors[position] = ViewedTensor(value, dims)
            if all(may_split(tensor.value, seen.shape(tensor)) for tensor in seen.tensors if tensor.is_split):
                return True
            seen.stops.append(view)
    seen.sizes, seen.split, tensors = before
    seen.tensors = [ViewedTensor(*tensor) for tensor in tensors]
    return False


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


def _quotient(size: Extent, divisor: Extent) -> Extent | None:
    """Return `size / divisor` if that is an integer for all values of symbolic sizes; else None."""
    if divisor == 0:
        return None
    if type(size) is int and type(divisor) is int:
        return None if size % divisor else size // divisor
    quotient: Any = apply("floordiv", size, divisor)
    return quotient if apply("mul", quotient, divisor) == size else None
