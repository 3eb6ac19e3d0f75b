"""Operand shardings of ops that no pass has decided on: those that give an op's results and are cheapest to reach.

`matmul` with the result <tp: S(0)> takes <tp: S(0)> and R. If its operands are R and R, the planner prices the reshard
of the first one on the machine of the function. If several pairs give the result, the one of least seconds is taken;
of more than `CANDIDATES` pairs, only those that send the fewest bytes axis by axis are planned.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import attrs

from spmdir.analysis.local_forms import is_split
from spmdir.analysis.sub_axes import wanted_splits
from spmdir.analysis.type_check import is_undecided, match, plugins_of, rule_of, sharded_factors
from spmdir.core.errors import RuleError, ShardingError, SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.standard import R
from spmdir.dialects.locations import errors_at, location_of
from spmdir.dialects.value_op import ValueOp
from spmdir.reshard.axis_price import axis_price
from spmdir.reshard.conditions import refinement
from spmdir.reshard.plan_tree import ROUNDING, Planner
from spmdir.rules import OpRule, RuleSet, Strategy

CANDIDATES = 64
"""How many combinations of strategies on the mesh axes are planned for one op at most."""


@attrs.frozen
class OperandChoice:
    """Chooses the operand shardings of the ops of one function.

    Attributes:
        mesh: that of the function.
        rules: those of its ops.
        planner: makes the planner on the machine of the function; called only if there is a choice.
    """

    mesh: Mesh
    rules: RuleSet
    planner: Callable[[], Planner]

    def cheapest(self, op: ValueOp, current: Sequence[Sharding]) -> tuple[Sharding, ...]:
        """Return the operand shardings that give the op's result shardings and take the least time to reach.

        Args:
            current: the shardings that the operands have.

        Raises:
            ShardingError: no strategies of the op's rule give its results; located.
        """
        if is_undecided(op):
            raise ShardingError(f"'{op.name}' has a result without a sharding; run propagate first", location_of(op))
        rule = rule_of(op, self.rules)
        if rule is None:
            return tuple(Sharding((), self.mesh.name) for _ in current)
        with errors_at(op, (RuleError, ShardingError)):
            candidates = _candidates(rule, tuple(current), op.shardings, self.mesh, is_split(op))
        if len(candidates) == 1:
            return candidates[0]
        return _quickest(rule, current, candidates, self.planner().for_tries())


def _quickest(
    rule: OpRule, current: Sequence[Sharding], candidates: Sequence[tuple[Sharding, ...]], planner: Planner
) -> tuple[Sharding, ...]:
    """Return the candidate of least seconds, then of fewest bytes; it plans only while a lower bound is below these."""

    def total(wanted: tuple[Sharding, ...], price: Callable[..., Any]) -> tuple[float, ...]:
        try:
            return tuple(map(sum, zip(*map(price, rule.call.operands, current, wanted), strict=True)))
        except SpmdirError:
            return math.inf, math.inf  # of a reshard that is impossible

    def plan(*reshard: Any) -> tuple[float, float]:
        found = planner.plan(*reshard)
        return found.seconds, found.wire_bytes

    least = [total(wanted, lambda *reshard: (planner.least_seconds(*reshard),))[0] for wanted in candidates]
    best: tuple[float, ...] = (math.inf, math.inf, 0)
    for number in sorted(range(len(candidates)), key=least.__getitem__):
        if least[number] > best[0] * (1 + ROUNDING):
            break
        price = *total(candidates[number], plan), number
        best = min(best, price)
    return candidates[int(best[-1])]


@lru_cache(maxsize=65536)
def _candidates(
    rule: OpRule, current: tuple[Sharding, ...], made: tuple[Sharding | None, ...], mesh: Mesh, may_split: bool
) -> tuple[tuple[Sharding, ...], ...]:
    """Return the operand shardings that give results in `made`: only the current ones if they do."""
    with contextlib.suppress(ShardingError):
        match(rule, current, made, mesh, may_split)
        return (current,)
    results = [sharding for sharding in made if sharding]
    rejected: ShardingError | None = None
    for fine in _refinements(rule, current, results, mesh):
        try:
            return _candidates_on(rule, current, made, mesh, fine)
        except ShardingError as error:
            rejected = rejected or error
    assert rejected is not None
    raise rejected


def _refinements(rule: OpRule, current: Sequence[Sharding], made: Sequence[Sharding], mesh: Mesh) -> Iterator[Mesh]:
    """Yield the meshes on which an op's strategies may give its results, the simplest first."""
    annotated = refinement(mesh, *made)
    yield annotated
    with contextlib.suppress(ShardingError):
        yield refinement(mesh, *made, *current)
    split = wanted_splits({(rule, axis): 1.0 for axis in mesh.axis_names}, annotated)
    if split != annotated:
        yield split


def _candidates_on(
    rule: OpRule, current: tuple[Sharding, ...], made: tuple[Sharding | None, ...], mesh: Mesh, fine: Mesh
) -> tuple[tuple[Sharding, ...], ...]:
    """Return the operand shardings on the axes of `fine`, at most `CANDIDATES` of them."""
    refined = [sharding.refined(fine) if sharding else None for sharding in made]
    entries = [entry for s in refined if s for entry in s.entries]
    # Axes nest in the order in which results are sharded; the order in which partial placements are listed is
    # arbitrary.
    order = dict.fromkeys(axis for axis, placement in entries if placement.dim is not None)
    order.update(dict.fromkeys(axis for axis, _ in entries))
    order.update(dict.fromkeys(axis for s in current for named, _ in s.entries for axis in _overlapping(named, fine)))
    extras = plugins_of((*current, *made))
    results = {axis: tuple(sharding[axis] if sharding else R for sharding in refined) for axis in order}

    def extended(choice: dict[str, Strategy]) -> list[dict[str, Strategy]]:
        # A minor factor can be sharded once its major ones are, so the axis of these is chosen first.
        for axis in (axis for axis in order if axis not in choice):
            strategies = rule.strategies(fine.sizes[axis], sharded_factors(choice, fine), extras)
            fitting = [strategy for strategy in strategies if strategy.results == results[axis]]
            if fitting:
                return [{**choice, axis: strategy} for strategy in fitting]
        return []

    def sent(choice: dict[str, Strategy]) -> float:
        """Return the bytes that each axis sends by itself, which is quick to find."""
        return sum(_sent_on(rule, strategy, axis, current, fine) for axis, strategy in choice.items())

    choices: list[dict[str, Strategy]] = [{}]
    for _ in order:
        further = [longer for choice in choices for longer in extended(choice)]
        if len(further) > CANDIDATES:
            further = sorted(further, key=sent)[:CANDIDATES]
        if not further:
            axis = next(axis for axis in order if axis not in choices[0])
            raise ShardingError(
                f"no strategy of its rule gives ({', '.join(map(str, results[axis]))}) on axis '{axis}'; "
                "give the op a sharding it can make and reshard the result"
            )
        choices = further
    candidates = dict.fromkeys(
        tuple(
            Sharding([(axis, choice[axis].operands[index]) for axis in order], mesh.name).merged(mesh)
            for index in range(len(current))
        )
        for choice in choices
    )
    return tuple(candidates) if fine is mesh else _accepted(rule, candidates, made, mesh)


def _accepted(
    rule: OpRule, candidates: Iterable[tuple[Sharding, ...]], made: tuple[Sharding | None, ...], mesh: Mesh
) -> tuple[tuple[Sharding, ...], ...]:
    """Return the candidates that pass the type check; raise its error if none does."""
    accepted: list[tuple[Sharding, ...]] = []
    rejected: ShardingError | None = None
    for operands in candidates:
        try:
            match(rule, operands, made, mesh)
            accepted.append(operands)
        except ShardingError as error:
            rejected = rejected or error
    if not accepted and rejected is not None:
        raise rejected
    return tuple(accepted)


@lru_cache(maxsize=65536)
def _sent_on(rule: OpRule, strategy: Strategy, axis: str, current: tuple[Sharding, ...], mesh: Mesh) -> float:
    """Return the bytes that are sent to move the operands on one axis, the other axes left as they are."""
    return sum(
        axis_price(has.along(axis, mesh) or R, wanted, meta.bytes, mesh.sizes[axis]).wire_bytes
        for has, wanted, meta in zip(current, strategy.operands, rule.call.operands, strict=True)
    )


def _overlapping(axis: str, fine: Mesh) -> list[str]:
    """Return the axes of `fine` that overlap `axis`."""
    return [other for other in fine.axis_names if other == axis or fine.root_axis(other) == fine.root_axis(axis)]
