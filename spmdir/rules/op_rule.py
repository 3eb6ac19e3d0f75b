"""A rule instantiated on one call: its factors, and the strategies they allow on one mesh axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from spmdir.call import DTYPE_BYTES, Call, Literal, Local, TensorMeta
from spmdir.errors import ParseError, SpmdirError
from spmdir.placement import REDUCTIONS, Partial, Placement, R, Shard
from spmdir.rules.binding import Binding, bind
from spmdir.rules.dtypes import refused_dtype, result_dtype, sums_exactly
from spmdir.rules.expressions import evaluate, holds
from spmdir.rules.functions import SINGLE
from spmdir.rules.layout import Dims, Layout
from spmdir.rules.scope import Scope
from spmdir.rules.syntax import Clause, Function, Rule, Statement, walk
from spmdir.rules.windows import slide

if TYPE_CHECKING:
    from spmdir.rules.rewrite import Expansion, Placed, Reduced
    from spmdir.rules.rule_set import RuleSet

LINEAR = ("sum", "avg")
"""The pending reductions that a linear op passes on."""

PENDING = ("linear", "multilinear", "carries", "moves", "commutes", "swaps", "ignores")
"""The clauses that let a pending reduction pass."""

OPPOSITE = {"max": "min", "min": "max", "any": "all", "all": "any"}
"""What a pending reduction becomes behind an antitone op."""


@attrs.frozen
class Strategy:
    """One way to run an op on the ranks of one mesh axis.

    Attributes:
        operands: the placement of each tensor operand, flat.
        results: the placement of each result that this gives; R for an absent one.
        factor: the factor that is divided, if one is.
        rewrite: "expand" or "local" when the op must be replaced as its rule says, see OpRule.
    """

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int | None = None
    rewrite: str | None = None

    def __str__(self) -> str:
        text = f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"
        return f"{text} {self.rewrite}" if self.rewrite else text


@attrs.frozen
class Factor:
    """A dimension that operands and results share.

    Attributes:
        name, size: the size is global.
        kind: "plain", "whole" (never divided), "same" (results without it do not depend on it), or the reduction that
            is pending in the results without it.
        rewrite: "expand" or "local" when dividing it replaces the op.
        least: how much of it every rank must hold.
        aligned: every rank must hold whole rows of 16 bytes of it.
        clause: which of the rule's clauses gives the rewrite.
        alone: the rewrite deals with one of the clause's factors at a time.
    """

    name: str
    size: int
    kind: str = "plain"
    rewrite: str | None = None
    least: int = 0
    aligned: bool = False
    clause: int | None = None
    alone: bool = False


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

    def strategies(self, count: int, divided: Mapping[int, int] | None = None) -> tuple[Strategy, ...]:
        """The rows for an axis of `count` ranks: replicated, then one a factor, then the pending reductions.

        `divided` tells by how many ranks other mesh axes divide a factor already. Rows that do not go with that are
        left out: where a factor is divided that has major ones beside it, these are divided to single elements.
        """
        divided = {f: n for f, n in (divided or {}).items() if n > 1}
        key = (count, tuple(sorted(divided.items())))
        if key not in self._rows:
            self._rows[key] = None  # so that an expansion that leads back here is found out
            try:
                with self.rules.clock:
                    rows = [self._row({}, R), *self._factor_rows(count, divided), *self._pending_rows()]
            except SpmdirError:
                del self._rows[key]
                raise
            unfinished = self._unfinished(divided)
            if unfinished:
                rows = [r for r in rows if unfinished == {r.factor: self.factors[r.factor or 0].size // count}]
            self._rows[key] = tuple(dict.fromkeys(rows))
        found = self._rows[key]
        if found is None:
            raise ParseError(f"{self.rule.op} expands into itself; expand it into other ops", self.rule.location)
        return found

    def _unfinished(self, divided: Mapping[int, int]) -> dict[int | None, int]:
        """The factors that still hold several elements but are major to a divided one, and what divides them."""
        return {
            major: divided.get(major, 1)
            for factor in divided
            for major in self._majors.get(factor, ())
            if divided.get(major, 1) != self.factors[major].size
        }

    @cached_property
    def _majors(self) -> dict[int, set[int]]:
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
        return any(self._active("moves")) and len(self.call.operands) == 1 == len(self.call.results)

    @cached_property
    def is_product(self) -> bool:
        """Whether the op is the product of its operands summed over the factors that the result lacks: an einsum."""
        return any(self._active("multilinear")) and len(self.call.results) == 1

    def expansion(self, factor: int) -> Expansion:
        """The ops, on global tensors, that replace this one when `factor` is divided and its rewrite is "expand"."""
        from spmdir.rules.rewrite import expand

        return expand(self, factor)

    def internal_reductions(self, factor: int, count: int = 2) -> tuple[Reduced, ...]:
        """The values inside the expansion over `factor` that are reduced over the axis before they are used."""
        placed = self.placed(factor, count)
        return placed.reductions if placed else ()

    def placed(self, factor: int, count: int, divided: Mapping[int, int] | None = None) -> Placed | None:
        """How the expansion over `factor` lies on an axis of `count` ranks that divides it."""
        from spmdir.rules.rewrite import place

        return place(self, self.expansion(factor), self._divide(factor), count, divided or {})

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
        from spmdir.rules.rewrite import localize

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
        for clause in self._active(*PENDING, "adds"):
            listed = " ".join([clause.kind, *clause.reductions])
            text += f" {listed} {{{', '.join(clause.names or (self.rule.tensors[0].name,))}}}"
        return text

    def _dims_text(self, dims: Dims | None) -> str:
        if dims is None:
            return "none"
        names = [" ".join(self.factors[f].name for f in d) or "1" for d in dims]
        return "[" + ", ".join(f"({n})" if " " in n else n for n in names) + "]"

    def _active(self, *kinds: str) -> Iterator[Clause]:
        return (c for c in self.rule.of_kind(*kinds) if holds(c.condition, self.scope))

    def _row(
        self, operands: Mapping[int, Placement], result: Placement, answering: tuple[TensorMeta, ...] | None = None
    ) -> Strategy:
        placed = tuple(operands.get(i, R) for i in range(len(self.call.operands)))
        results = self.call.results
        has = [meta is not None and (answering is None or meta in answering) for meta in results]
        return Strategy(placed, tuple(result if one else R for one in has))

    def _answering(self, clause: Clause, members: tuple[int, ...]) -> tuple[TensorMeta, ...]:
        """The results that take values of `members`: what is linear in floating numbers is no integer, or constant."""
        results = tuple(meta for meta in self.call.results if meta is not None)
        if clause.kind in ("linear", "multilinear") and all(self.call.operands[i].floating for i in members):
            return tuple(meta for meta in results if meta.floating) or results
        return results

    @cached_property
    def _additive(self) -> tuple[tuple[int, ...], bool]:
        """The operands that the op adds to the rest, and whether one of them is a Python number other than 0."""
        names = [name for clause in self._active("adds") for name in clause.names]
        operands = tuple(i for name in names for i in self.binding.operands(name))
        return operands, any(self.binding.arguments.get(name, 0) not in (0, None) for name in names)

    @cached_property
    def _ignored(self) -> frozenset[int]:
        """The factors that only operands have of which the op reads no element: results are whole, whoever divides."""
        operands = {i for c in self._active("ignores") for name in c.names for i in self.binding.operands(name)}
        read = {f for i, dims in enumerate(self.operand_dims) if i not in operands for d in dims for f in d}
        return frozenset(f for i in operands for d in self.operand_dims[i] for f in d) - read

    def _factor_rows(self, count: int, divided: Mapping[int, int]) -> Iterator[Strategy]:
        for index, factor in enumerate(self.factors):
            total = count * divided.get(index, 1)
            if not self._dividable(index, total, divided):
                continue
            operands = self._divide(index)
            if factor.rewrite == "expand":
                placed = self.placed(index, count, divided)
                if placed:
                    yield Strategy(operands, placed.results, index, "expand")
                continue
            results = tuple(self._result_placement(index, dims) for dims in self.result_dims)
            additive, number = self._additive
            pending = next((p for p in results if isinstance(p, Partial)), None)
            if None in results or (pending and (number or (additive and pending.op != "sum"))):
                continue
            metas = zip(results, self.call.results, strict=True)
            if any(meta is not None and meta.dtype == "i1" and p == Partial("sum") for p, meta in metas):
                continue
            if pending:
                operands = tuple(pending if i in additive else p for i, p in enumerate(operands))
            yield Strategy(operands, tuple(p for p in results if p), index, factor.rewrite)

    def _divide(self, index: int) -> tuple[Placement, ...]:
        return tuple(self._shard(index, dims) or R for dims in self.operand_dims)

    @staticmethod
    def _shard(index: int, dims: Dims) -> Placement | None:
        return next((Shard(d) for d, factors in enumerate(dims) if index in factors), None)

    def _result_placement(self, index: int, dims: Dims | None) -> Placement | None:
        if dims is None:
            return R
        kind = self.factors[index].kind
        if kind == "same" or any(self.factors[f].size == 0 for d in dims for f in d):
            return self._shard(index, dims) or R
        alone = R if index in self._ignored else None
        return self._shard(index, dims) or (alone if kind == "plain" else Partial(kind))

    def _dividable(self, index: int, total: int, divided: Mapping[int, int]) -> bool:
        factor = self.factors[index]
        if factor.size <= 1 or factor.kind == "whole":
            return False
        if factor.rewrite and any(self.factors[f].clause not in (None, factor.clause) for f in divided):
            return False
        if factor.alone and any(f != index and self.factors[f].clause == factor.clause for f in divided):
            return False
        if any(divided.get(f) != self.factors[f].size for f in self._majors.get(index, ())):
            return False
        for dims in (*self.operand_dims, *self.result_dims):
            holders = [d for d in dims or () if index in d]
            if len(holders) > 1:
                return False
            beside = [f for held in holders for f in held if f != index]
            if factor.size % total and any(self.factors[f].size != 1 for f in beside):
                return False
        if factor.aligned and factor.size * DTYPE_BYTES[self.call.operands[0].dtype] % (16 * total):
            return False
        least = max(factor.least, factor.kind in ("max", "min") or factor.rewrite == "local")
        if not least:
            return True
        piece = -(-factor.size // total)
        if index in divided:
            return factor.size % total == 0 and piece >= least
        return factor.size - (total - 1) * piece >= least

    def _pending_rows(self) -> Iterator[Strategy]:
        operands = self.call.operands
        for clause in self._active(*PENDING):
            names = clause.names or (self.rule.tensors[0].name,)
            members = tuple(i for name in names for i in self.binding.operands(name))
            if clause.kind == "multilinear":
                yield from (
                    self._row({i: Partial(op)}, Partial(op), self._answering(clause, (i,)))
                    for i in members
                    for op, _ in self._reductions(clause, (i,))
                )
                continue
            if clause.kind == "ignores":
                yield from (self._row({i: Partial(op)}, R) for i in members for op in _reductions_of(operands[i]))
                continue
            numbers = [v for name in names if (v := self.binding.arguments.get(name)) is not None]
            if not members or any(number != 0 for number in numbers):
                continue
            for given, gives in self._reductions(clause, members):
                additive = self._additive[0] if clause.kind == "linear" else ()
                if clause.kind == "linear" and self._additive[1]:
                    continue
                answering = self._answering(clause, members)
                yield self._row(dict.fromkeys((*members, *additive), Partial(given)), Partial(gives), answering)

    def _reductions(self, clause: Clause, members: tuple[int, ...]) -> Iterator[tuple[str, str]]:
        """(pending reduction of the members, that of the results) which `clause` allows for their element types."""
        metas = [*(self.call.operands[i] for i in members), *self._answering(clause, members)]
        kinds = tuple(k for k in REDUCTIONS if all(k in _reductions_of(meta) for meta in metas))
        if "sum" in kinds:
            exact = all(sums_exactly(a.dtype, b.dtype) for a in metas[: len(members)] for b in metas[len(members) :])
            kinds = kinds if exact else tuple(k for k in kinds if k in ("max", "min"))
        if clause.kind == "swaps":
            yield from ((k, OPPOSITE[k]) for k in kinds if k in OPPOSITE)
            return
        allowed = {"linear": LINEAR, "multilinear": LINEAR, "carries": kinds, "moves": kinds}.get(
            clause.kind, clause.reductions
        )
        yield from ((k, k) for k in kinds if k in allowed)


def _reductions_of(meta: TensorMeta) -> tuple[str, ...]:
    """The reductions that can be pending in a tensor of this element type."""
    if meta.dtype == "i1":
        return ("any", "all")
    if meta.dtype.startswith("complex"):
        return ("sum", "avg", "product")
    return ("sum", "avg", "max", "min", "product") if meta.floating else ("sum", "max", "min", "product")


FACTOR_CLAUSES = ("reduce", "same", "whole", "nonempty", "aligned", "expand", "local")


def _kinds(layout: Layout, rule: Rule, scope: Scope) -> tuple[Factor, ...]:
    """The factors of `layout` with what the clauses that hold say of them."""
    said: list[dict[str, object]] = [{} for _ in layout.sizes]
    for number, clause in enumerate(rule.clauses):
        if clause.kind not in FACTOR_CLAUSES or not holds(clause.condition, scope):
            continue
        for factor in (f for name in clause.names for f in layout.refer(name)):
            if clause.kind == "nonempty":
                said[factor]["least"] = 1
            elif clause.kind == "aligned":
                said[factor]["aligned"] = True
            elif clause.kind in ("expand", "local"):
                alone = clause.kind == "local" and any(_speaks_of_one(s, layout) for s in clause.body)
                said[factor].update(rewrite=clause.kind, clause=number, alone=alone)
            else:
                said[factor]["kind"] = clause.reductions[0] if clause.reductions else clause.kind
    for factor in layout.whole:
        said[factor] = {"kind": "whole"} if said[factor].get("rewrite") != "local" else said[factor]
    for factor, window in layout.windows.items():
        said[factor].update({"least": window.least} if window else {"kind": "whole", "rewrite": None})
    for factor in layout.apart:
        if "rewrite" not in said[factor]:
            said[factor].setdefault("kind", "whole")
    if any(size is None for size in layout.sizes):
        layout.fail(f"the size of {layout.names[layout.sizes.index(None)]} is not determined by the operands")
    return tuple(
        Factor(name, size or 0, **entry)  # type: ignore[arg-type]
        for name, size, entry in zip(layout.names, layout.sizes, said, strict=True)
    )


def _speaks_of_one(statement: Statement, layout: Layout) -> bool:
    """Whether a name of several dimensions stands where only one of them can be meant."""
    functions = (e for value in statement.values for e in walk(value) if isinstance(e, Function) and e.name in SINGLE)
    return any(len(layout.refer(name)) > 1 for function in functions for name in function.arguments)


def _scope(layout_of: list[Layout], call: Call, binding: Binding) -> Scope:
    def factors(reference: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
        layout = layout_of[0]
        return tuple((layout.sizes[f] or 0, ()) for f in layout.refer(reference))

    def dims(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        layout = layout_of[0]
        chosen = {f for reference in references for f in layout.refer(reference)}
        return tuple(d for d, made_of in enumerate(layout.dims(tensor)) if chosen & set(made_of))

    return Scope(binding, call.operands, call.results, factors, dims)


def fits(rule: Rule, call: Call) -> bool:
    """Whether the `when` clauses of `rule` hold for `call`."""
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    scope = _scope([], call, binding)
    return all(clause.value is None or evaluate(clause.value, scope) for clause in rule.of_kind("when"))


def _lay_out(rule: Rule, call: Call, results: tuple[TensorMeta | None, ...] | None) -> tuple[Binding, Layout, Scope]:
    binding = bind(rule, call.slots, call.structure is None, call.argument)
    cell: list[Layout] = []
    scope = _scope(cell, call, binding)
    extents = {}
    for clause in rule.of_kind("extent"):
        value = evaluate(clause.value, scope) if clause.value else None
        if isinstance(value, int):
            extents[clause.names[0]] = max(value, 0)
    layout = Layout(rule, binding, call.operands, results, extents)
    cell.append(layout)
    for clause in rule.of_kind("slides"):
        kernel, over, to = clause.groups
        slide(layout, kernel, over, to, holds(clause.condition, scope))
    return binding, layout, scope


def instantiate(rule: Rule, call: Call, rules: RuleSet) -> OpRule:
    """`rule` on `call`.

    Raises:
        RuleError: the operands, arguments or results of the call do not fit the rule.
    """
    binding, layout, scope = _lay_out(rule, call, call.results)
    for index, meta in enumerate(call.results):
        declared = rule.results[0 if rule.result_list else index].dtype
        if meta is not None and (expected := refused_dtype(meta.dtype, declared, index, binding, call.operands)):
            layout.fail(f"result {index} has the element type {meta.dtype}; expected {expected}")
    factors = _kinds(layout, rule, scope)
    sized = [name for clause in rule.of_kind("sizes") for name in clause.names]
    return OpRule(
        rule, call, binding, factors, tuple(layout.operand_dims), tuple(layout.result_dims),
        tuple(dict.fromkeys([*layout.sized, *sized])), scope, rules, layout,
    )  # fmt: skip


def infer(
    rule: Rule,
    operands: tuple[TensorMeta, ...],
    arguments: Mapping[str, Literal],
    structure: tuple[int | tuple[int, ...], ...] | None = None,
) -> tuple[TensorMeta, ...]:
    """The results of a call: shapes from the rule's patterns, element types by its `as`, else by promotion.

    Raises:
        RuleError: the call does not fit the rule, or a size in a result is in no operand and no argument.
    """
    call = Call(rule.op, operands, tuple(sorted(arguments.items())), (), structure)
    binding, layout, _ = _lay_out(rule, call, None)
    metas = []
    for index, dims in enumerate(layout.result_dims):
        shape = tuple(math.prod(layout.sizes[f] or 0 for f in d) for d in dims or ())
        metas.append(TensorMeta(shape, result_dtype(rule.results[index].dtype, binding, operands)))
    return tuple(metas)
