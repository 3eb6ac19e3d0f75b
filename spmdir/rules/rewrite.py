"""The two rewrites of a rule: `expand` into ordinary ops on global tensors, `local` into ops on one rank's tensors."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from spmdir.call import Call, DType, Local, TensorMeta
from spmdir.errors import RuleError
from spmdir.placement import Partial, Placement, R, Shard
from spmdir.rules.expressions import evaluate, holds
from spmdir.rules.layout import Dims
from spmdir.rules.scope import Scope
from spmdir.rules.syntax import Clause, Name, OpCall, Sequence, Statement
from spmdir.rules.windows import BORDERS

if TYPE_CHECKING:
    from spmdir.rules.op_rule import OpRule
    from spmdir.rules.strategy import Strategy


@attrs.frozen
class Value:
    """A value inside a rewrite: operand `index` of the op that is replaced, or result `result` of piece `index`."""

    source: str
    index: int
    result: int = 0


@attrs.frozen
class Piece:
    """One op of a rewrite.

    Attributes:
        call: the op; in a local form its shapes are those of the given local operands.
        operands: what fills call.operands.
    """

    call: Call
    operands: tuple[Value, ...]


@attrs.frozen
class Expansion:
    """The ops that replace one op.

    Attributes:
        pieces: in order.
        results: the value of each result of the op; None for an absent one.
    """

    pieces: tuple[Piece, ...]
    results: tuple[Value | None, ...]


@attrs.frozen
class Reduced:
    """A value inside an expansion that is reduced before use.

    Attributes:
        value, meta, op: which one, its type, and the pending reduction.
        dims: per dimension, the factors of the expanded op that make it up.
    """

    value: Value
    meta: TensorMeta
    op: str
    dims: Dims


@attrs.frozen
class Placed:
    """How an expansion lies on one mesh axis.

    Attributes:
        rows: per piece, the strategy it uses; its operands are as used, its results as made.
        results: of the expanded op.
        reductions: what is reduced between being made and being used.
    """

    rows: tuple[Strategy, ...]
    results: tuple[Placement, ...]
    reductions: tuple[Reduced, ...]


class _Emitter:
    """Runs the statements of a clause and gathers the ops they call."""

    def __init__(
        self,
        owner: OpRule,
        scope: Scope,
        value: Callable[[Local], int] | None = None,
        operands: tuple[TensorMeta, ...] | None = None,
        axes: Mapping[int, tuple[str, ...]] | None = None,
    ):
        self.axes = axes or {}
        self.owner, self.scope, self.value_of = owner, scope, value
        self.operands = operands or scope.operands
        self.names: dict[str, Any] = {}
        for parameter in owner.rule.tensors:
            slot = owner.binding.tensors[parameter.name]
            if slot is not None:
                self.names[parameter.name] = self._operand(slot)
        self.pieces: list[Piece] = []

    def _operand(self, slot: Any) -> Any:
        if isinstance(slot, tuple):
            return tuple(None if s is None else Value("operand", s) for s in slot)
        return Value("operand", slot)

    def run(self, body: tuple[Statement, ...]) -> tuple[Any, ...]:
        for statement in body:
            if not holds(statement.condition, self._scope()):
                continue
            if not statement.targets:
                return tuple(self.value(v) for v in statement.values)
            (made,) = statement.values
            values = self.call(made) if isinstance(made, OpCall) else (self.value(made),)
            self.names.update(zip(statement.targets, values, strict=False))
        raise RuleError(f"the rewrite of {self.owner.rule.op} returns nothing")

    def _scope(self) -> Scope:
        return attrs.evolve(self.scope, names=self.names, meta_of=self.meta)

    def value(self, expression: Any) -> Any:
        if isinstance(expression, OpCall):
            return self.call(expression)[0]
        if isinstance(expression, Sequence):
            return tuple(self.value(item) for item in expression.items)
        if isinstance(expression, Name) and expression.name in self.names:
            return self.names[expression.name]
        return evaluate(expression, self._scope())

    def call(self, expression: OpCall) -> tuple[Value, ...]:
        names = self.owner.rules.parameters(expression.op)
        tensors: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for position, (name, inner) in enumerate(expression.arguments):
            name, value = name or names[position][0], self.value(inner)
            if value is None and not (isinstance(inner, Name) and inner.name in self.owner.binding.arguments):
                continue
            entries = value if isinstance(value, tuple) else (value,)
            (tensors if any(isinstance(v, Value) for v in entries) else arguments)[name] = value
        if expression.op in BORDERS:
            return (self._with_borders(expression.op, tensors["input"], arguments),)
        return self.emit(expression.op, tensors, arguments)

    def _with_borders(self, op: str, value: Value, given: Mapping[str, Any]) -> Value:
        """`value` after an exchange of borders along each divided window; what is absent stays so."""
        divided = [(w, self.axes[f]) for f, w in self.owner.layout.windows.items() if w and self.axes.get(f)]
        for window, axes in divided if op == "spmd.halo" else reversed(divided):
            if not (window.before or window.after) or not self._present(value):
                continue
            meta, grows = self.meta(value), 1 if op == "spmd.halo" else -1
            dim = meta.rank - window.from_end
            size = meta.shape[dim] + grows * (window.before + window.after)
            made = attrs.evolve(meta, shape=(*meta.shape[:dim], size, *meta.shape[dim + 1 :]))
            arguments = {"axes": axes, "dim": dim, "before": window.before, "after": window.after, **given}
            call = Call(op, (meta,), tuple(sorted(arguments.items())), (made,))
            self.pieces.append(Piece(call, (value,)))
            value = Value("piece", len(self.pieces) - 1)
        return value

    def _present(self, value: Value) -> bool:
        return value.source == "operand" or self.pieces[value.index].call.results[value.result] is not None

    def emit(self, op: str, tensors: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Value, ...]:
        """A piece that calls `op`; its results."""
        structure, operands = [], []
        for name, is_tensor in self.owner.rules.parameters(op):
            if is_tensor:
                value = tensors.get(name)
                entries = value if isinstance(value, tuple) else (value,)
                flags = tuple(int(v is not None) for v in entries)
                structure.append(flags if isinstance(value, tuple) else flags[0])
                operands += [v for v in entries if v is not None]
        shape = None if all(entry == 1 for entry in structure) else tuple(structure)
        metas = tuple(map(self.meta, operands))
        try:
            static = {name: self._static(value) for name, value in arguments.items()}
            call = self.owner.rules.infer_call(op, metas, static, shape)
        except RuleError:
            if op != self.owner.rule.op or not self.axes:
                raise
            call = Call(op, metas, (), self._local_results(), shape)
        if op == self.owner.rule.op:
            results = (
                made if wanted else None for made, wanted in zip(call.results, self.owner.call.results, strict=True)
            )
            call = attrs.evolve(call, results=tuple(results))
        call = attrs.evolve(call, arguments=tuple(sorted(arguments.items())))
        self.pieces.append(Piece(call, tuple(operands)))
        return tuple(Value("piece", len(self.pieces) - 1, r) for r in range(len(call.results)))

    def _local_results(self) -> tuple[TensorMeta | None, ...]:
        """What a rank has of the results of the op that is replaced."""
        factors = self.owner.factors
        sizes = [self._static(Local("size", f.size, self.axes.get(i, ()))) for i, f in enumerate(factors)]
        return tuple(
            meta and attrs.evolve(meta, shape=tuple(math.prod(sizes[f] for f in d) for d in dims or ()))
            for meta, dims in zip(self.owner.call.results, self.owner.result_dims, strict=True)
        )

    def _static(self, value: Any) -> Any:
        """`value` with the integers of a rank worked out."""
        if isinstance(value, tuple):
            return tuple(map(self._static, value))
        return self.value_of(value) if isinstance(value, Local) and self.value_of else value

    def returned(self, value: Value, wanted: TensorMeta | None) -> Value | None:
        """`value` in the element type of the result that it is; None for a result that is absent."""
        if wanted is None or self.meta(value).dtype == wanted.dtype:
            return None if wanted is None else value
        return self.emit("aten._to_copy", {"self": value}, {"dtype": DType(wanted.dtype)})[0]

    def meta(self, value: Value) -> TensorMeta:
        if value.source == "operand":
            return self.operands[value.index]
        meta = self.pieces[value.index].call.results[value.result]
        assert meta is not None
        return meta


def _clause(owner: OpRule, kind: str, factor: int) -> Clause:
    clauses = [c for c in owner.rule.of_kind(kind) if any(factor in owner.layout.refer(n) for n in c.names)]
    return next(c for c in clauses if holds(c.condition, owner.scope))


def expand(owner: OpRule, factor: int) -> Expansion:
    """The expansion of `owner` over `factor`."""
    emitter = _Emitter(owner, owner.scope)
    made = emitter.run(_clause(owner, "expand", factor).body)
    results = tuple(map(emitter.returned, made, owner.call.results))
    return Expansion(tuple(emitter.pieces), results)


def localize(
    owner: OpRule,
    axes: Mapping[int, tuple[str, ...]],
    operands: tuple[TensorMeta, ...],
    value: Callable[[Local], int],
) -> Expansion | None:
    """The local form of `owner` when `axes` divide its factors; None if none of these factors needs one."""
    needing = [f for f in axes if axes[f] and owner.factors[f].rewrite == "local"]
    if not needing:
        return None

    def meant(reference: str) -> tuple[int, ...]:
        found = owner.layout.refer(reference)
        return tuple(f for f in found if axes.get(f)) or found

    def factors(reference: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
        return tuple((owner.factors[f].size, tuple(axes.get(f, ()))) for f in meant(reference))

    def dims(tensor: str, references: tuple[str, ...]) -> tuple[int, ...]:
        chosen = {f for reference in references for f in meant(reference)}
        return tuple(d for d, made_of in enumerate(owner.layout.dims(tensor)) if chosen & set(made_of))

    def inner() -> tuple[int, ...] | None:
        divided = {window.from_end for f, window in owner.layout.windows.items() if window and axes.get(f)}
        pads = owner.layout.paddings
        return tuple(0 if len(pads) - d in divided else p for d, p in enumerate(pads)) if divided else None

    scope = attrs.evolve(owner.scope, factors=factors, dims=dims, inner=inner)
    emitter = _Emitter(owner, scope, value, operands, axes)
    results = emitter.run(_clause(owner, "local", needing[0]).body)
    return Expansion(tuple(emitter.pieces), results)


def place(
    owner: OpRule, expansion: Expansion, operands: tuple[Placement, ...], count: int, divided: Mapping[int, int]
) -> Placed | None:
    """Lay the pieces out on an axis of `count` ranks for operands placed like `operands`.

    A pending value is reduced at the first piece that has no strategy for it, and a replicated one is cut into the
    pieces that its user takes, which costs nothing; what is returned stays as made. None if a piece has no strategy
    even so.
    """
    labels: dict[Value, Dims] = {Value("operand", i): dims for i, dims in enumerate(owner.operand_dims)}
    where: dict[Value, Placement] = {Value("operand", i): p for i, p in enumerate(operands)}
    made: dict[Value, Placement] = dict(where)
    rows: list[Strategy] = []
    reductions: list[Reduced] = []
    for number, piece in enumerate(expansion.pieces):
        inner = owner.rules.instantiate(piece.call)
        if inner is None:
            return None
        outer: dict[int, int] = {}
        for value, dims in zip(piece.operands, inner.operand_dims, strict=True):
            for mine, theirs in zip(dims, labels[value], strict=True):
                outer.update(zip(mine, theirs, strict=False))
        within = {f: divided[t] for f, t in outer.items() if t in divided}
        row, reduced = _row(inner.strategies(count, within), piece.operands, where)
        if row is None:
            return None
        for value in reduced:
            meta = expansion.pieces[value.index].call.results[value.result]
            if meta is None or value.source != "piece":
                return None
            reductions.append(Reduced(value, meta, where[value].op or "", labels[value]))
            where[value] = R
        if row.rewrite == "expand" and row.factor is not None:
            nested = inner.placed(row.factor, count, within)
            reductions += [attrs.evolve(r, dims=_named(r.dims, outer)) for r in nested.reductions] if nested else []
        rows.append(row)
        for result, placement in enumerate(row.results):
            value = Value("piece", number, result)
            labels[value] = _named(inner.result_dims[result] or (), outer)
            where[value] = made[value] = placement
    results = tuple(R if v is None else made[v] for v in expansion.results)
    return Placed(tuple(rows), results, tuple(reductions))


def _named(dims: Dims, outer: Mapping[int, int]) -> Dims:
    """`dims` of a piece in the factors of the expanded op, as far as it has them."""
    return tuple(tuple(outer[f] for f in d if f in outer) for d in dims)


def _row(
    rows: tuple[Strategy, ...], operands: tuple[Value, ...], where: Mapping[Value, Placement]
) -> tuple[Strategy | None, tuple[Value, ...]]:
    """The strategy for operands placed as `where` says, and the fewest pending ones to reduce first, later rather.

    One that takes the operands as they lie comes before one that cuts replicated operands.
    """
    pending = [v for v in dict.fromkeys(reversed(operands)) if isinstance(where[v], Partial)]
    for size in range(len(pending) + 1):
        for reduced in itertools.combinations(pending, size):
            held = tuple(R if v in reduced else where[v] for v in operands)
            for takes in (operator.eq, _cuts):
                row = next((row for row in rows if all(map(takes, held, row.operands))), None)
                if row is not None:
                    return row, reduced
    return None, ()


def _cuts(held: Placement, wanted: Placement) -> bool:
    return held == wanted or (held == R and isinstance(wanted, Shard))
