"""Runs the statements of a rewrite and gathers the ops they call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from spmdir.core.call import Call, Local
from spmdir.core.dtype import I64
from spmdir.core.errors import RuleError
from spmdir.core.tensor import TensorMeta
from spmdir.rules.instance import Ops, RuleInstance
from spmdir.rules.language.expressions import evaluate, holds
from spmdir.rules.language.local_functions import ShardIndices
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Name, OpCall, Sequence, Statement
from spmdir.rules.local.expansion import ExpandedOp, Value
from spmdir.rules.shapes.window_geometry import HALO_OPS


class Emitter:
    """Runs the statements of a clause and gathers the ops they call."""

    def __init__(
        self,
        owner: RuleInstance,
        ops: Ops,
        scope: Scope,
        value: Callable[[Local], int] | None = None,
        operands: tuple[TensorMeta, ...] | None = None,
        shards: Mapping[int, Local] | None = None,
    ):
        self.shards = shards or {}
        self.owner, self.ops, self.scope, self.value_of = owner, ops, scope, value
        self.operands = operands or scope.operands
        self.names: dict[str, Any] = {}
        for parameter in owner.rule.tensors:
            slot = owner.binding.tensors[parameter.name]
            if slot is not None:
                self.names[parameter.name] = self._operand(slot)
        self.made: list[ExpandedOp] = []

    def _operand(self, slot: Any) -> Any:
        if isinstance(slot, tuple):
            return tuple(None if s is None else Value("operand", s) for s in slot)
        return Value("operand", slot)

    def run(self, body: tuple[Statement, ...]) -> tuple[Any, ...]:
        for statement in body:
            if not holds(statement.condition, self._scope()):
                continue
            if not statement.targets:
                return self._returned_values(statement.values)
            (made,) = statement.values
            values = self.call(made) if isinstance(made, OpCall) else (self.value(made),)
            self.names.update(zip(statement.targets, values, strict=False))
        raise RuleError(f"the rewrite of {self.owner.rule.op} returns nothing")

    def _returned_values(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the values of a `return`; for an op that gives a list, the list or all results of the call."""
        if not self.owner.rule.result_list or len(values) != 1:
            return tuple(self.value(v) for v in values)
        return self.call(values[0]) if isinstance(values[0], OpCall) else self.value(values[0])

    def _scope(self) -> Scope:
        return attrs.evolve(self.scope, names=self.names, meta_of=self.meta)

    def value(self, expression: Any) -> Any:
        if isinstance(expression, OpCall):
            return self.call(expression)[0]
        if isinstance(expression, Sequence):
            return tuple(self.value(item) for item in expression.items)
        if isinstance(expression, Name) and expression.name in self.names:
            return self.names[expression.name]
        value = evaluate(expression, self._scope())
        return self._shard_indices(value) if isinstance(value, ShardIndices) else value

    def _shard_indices(self, wanted: ShardIndices) -> Value:
        """Return the op that gives these indices; for what no axis shards, an arange or the indices themselves."""
        if not wanted.shard.axes:
            return wanted.index or self.emit("aten.arange", {}, {"end": wanted.shard.extent})[0]
        operands = () if wanted.index is None else (wanted.index,)
        metas = tuple(map(self.meta, operands))
        shape = metas[0].shape if metas else (self._static(attrs.evolve(wanted.shard, kind="size")),)
        call = Call(wanted.op, metas, (("of", wanted.shard),), (TensorMeta(shape, I64),))
        self.made.append(ExpandedOp(call, operands))
        return Value("op", len(self.made) - 1)

    def call(self, expression: OpCall) -> tuple[Value, ...]:
        names = self.ops.parameters(expression.op)
        tensors: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for position, (name, inner) in enumerate(expression.arguments):
            name, value = name or names[position][0], self.value(inner)
            if value is None and not (isinstance(inner, Name) and inner.name in self.owner.binding.arguments):
                continue
            entries = value if isinstance(value, tuple) else (value,)
            (tensors if any(isinstance(v, Value) for v in entries) else arguments)[name] = value
        if expression.op in HALO_OPS:
            return (self._with_halos(expression.op, tensors["input"], arguments),)
        return self.emit(expression.op, tensors, arguments)

    def _with_halos(self, op: str, value: Value, given: Mapping[str, Any]) -> Value:
        """Return `value` after an exchange of halos along each sharded window; what is absent stays so."""
        sharded = [(w, self.shards[f].axes) for f, w in self.owner.layout.windows.items() if w and f in self.shards]
        for window, axes in sharded if op == "spmd.halo" else reversed(sharded):
            if not (window.before or window.after) or not self._present(value):
                continue
            meta, grows = self.meta(value), 1 if op == "spmd.halo" else -1
            dim = meta.rank - window.from_end
            size = meta.shape[dim] + grows * (window.before + window.after)
            made = attrs.evolve(meta, shape=(*meta.shape[:dim], size, *meta.shape[dim + 1 :]))
            arguments = {"axes": axes, "dim": dim, "before": window.before, "after": window.after, **given}
            call = Call(op, (meta,), tuple(sorted(arguments.items())), (made,))
            self.made.append(ExpandedOp(call, (value,)))
            value = Value("op", len(self.made) - 1)
        return value

    def _present(self, value: Value) -> bool:
        return value.source == "operand" or self.made[value.index].call.results[value.result] is not None

    def emit(self, op: str, tensors: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Value, ...]:
        """Add a call of `op` and return its results."""
        structure, operands = [], []
        for name, is_tensor in self.ops.parameters(op):
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
            call = self.ops.infer_call(op, metas, static, shape)
        except RuleError:
            if op != self.owner.rule.op or not self.shards:
                raise
            call = Call(op, metas, (), self._local_results(), shape)
        if op == self.owner.rule.op:
            results = (
                made if wanted else None for made, wanted in zip(call.results, self.owner.call.results, strict=True)
            )
            call = attrs.evolve(call, results=tuple(results))
        call = attrs.evolve(call, arguments=tuple(sorted(arguments.items())))
        self.made.append(ExpandedOp(call, tuple(operands)))
        return tuple(Value("op", len(self.made) - 1, r) for r in range(len(call.results)))

    def _local_results(self) -> tuple[TensorMeta | None, ...]:
        """Return the types of what a rank has of the results of the op that is replaced."""
        sizes = [
            self._static(attrs.evolve(self.shards[i], kind="size")) if i in self.shards else factor.size
            for i, factor in enumerate(self.owner.factors)
        ]
        return tuple(
            meta and attrs.evolve(meta, shape=tuple(math.prod(sizes[f] for f in d) for d in dims or ()))
            for meta, dims in zip(self.owner.call.results, self.owner.result_dims, strict=True)
        )

    def _static(self, value: Any) -> Any:
        """Return `value` with the integers of a rank worked out."""
        if isinstance(value, tuple):
            return tuple(map(self._static, value))
        return self.value_of(value) if isinstance(value, Local) and self.value_of else value

    def returned(self, value: Value, wanted: TensorMeta | None) -> Value | None:
        """Return `value` in the element type of the result that it is; None for a result that is absent."""
        if wanted is None or self.meta(value).dtype == wanted.dtype:
            return None if wanted is None else value
        return self.emit("aten._to_copy", {"self": value}, {"dtype": wanted.dtype})[0]

    def meta(self, value: Value) -> TensorMeta:
        if value.source == "operand":
            return self.operands[value.index]
        meta = self.made[value.index].call.results[value.result]
        assert meta is not None
        return meta
