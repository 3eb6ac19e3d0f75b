"""Infer the global type and the sharding of the results of a torch op, from its operands and its local results.

For example, on tp = 2 a rank runs `mm` on [4, 3] and [3, 5]. The operands are [4, 6] <tp: S(1)> and [6, 5] <tp: S(0)>.
The only strategy of `mm` with these placements gives P(sum), so the result is [4, 5] <tp: P(sum)>.

A view has its sizes as an argument. On tp = 2, a rank runs `view(x, [2, 3, 8])` on [6, 8], a shard of [12, 8]. The
global sizes may be [4, 3, 8] or [2, 6, 8]. The rule of `view` shards only the outer dimension, so they are [4, 3, 8].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import attrs

from spmdir.analysis.type_check import match, plugins_of, sharded_factors
from spmdir.core.errors import RuleError, ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.call import Call, Structure
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.value_op import ValueOp
from spmdir.reshard.conditions import refinement
from spmdir.rules import OpRule, RuleSet, Strategy

_COMBINATIONS = 256
"""The largest number of global sizes, or of combinations of strategies, that are tried for one op."""

_MOST_ORDERS = 24
"""The largest number of nesting orders that are tried for the results of one op."""


@attrs.frozen
class GlobalValue:
    """The global type and the sharding of a value."""

    meta: TensorMeta
    sharding: Sharding


@attrs.frozen
class GlobalCall:
    """A torch op with global types.

    Attributes:
        call: the op.
        shardings: the sharding of each result; None for an absent result.
    """

    call: Call
    shardings: tuple[Sharding | None, ...]


class NoStrategyError(ShardingError):
    """No strategy of the rule of an op has the placements of its operands.

    Attributes:
        rule: the rule on the global call; None if the operands have no common global call.
    """

    def __init__(self, message: str, rule: OpRule | None = None):
        super().__init__(message)
        self.rule = rule


class CallTyper:
    """Infers the global calls of the ops of one rank.

    Args:
        rank: the rank whose program is read.
    """

    def __init__(self, mesh: Mesh, rules: RuleSet, rank: int):
        self.mesh, self.rules, self.rank = mesh, rules, rank

    def infer(
        self,
        op: ValueOp,
        operands: Sequence[GlobalValue],
        wanted: GlobalValue | None = None,
        rewrites: Sequence[str] = (),
        number: int = 0,
    ) -> GlobalCall:
        """Return the most likely global call of a local op.

        Args:
            operands: the global types and shardings of its operands.
            rewrites: the kinds of rewrites that a strategy may need, such as "local". The rank has written them out.
            wanted: the global type and the sharding of the first result, if they are known.
            number: return the call with this number, in the order of likelihood.

        Raises:
            NoStrategyError: the op is not legal on these operands.
        """
        failures: list[NoStrategyError] = []
        candidates = self._candidates(op, operands, wanted, rewrites, failures)
        for call in itertools.islice(candidates, number, None):
            return call
        raise failures[0] if failures else NoStrategyError("its operands have no common global type")

    def _candidates(
        self,
        op: ValueOp,
        operands: Sequence[GlobalValue],
        wanted: GlobalValue | None,
        rewrites: Sequence[str],
        failures: list[NoStrategyError],
    ) -> Iterator[GlobalCall]:
        """Yield the global calls of a local op, the most likely one first. Views may have several.

        Args:
            operands, wanted, rewrites: as in `infer`.
            failures: the reasons against other calls are appended.
        """
        for call in self._calls(op, operands, wanted):
            try:
                rule = self.rules.instantiate(call)
                yield GlobalCall(call, self._result_shardings(rule, call, operands, op.metas, wanted, rewrites))
            except SpmdirError as error:
                failures.append(error if isinstance(error, NoStrategyError) else NoStrategyError(error.message))

    def _calls(self, op: ValueOp, operands: Sequence[GlobalValue], wanted: GlobalValue | None) -> Iterator[Call]:
        """Yield the calls with global types that may be the op. An op with sizes as arguments may have several.

        Args:
            wanted: as in `infer`; the result then has its shape.
        """
        metas = tuple(value.meta for value in operands)
        structure = op.structure.data if op.structure else None
        size_names = op.argument.keys() & self.rules.shape_arguments(op.name)
        if not size_names:
            yield self._infer_call(op.name, metas, dict(op.argument), structure)
            return
        shapes = [wanted.meta.shape] if wanted is not None else self._global_shapes(op, operands)
        for global_shape in itertools.islice(shapes, _COMBINATIONS):
            arguments = {**op.argument, **dict.fromkeys(size_names, global_shape)}
            if len(op.metas) == 1:
                result = attrs.evolve(op.metas[0], shape=global_shape)  # type: ignore  # it is a tensor
                yield Call(op.name, metas, tuple(sorted(arguments.items())), (result,), structure)
                continue
            try:
                call = self._infer_call(op.name, metas, arguments, structure)
            except NoStrategyError:
                continue
            if call.results[0] is not None and call.results[0].shape == global_shape:
                yield call

    def _infer_call(
        self, name: str, operands: tuple[TensorMeta, ...], arguments: dict, structure: Structure | None
    ) -> Call:
        """Return the call with the types of its results."""
        try:
            return self.rules.infer_call(name, operands, arguments, structure)
        except RuleError as error:
            raise NoStrategyError(error.message) from None

    def _global_shapes(self, op: ValueOp, operands: Sequence[GlobalValue]) -> Iterator[tuple[int, ...]]:
        """Yield global shapes of the first result: each axis that shards an operand multiplies one dimension or none.

        For the local result [4, 8] and an operand that is sharded over tp = 2, these are [8, 8], [4, 16] and [4, 8].
        Dimensions of local size 1 come last.
        """
        meta = op.metas[0]
        assert meta is not None
        local = meta.shape
        axes = list(
            dict.fromkeys(
                axis for value in operands for axis, placement in value.sharding.entries if placement.trait == "shard"
            )
        )
        sizes = [refinement(self.mesh, axes).sizes[axis] for axis in axes] if axes else []
        dims = sorted(range(len(local)), key=lambda dim: local[dim] == 1)
        keeps_all_elements = len(operands) == 1 and (
            math.prod(operands[0].meta.shape) == math.prod(local) * math.prod(sizes)
        )
        choices = [dims if keeps_all_elements else [*dims, None]] * len(axes)
        for combination in itertools.product(*choices):
            shape = list(local)
            for dim, size in zip(combination, sizes, strict=True):
                if dim is not None:
                    shape[dim] *= size
            yield tuple(shape)

    def _result_shardings(
        self,
        rule: OpRule | None,
        call: Call,
        operands: Sequence[GlobalValue],
        local_metas: Sequence[TensorMeta | None],
        wanted: GlobalValue | None,
        rewrites: Sequence[str],
    ) -> tuple[Sharding | None, ...]:
        """Return the shardings of the results, from strategies whose operands have exactly the given placements.

        Raises:
            NoStrategyError: there are no such strategies, or the local shapes of the results differ.
        """
        shardings = [value.sharding for value in operands]
        if rule is None:
            if any(sharding.entries for sharding in shardings):
                raise NoStrategyError("has no rule; expected replicated operands: load a rule with --load-plugin")
            return tuple(None if meta is None else Sharding((), self.mesh.name) for meta in call.results)
        rule = rule.evaluated
        fine = refinement(self.mesh, *shardings)
        refined = [sharding.refined(fine) for sharding in shardings]
        allowed_rewrites = (None, *rewrites)
        for choice in itertools.islice(_choices(rule, refined, fine, allowed_rewrites), _COMBINATIONS):
            for results in _result_orders(choice, refined, call, fine):
                if wanted is not None and results[0] != wanted.sharding:
                    continue
                if not self._fits(results, call, local_metas, fine):
                    continue
                if _is_legal(rule, refined, results, fine, allowed_rewrites):
                    return tuple(None if result is None else result.merged(fine) for result in results)
        raise NoStrategyError(
            "no strategy has the placements of its operands and the local shapes of its results", rule
        )

    def _fits(
        self, results: Sequence[Sharding | None], call: Call, local_metas: Sequence[TensorMeta | None], fine: Mesh
    ) -> bool:
        """Return whether the shards of the results on this rank have the local shapes."""
        coordinate = fine.coordinate(self.rank)
        return all(
            sharding is None or meta is None or local is None or _local_type(sharding, meta, fine, coordinate) == local
            for sharding, meta, local in zip(results, call.results, local_metas, strict=True)
        )


def _local_type(sharding: Sharding, meta: TensorMeta, mesh: Mesh, coordinate: object) -> TensorMeta | None:
    """Return the local type of a value on a rank; None if the sharding does not fit the value."""
    try:
        return sharding.local_type(meta, mesh, coordinate)  # type: ignore
    except (SpmdirError, IndexError):
        return None


def _choices(
    rule: OpRule, operands: Sequence[Sharding], mesh: Mesh, rewrites: Sequence[str | None]
) -> Iterator[dict[str, Strategy]]:
    """Yield each choice: mesh axis → a strategy whose operands have the placements of the program on this axis.

    Some strategies require that other axes already shard a factor. So an axis without a strategy is tried again after
    the choice for another axis.

    Args:
        rewrites: the rewrites that a strategy may have; None for strategies without one. The rank runs the op itself,
            so a strategy with another rewrite describes another program.
    """
    plugins = plugins_of(operands)
    sharding_axes = dict.fromkeys(axis for sharding in operands for axis, _ in sharding.entries)
    axes = [*sharding_axes, *(axis for axis in mesh.axis_names if axis not in sharding_axes)]

    def strategies_of(axis: str, choice: dict[str, Strategy]) -> list[Strategy]:
        """Return the strategies for an axis, after the choice for other axes, with the operands of the program."""
        placements, count = tuple(sharding[axis] for sharding in operands), mesh.sizes[axis]
        independent = rule.strategies(count, placements=plugins)
        dependent = rule.strategies(count, sharded_factors(choice, mesh), plugins)
        return [
            strategy
            for strategy in dict.fromkeys([*independent, *dependent])
            if strategy.operands == placements and strategy.rewrite in rewrites
        ]

    def extend(choice: dict[str, Strategy]) -> Iterator[dict[str, Strategy]]:
        """Yield the complete choices that contain `choice`."""
        remaining = [axis for axis in axes if axis not in choice]
        if not remaining:
            yield choice
        for axis in remaining:
            strategies = strategies_of(axis, choice)
            for strategy in strategies:
                yield from extend({**choice, axis: strategy})
            if strategies:  # the axis must have one of them, so choices without it are not complete
                return

    return extend({})


def _result_orders(
    choice: dict[str, Strategy], operands: Sequence[Sharding], call: Call, mesh: Mesh
) -> Iterator[tuple[Sharding | None, ...]]:
    """Yield the shardings of the results for a choice of strategies, one for each nesting order of the sharding axes.

    The order of the axes in the operands comes first.
    """
    axes = list(dict.fromkeys(axis for sharding in operands for axis, _ in sharding.entries))
    axes += [axis for axis in mesh.axis_names if axis not in axes]
    sharding_axes = [axis for axis in axes if any(placement.trait == "shard" for placement in choice[axis].results)]
    other_axes = [axis for axis in axes if axis not in sharding_axes]
    for order in itertools.islice(itertools.permutations(sharding_axes), _MOST_ORDERS):
        yield tuple(
            None if meta is None else Sharding([(axis, choice[axis].results[index]) for axis in (*order, *other_axes)])
            for index, meta in enumerate(call.results)
        )


def _is_legal(
    rule: OpRule,
    operands: Sequence[Sharding],
    results: Sequence[Sharding | None],
    mesh: Mesh,
    rewrites: Sequence[str | None],
) -> bool:
    """Return whether the type check accepts the op with only these rewrites."""
    try:
        choice = match(rule, operands, results, mesh)
    except SpmdirError:
        return False
    return all(strategy.rewrite in rewrites for strategy in choice.values())
