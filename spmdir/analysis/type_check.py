"""The strategies of its rule that an op uses: the type system of the distributed program.

An op is well typed if, on every mesh axis, its operand and result placements are one strategy of its rule, the
strategies are compatible (no factor is sharded finer than it allows), and the axes that shard one factor nest in one
order in every operand and result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from spmdir.analysis.local_forms import is_split
from spmdir.core.admission import listed_twin
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
"""How many of an op's strategies an error lists."""

REASONS_SHOWN = 3
"""How many of the strategies that an op does not offer an error lists."""

Choice = Mapping[str, Strategy]
"""Mesh axis → the strategy used on it."""


def sharded_factors(choice: Choice, mesh: Mesh, without: str | None = None) -> ShardCounts:
    """Return the number of shards of each factor by the axes of `choice` other than `without`."""
    return shard_counts((strategy, mesh.sizes[axis]) for axis, strategy in choice.items() if axis != without)


def plugins_of(shardings: Iterable[Sharding | None]) -> tuple[Placement, ...]:
    """Return the plug-in placements that occur in `shardings`, each once."""
    return plugins(p for sharding in shardings if sharding for _, p in sharding.entries)


def match(
    rule: OpRule,
    operands: Sequence[Sharding],
    results: Sequence[Sharding | None],
    mesh: Mesh,
    may_split: bool = False,
) -> Choice:
    """Return the strategies that the shardings use.

    Where shardings name sub-axes, the axes of the choice are those of `mesh.refine(choice)`.

    Args:
        may_split: whether a strategy may be one of those that split a matrix product.

    Raises:
        ShardingError: on some axis they are not a strategy of the rule, or the strategies are not compatible.
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
    current = [sharding for sharding in (*operands, *results) if sharding]
    fine = refinement(mesh, *current)
    if fine is not mesh:
        refined = tuple(sharding.refined(fine) if sharding else None for sharding in results)
        choice = _match(rule, tuple(sharding.refined(fine) for sharding in operands), refined, fine, may_split)
        _check_split(rule, choice, mesh, fine)
        return choice
    choice = _match_axes(rule, operands, results, mesh, may_split)
    for axis, size in mesh.axes:
        sharded = sharded_factors(choice, mesh, without=axis)
        if choice[axis] not in _offered(rule, size, sharded, plugins_of(current), choice[axis].rewrite == SPLIT):
            number = next(iter(choice[axis].factors), 0)
            factor = rule.factors[number]
            raise ShardingError(
                f"factor '{factor.name}' of size {factor.size} cannot be sharded into "
                f"{size * sharded.of(number)} by this op; shard it by fewer axes"
            )
    rewritten = [axis for axis, strategy in choice.items() if strategy.rewrite and mesh.sizes[axis] > 1]
    if len(rewritten) > 1 and any(choice[axis].rewrite == SPLIT for axis in rewritten):
        axes = " and ".join(map(repr, rewritten))
        raise ShardingError(f"is split along {axes}; expected one axis that does not leave the op as it is")
    for axis in rewritten:
        if choice[axis].rewrite == SPLIT:
            _check_ring(rule, axis, choice[axis].factors[-1], (*operands, *results), mesh)
    _check_order(rule, choice, operands, results)
    return choice


def _offered(
    rule: OpRule, count: int, sharded: ShardCounts, extras: tuple[Placement, ...], may_split: bool
) -> tuple[Strategy, ...]:
    listed = rule.strategies(count, sharded, extras)
    return (*listed, *rule.split_strategies(count, sharded)) if may_split else listed


def _match_axes(
    rule: OpRule,
    operands: tuple[Sharding, ...],
    results: tuple[Sharding | None, ...],
    mesh: Mesh,
    may_split: bool,
) -> Choice:
    """Return the strategy on each axis by itself; whether a minor factor may be sharded depends on its major ones."""
    choice: dict[str, Strategy] = {}
    rejected: dict[str, ShardingError] = {}
    current = (sharding for sharding in (*operands, *results) if sharding)
    order = list(dict.fromkeys([*(axis for sharding in current for axis, _ in sharding.entries), *mesh.axis_names]))
    while len(choice) < len(order):
        for axis in (axis for axis in order if axis not in choice):
            try:
                choice[axis] = _match_axis(rule, axis, mesh, operands, results, choice, may_split)
                break
            except ShardingError as error:
                rejected[axis] = error
        else:
            raise next(rejected[axis] for axis in mesh.axis_names if axis not in choice)
    return {axis: choice[axis] for axis in mesh.axis_names}


def _check_split(rule: OpRule, choice: Choice, mesh: Mesh, fine: Mesh) -> None:
    """Raise ShardingError if several sub-axes of one axis shard a factor unevenly; see `splits_evenly`."""
    sharded, seen = sharded_factors(choice, fine), set()
    for axis, strategy in choice.items():
        for number in strategy.factors if axis not in mesh.sizes else ():
            factor, count = rule.factors[number], sharded.of(number)
            part = (number, fine.root_axis(axis))
            if part in seen and factor.size % count:
                raise ShardingError(
                    f"sub-axes of '{part[1]}' shard factor '{factor.name}' of size {factor.size} in {count} shards "
                    "that are not even; only the complete axis may"
                )
            seen.add(part)


def _match_axis(
    rule: OpRule,
    axis: str,
    mesh: Mesh,
    operands: Sequence[Sharding],
    results: Sequence[Sharding | None],
    outer: Choice,
    may_split: bool,
) -> Strategy:
    found = tuple(sharding[axis] for sharding in operands)
    made = tuple(sharding[axis] if sharding else None for sharding in results)
    count, extras = mesh.sizes[axis], plugins_of((*operands, *results))
    strategies = _offered(rule, count, UNSHARDED, extras, may_split)
    for one in (*strategies, *_offered(rule, count, sharded_factors(outer, mesh), extras, may_split)):
        if one.operands == found and all(m is None or m == r for m, r in zip(made, one.results, strict=True)):
            return one
    nearest = max(strategies, key=lambda one: _agreeing(one, found, made))
    wrong = [
        f"{_operand_name(rule, index)} is {has} where the nearest strategy wants {wants}"
        for index, (has, wants) in enumerate(zip(found, nearest.operands, strict=True))
        if has != wants
    ] or [f"the results are ({_listed(made)}) where these operands give ({_listed(nearest.results)})"]
    accepted = "; ".join(f"({_listed(s.operands)}) -> ({_listed(s.results)})" for s in strategies[:STRATEGIES_SHOWN])
    accepted += "; …" if len(strategies) > STRATEGIES_SHOWN else ""
    raise ShardingError(
        f"on axis '{axis}' ({_listed(found)}) -> ({_listed(made)}) is not a strategy of this op: {', '.join(wrong)}; "
        f"it accepts {accepted}{reasons_text(rule.why_not(count, (*found, *made), extras))}"
    )


def reasons_text(dropped: Sequence[Dropped]) -> str:
    """Return what of a rule's strategies is left out and why, as the end of a message."""
    return "".join(f"; {one}" for one in dropped[:REASONS_SHOWN])


def _listed(placements: Sequence[Placement | None]) -> str:
    return ", ".join("_" if placement is None else str(placement) for placement in placements)


def _agreeing(strategy: Strategy, operands: Sequence[Placement], results: Sequence[Placement | None]) -> int:
    pairs = zip((*strategy.operands, *strategy.results), (*operands, *results), strict=True)
    return sum(placed == wanted for placed, wanted in pairs)


def _operand_name(rule: OpRule, index: int) -> str:
    names = [tensor.name for tensor in rule.rule.tensors if index in rule.binding.operands(tensor.name)]
    return f"operand {index} ({names[0]})" if names else f"operand {index}"


def _check_order(
    rule: OpRule, choice: Choice, operands: Sequence[Sharding], results: Sequence[Sharding | None]
) -> None:
    orders: dict[int, tuple[str, ...]] = {}
    placed = zip((*operands, *results), (*rule.operand_dims, *rule.result_dims), strict=True)
    for sharding, dims in placed:
        for dim in {p.dim for _, p in sharding.entries if p.dim is not None} if sharding else ():
            axes = sharding.dim_axes(dim) if sharding else ()
            if len(axes) < 2 or not dims:
                continue
            sharded = [_factor_of(choice[axis], dims[dim]) for axis in axes]
            if len(set(sharded)) > 1:
                _check_majors(rule, axes, dims[dim], sharded)
            for factor in dict.fromkeys(sharded):
                nested = tuple(axis for axis, own in zip(axes, sharded, strict=True) if own == factor)
                if factor is not None and orders.setdefault(factor, nested) != nested:
                    raise ShardingError(
                        f"factor '{rule.factors[factor].name}' is nested as {list(nested)} here and as "
                        f"{list(orders[factor])} there; one factor nests in one order"
                    )


def _check_ring(rule: OpRule, axis: str, factor: int, shardings: Sequence[Sharding | None], mesh: Mesh) -> None:
    """Raise ShardingError unless the blocks of `factor` that go round along `axis` are next to each other."""
    for sharding, dims in zip(shardings, (*rule.operand_dims, *rule.result_dims), strict=True):
        for dim, made_of in enumerate(dims or ()):
            axes = sharding.dim_axes(dim) if sharding and factor in made_of else ()
            *outer, last = axes or (axis,)
            if (axis in axes and axis != last) or mesh.root_axis(axis) in map(mesh.root_axis, outer):
                raise ShardingError(
                    f"is split along '{axis}', which shards factor '{rule.factors[factor].name}' with "
                    f"{[one for one in axes if one != axis]}; expected it to be innermost, and no part of these"
                )


def _factor_of(strategy: Strategy, made_of: tuple[int, ...]) -> int | None:
    """Return which of the factors of a dimension `strategy` shards; None if it shards none of them."""
    return next((factor for factor in made_of if factor in strategy.factors), None)


def _check_majors(rule: OpRule, axes: tuple[str, ...], factors: tuple[int, ...], sharded: Sequence[int | None]) -> None:
    """Raise ShardingError unless `axes`, which shard a dimension made of `factors`, shard the major ones first.

    Args:
        sharded: which of `factors` each axis shards.
    """
    at = [factors.index(factor) for factor in sharded if factor is not None]
    if at != sorted(at):
        names = " ".join(rule.factors[factor].name for factor in factors)
        raise ShardingError(
            f"the axes {list(axes)} shard a dimension made of ({names}) in another order; the axes of its major "
            "factors come first"
        )


def rule_of(op: ValueOp, rules: RuleSet) -> OpRule | None:
    """Return the rule of a torch op, instantiated on its call; None if the op has no rule.

    Raises:
        RuleError: operands, arguments or results do not fit the rule, or the op has none and its name is nearly that of
            one of torch; located at the op.
    """
    try:
        rule = rules.instantiate(op.call())
        if rule is not None:
            return rule.evaluated  # here, where errors can be located
        if (twin := listed_twin(op.name)) is not None:
            raise RuleError(
                f"'{op.name}' is no op of torch; did you mean '{twin}'? An op of a library needs a rule with "
                "--load-plugin if it has such a name"
            )
        return None
    except RuleError as error:
        raise RuleError(error.message, location_of(op)) from None  # at the op, not in the file of the rule


def strategies_of(op: ValueOp, mesh: Mesh, rules: RuleSet) -> tuple[OpRule | None, Choice]:
    """Return the instantiated rule of a torch op and the strategies its shardings use; `needs` is honoured.

    Raises:
        ShardingError: the op is ill typed, or a sharding is missing; located.
    """
    operands = required(op)
    results = op.shardings
    location = location_of(op)
    if is_undecided(op) or any(sharding is None for sharding in operands):
        raise ShardingError(f"'{op.name}' has values without a sharding; run propagate first", location)
    rule = rule_of(op, rules)
    if rule is None:
        for sharding in (*operands, *results):
            if sharding and sharding.entries:
                raise ShardingError(
                    f"'{op.name}' has no rule, so all its values are replicated; found <{sharding}>", location
                )
        return None, {}
    with errors_at(op, (RuleError, ShardingError)):
        return rule, match(rule, operands, results, mesh, is_split(op))  # type: ignore  # checked above


def is_undecided(op: ValueOp) -> bool:
    """Return whether a present result has no sharding yet."""
    return any(sharding is None and meta for sharding, meta in zip(op.shardings, op.metas, strict=True))


def required(op: ValueOp) -> tuple[Sharding | None, ...]:
    """Return the shardings that an op needs its operands in: those in `needs`, else those that they have."""
    needs = op.needs.data if op.needs else (None,) * len(op.tensors)
    return tuple(
        need if need is not None else sharding_of(value) for need, value in zip(needs, op.tensors, strict=True)
    )
