"""Choose the operand shardings of an op without a decision: the cheapest to reach that produce its result shardings.

For example, `matmul` with the result <tp: S(0)> requires the operands <tp: S(0)> and R. If the operands are R and R,
the planner prices the reshard of the first one on the machine of the function. If several pairs produce the result, the
fastest pair is used. If there are more than `CANDIDATES` pairs, only those with the fewest bytes are planned, estimated
axis by axis.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

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
"""The largest number of combinations of strategies, one for each mesh axis, that are planned for an op."""


@attrs.frozen
class OperandChoice:
    """Chooses the operand shardings of the ops of one function.

    Attributes:
        mesh: the mesh of the function.
        rules: the rules of its ops.
        planner: returns the planner for the machine of the function. It is called only if there is a choice.
    """

    mesh: Mesh
    rules: RuleSet
    planner: Callable[[], Planner]

    def cheapest(self, op: ValueOp, current: Sequence[Sharding]) -> tuple[Sharding, ...]:
        """Return the operand shardings that produce the op's result shardings and are the fastest to reach.

        Args:
            current: the current shardings of the operands.

        Raises:
            ShardingError: no strategies of the op's rule produce its results; located.
        """
        if is_undecided(op):
            raise ShardingError(
                f"'{op.name}' has a result without a sharding; expected a sharding for each result: run "
                "propagate first",
                location_of(op),
            )
        rule = rule_of(op, self.rules)
        if rule is None:
            return tuple(Sharding((), self.mesh.name) for _ in current)
        with errors_at(op, (RuleError, ShardingError)):
            candidates = _find_candidates(rule, tuple(current), op.shardings, self.mesh, is_split(op))
        if len(candidates) == 1:
            return candidates[0]
        return _fastest(rule, current, candidates, self.planner().for_tries())


def _fastest(
    rule: OpRule, current: Sequence[Sharding], candidates: Sequence[tuple[Sharding, ...]], planner: Planner
) -> tuple[Sharding, ...]:
    """Return the candidate with the least seconds, then the fewest bytes.

    Candidates are planned in the order of their lower bounds, until a lower bound exceeds the best time. A candidate
    whose reshard is impossible costs infinity.

    Args:
        current: the current shardings of the operands.
        candidates: the shardings to compare.
    """

    def lower_bound(wanted: tuple[Sharding, ...]) -> float:
        """Return a lower bound on the seconds of the reshards to a candidate."""
        try:
            return sum(map(planner.least_seconds, rule.call.operands, current, wanted))
        except SpmdirError:
            return math.inf

    def plan(wanted: tuple[Sharding, ...]) -> tuple[float, float]:
        """Return the planned seconds and bytes of the reshards to a candidate."""
        try:
            plans = list(map(planner.plan, rule.call.operands, current, wanted))
        except SpmdirError:
            return math.inf, math.inf
        return sum(plan.seconds for plan in plans), sum(plan.wire_bytes for plan in plans)

    lower_bounds = [lower_bound(wanted) for wanted in candidates]
    best: tuple[float, float, int] = (
        math.inf,
        math.inf,
        0,
    )  # seconds, bytes, number of the candidate: the first one if no reshard is possible
    for number in sorted(range(len(candidates)), key=lower_bounds.__getitem__):
        if lower_bounds[number] > best[0] * (1 + ROUNDING):
            break
        best = min(best, (*plan(candidates[number]), number))
    return candidates[best[2]]


@lru_cache(maxsize=65536)
def _find_candidates(
    rule: OpRule,
    current: tuple[Sharding, ...],
    expected_results: tuple[Sharding | None, ...],
    mesh: Mesh,
    may_split: bool,
) -> tuple[tuple[Sharding, ...], ...]:
    """Return operand shardings that produce the expected results: only the current ones if they do.

    Args:
        expected_results: None for a result that may have any sharding.
        may_split: whether strategies that split a matrix product are allowed. Only the current shardings may use them.

    Raises:
        ShardingError: no operand shardings produce the results.
    """
    with contextlib.suppress(ShardingError):
        match(rule, current, expected_results, mesh, may_split)
        return (current,)
    present_results = [sharding for sharding in expected_results if sharding]
    rejected: ShardingError | None = None
    for fine in _refinements(rule, current, present_results, mesh):
        try:
            return _candidates_on(rule, current, expected_results, mesh, fine)
        except ShardingError as error:
            rejected = rejected or error
    assert rejected is not None  # there is at least one refined mesh
    raise rejected


def _refinements(rule: OpRule, current: Sequence[Sharding], results: Sequence[Sharding], mesh: Mesh) -> Iterator[Mesh]:
    """Yield refined meshes on which strategies may produce the results of an op, the simplest first.

    They have the sub-axes of the results; then also those of the current operands; then also sub-axes that views need.
    """
    annotated = refinement(mesh, *results)
    yield annotated
    with contextlib.suppress(ShardingError):
        yield refinement(mesh, *results, *current)
    split = wanted_splits({(rule, axis): 1.0 for axis in mesh.axis_names}, annotated)
    if split != annotated:
        yield split


def _candidates_on(
    rule: OpRule, current: tuple[Sharding, ...], results: tuple[Sharding | None, ...], mesh: Mesh, fine: Mesh
) -> tuple[tuple[Sharding, ...], ...]:
    """Return at most `CANDIDATES` operand shardings on the axes of the refined mesh `fine`.

    A choice has one strategy for each axis. Choices are extended axis by axis. For example, three choices become six if
    the next axis has two strategies for each.

    Raises:
        ShardingError: no strategies on these axes produce the results.
    """
    refined_results = [sharding.refined(fine) if sharding else None for sharding in results]
    axes = _axes_to_decide(refined_results, current, fine)
    plugin_placements = plugins_of((*current, *results))
    results_on = {axis: tuple(sharding[axis] if sharding else R for sharding in refined_results) for axis in axes}

    def extend(choice: dict[str, Strategy]) -> list[dict[str, Strategy]]:
        """Return `choice` with one more axis, once for each strategy of that axis; [] if no axis has a strategy.

        A minor factor can be sharded only after its major ones. So the first axis that has a strategy now is added.
        """
        for axis in axes:
            if axis not in choice:
                strategies = rule.strategies(fine.sizes[axis], sharded_factors(choice, fine), plugin_placements)
                fitting = [strategy for strategy in strategies if strategy.results == results_on[axis]]
                if fitting:
                    return [{**choice, axis: strategy} for strategy in fitting]
        return []

    def sent_bytes(choice: dict[str, Strategy]) -> float:
        """Return the bytes that the axes send. They are priced one by one, because that is fast."""
        return sum(_bytes_on(rule, strategy, axis, current, fine) for axis, strategy in choice.items())

    choices: list[dict[str, Strategy]] = [{}]
    for _ in axes:
        extended = [longer_choice for choice in choices for longer_choice in extend(choice)]
        if len(extended) > CANDIDATES:
            extended = sorted(extended, key=sent_bytes)[:CANDIDATES]
        if not extended:
            axis = next(axis for axis in axes if axis not in choices[0])
            raise ShardingError(
                f"no strategy of its rule gives ({', '.join(map(str, results_on[axis]))}) on axis '{axis}'; "
                "expected placements that a strategy gives: give the op such a sharding, and reshard the "
                "result"
            )
        choices = extended
    candidates: dict[tuple[Sharding, ...], None] = {}
    for choice in choices:
        entries_of_operands = [[(axis, choice[axis].operands[index]) for axis in axes] for index in range(len(current))]
        candidates[tuple([Sharding(entries, mesh.name).merged(mesh) for entries in entries_of_operands])] = None
    # Merging the entries of sub-axes may give shardings that the rule rejects, so these candidates are checked.
    return tuple(candidates) if fine is mesh else _check_candidates(rule, candidates, results, mesh)


def _axes_to_decide(results: Sequence[Sharding | None], current: Sequence[Sharding], fine: Mesh) -> list[str]:
    """Return the axes of `fine` that the results or the current operands use.

    Axes nest in the order in which results are sharded, so these come first. The order in which partial placements are
    listed is arbitrary.
    """
    result_entries = [entry for sharding in results if sharding for entry in sharding.entries]
    axes = [axis for axis, placement in result_entries if placement.dim is not None]
    axes += [axis for axis, _ in result_entries]
    for sharding in current:
        for axis, _ in sharding.entries:
            axes += _overlapping(axis, fine)
    return list(dict.fromkeys(axes))


def _check_candidates(
    rule: OpRule, candidates: Iterable[tuple[Sharding, ...]], results: tuple[Sharding | None, ...], mesh: Mesh
) -> tuple[tuple[Sharding, ...], ...]:
    """Return the candidates that pass the type check on `mesh`; raise its first error if none does."""
    fitting: list[tuple[Sharding, ...]] = []
    rejected: ShardingError | None = None
    for operands in candidates:
        try:
            match(rule, operands, results, mesh)
            fitting.append(operands)
        except ShardingError as error:
            rejected = rejected or error
    if not fitting and rejected is not None:
        raise rejected
    return tuple(fitting)


@lru_cache(maxsize=65536)
def _bytes_on(rule: OpRule, strategy: Strategy, axis: str, current: tuple[Sharding, ...], mesh: Mesh) -> float:
    """Return the bytes sent to reshard the operands on one axis, if all other axes were replicated."""
    return sum(
        axis_price(sharding.along(axis, mesh) or R, wanted, meta.bytes, mesh.sizes[axis]).wire_bytes
        for sharding, wanted, meta in zip(current, strategy.operands, rule.call.operands, strict=True)
    )


def _overlapping(axis: str, fine: Mesh) -> list[str]:
    """Return the axes of `fine` that may overlap `axis`: itself, or all sub-axes of the same mesh axis."""
    return [name for name in fine.axis_names if name == axis or fine.root_axis(name) == fine.root_axis(axis)]
