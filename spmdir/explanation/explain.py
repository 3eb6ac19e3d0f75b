"""`explain`: the reasons for shardings and reshards, with the objectives of alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spmdir.core.arguments import COUNT, accepts, instance
from spmdir.core.equal_layers import of_any_layer
from spmdir.core.placement.sharding import Sharding
from spmdir.explanation.decided_program import Alternative, DecidedProgram
from spmdir.explanation.explanation_results import (
    AxisReason,
    Choice,
    Delivery,
    Explanation,
    Explanations,
    Source,
    UserReason,
)
from spmdir.explanation.origins import origins
from spmdir.explanation.selectors import matches, no_match_error
from spmdir.explanation.undecided_program import PROGRAM, KeepsSource, resolve_program
from spmdir.pipeline.pipeline import PIPELINE, Pipeline
from spmdir.reshard.cost import step_cost
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.restricted_node import ends_of

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

DEFAULT_MOST = 3
"""The number of values that are explained by default."""

MAX_REASONS = 2
"""The number of reasons that are printed for an op without an alternative."""


@accepts(
    module=PROGRAM,
    at=instance(str, expected="a name as '%mm', a line as 'model.py:12', a module path or a glob"),
    most=COUNT,
    pipeline=PIPELINE,
)
def explain(
    module: ModuleOp | KeepsSource, at: str = "*", *, most: int = DEFAULT_MOST, pipeline: Pipeline | str | None = None
) -> Explanations:
    """Explain the shardings and the reshards of values.

    The whole program is decided again for each alternative. An alternative changes all equal layers. The program itself
    does not change.

    Args:
        module: a program before propagate, whose shardings count as user annotations; or a result of `parallelize` or
            `rank_programs`.
        at: the values to explain: a name such as `%mm`, a source line such as `model.py:12`, a module path such as
            `layers.0.mlp`, or a glob of names or paths. Values with the longest reshards come first.
        most: the number of values to explain.
        pipeline: the pipeline whose propagate decides; if None that of `module`, else the standard one.

    Raises:
        SpmdirError: no value matches `at`, or the program cannot be decided.

    Example:
        >>> print(spmdir.report.explain(module, "%mm"))
    """
    return explain_values(DecidedProgram(*resolve_program(module, pipeline)), at, most)


def explain_values(program: DecidedProgram, selector: str, most: int) -> Explanations:
    """Explain the selected values of a decided program; see `explain`.

    Raises:
        SpmdirError: no value matches the selector.
    """
    groups = select_values(program, selector)
    explained_values = tuple([explain_equal_values(program, values) for values in groups[:most]])
    return Explanations(explained_values, len(groups) - len(explained_values), program.differing)


def select_values(program: DecidedProgram, selector: str) -> list[list[int]]:
    """Return the selected values of a decided program, in groups of equal values of equal layers.

    Groups with the longest reshards come first. The name of a reshard in a later program, such as `%x.reshard`, selects
    the value `%x` that it reshards.

    Raises:
        SpmdirError: no value matches the selector.
    """
    selector = program.resolve_name(selector)
    name_in_text = selector.partition(".reshard")[0] if selector.startswith("%") else selector
    selected = [
        value
        for name, value in program.values.items()
        if matches(program.source_places(program.producer[value]), [name], selector) or name == name_in_text
    ]
    if not selected:
        places = {name: program.source_places(program.producer[value]) for name, value in program.values.items()}
        raise no_match_error(selector, places)
    groups: dict[object, list[int]] = {}
    for value in selected:
        groups.setdefault(_equality_key(program, value), []).append(value)
    return sorted(groups.values(), key=lambda values: -program.reshard_seconds[values[0]])


def _equality_key(program: DecidedProgram, value: int) -> object:
    """Return a key that equal values of equal layers share if they have equal shardings and equal users."""
    node = program.producer[value]
    uses = {
        (_node_key(program, user), operand_index, program.nested.needed[user][operand_index])
        for user, operand_index in program.users[value]
    }
    position = program.problem.nodes[node].results.index(value)
    return (
        _node_key(program, node),
        position,
        program.problem.values[value],
        program.nested.produced[value],
        frozenset(uses),
    )


def _node_key(program: DecidedProgram, node: int) -> object:
    """Return a key that equal nodes of equal layers share.

    The search may decide such layers separately. Then the key contains the strategies, so only nodes with equal
    decisions share it. Outside numbered layers, the key is the first of the nodes that are decided together.
    """
    places, name = program.source_places(node), program.name(node)
    path = next(iter(places.paths), "" if program.op(node) not in ("argument", "result") else name)
    layer = of_any_layer(path)
    if layer == path:
        return program.equal_nodes(node)[0]
    chosen = tuple([ends_of(strategies[node]) for strategies in program.strategies.values()])
    return layer, program.op(node), tuple(places.frames), program.occurrence[node], chosen


def explain_equal_values(program: DecidedProgram, values: Sequence[int]) -> Explanation:
    """Explain the first value of a group of `select_values`, and list the equal values that were decided separately."""
    value = values[0]
    node, meta = program.producer[value], program.problem.values[value]
    sharding, equal_nodes = program.nested.produced[value], program.equal_nodes(node)
    root = program.mesh.root or program.mesh
    coordinate = dict.fromkeys(root.axis_names, 0)
    # first of the nodes that are decided together → the name of the first of their values
    name_by_decision: dict[int, str] = {}
    for equal_value in values:
        first_node = program.equal_nodes(program.producer[equal_value])[0]
        name_by_decision.setdefault(first_node, program.names[equal_value])
    return Explanation(
        name=program.names[value],
        op=program.op(node),
        location=program.location(node),
        times=len(equal_nodes),
        meta=meta,
        sharding=sharding,
        local_bytes=sharding.local_type(meta, root, coordinate).bytes,
        axes=tuple([_explain_axis(program, value, axis) for axis in program.mesh.axis_names]),
        deliveries=_explain_deliveries(program, value),
        seconds=program.seconds,
        equal_values=tuple([name for first_node, name in name_by_decision.items() if first_node != equal_nodes[0]]),
    )


def _explain_axis(program: DecidedProgram, value: int, axis: str) -> AxisReason:
    """Explain the placement of a value on an axis: the annotations that it follows from, and an alternative.

    For a sharded value, the alternative is another strategy of its producer; else one that shards the value.
    """
    node = program.producer[value]
    position = program.problem.nodes[node].results.index(value)
    sources = []
    for origin in origins(program, value, axis):
        annotated_name = program.name(origin.node)
        without_annotation = program.decide_without_annotation(origin.node, axis)
        if without_annotation is not None:
            names_on_path = [program.names[between] for between in reversed(origin.path) if between != value]
            through = tuple([name for name in names_on_path if name != annotated_name])
            placement_without = str(without_annotation.strategies[axis][node].results[position])
            annotated = f"{axis}: {origin.placement}"
            sources.append(Source(annotated_name, annotated, through, placement_without, without_annotation.seconds))
    placement = program.strategies[axis][node].results[position]
    if placement.trait == "shard":
        return AxisReason(str(placement), _explain_strategy(program, node, axis), tuple(sources))
    alternative = program.decide_with_sharded_result(node, axis, position)
    choice = _compare_alternative(program, node, axis, alternative, " that shards it")
    return AxisReason(str(placement), choice, tuple(sources))


def _explain_strategy(program: DecidedProgram, node: int, axis: str) -> Choice:
    """Compare the strategy of a node on an axis with the decision if this strategy is forbidden."""
    return _compare_alternative(program, node, axis, program.decide_without_strategy(node, axis))


def _compare_alternative(
    program: DecidedProgram, node: int, axis: str, alternative: Alternative | None, requirement: str = ""
) -> Choice:
    """Return the strategy of a node on an axis with that of an alternative, or with the reasons why there is none.

    Args:
        requirement: as in `Choice`.
    """
    chosen = _strategy_text(program.strategies[axis][node])
    if alternative is None:
        return Choice(axis, chosen, reasons=_reasons(program, node, axis), requirement=requirement)
    other = _strategy_text(alternative.strategies[axis][node])
    return Choice(axis, chosen, other, alternative.seconds, requirement=requirement)


def _reasons(program: DecidedProgram, node: int, axis: str) -> tuple[str, ...]:
    """Return the reasons that restrict a node to its strategy on an axis: an annotation, a missing rule, or the rule.

    At most `MAX_REASONS` of the strategies that the rule drops are listed.
    """
    annotated = program.annotation(node, axis)
    if annotated is not None:
        return (f"the value is annotated {axis}: {annotated}",)
    rule = program.rule(node)
    if rule is None:
        return ("the op has no rule",)
    considered = rule.considered(program.mesh.sizes[axis])
    dropped = [str(candidate) for candidate in considered if isinstance(candidate, Dropped)]
    return tuple(dropped[:MAX_REASONS])


def _explain_deliveries(program: DecidedProgram, value: int) -> tuple[Delivery, ...]:
    """Return the shardings that users need of a value, each with its reshard. Equal users of equal layers count as one.

    Each reshard is planned alone, without steps of the reshards to other shardings.
    """
    produced = program.nested.produced[value]
    # needed sharding → key of equal users → (user node → the index of its first operand that is the value)
    users_by_sharding: dict[Sharding, dict[object, dict[int, int]]] = {}
    for node, operand_index in program.users[value]:
        users_by_key = users_by_sharding.setdefault(program.nested.needed[node][operand_index], {})
        users_by_key.setdefault(_node_key(program, node), {}).setdefault(node, operand_index)
    deliveries = []
    for needed, users_by_key in users_by_sharding.items():
        users = []
        for equal_users in users_by_key.values():
            node, operand_index = next(iter(equal_users.items()))
            users.append(_explain_user(program, value, node, operand_index, len(equal_users)))
        if needed == produced:
            deliveries.append(Delivery(str(needed), (), 0.0, 0.0, tuple(users)))
            continue
        meta, root = program.problem.values[value], program.mesh.root or program.mesh
        tree, wire_bytes = program.plan_reshard(value, (needed,)), 0.0
        for step in tree.steps.values():
            wire_bytes += step_cost(step, meta.shape, meta.dtype.itemsize, root, program.problem.topology).wire_bytes
        steps = tuple(map(str, tree.steps.values()))
        deliveries.append(Delivery(str(needed), steps, wire_bytes, tree.seconds, tuple(users)))
    return tuple(deliveries)


def _explain_user(program: DecidedProgram, value: int, node: int, slot: int, times: int) -> UserReason:
    """Explain the strategy of a user on the axes where it needs another placement than the produced one."""
    producer = program.producer[value]
    position = program.problem.nodes[producer].results.index(value)
    resharded_axes = [
        axis
        for axis, chosen in program.strategies.items()
        if chosen[producer].results[position] != chosen[node].operands[slot]
    ]
    choices = tuple([_explain_strategy(program, node, axis) for axis in resharded_axes])
    return UserReason(program.name(node), program.op(node), program.location(node), choices, times)


def _strategy_text(strategy: Strategy) -> str:
    """Return `(S(0), R) -> (S(0))`: the placements of the operands and the results."""
    return f"({', '.join(map(str, strategy.operands))}) -> ({', '.join(map(str, strategy.results))})"
