"""Run the statements of a rewrite and emit the ops that they call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from spmdir.core.admitted_ops import draws
from spmdir.core.dtype import I64
from spmdir.core.errors import Location, RuleError
from spmdir.core.placement.call import Call, Local
from spmdir.core.placement.packed import PackedPlacement
from spmdir.core.placement.tensor import TensorMeta
from spmdir.rules.language.exchange_ops import EXCHANGE_OPS
from spmdir.rules.language.expressions import evaluate
from spmdir.rules.language.local_functions import ShardIndices
from spmdir.rules.language.scope import Scope
from spmdir.rules.language.syntax_tree import Condition, Name, OpCall, Sequence, StateCall, Statement
from spmdir.rules.local.expansion import ExpandedOp, Value
from spmdir.rules.local.packed_states import state_call
from spmdir.rules.local.rank import Rank, SingleRank
from spmdir.rules.local.rings import run_ring
from spmdir.rules.shapes.instance import Ops, RuleInstance
from spmdir.rules.shapes.window_geometry import HALO_OPS


class Emitter:
    """Runs the statements of a clause and emits the ops that they call.

    Attributes:
        owner: the rule of the op that is replaced.
        ops: the rules of all ops, to infer the results of new ops.
        scope: the values that expressions use, without those of earlier statements.
        rank: the rank for which a local form is emitted; a `SingleRank` for other rewrites.
        operands: the types of the operands, local in a local form.
        shards: sharded factor → its shard; changed in the steps of a ring.
        packed: name → the packed placement of that name in the strategy.
        axes: the mesh axes of the ranks that exchange rows.
        names: name in the statements → its value.
        emitted: the ops so far.
    """

    def __init__(
        self,
        owner: RuleInstance,
        ops: Ops,
        scope: Scope,
        rank: Rank | None = None,
        operands: tuple[TensorMeta, ...] | None = None,
        shards: dict[int, Local] | None = None,
        packed: Mapping[str, PackedPlacement] | None = None,
        axes: tuple[str, ...] = (),
    ):
        self.axes = axes
        self.packed = packed or {}
        self.shards = {} if shards is None else shards
        self.owner, self.ops, self.scope, self.rank = owner, ops, scope, rank or SingleRank()
        self.operands = operands or scope.operands
        self.names: dict[str, Any] = {}
        for parameter in owner.rule.tensors:
            indices = owner.binding.tensors[parameter.name]
            if indices is not None:
                self.names[parameter.name] = self._operand(indices)
        self.emitted: list[ExpandedOp] = []

    def _operand(self, indices: Any) -> Any:
        """Return the value of a tensor parameter: an operand, or a tuple of operands for a list.

        Args:
            indices: the index of the operand; for a list, a tuple of indices, with None for an absent tensor.
        """
        if isinstance(indices, tuple):
            return tuple(None if index is None else Value("operand", index) for index in indices)
        return Value("operand", indices)

    def run(self, body: tuple[Statement, ...]) -> tuple[Any, ...]:
        """Run the statements of a rewrite and return the values of its `return`; RuleError if none is reached."""
        returned = self.run_all(body)
        if returned is None:
            raise RuleError(
                f"the rewrite of {self.owner.rule.op} has no `return`; expected one at its end: add a `return …` line"
            )
        return returned

    def run_all(self, body: Iterable[Statement]) -> tuple[Any, ...] | None:
        """Run statements up to the first `return` and return its values; None if there is no `return`."""
        for statement in body:
            try:
                returned = self._run(statement)
            except RuleError as error:
                raise error.at(statement.location) from None
            if returned is not None:
                return returned
        return None

    def _run(self, statement: Statement) -> tuple[Any, ...] | None:
        """Run one statement: emit its ops, and assign its targets, or return the values of a `return`.

        Returns None for all statements but a `return`, and if the condition of the statement does not hold.
        """
        if statement.ring is not None:
            (factor,) = self.owner.layout.refer(statement.ring)
            run_ring(self, statement, factor, lambda value: self._dim(value, factor))
            return None
        when = self._condition(statement.condition)
        if when is False:
            return None
        emitted_before = len(self.emitted)
        values = self._values(statement)
        # If only some ranks need the values, all ranks run the ops, and `_choose` keeps the old values on the others.
        if isinstance(when, Local):
            self._require_no_draws(self.emitted[emitted_before:], when, statement)
        if not statement.targets:
            return values
        self._require_names(statement, len(values))
        old_values = [self.names.get(target) for target in statement.targets]
        if isinstance(when, Local):
            values = tuple(self._choose(when, new, old) for new, old in zip(values, old_values, strict=False))
        self.names.update(zip(statement.targets, values, strict=False))
        return None

    def _values(self, statement: Statement) -> tuple[Any, ...]:
        """Return the value of each target of `statement`, or the values that it returns.

        A single state is unpacked into its parts. If the replaced op returns a list, a call returns all its results.
        """
        expression, *more_expressions = statement.values
        if more_expressions:
            return tuple(map(self.evaluate_expression, statement.values))
        if isinstance(expression, OpCall):
            results = self.emit_call(expression)
            return results if statement.targets or self.owner.rule.result_list else results[:1]
        value = self.evaluate_expression(expression)
        is_unpacked = isinstance(value, tuple) and len(statement.targets) != 1
        return value if is_unpacked else (value,)

    def _require_names(self, statement: Statement, value_count: int) -> None:
        """Raise RuleError unless each value has a target. The last results of an op need none."""
        target_count = len(statement.targets)
        if target_count > value_count or (target_count < value_count and not isinstance(statement.values[0], OpCall)):
            targets = ", ".join(statement.targets)
            raise RuleError(
                f"'{targets}' has {target_count} names for {value_count} values; expected one name for each value",
                statement.location,
            )

    def _require_no_draws(self, emitted: Iterable[ExpandedOp], when: Local, statement: Statement) -> None:
        """Raise RuleError if a conditional op draws random numbers, because ranks without it would draw fewer."""
        for call in (op.call for op in emitted):
            if draws(call.name, call.argument.get("dropout_p", 0)):
                raise RuleError(
                    f"{call.name} draws random numbers `if` {when}, which differs between ranks, so their "
                    "generators would diverge; expected draws on all ranks: draw them in a statement "
                    "without `if`",
                    statement.location,
                )

    def _condition(self, condition: Condition | None) -> bool | Local:
        """Return whether `condition` holds; True if there is none.

        If it holds on some ranks only, return a Local that is nonzero on these ranks.

        Raises:
            RuleError: an `unless` differs between ranks.
        """
        if condition is None:
            return True
        value = evaluate(condition.expression, self._scope())
        if not isinstance(value, Local):
            return bool(value) != condition.negated
        values = self.rank.values(value)
        if all(values) or not any(values):
            return any(values) != condition.negated
        if condition.negated:
            raise RuleError(
                f"found `unless` with {value}, which differs between ranks; expected an equal value on all "
                "ranks: use `if`"
            )
        return value

    def _choose(self, when: Local, new: Any, old: Any) -> Any:
        """Emit the choice of `new` on ranks where `when` is nonzero, and `old` on the others.

        Tuples are chosen part by part. Without an old tensor, or if `new` is a number, `new` is returned.
        """
        if isinstance(new, tuple) and isinstance(old, tuple):
            return tuple(self._choose(when, new_part, old_part) for new_part, old_part in zip(new, old, strict=True))
        if not isinstance(new, Value) or not isinstance(old, Value):
            return new
        new_meta, old_meta = self.meta(new), self.meta(old)
        if new_meta.dtype != old_meta.dtype:
            raise RuleError(
                f"the value is {new_meta} where {when} holds, and {old_meta} on other ranks; expected one element type"
            )
        return self.add(Call("spmd.choose", (new_meta, old_meta), (("when", when),), (old_meta,)), (new, old))[0]

    def _dim(self, operand: Value, factor: int) -> int | None:
        """Return the dimension of an operand whose only factor is `factor`; None if there is none."""
        dims = self.owner.layout.operand_dims[operand.index]
        return next((dim for dim, factors in enumerate(dims) if tuple(factors) == (factor,)), None)

    def _scope(self) -> Scope:
        """Return the scope with the values that earlier statements assigned."""
        return attrs.evolve(self.scope, names=self.names, meta_of=self.meta)

    def evaluate_expression(self, expression: Any) -> Any:
        """Emit the ops of an expression and return its value: a Value, a literal, a Local, or a tuple of these.

        The value of an op is its first result. If a function compares two shards, and its value is equal on all ranks,
        the result is this value, not a Local.
        """
        if isinstance(expression, OpCall):
            return self.emit_call(expression)[0]
        if isinstance(expression, StateCall):
            local_results = self._local_results() if expression.method == "finish" else ()
            state = state_call(
                self,
                expression,
                [self.evaluate_expression(argument) for argument in expression.arguments],
                local_results,
            )
            return state[0] if expression.method == "pack" else state
        if isinstance(expression, Sequence):
            return tuple(self.evaluate_expression(item) for item in expression.items)
        if isinstance(expression, Name) and expression.name in self.names:
            return self.names[expression.name]
        value = evaluate(expression, self._scope())
        if isinstance(value, ShardIndices):
            return self._shard_indices(value)
        if isinstance(value, Local) and value.other is not None:
            values = self.rank.values(value)
            return next(iter(values)) if len(values) == 1 else value
        return value

    def _shard_indices(self, indices: ShardIndices) -> Value:
        """Emit an op that computes these indices of a rank's shard.

        If no axis shards the dimension, local indices are the global ones: an arange, or the given indices themselves.
        """
        if not indices.shard.axes:
            return indices.index or self.emit("aten.arange", {}, {"end": indices.shard.extent})[0]
        operands = () if indices.index is None else (indices.index,)
        metas = tuple(map(self.meta, operands))
        shape = metas[0].shape if metas else (self._on_rank(attrs.evolve(indices.shard, kind="size")),)
        return self.add(Call(indices.op, metas, (("of", indices.shard),), (TensorMeta(shape, I64),)), operands)[0]

    def emit_call(self, expression: OpCall) -> tuple[Value, ...]:
        """Evaluate the arguments of a call in a rewrite, add its op, and return the results.

        An argument that is an absent tensor is left out, so its parameter has its default. An argument that is the
        value `none` of an argument of the replaced op is kept.
        """
        parameters = self.ops.parameters(expression.op)
        tensors: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for position, (keyword, argument) in enumerate(expression.arguments):
            name, value = keyword or parameters[position][0], self.evaluate_expression(argument)
            is_literal = isinstance(argument, Name) and argument.name in self.owner.binding.arguments
            if value is None and not is_literal:
                continue
            entries = value if isinstance(value, tuple) else (value,)
            if any(isinstance(entry, Value) for entry in entries):
                tensors[name] = value
            else:
                arguments[name] = value
        if expression.op in HALO_OPS:
            return (self._with_halos(expression.op, tensors["input"], arguments),)
        if expression.op in EXCHANGE_OPS:
            return (self._exchange(expression.op, [*tensors.values()], arguments),)
        return self.emit(expression.op, tensors, arguments)

    def _exchange(self, op: str, operands: list[Value], arguments: Mapping[str, Any]) -> Value:
        """Emit an op of the exchange of rows between ranks of experts, and return its result.

        An exchange of rows, and a check of their counts, return the shape of their first operand. An exchange of counts
        converts [experts] to [ranks, experts / ranks].

        Args:
            arguments: the literals of the op; by default the axes of the exchange.
        """
        metas = tuple(map(self.meta, operands))
        result, ranks = metas[0], self.rank.ring_size(self.axes)
        if op == "spmd.exchange_counts":
            result = attrs.evolve(result, shape=(ranks, result.shape[0] // ranks))
        literals = tuple(arguments.items()) or (("axes", self.axes),)
        return self.add(Call(op, metas, literals, (result,)), tuple(operands))[0]

    def _with_halos(self, op: str, value: Value, other_arguments: Mapping[str, Any]) -> Value:
        """Emit `op`, an exchange of halos, along each sharded window, and return the last result.

        `spmd.halo` adds the elements before and after a shard to its dimension. `spmd.halo_reduce` is its
        transpose: it removes them, in the reverse order of windows. An absent value is returned unchanged.
        """
        sharded_windows = [
            (window, self.shards[factor].axes)
            for factor, window in self.owner.layout.windows.items()
            if window and factor in self.shards
        ]
        adds_halos = op == "spmd.halo"
        for window, axes in sharded_windows if adds_halos else reversed(sharded_windows):
            if not (window.before or window.after) or not self._is_present(value):
                continue
            meta, growth = self.meta(value), 1 if adds_halos else -1
            dim = meta.rank - window.from_end
            size = meta.shape[dim] + growth * (window.before + window.after)
            result = attrs.evolve(meta, shape=(*meta.shape[:dim], size, *meta.shape[dim + 1 :]))
            arguments = {"axes": axes, "dim": dim, "before": window.before, "after": window.after, **other_arguments}
            (value,) = self.add(Call(op, (meta,), tuple(sorted(arguments.items())), (result,)), (value,))
        return value

    def _is_present(self, value: Value) -> bool:
        """Return whether `value` is an operand, or a result that its op computes."""
        return value.source == "operand" or self.emitted[value.index].call.results[value.result] is not None

    def emit(self, op: str, tensors: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Value, ...]:
        """Add a call of `op` with inferred results, and return the results.

        Args:
            tensors: tensor parameter → its value, or a tuple of values for a list.
            arguments: other parameter → literal, which may be a Local.
        """
        # For each tensor parameter: 1 for a tensor, 0 if it is absent, and a tuple of these for a list.
        structure, operands = [], []
        for name, is_tensor in self.ops.parameters(op):
            if is_tensor:
                value = tensors.get(name)
                entries = value if isinstance(value, tuple) else (value,)
                presence = tuple(int(entry is not None) for entry in entries)
                structure.append(presence if isinstance(value, tuple) else presence[0])
                operands += [entry for entry in entries if entry is not None]
        call_structure = None if all(entry == 1 for entry in structure) else tuple(structure)
        metas = tuple(map(self.meta, operands))
        try:
            rank_arguments = {name: self._on_rank(value) for name, value in arguments.items()}
            call = self.ops.infer_call(op, metas, rank_arguments, call_structure)
        except RuleError:
            # The rule may not accept local shapes for the replaced op itself; then its local results are known. In a
            # ring, the block of another rank may not have the shape of these results.
            has_other_block = any(shard.back for shard in self.shards.values())
            if op != self.owner.rule.op or not self.shards or has_other_block:
                raise
            call = Call(op, metas, (), self._local_results(), call_structure)
        if op == self.owner.rule.op:  # the results that the replaced op lacks are not computed either
            results = (
                result if declared else None
                for result, declared in zip(call.results, self.owner.call.results, strict=True)
            )
            call = attrs.evolve(call, results=tuple(results))
        return self.add(attrs.evolve(call, arguments=tuple(sorted(arguments.items()))), tuple(operands))

    def add(self, call: Call, operands: tuple[Value, ...], location: Location | None = None) -> tuple[Value, ...]:
        """Add `call` on `operands` and return its results."""
        self.emitted.append(ExpandedOp(call, operands, location))
        return tuple(Value("op", len(self.emitted) - 1, result) for result in range(len(call.results)))

    def _local_results(self) -> tuple[TensorMeta | None, ...]:
        """Return the types of the replaced op's results on the rank; None for an absent result."""
        sizes = [
            self._on_rank(attrs.evolve(self.shards[index], kind="size")) if index in self.shards else factor.size
            for index, factor in enumerate(self.owner.factors)
        ]
        results: list[TensorMeta | None] = []
        for meta, dims in zip(self.owner.call.results, self.owner.result_dims, strict=True):
            shape = tuple(math.prod(sizes[factor] for factor in factors) for factors in dims or ())
            results.append(meta and attrs.evolve(meta, shape=shape))
        return tuple(results)

    def _on_rank(self, value: Any) -> Any:
        """Return `value` with each Local replaced by its integer on the rank."""
        if isinstance(value, tuple):
            return tuple(map(self._on_rank, value))
        return self.rank.value(value) if isinstance(value, Local) else value

    def cast_result(self, value: Value, declared: TensorMeta | None) -> Value | None:
        """Return `value`, converted to the declared element type of its result; None if the result is absent.

        A packed state is not converted.
        """
        is_packed = value.source == "op" and self.emitted[value.index].call.name == "spmd.pack"
        if declared is None:
            return None
        if is_packed or self.meta(value).dtype == declared.dtype:
            return value
        return self.emit("aten._to_copy", {"self": value}, {"dtype": declared.dtype})[0]

    def meta(self, value: Value) -> TensorMeta:
        """Return the type of `value`, local in a local form."""
        if value.source == "operand":
            return self.operands[value.index]
        meta = self.emitted[value.index].call.results[value.result]
        assert meta is not None
        return meta
