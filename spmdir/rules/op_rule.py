"""A rule instantiated on one call: its factors, and the strategies they allow on one mesh axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from spmdir.core.call import Call, Local, TensorMeta
from spmdir.core.dtype import F64
from spmdir.core.errors import ParseError, SpmdirError
from spmdir.core.placement.standard import Placement, R
from spmdir.rules.language.binding import Binding
from spmdir.rules.language.expressions import holds
from spmdir.rules.language.promotion import is_finite
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Clause, Rule
from spmdir.rules.local.expansion import Expansion, Placed, Reduced
from spmdir.rules.local.replacement import expand, localize
from spmdir.rules.shapes.layout import Dims, Layout
from spmdir.rules.strategies.divisibility import Factor
from spmdir.rules.strategies.expansion_layout import place
from spmdir.rules.strategies.per_axis import PENDING, divide, factor_rows, pending_rows, replicated
from spmdir.rules.strategies.plugin_declared import added_rows, combining_rows
from spmdir.rules.strategies.plugin_placements import Extras, extras_of
from spmdir.rules.strategies.plugin_shards import lifted_rows
from spmdir.rules.strategies.strategy import Strategy

if TYPE_CHECKING:
    from spmdir.rules.rule_set import RuleSet

_NONE = Extras()


@attrs.define(frozen=True, slots=False, eq=False)
class OpRule:
    """What a rule says of one call.

    Attributes:
        rule, call: what it is made from.
        factors: by index.
        operand_dims, result_dims: per operand and result, the factors of every dimension, major first.
        shape_arguments: literal arguments that hold the sizes of the first result; local sizes replace them.
    """

    rule: Rule
    call: Call
    binding: Binding
    factors: tuple[Factor, ...]
    operand_dims: tuple[Dims, ...]
    result_dims: tuple[Dims | None, ...]
    shape_arguments: tuple[str, ...]
    scope: Scope
    rules: RuleSet
    layout: Layout
    _rows: dict[object, tuple[Strategy, ...] | None] = attrs.field(factory=dict)

    def strategies(
        self, count: int, divided: Mapping[int, int] | None = None, extras: tuple[Placement, ...] = ()
    ) -> tuple[Strategy, ...]:
        """The rows for an axis of `count` ranks: replicated, then one a factor, then the pending reductions.

        Args:
            divided: by how many ranks other mesh axes divide a factor already, as `divided_by` says. Rows that do not
                go with that are left out: where a factor is divided that has major ones beside it, these are divided
                to single elements.
            extras: the placements of the program; rows of the plug-ins among them come last. Those that divide a
                dimension stand for any dimension.

        Raises:
            ParseError: the op expands into itself; RuleError: a plug-in adds what is no row of the op.
        """
        divided = {f: n for f, n in (divided or {}).items() if n > 1}
        plugins = extras_of(extras) if extras else _NONE
        key = (count, tuple(sorted(divided.items())), plugins)
        if key not in self._rows:
            self._rows[key] = None  # so that an expansion that leads back here is found out
            try:
                with self.rules.clock:
                    self._rows[key] = tuple(dict.fromkeys(self._list(count, divided, plugins)))
            except SpmdirError:
                del self._rows[key]
                raise
        found = self._rows[key]
        if found is None:
            raise ParseError(f"{self.rule.op} expands into itself; expand it into other ops", self.rule.location)
        return found

    def _list(self, count: int, divided: Mapping[int, int], plugins: Extras) -> Iterator[Strategy]:
        """The rows; where a minor factor is divided and a major one is not finished, those that finish it."""
        unfinished = self._unfinished(divided)
        if not plugins:
            rows = (replicated(self), *factor_rows(self, count, divided), *pending_rows(self))
            yield from (r for r in rows if not unfinished or unfinished == self._finished_by(r, count))
            return
        own = self.strategies(count, divided)
        yield from own
        if not unfinished:
            yield from lifted_rows(self, count, divided, plugins.shards)
            yield from pending_rows(self, plugins.partials)
            yield from added_rows(self, count, divided, own, plugins.lifting)

    def _finished_by(self, row: Strategy, count: int) -> dict[int | None, int]:
        """What `_unfinished` may say for `row` to finish it."""
        return {row.factor: self.factors[row.factor or 0].size // count}

    def _unfinished(self, divided: Mapping[int, int]) -> dict[int | None, int]:
        """The factors that still hold several elements but are major to one that S divides, and what divides them."""
        return {
            major: divided.get(major, 1)
            for factor in divided
            if factor >= 0 and ~factor not in divided
            for major in self.majors.get(factor, ())
            if divided.get(major, 1) != self.factors[major].size
        }

    @property
    def name(self) -> str:
        """The op's name, as in Call.name: `aten.mm`, `aten.add.Tensor`."""
        return self.call.name

    def argument(self, name: str) -> Any:
        """The value of literal argument `name`: what the call gives, else the default that the rule has; else None."""
        return self.binding.arguments.get(name)

    def combining(self, result: Placement) -> Iterator[Strategy]:
        """The rows that divide by S what some result lacks, each rank running the op on its piece: `result` is the
        placement of what ranks then have of it. For `Placement.lift`."""
        return combining_rows(self, result)

    def pointwise(self, placement: Placement) -> Strategy:
        """The row where every operand and result has `placement`. For `Placement.lift`."""
        results = tuple(R if meta is None else placement for meta in self.call.results)
        return Strategy((placement,) * len(self.call.operands), results)

    @cached_property
    def majors(self) -> dict[int, set[int]]:
        """Factor → those that are major to it in some dimension and have several elements."""
        found: dict[int, set[int]] = {}
        for dims in (*self.operand_dims, *self.result_dims):
            for held in dims or ():
                for at, factor in enumerate(held):
                    majors = {f for f in held[:at] if self.factors[f].size != 1}
                    if majors:
                        found.setdefault(factor, set()).update(majors)
        return found

    @cached_property
    def flops(self) -> int:
        """2 × the product of all factors, for a contraction: a summed factor that two operands share. Else 0."""
        holders = [sum(any(f in d for d in dims) for dims in self.operand_dims) for f in range(len(self.factors))]
        contracts = any(f.kind == "sum" and n > 1 for f, n in zip(self.factors, holders, strict=True))
        return 2 * math.prod(f.size for f in self.factors) if contracts else 0

    @cached_property
    def is_view(self) -> bool:
        """Whether every element of the one result is an element of the one operand, as the factors place it."""
        return any(self.active("moves")) and len(self.call.operands) == 1 == len(self.call.results)

    @cached_property
    def is_product(self) -> bool:
        """Whether the op is the product of its operands summed over the factors that the result lacks: an einsum."""
        return any(self.active("multilinear")) and len(self.call.results) == 1

    def expansion(self, factor: int) -> Expansion:
        """The ops, on global tensors, that replace this one when `factor` is divided and its rewrite is "expand"."""
        return expand(self, factor)

    def internal_reductions(self, factor: int, count: int = 2) -> tuple[Reduced, ...]:
        """The values inside the expansion over `factor` that are reduced over the axis before they are used."""
        placed = self.placed(factor, count)
        return placed.reductions if placed else ()

    def placed(
        self,
        factor: int,
        count: int,
        divided: Mapping[int, int] | None = None,
        operands: tuple[Placement, ...] | None = None,
    ) -> Placed | None:
        """How the expansion over `factor` lies on an axis of `count` ranks: divided by S, or placed like `operands`."""
        return place(self, self.expansion(factor), operands or divide(self, factor), count, divided or {})

    def local_form(
        self,
        axes: Mapping[int, tuple[str, ...]],
        operands: tuple[TensorMeta, ...] | None = None,
        value: Callable[[Local], int] | None = None,
    ) -> Expansion | None:
        """The ops, on local tensors, that replace this one when `axes` (major first) divide factors.

        The shapes of the pieces follow from `operands`, the local operands (default: the global ones), and from
        `value`, a rank's integers (default: over the whole extent). None if no divided factor needs a local form.
        """
        return localize(self, axes, operands or self.call.operands, value or (lambda local: local.undivided))

    def text(self) -> str:
        """The rule as instantiated: `([m, k], [k, n]) -> ([m, n]) {m = 16, k = 4, n = 8} sum {k} linear {self}`."""
        if self.rule.replicated is not None:
            return f"replicated: {self.rule.replicated}"
        operands = ", ".join(map(self._dims_text, self.operand_dims))
        results = ", ".join(map(self._dims_text, self.result_dims))
        used = {f for dims in (*self.operand_dims, *self.result_dims) for d in dims or () for f in d}
        named = [(i, f) for i, f in enumerate(self.factors) if i in used]
        text = f"({operands}) -> ({results}) {{{', '.join(f'{f.name} = {f.size}' for _, f in named)}}}"
        for kind in dict.fromkeys(f.kind for _, f in named if f.kind != "plain"):
            text += f" {kind} {{{', '.join(f.name for _, f in named if f.kind == kind)}}}"
        for rewrite in dict.fromkeys(f.rewrite for _, f in named if f.rewrite):
            text += f" {rewrite} {{{', '.join(f.name for _, f in named if f.rewrite == rewrite)}}}"
        for clause in self.active(*PENDING, "adds"):
            listed = " ".join([clause.kind, *clause.reductions])
            text += f" {listed} {{{', '.join(clause.names or (self.rule.tensors[0].name,))}}}"
        return text

    def _dims_text(self, dims: Dims | None) -> str:
        if dims is None:
            return "none"
        names = [" ".join(self.factors[f].name for f in d) or "1" for d in dims]
        return "[" + ", ".join(f"({n})" if " " in n else n for n in names) + "]"

    def active(self, *kinds: str) -> Iterator[Clause]:
        return (c for c in self.rule.of_kind(*kinds) if holds(c.condition, self.scope))

    @cached_property
    def additive(self) -> tuple[tuple[int, ...], bool]:
        """The operands that the op adds to the rest, and whether one of them is a Python number other than 0."""
        names = [name for clause in self.active("adds") for name in clause.names]
        operands = tuple(i for name in names for i in self.binding.operands(name))
        return operands, any(self.binding.arguments.get(name, 0) not in (0, None) for name in names)

    @cached_property
    def scales_finitely(self) -> bool:
        """Whether all numbers that what is linear may multiply by are finite in the result's type.

        Times an infinity, addends of either sign become infinities of either sign, and their sum NaN.
        """
        dtype = next((meta.dtype for meta in self.call.results if meta is not None), F64)
        numbers = (v for v in self.binding.arguments.values() if isinstance(v, (int, float, complex)))
        return all(is_finite(v, dtype) for v in numbers)

    @cached_property
    def ignored(self) -> frozenset[int]:
        """The factors that only operands have of which the op reads no element: results are whole, whoever divides."""
        operands = {i for c in self.active("ignores") for name in c.names for i in self.binding.operands(name)}
        read = {f for i, dims in enumerate(self.operand_dims) if i not in operands for d in dims for f in d}
        return frozenset(f for i in operands for d in self.operand_dims[i] for f in d) - read
