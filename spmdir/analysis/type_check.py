"""Type check a distributed program: find the strategies of its rule that an op uses.

An op is well typed if all of these hold:

- on every mesh axis, its operand and result placements are a strategy of its rule;
- the strategies are compatible: no factor is sharded into more shards than the rule allows;
- the axes that shard one factor nest in the same order in every operand and result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from spmdir.analysis.local_forms import is_split
from spmdir.analysis.routes import check_routes
from spmdir.core.admitted_ops import listed_twin
from spmdir.core.errors import RuleError, ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import Placement, plugins
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.value_op import ValueOp
from spmdir.dialects.values import sharding_of
from spmdir.reshard.conditions import refinement
from spmdir.rules import OpRule, RuleSet, Strategy
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.split_products import SPLIT
from spmdir.rules.strategies.strategy import UNSHARDED, ShardCounts, shard_counts

STRATEGIES_SHOWN = 8
"""The largest number of strategies in an error."""

REASONS_SHOWN = 3
"""The largest number of missing strategies in an error, each with its reason."""

Choice = Mapping[str, Strategy]
"""Mesh axis → the strategy used on it."""


def sharded_factors(choice: Choice, mesh: Mesh, without: str | None = None) -> ShardCounts:
    """Return the number of shards of each factor along the axes of `choice`, except the axis `without`."""
    return shard_counts((strategy, mesh.sizes[axis]) for axis, strategy in choice.items() if axis != without)


def plugins_of(shardings: Iterable[Sharding | None]) -> tuple[Placement, ...]:
    """Return the plug-in placements that occur in `shardings`, each once."""
    return plugins(placement for sharding in shardings if sharding for _, placement in sharding.entries)


def match(
    rule: OpRule,
    operands: Sequence[Sharding],
    results: Sequence[Sharding | None],
    mesh: Mesh,
    may_split: bool = False,
) -> Choice:
    """Return the strategy that the shardings use on each axis.

    If shardings contain sub-axes, the axes of the choice are those of `mesh.refine(choice)`.

    Args:
        results: None for a result without a sharding, which fits any strategy.
        may_split: whether strategies that split a matrix product are allowed.

    Raises:
        ShardingError: on some axis, the placements are not a strategy of the rule, or the strategies are incompatible.
    """
    return _match(rule, tuple(operands), tuple(results), mesh, may_split)


@lru_cache(maxsize=65536)
def _match(
    rule: OpRule,
    operands: tuple[Sharding, ...],
    results: tuple[Sharding | None, ...],
    mesh: Mesh,
    may_split: bool,
) -> Choice:
    """Return the result of `match`: first each axis is matched, then the strategies are checked together."""
    shardings = [sharding for sharding in (*operands, *results) if sharding]
    fine = refinement(mesh, *shardings)
    if fine is not mesh:
        refined_operands = tuple(sharding.refined(fine) for sharding in operands)
        refined_results = tuple(sharding.refined(fine) if sharding else None for sharding in results)
        choice = _match(rule, refined_operands, refined_results, fine, may_split)
        _check_split(rule, choice, mesh, fine)
        return choice
    choice = _match_axes(rule, operands, results, mesh, may_split)
    for axis, size in mesh.axes:
        strategy = choice[axis]
        sharded = sharded_factors(choice, mesh, without=axis)
        if strategy not in _strategies_on(rule, size, sharded, plugins_of(shardings), strategy.rewrite == SPLIT):
            number = next(iter(strategy.factors), 0)
            factor = rule.factors[number]
            raise ShardingError(
                f"factor '{factor.name}' of size {factor.size} cannot be sharded into "
                f"{size * sharded.of(number)} by this op; expected fewer shards: shard it by fewer axes"
            )
    rewritten = [axis for axis, strategy in choice.items() if strategy.rewrite and mesh.sizes[axis] > 1]
    if len(rewritten) > 1 and any(choice[axis].rewrite == SPLIT for axis in rewritten):
        axes = " and ".join(map(repr, rewritten))
        raise ShardingError(
            f"is split along {axes}; expected one axis along which the op is rewritten: replicate its operands "
            "on the other axes"
        )
    for axis in rewritten:
        if choice[axis].rewrite == SPLIT:
            _check_ring(rule, axis, choice[axis].factors[-1], (*operands, *results), mesh)
    _check_order(rule, choice, operands, results, mesh)
    return choice


def _strategies_on(
    rule: OpRule, count: int, sharded: ShardCounts, plugin_placements: tuple[Placement, ...], may_split: bool
) -> tuple[Strategy, ...]:
    """Return the strategies of a rule on an axis of `count` ranks.

    Args:
        sharded: the number of shards of each factor along other axes.
        may_split: whether to include strategies that split a matrix product.
    """
    strategies = rule.strategies(count, sharded, plugin_placements)
    return (*strategies, *rule.split_strategies(count, sharded)) if may_split else strategies


def _match_axes(
    rule: OpRule,
    operands: tuple[Sharding, ...],
    results: tuple[Sharding | None, ...],
    mesh: Mesh,
    may_split: bool,
) -> Choice:
    """Return the strategy on each axis.

    An axis of a minor factor is matched after the axes of its major factors. This order is not known before, so each
    round matches the first axis that can be matched.

    Raises:
        ShardingError: an axis cannot be matched, whatever the order.
    """
    choice: dict[str, Strategy] = {}
    rejected: dict[str, ShardingError] = {}
    used_axes = [axis for sharding in (*operands, *results) if sharding for axis, _ in sharding.entries]
    axes = list(dict.fromkeys([*used_axes, *mesh.axis_names]))
    while len(choice) < len(axes):
        for axis in [axis for axis in axes if axis not in choice]:
            try:
                choice[axis] = _match_axis(rule, axis, mesh, operands, results, choice, may_split)
                break
            except ShardingError as error:
                rejected[axis] = error
        else:  # no axis can be matched
            raise next(rejected[axis] for axis in mesh.axis_names if axis not in choice)
    return {axis: choice[axis] for axis in mesh.axis_names}


def _check_split(rule: OpRule, choice: Choice, mesh: Mesh, fine: Mesh) -> None:
    """Raise ShardingError if several sub-axes of one axis shard a factor unevenly.

    Args:
        choice: axis of `fine` → the strategy on it.
        mesh: the mesh of the program.
        fine: the mesh with its axes split into sub-axes.
    """
    sharded = sharded_factors(choice, fine)
    factors_of_axis: set[tuple[int, str]] = set()  # (factor, axis with a sub-axis that shards it)
    for sub_axis, strategy in choice.items():
        if sub_axis in mesh.sizes:
            continue  # a whole axis
        axis = fine.root_axis(sub_axis)
        for number in strategy.factors:
            factor, count = rule.factors[number], sharded.of(number)
            if (number, axis) in factors_of_axis and factor.size % count:
                raise ShardingError(
                    f"sub-axes of '{axis}' shard factor '{factor.name}' of size {factor.size} into {count} "
                    "uneven shards; expected even shards: shard it by the whole axis, or by sub-axes that "
                    "divide its size"
                )
            factors_of_axis.add((number, axis))


def _match_axis(
    rule: OpRule,
    axis: str,
    mesh: Mesh,
    operands: Sequence[Sharding],
    results: Sequence[Sharding | None],
    outer: Choice,
    may_split: bool,
) -> Strategy:
    """Return the strategy on `axis` with the operand and result placements of the op.

    Args:
        outer: the strategies on other axes. They may allow strategies that are illegal without them.
        may_split: as for `match`.

    Raises:
        ShardingError: there is no such strategy. The message contains the nearest one.
    """
    operand_placements = tuple(sharding[axis] for sharding in operands)
    result_placements = tuple(sharding[axis] if sharding else None for sharding in results)
    count, plugin_placements = mesh.sizes[axis], plugins_of((*operands, *results))
    strategies = _strategies_on(rule, count, UNSHARDED, plugin_placements, may_split)
    strategies_with_outer = _strategies_on(rule, count, sharded_factors(outer, mesh), plugin_placements, may_split)
    for strategy in (*strategies, *strategies_with_outer):
        if strategy.operands == operand_placements and all(
            actual is None or actual == expected
            for actual, expected in zip(result_placements, strategy.results, strict=True)
        ):
            return strategy
    nearest = max(strategies, key=lambda strategy: _count_equal(strategy, operand_placements, result_placements))
    wrong = [
        f"{_operand_name(rule, index)} is {placement} but the nearest strategy requires {expected}"
        for index, (placement, expected) in enumerate(zip(operand_placements, nearest.operands, strict=True))
        if placement != expected
    ] or [f"the results are ({_join(result_placements)}) but these operands give ({_join(nearest.results)})"]
    accepted = "; ".join(f"({_join(s.operands)}) -> ({_join(s.results)})" for s in strategies[:STRATEGIES_SHOWN])
    accepted += "; …" if len(strategies) > STRATEGIES_SHOWN else ""
    reasons = reasons_text(rule.why_not(count, (*operand_placements, *result_placements), plugin_placements))
    raise ShardingError(
        f"on axis '{axis}' ({_join(operand_placements)}) -> ({_join(result_placements)}) is not a strategy "
        f"of this op: {', '.join(wrong)}: reshard the operands, or correct the shardings; it accepts "
        f"{accepted}{reasons}"
    )


def reasons_text(dropped: Sequence[Dropped]) -> str:
    """Return the first missing strategies of a rule, with their reasons, as the end of an error; "" without any."""
    return "".join(f"; {strategy}" for strategy in dropped[:REASONS_SHOWN])


def _join(placements: Sequence[Placement | None]) -> str:
    """Return the text of placements in an error; `_` for a value without a sharding."""
    return ", ".join("_" if placement is None else str(placement) for placement in placements)


def _count_equal(strategy: Strategy, operands: Sequence[Placement], results: Sequence[Placement | None]) -> int:
    """Return the number of operands and results that have their placement in `strategy`."""
    pairs = zip((*strategy.operands, *strategy.results), (*operands, *results), strict=True)
    return sum(placed == expected for placed, expected in pairs)


def _operand_name(rule: OpRule, index: int) -> str:
    """Return the number of an operand and its name in the rule, for errors."""
    names = [tensor.name for tensor in rule.rule.tensors if index in rule.binding.operands(tensor.name)]
    return f"operand {index} ({names[0]})" if names else f"operand {index}"


def _check_order(
    rule: OpRule, choice: Choice, operands: Sequence[Sharding], results: Sequence[Sharding | None], mesh: Mesh
) -> None:
    """Raise ShardingError unless the axes of each factor nest in the same order in all operands and results.

    For example, if `a` and then `b` shard the rows of a matrix product in its operand, `b` and then `a` must not shard
    the rows of its result: rank by rank, these are different rows.
    """
    order_of_factor: dict[int, tuple[str, ...]] = {}
    tensors = zip((*operands, *results), (*rule.operand_dims, *rule.result_dims), strict=True)
    for sharding, dims in tensors:
        if sharding is None or not dims:
            continue
        for dim in {placement.dim for _, placement in sharding.entries if placement.dim is not None}:
            axes = sharding.dim_axes(dim)
            if len(axes) < 2:
                continue
            _check_dispatched(sharding, dim, mesh)
            factors = [_factor_of(choice[axis], dims[dim]) for axis in axes]
            if len(set(factors)) > 1:
                _check_majors(rule, axes, dims[dim], factors)
            axes_of_factor: dict[int, list[str]] = {}  # in nesting order
            for axis, factor in zip(axes, factors, strict=True):
                if factor is not None:
                    axes_of_factor.setdefault(_nesting_factor(choice[axis], factor), []).append(axis)
            for factor, axes_here in axes_of_factor.items():
                nesting = tuple(axes_here)
                if not _agree(order_of_factor.setdefault(factor, nesting), nesting):
                    raise ShardingError(
                        f"the axes of factor '{rule.factors[factor].name}' nest as "
                        f"{list(order_of_factor[factor])} in one tensor and as {list(nesting)} in another; "
                        "expected the same order in both: reorder the axes of one tensor"
                    )


def _agree(order: Sequence[str], other_order: Sequence[str]) -> bool:
    """Return whether two nesting orders agree on the axes that both contain.

    One may contain more axes: the rows of experts may be sharded by more axes than their weights.
    """
    return [axis for axis in order if axis in other_order] == [axis for axis in other_order if axis in order]


def _check_ring(rule: OpRule, axis: str, factor: int, shardings: Sequence[Sharding | None], mesh: Mesh) -> None:
    """Raise ShardingError unless the blocks of `factor` that rotate along `axis` are contiguous.

    They are if `axis` is the innermost axis of each dimension that it shards, and no other sub-axis of its mesh axis
    shards this dimension.

    Args:
        shardings: the shardings of the operands, then of the results.
    """
    for sharding, dims in zip(shardings, (*rule.operand_dims, *rule.result_dims), strict=True):
        for dim, factors in enumerate(dims or ()):
            axes = sharding.dim_axes(dim) if sharding and factor in factors else ()
            if not axes:
                continue
            *outer_axes, innermost = axes
            if (axis in axes and axis != innermost) or mesh.root_axis(axis) in map(mesh.root_axis, outer_axes):
                raise ShardingError(
                    f"is split along '{axis}', but factor '{rule.factors[factor].name}' is sharded along "
                    f"{list(axes)}; expected '{axis}' to be the innermost of these axes, and the only one "
                    "on its mesh axis: reorder the axes, or replicate the factor on the others"
                )


def _factor_of(strategy: Strategy, factors: tuple[int, ...]) -> int | None:
    """Return the first of the `factors` of a dimension that `strategy` shards; None if there is none."""
    return next((factor for factor in factors if factor in strategy.factors), None)


def _check_dispatched(sharding: Sharding, dim: int, mesh: Mesh) -> None:
    """Raise ShardingError unless the axes over which rows are dispatched together nest in the order of the mesh."""
    axes = [axis for axis in sharding.dim_axes(dim) if sharding[axis].nests_as_mesh]
    if axes != [axis for axis in mesh.axis_names if axis in axes]:
        raise ShardingError(
            f"<{sharding}> dispatches rows over {axes}; expected these axes in the order of the mesh, as "
            "the ranks of a group are numbered: reorder the axes of the sharding"
        )


def _nesting_factor(strategy: Strategy, factor: int) -> int:
    """Return the factor whose nesting order `factor` must have: the first factor of a strategy in text, else itself.

    A strategy in text may shard several factors, and their axes nest in one order.
    """
    return strategy.factors[0] if strategy.text else factor


def _check_majors(rule: OpRule, axes: tuple[str, ...], factors: tuple[int, ...], sharded: Sequence[int | None]) -> None:
    """Raise ShardingError unless the axes of a dimension shard its major factors first.

    Args:
        axes: the axes of the dimension, in nesting order.
        factors: the factors of the dimension, major first.
        sharded: for each axis, the factor that it shards, or None.
    """
    positions = [factors.index(factor) for factor in sharded if factor is not None]
    if positions != sorted(positions):
        names = " ".join(rule.factors[factor].name for factor in factors)
        raise ShardingError(
            f"the axes {list(axes)} of a dimension with the factors ({names}) are not in the order of the "
            "factors; expected the axes of the major factors first: reorder the axes"
        )


def rule_of(op: ValueOp, rules: RuleSet) -> OpRule | None:
    """Return the rule of a torch op, instantiated on its call; None if the op has no rule.

    Raises:
        RuleError: operands, arguments or results do not match the rule, or the op has no rule and its name resembles
            that of a torch op; located at the op.
    """
    try:
        rule = rules.instantiate(op.call())
        if rule is not None:
            return rule.evaluated  # here, where errors can be located
        if (twin := listed_twin(op.name)) is not None:
            raise RuleError(
                f"'{op.name}' is not a torch op; did you mean '{twin}'? Expected an op of torch, or of a "
                "library whose rule is loaded with --load-plugin"
            )
        return None
    except RuleError as error:
        raise RuleError(error.message, location_of(op)) from None  # at the op, not in the file of the rule


def strategies_of(op: ValueOp, mesh: Mesh, rules: RuleSet) -> tuple[OpRule | None, Choice]:
    """Return the instantiated rule of a torch op and the strategies that its shardings use.

    The operand shardings are those in `needs`, where it is present.

    Raises:
        ShardingError: the op is ill typed, or a sharding is missing; located.
    """
    operands = required_shardings(op)
    results = op.shardings
    location = location_of(op)
    if is_undecided(op) or any(sharding is None for sharding in operands):
        raise ShardingError(
            f"'{op.name}' has values without a sharding; expected a sharding for each value: run propagate first",
            location,
        )
    rule = rule_of(op, rules)
    if rule is None:
        for sharding in (*operands, *results):
            if sharding and sharding.entries:
                raise ShardingError(
                    f"'{op.name}' has no rule and a value with <{sharding}>; expected replicated values: replicate "
                    "them, or load a rule with --load-plugin",
                    location,
                )
        return None, {}
    check_routes(op)
    with errors_at(op, (RuleError, ShardingError)):
        return rule, match(rule, operands, results, mesh, is_split(op))  # type: ignore  # checked above


def is_undecided(op: ValueOp) -> bool:
    """Return whether some result has no sharding. Absent results do not count."""
    return any(sharding is None and meta for sharding, meta in zip(op.shardings, op.metas, strict=True))


def required_shardings(op: ValueOp) -> tuple[Sharding | None, ...]:
    """Return the shardings that an op requires of its operands: those in `needs`, or else the current ones."""
    needs = op.needs.data if op.needs else (None,) * len(op.tensors)
    return tuple(
        need if need is not None else sharding_of(value) for need, value in zip(needs, op.tensors, strict=True)
    )
