"""A rule on one call: its factors, and what follows from them alone. The strategies are built on it."""

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
    """The ops that a rewrite may call, by their rules."""

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
        """Return the call of op `name`, its results inferred."""
        ...


@attrs.define(frozen=True, slots=False, eq=False)
class RuleInstance:
    """What a rule says of one call.

    Attributes:
        rule, call: what it is made from.
        binding: the parameters of the rule, filled by the call.
        layout: the factors of the call, and the dimensions that they make up.
        scope: what expressions may look at.
        factors: by number, with what the clauses that hold say of them.
        shape_arguments: literal arguments that hold the sizes of the first result; local sizes replace them.
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
        """Return the op's name, as in Call.name: `aten.mm`, `aten.add.Tensor`."""
        return self.call.name

    @property
    def operand_dims(self) -> tuple[Dims, ...]:
        """Per operand, the factors of every dimension, major first."""
        return self.layout.operand_dims

    @property
    def result_dims(self) -> tuple[Dims | None, ...]:
        """Per result, the factors of every dimension, major first; None for an absent one."""
        return self.layout.result_dims

    def argument(self, name: str) -> Any:
        """Return literal argument `name`: what the call gives, else the default that the rule has; else None."""
        return self.binding.arguments.get(name)

    def active(self, *kinds: str) -> Iterator[RuleClause]:
        """Yield the clauses of these kinds whose conditions hold."""
        return (c for c in self.rule.of_kind(*kinds) if holds(c.condition, self.scope))

    @cached_property
    def all_dims(self) -> tuple[Dims, ...]:
        """Return the dimensions of operands and present results that have any."""
        return tuple(dims for dims in (*self.operand_dims, *self.result_dims) if dims)

    @cached_property
    def repeated(self) -> frozenset[int]:
        """Return the factors that make up two dimensions of one tensor."""
        found: set[int] = set()
        for dims in self.all_dims:
            seen: set[int] = set()
            for factors in dims:
                found |= seen.intersection(factors)
                seen.update(factors)
        return frozenset(found)

    @cached_property
    def majors(self) -> dict[int, set[int]]:
        """Factor → those that are major to it in some dimension and have several elements."""
        found: dict[int, set[int]] = {}
        for dims in self.all_dims:
            for factors in dims:
                for at, factor in enumerate(factors):
                    majors = {f for f in factors[:at] if self.factors[f].size != 1}
                    if majors:
                        found.setdefault(factor, set()).update(majors)
        return found

    def neighbours(self, index: int) -> set[int]:
        """Return the factors of several elements that share a dimension with factor `index`."""
        sharing = (factors for dims in self.all_dims for factors in dims if index in factors)
        return {f for factors in sharing for f in factors if f != index and self.factors[f].size != 1}

    @cached_property
    def contracts(self) -> bool:
        """Return whether two operands share a summed factor."""
        return self._shares_summed(self.operand_dims)

    def _shares_summed(self, operand_dims: Sequence[Dims]) -> bool:
        holders = [sum(any(f in d for d in dims) for dims in operand_dims) for f in range(len(self.factors))]
        return any(f.kind == "sum" and n > 1 for f, n in zip(self.factors, holders, strict=True))

    @property
    def is_light(self) -> bool:
        """Return whether the op is no product, convolution or such: its time is that of touching its elements."""
        return not self.flops

    @property
    def is_contraction(self) -> bool:
        """Return whether the op is a matrix product, a convolution or such, or sums over a factor that two operands
        share, as the gradient of an embedding sums over positions."""
        return self.contracts or not self.is_light

    @cached_property
    def flops(self) -> float:
        """Return the floating-point operations of matrix products inside the op: those that clauses say, together.

        Without such clauses they are 2 × the product of all factors if two operands of numbers like the result's, which
        positions are not, share a summed factor, and none for other ops.
        """
        clauses = list(self.active("flops"))
        if not clauses:
            inexact = any(meta is not None and meta.dtype.is_inexact for meta in self.call.results)
            like = zip(self.operand_dims, self.call.operands, strict=True)
            multiplied = [dims for dims, meta in like if meta.dtype.is_inexact == inexact]
            return 2 * math.prod(f.size for f in self.factors) if self._shares_summed(multiplied) else 0
        sizes = [[self.factors[f].size for name in clause.names for f in self.layout.refer(name)] for clause in clauses]
        times = [clause.value.value if isinstance(clause.value, Constant) else 0 for clause in clauses]
        return sum(number * math.prod(each) for number, each in zip(times, sizes, strict=True))  # type: ignore

    @cached_property
    def viewed(self) -> int | None:
        """Return the operand whose memory the results share; None if they have memory of their own."""
        return next((i for clause in self.active("views") for i in self.binding.operands(clause.names[0])), None)

    @cached_property
    def picked(self) -> frozenset[int]:
        """Return the operands of which the op reads no more elements than it gives: those that it only moves."""
        names = [name for clause in self.active("carries", "moves") for name in clause.names]
        return frozenset(i for name in names for i in self.binding.operands(name))

    @cached_property
    def is_elementwise(self) -> bool:
        """Return whether each element of the results comes from one of each operand, which may be broadcast."""
        if any(factor.kind != "plain" or factor.rewrite for factor in self.factors) or self.layout.windows:
            return False
        made = [dims for dims in self.result_dims if dims is not None]

        def is_broadcast(operand: Dims) -> bool:
            pairs = zip(reversed(operand), reversed(made[0]), strict=False)
            return len(operand) <= len(made[0]) and all(own in ((), of) for own, of in pairs)

        return bool(made) and all(dims == made[0] for dims in made) and all(map(is_broadcast, self.operand_dims))

    @cached_property
    def is_view(self) -> bool:
        """Return whether every element of the one result is an element of the one operand, as the factors place it."""
        return any(self.active("moves")) and len(self.call.operands) == 1 == len(self.call.results)

    @cached_property
    def is_product(self) -> bool:
        """Return whether the op is the product of its operands summed over the factors that the result lacks: an
        einsum."""
        return any(self.active("multilinear")) and len(self.call.results) == 1

    @cached_property
    def additive(self) -> tuple[tuple[int, ...], bool]:
        """Return the operands that the op adds to the rest, and whether one of them is a Python number other than 0."""
        names = [name for clause in self.active("adds") for name in clause.names]
        operands = tuple(i for name in names for i in self.binding.operands(name))
        return operands, any(self.binding.arguments.get(name, 0) not in (0, None) for name in names)

    @cached_property
    def scales_finitely(self) -> bool:
        """Return whether all numbers that what is linear may multiply by are finite in the result's type.

        Times an infinity, addends of either sign become infinities of either sign, and their sum NaN.
        """
        dtype = next((meta.dtype for meta in self.call.results if meta is not None), F64)
        numbers = (v for v in self.binding.arguments.values() if isinstance(v, (int, float, complex)))
        return all(is_finite(v, dtype) for v in numbers)

    @cached_property
    def ignored_operands(self) -> frozenset[int]:
        """Return the operands of which the op reads no element."""
        return frozenset(i for c in self.active("ignores") for name in c.names for i in self.binding.operands(name))

    @cached_property
    def ignored(self) -> frozenset[int]:
        """Return the factors of operands of which the op reads no element: results are replicated, whatever shards
        them."""
        operands = self.ignored_operands
        read = {f for i, dims in enumerate(self.operand_dims) if i not in operands for d in dims for f in d}
        return frozenset(f for i in operands for d in self.operand_dims[i] for f in d) - read

    def text(self) -> str:
        """Return the rule as instantiated: `([m, k], [k, n]) -> ([m, n]) {m = 16, k = 4, n = 8} sum {k} linear {a}`."""
        if self.rule.replicated is not None:
            return f"replicated: {self.rule.replicated}"
        operands = ", ".join(map(self._dims_text, self.operand_dims))
        results = ", ".join(map(self._dims_text, self.result_dims))
        used = {f for dims in self.all_dims for d in dims for f in d}
        named = [(i, f) for i, f in enumerate(self.factors) if i in used]
        text = f"({operands}) -> ({results}) {{{', '.join(f'{f.name} = {f.size}' for _, f in named)}}}"
        for kind in dict.fromkeys(f.kind for _, f in named if f.kind != "plain"):
            text += f" {kind} {{{', '.join(f.name for _, f in named if f.kind == kind)}}}"
        for rewrite in dict.fromkeys(f.rewrite for _, f in named if f.rewrite):
            text += f" {rewrite} {{{', '.join(f.name for _, f in named if f.rewrite == rewrite)}}}"
        for clause in self.active(*PASSING, "adds"):
            listed = " ".join([clause.kind, *clause.reductions])
            text += f" {listed} {{{', '.join(clause.names or (self.rule.tensors[0].name,))}}}"
        return text

    def _dims_text(self, dims: Dims | None) -> str:
        if dims is None:
            return "none"
        names = [" ".join(self.factors[f].name for f in d) or "1" for d in dims]
        return "[" + ", ".join(f"({n})" if " " in n else n for n in names) + "]"
