"""Runs the statements of a rewrite and gathers the ops they call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from spmdir.core.admission import draws
from spmdir.core.dtype import I64
from spmdir.core.errors import Location, RuleError
from spmdir.core.placement.call import Call, Local
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.expressions import evaluate
from spmdir.rules.language.local_functions import ShardIndices
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Condition, Name, OpCall, Sequence, StateCall, Statement
from spmdir.rules.local.expansion import ExpandedOp, Value
from spmdir.rules.local.rank import Alone, Rank
from spmdir.rules.local.rings import run_ring
from spmdir.rules.local.states import state_call
from spmdir.rules.shapes.instance import Ops, RuleInstance
from spmdir.rules.shapes.window_geometry import HALO_OPS


class Emitter:
    """Runs the statements of a clause and gathers the ops they call."""

    def __init__(
        self,
        owner: RuleInstance,
        ops: Ops,
        scope: Scope,
        rank: Rank | None = None,
        operands: tuple[TensorMeta, ...] | None = None,
        shards: dict[int, Local] | None = None,
        joint: Mapping[str, PackedPlacement] | None = None,
    ):
        self.joint = joint or {}
        self.shards = {} if shards is None else shards
        self.owner, self.ops, self.scope, self.rank = owner, ops, scope, rank or Alone()
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
        returned = self.run_all(body)
        if returned is None:
            raise RuleError(f"the rewrite of {self.owner.rule.op} returns nothing")
        return returned

    def run_all(self, body: Iterable[Statement]) -> tuple[Any, ...] | None:
        """Run statements up to the first `return`; return what that gives, None if there is none."""
        for statement in body:
            try:
                returned = self._run(statement)
            except RuleError as error:
                raise error.at(statement.location) from None
            if returned is not None:
                return returned
        return None

    def _run(self, statement: Statement) -> tuple[Any, ...] | None:
        """Run one statement; return what it gives if it is a `return` whose condition holds."""
        if statement.ring is not None:
            (factor,) = self.owner.layout.refer(statement.ring)
            run_ring(self, statement, factor, lambda value: self._dim(value, factor))
            return None
        when = self._condition(statement.condition)
        if when is False:
            return None
        start = len(self.made)
        values = self._values(statement)
        if isinstance(when, Local):
            self._require_no_draws(self.made[start:], when, statement)
        if not statement.targets:
            return values
        self._require_names(statement, len(values))
        former = [self.names.get(target) for target in statement.targets]
        if isinstance(when, Local):
            values = tuple(self._chosen(when, *pair) for pair in zip(values, former, strict=False))
        self.names.update(zip(statement.targets, values, strict=False))
        return None

    def _values(self, statement: Statement) -> tuple[Any, ...]:
        """Return what each target of `statement` is to mean, or what it returns; a state alone may be several.

        For an op that gives a list, it returns the list or all results of a call.
        """
        made, *others = statement.values
        if others:
            return tuple(map(self.value, statement.values))
        if isinstance(made, OpCall):
            return self.call(made) if statement.targets or self.owner.rule.result_list else self.call(made)[:1]
        value = self.value(made)
        several = isinstance(value, tuple) and len(statement.targets) != 1
        return value if several else (value,)

    def _require_names(self, statement: Statement, count: int) -> None:
        """Raise RuleError unless there is a target for each of `count` values; of an op, the last need none."""
        names = len(statement.targets)
        if names > count or (names < count and not isinstance(statement.values[0], OpCall)):
            targets = ", ".join(statement.targets)
            raise RuleError(
                f"the number of names in '{targets}' is {names}, and that of values {count}; expected the same",
                statement.location,
            )

    def _require_no_draws(self, made: Iterable[ExpandedOp], when: Local, statement: Statement) -> None:
        """Raise RuleError if a rank that does not choose `made` would draw fewer random numbers than others."""
        for call in (op.call for op in made):
            if draws(call.name, call.argument.get("dropout_p", 0)):
                raise RuleError(
                    f"{call.name} draws random numbers `if` {when}, which differs between ranks, whose generators "
                    "would then differ; expected it in a statement without `if`",
                    statement.location,
                )

    def _condition(self, condition: Condition | None) -> bool | Local:
        """Return whether `condition` holds; a rank's own number, not 0 where it does, if ranks differ."""
        if condition is None:
            return True
        value = evaluate(condition.expression, self._scope())
        if not isinstance(value, Local):
            return bool(value) != condition.negated
        values = self.rank.values(value)
        if all(values) or not any(values):
            return any(values) != condition.negated
        if condition.negated:
            raise RuleError(f"`unless` of {value}, by which ranks differ; expected `if`")
        return value

    def _chosen(self, when: Local, new: Any, old: Any) -> Any:
        """Return `new` on the ranks where `when` is not 0, and `old` on the others; `new` if there is no `old`."""
        if isinstance(new, tuple) and isinstance(old, tuple):
            return tuple(self._chosen(when, *pair) for pair in zip(new, old, strict=True))
        if not isinstance(new, Value) or not isinstance(old, Value):
            return new
        metas = (self.meta(new), self.meta(old))
        if metas[0].dtype != metas[1].dtype:
            raise RuleError(f"ranks have {metas[0]} or {metas[1]} where {when} tells; expected one element type")
        return self.add(Call("spmd.choose", metas, (("when", when),), metas[1:]), (new, old))[0]

    def _dim(self, operand: Value, factor: int) -> int | None:
        """Return the dimension of an operand that `factor` makes up alone; None if there is none."""
        dims = self.owner.layout.operand_dims[operand.index]
        return next((d for d, factors in enumerate(dims) if tuple(factors) == (factor,)), None)

    def _scope(self) -> Scope:
        return attrs.evolve(self.scope, names=self.names, meta_of=self.meta)

    def value(self, expression: Any) -> Any:
        if isinstance(expression, OpCall):
            return self.call(expression)[0]
        if isinstance(expression, StateCall):
            wanted = self._local_results() if expression.method == "finish" else ()
            made = state_call(self, expression, [self.value(argument) for argument in expression.arguments], wanted)
            return made[0] if expression.method == "pack" else made
        if isinstance(expression, Sequence):
            return tuple(self.value(item) for item in expression.items)
        if isinstance(expression, Name) and expression.name in self.names:
            return self.names[expression.name]
        value = evaluate(expression, self._scope())
        if isinstance(value, Local) and value.other is not None and len(values := self.rank.values(value)) == 1:
            return next(iter(values))
        return self._shard_indices(value) if isinstance(value, ShardIndices) else value

    def _shard_indices(self, wanted: ShardIndices) -> Value:
        """Return the op that gives these indices; for what no axis shards, an arange or the indices themselves."""
        if not wanted.shard.axes:
            return wanted.index or self.emit("aten.arange", {}, {"end": wanted.shard.extent})[0]
        operands = () if wanted.index is None else (wanted.index,)
        metas = tuple(map(self.meta, operands))
        shape = metas[0].shape if metas else (self._static(attrs.evolve(wanted.shard, kind="size")),)
        return self.add(Call(wanted.op, metas, (("of", wanted.shard),), (TensorMeta(shape, I64),)), operands)[0]

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
            (value,) = self.add(Call(op, (meta,), tuple(sorted(arguments.items())), (made,)), (value,))
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
            blocks = any(shard.back for shard in self.shards.values())  # of another rank, not those of the results
            if op != self.owner.rule.op or not self.shards or blocks:
                raise
            call = Call(op, metas, (), self._local_results(), shape)
        if op == self.owner.rule.op:
            results = (
                made if wanted else None for made, wanted in zip(call.results, self.owner.call.results, strict=True)
            )
            call = attrs.evolve(call, results=tuple(results))
        return self.add(attrs.evolve(call, arguments=tuple(sorted(arguments.items()))), tuple(operands))

    def add(self, call: Call, operands: tuple[Value, ...], location: Location | None = None) -> tuple[Value, ...]:
        """Add `call` on `operands` and return its results."""
        self.made.append(ExpandedOp(call, operands, location))
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
        return self.rank.value(value) if isinstance(value, Local) else value

    def returned(self, value: Value, wanted: TensorMeta | None) -> Value | None:
        """Return `value` in the element type of the result that it is, unless it is a packed state.

        None for a result that is absent.
        """
        packed = value.source == "op" and self.made[value.index].call.name == "spmd.pack"
        if wanted is None or packed or self.meta(value).dtype == wanted.dtype:
            return None if wanted is None else value
        return self.emit("aten._to_copy", {"self": value}, {"dtype": wanted.dtype})[0]

    def meta(self, value: Value) -> TensorMeta:
        if value.source == "operand":
            return self.operands[value.index]
        meta = self.made[value.index].call.results[value.result]
        assert meta is not None
        return meta
