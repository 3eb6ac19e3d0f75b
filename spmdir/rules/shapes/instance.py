"""A rule instantiated on one call: its factors and their properties, from which strategies are derived."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import attrs

from spmdir.core.dtype import F64
from spmdir.core.placement.call import Call, Literal
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.expressions import holds
from spmdir.rules.language.promotion import is_finite
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import PASSING, Constant, Rule, RuleClause
from spmdir.rules.shapes.factor import Dims, Factor
from spmdir.rules.shapes.layout import Layout


class Ops(Protocol):
    """The ops that a rewrite may call."""

    def parameters(self, name: str) -> tuple[tuple[str, bool], ...]:
        """Return (name, whether it is a tensor) of the parameters of op `name`."""
        ...

    def infer_call(
        self,
        name: str,
        operands: tuple[TensorMeta, ...],
        arguments: Mapping[str, Literal],
        structure: tuple[int | tuple[int, ...], ...] | None = None,
    ) -> Call:
        """Return a call of op `name` with inferred results."""
        ...


@attrs.define(frozen=True, slots=False, eq=False)
class RuleInstance:
    """A rule instantiated on one call.

    Attributes:
        rule, call: the rule and the call.
        binding: the parameters of the rule, bound to the operands and arguments of the call.
        layout: the factors of each dimension.
        scope: the values that expressions may use.
        factors: the factors with the properties from active clauses. Other code refers to a factor by its index here.
        shape_arguments: literal arguments that list the sizes of the first result; local sizes replace them.
    """

    rule: Rule
    call: Call
    binding: Binding
    layout: Layout
    scope: Scope
    factors: tuple[Factor, ...]
    shape_arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the op, as in Call.name: `aten.mm`, `aten.add.Tensor`."""
        return self.call.name

    @property
    def operand_dims(self) -> tuple[Dims, ...]:
        """For each operand, the factors of each dimension, major first."""
        return self.layout.operand_dims

    @property
    def result_dims(self) -> tuple[Dims | None, ...]:
        """For each result, the factors of each dimension, major first; None for an absent result."""
        return self.layout.result_dims

    def argument(self, name: str) -> Any:
        """Return the value of literal argument `name` of the call, else the default in the rule, else None."""
        return self.binding.arguments.get(name)

    def active(self, *kinds: str) -> Iterator[RuleClause]:
        """Yield the clauses of these kinds whose conditions hold."""
        return (clause for clause in self.rule.of_kind(*kinds) if holds(clause.condition, self.scope))

    @cached_property
    def all_dims(self) -> tuple[Dims, ...]:
        """The dimensions of all operands and results that have dimensions."""
        return tuple(dims for dims in (*self.operand_dims, *self.result_dims) if dims)

    @cached_property
    def repeated(self) -> frozenset[int]:
        """The factors that occur in two dimensions of one tensor."""
        repeated: set[int] = set()
        for dims in self.all_dims:
            earlier_factors: set[int] = set()
            for factors in dims:
                repeated |= earlier_factors.intersection(factors)
                earlier_factors.update(factors)
        return frozenset(repeated)

    @cached_property
    def majors(self) -> dict[int, set[int]]:
        """Factor → the factors whose size is not 1 and that are major to this factor in some dimension."""
        majors_of: dict[int, set[int]] = {}
        for dims in self.all_dims:
            for factors in dims:
                for index, factor in enumerate(factors):
                    majors = {major for major in factors[:index] if self.factors[major].size != 1}
                    if majors:
                        majors_of.setdefault(factor, set()).update(majors)
        return majors_of

    def neighbours(self, index: int) -> set[int]:
        """Return the factors whose size is not 1 and that share a dimension with factor `index`."""
        sharing = (factors for dims in self.all_dims for factors in dims if index in factors)
        candidates = {factor for factors in sharing for factor in factors if factor != index}
        return {factor for factor in candidates if self.factors[factor].size != 1}

    @cached_property
    def contracts(self) -> bool:
        """Whether two operands share a summed factor."""
        return self._shares_summed(self.operand_dims)

    def _shares_summed(self, operand_dims: Sequence[Dims]) -> bool:
        """Return whether two of the operands with these dimensions share a summed factor."""
        for index, factor in enumerate(self.factors):
            operand_count = sum(any(index in factors for factors in dims) for dims in operand_dims)
            if factor.kind == "sum" and operand_count > 1:
                return True
        return False

    @property
    def is_light(self) -> bool:
        """Whether the op has no matrix product or convolution, so its time is that of its memory accesses."""
        return not self.flops

    @property
    def is_contraction(self) -> bool:
        """Whether the op has a matrix product or convolution, or sums over a factor that two operands share.

        An example of the second is the gradient of an embedding, which sums over positions.
        """
        return self.contracts or not self.is_light

    @cached_property
    def flops(self) -> float:
        """The floating-point operations of matrix products inside the op: the sum of its `flops` clauses.

        Without such clauses, they are 2 × the product of all factors if two operands share a summed factor, else 0.
        Only operands with the kind of numbers of the result count: floating-point, or integers.
        """
        clauses = list(self.active("flops"))
        if not clauses:
            is_inexact = any(meta is not None and meta.dtype.is_inexact for meta in self.call.results)
            operands_with_dims = zip(self.operand_dims, self.call.operands, strict=True)
            multiplied = [dims for dims, meta in operands_with_dims if meta.dtype.is_inexact == is_inexact]
            return 2 * math.prod(factor.size for factor in self.factors) if self._shares_summed(multiplied) else 0
        flops: float = 0
        for clause in clauses:  # `flops 2 m k n` is 2 × m × k × n
            indices = [index for name in clause.names for index in self.layout.refer(name)]
            multiplier: Any = clause.value.value if isinstance(clause.value, Constant) else 0
            flops += multiplier * math.prod(self.factors[index].size for index in indices)
        return flops

    @cached_property
    def viewed(self) -> int | None:
        """The operand whose memory the results share; None if the results have separate memory."""
        operands = (operand for clause in self.active("views") for operand in self.binding.operands(clause.names[0]))
        return next(operands, None)

    @cached_property
    def picked(self) -> frozenset[int]:
        """The operands of which the op reads at most as many elements as the result has, because it only moves them."""
        names = [name for clause in self.active("carries", "moves") for name in clause.names]
        return frozenset(operand for name in names for operand in self.binding.operands(name))

    @cached_property
    def is_elementwise(self) -> bool:
        """Whether each element of a result depends on one element of each operand, which may be broadcast."""
        if any(factor.kind != "plain" or factor.rewrite for factor in self.factors) or self.layout.windows:
            return False
        results = [dims for dims in self.result_dims if dims is not None]

        def is_broadcast(operand: Dims) -> bool:
            """Return whether each dimension of `operand` is that of the result, or has size 1."""
            pairs = zip(reversed(operand), reversed(results[0]), strict=False)
            return len(operand) <= len(results[0]) and all(
                factors in ((), result_factors) for factors, result_factors in pairs
            )

        have_equal_dims = bool(results) and all(dims == results[0] for dims in results)
        return have_equal_dims and all(map(is_broadcast, self.operand_dims))

    @cached_property
    def is_view(self) -> bool:
        """Whether the op has one operand and one result, and only moves the elements of the operand."""
        return any(self.active("moves")) and len(self.call.operands) == 1 == len(self.call.results)

    @cached_property
    def is_product(self) -> bool:
        """Whether the op is an einsum: the product of its operands, summed over the factors that the result lacks."""
        return any(self.active("multilinear")) and len(self.call.results) == 1

    @cached_property
    def additive(self) -> tuple[tuple[int, ...], bool]:
        """A pair: the operands that `adds` clauses name, and whether such a clause names a Python number other than 0.

        For example, `add(x, 1)` with the clause `adds self other` gives ((0,), True).
        """
        names = [name for clause in self.active("adds") for name in clause.names]
        operands = tuple(operand for name in names for operand in self.binding.operands(name))
        adds_number = any(self.binding.arguments.get(name, 0) not in (0, None) for name in names)
        return operands, adds_number

    @cached_property
    def scales_finitely(self) -> bool:
        """Whether all numbers among the arguments are finite in the result's type.

        If a partial sum is multiplied by infinity, its parts may become infinities of both signs, whose sum is NaN.
        """
        dtype = next((meta.dtype for meta in self.call.results if meta is not None), F64)
        numbers = (value for value in self.binding.arguments.values() if isinstance(value, (int, float, complex)))
        return all(is_finite(number, dtype) for number in numbers)

    @cached_property
    def ignored_operands(self) -> frozenset[int]:
        """The operands of which the op reads no element."""
        names = [name for clause in self.active("ignores") for name in clause.names]
        return frozenset(operand for name in names for operand in self.binding.operands(name))

    @cached_property
    def ignored(self) -> frozenset[int]:
        """The factors that only ignored operands have. They may be sharded while the results are replicated."""
        ignored_factors: set[int] = set()
        read_factors: set[int] = set()
        for operand, dims in enumerate(self.operand_dims):
            factors = {factor for factors in dims for factor in factors}
            if operand in self.ignored_operands:
                ignored_factors |= factors
            else:
                read_factors |= factors
        return frozenset(ignored_factors - read_factors)

    def text(self) -> str:
        """Return the instance as text: `([m, k], [k, n]) -> ([m, n]) {m = 16, k = 4, n = 8} sum {k} linear {a}`."""
        if self.rule.replicated is not None:
            return f"replicated: {self.rule.replicated}"
        operands = ", ".join(map(self._dims_text, self.operand_dims))
        results = ", ".join(map(self._dims_text, self.result_dims))
        used_indices = {index for dims in self.all_dims for factors in dims for index in factors}
        used_factors = [factor for index, factor in enumerate(self.factors) if index in used_indices]
        names_of_heading: dict[str, list[str]] = {}  # such as "sum" → ["k"]; kinds come before rewrites
        for factor in used_factors:
            if factor.kind != "plain":
                names_of_heading.setdefault(factor.kind, []).append(factor.name)
        for factor in used_factors:
            if factor.rewrite:
                names_of_heading.setdefault(factor.rewrite, []).append(factor.name)
        sizes = ", ".join(f"{factor.name} = {factor.size}" for factor in used_factors)
        text = f"({operands}) -> ({results}) {{{sizes}}}"
        for heading, names in names_of_heading.items():
            text += f" {heading} {{{', '.join(names)}}}"
        for clause in self.active(*PASSING, "adds"):
            heading = " ".join([clause.kind, *clause.reductions])
            text += f" {heading} {{{', '.join(clause.names or (self.rule.tensors[0].name,))}}}"
        return text

    def _dims_text(self, dims: Dims | None) -> str:
        """Return the dimensions of a tensor as text, such as `[m, (h g), 1]`; "none" for an absent result."""
        if dims is None:
            return "none"
        dim_texts = [" ".join(self.factors[factor].name for factor in factors) or "1" for factors in dims]
        return "[" + ", ".join(f"({text})" if " " in text else text for text in dim_texts) + "]"
