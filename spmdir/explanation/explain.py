"""`explain`: why values are sharded and resharded as they are, with alternatives that are decided again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spmdir.core.arguments import COUNT, accepts, instance
from spmdir.core.equal_layers import of_any_layer
from spmdir.core.placement.sharding import Sharding
from spmdir.explanation.asked import PROGRAM, KeepsSource, asked_about
from spmdir.explanation.decided import DecidedProgram, Otherwise
from spmdir.explanation.explained import AxisReason, Choice, Delivery, Explanation, Explanations, Source, UserReason
from spmdir.explanation.origins import origins
from spmdir.explanation.places import is_at, nothing_there
from spmdir.pipeline.pipeline import PIPELINE, Pipeline
from spmdir.reshard.cost import step_cost
from spmdir.rules.strategies.obstacle import Dropped
from spmdir.rules.strategies.strategy import Strategy
from spmdir.search.restricted import ends_of

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

MOST = 3
"""How many values of a place are explained unless others are asked for."""

REASONS = 2
"""How many reasons are given why an op has no other strategy."""


@accepts(
    module=PROGRAM,
    at=instance(str, expected="a name as '%mm', a line as 'model.py:12', a module path or a glob"),
    most=COUNT,
    pipeline=PIPELINE,
)
def explain(
    module: ModuleOp | KeepsSource, at: str = "*", *, most: int = MOST, pipeline: Pipeline | str | None = None
) -> Explanations:
    """Return why values of a program are sharded and resharded as they are; the program is left as it is.

    Every alternative is decided again in full, in all equal layers alike.

    Args:
        module: as it is before propagate: annotations are taken for the user's; or what `parallelize` or
            `rank_programs` returned.
        at: the values: a name in the text, as `%mm`; a line of source, as `model.py:12`; the path of a module, as
            `layers.0.mlp`; or a glob of names or paths. What takes `most` time to reshard is explained.
        most: how many values are explained.
        pipeline: whose propagate decides; if None the standard one, or that of `parallelize`.

    Raises:
        SpmdirError: nothing is there, or the program cannot be decided.

    Example:
        >>> print(spmdir.report.explain(module, "%mm"))
    """
    return explanations(DecidedProgram(*asked_about(module, pipeline)), at, most)


def explanations(program: DecidedProgram, at: str, most: int) -> Explanations:
    """Return why the values of a decided program that `at` names are as they are; see `explain`.

    Raises:
        SpmdirError: there is none.
    """
    groups = equal_values(program, at)
    explained = tuple([explained_alike(program, values) for values in groups[:most]])
    return Explanations(explained, len(groups) - len(explained), program.differing)


def equal_values(program: DecidedProgram, at: str) -> list[list[int]]:
    """Return the values of a decided program that `at` names, equal ones of equal layers together; those first whose
    reshards take longest.

    Raises:
        SpmdirError: there is none.
    """
    at = program.named(at)
    asked = at.partition(".reshard")[0] if at.startswith("%") else at
    found = [
        value
        for name, value in program.values.items()
        if is_at(program.places(program.maker[value]), [name], at) or name == asked
    ]
    if not found:
        places = {name: program.places(program.maker[value]) for name, value in program.values.items()}
        raise nothing_there(at, places)
    equal: dict[object, list[int]] = {}
    for value in found:
        equal.setdefault(_look(program, value), []).append(value)
    return sorted(equal.values(), key=lambda values: -program.reshard_seconds[values[0]])


def _look(program: DecidedProgram, value: int) -> object:
    """Return what is equal for equal values of equal layers that are placed and used alike."""
    node = program.maker[value]
    used = {
        (_look_of_node(program, user), slot, program.nested.needed[user][slot]) for user, slot in program.users[value]
    }
    position = program.problem.nodes[node].results.index(value)
    return (
        _look_of_node(program, node),
        position,
        program.problem.values[value],
        program.nested.produced[value],
        frozenset(used),
    )


def _look_of_node(program: DecidedProgram, node: int) -> object:
    """Return what is equal for equal nodes of equal layers that are decided alike, though not as one."""
    places, name = program.places(node), program.name(node)
    path = next(iter(places.paths), "" if program.op(node) not in ("argument", "result") else name)
    layer = of_any_layer(path)
    if layer == path:
        return program.alike(node)[0]
    chosen = tuple([ends_of(strategies[node]) for strategies in program.strategies.values()])
    return layer, program.op(node), tuple(places.frames), program.occurrence[node], chosen


def explained_alike(program: DecidedProgram, values: Sequence[int]) -> Explanation:
    """Return why the first of some values that are equal, as `equal_values` has them together, is as it is."""
    value = values[0]
    node, meta = program.maker[value], program.problem.values[value]
    sharding, alike = program.nested.produced[value], program.alike(node)
    root = program.mesh.root or program.mesh
    first = dict.fromkeys(root.axis_names, 0)
    others = {program.alike(program.maker[other])[0]: program.names[other] for other in reversed(values)}
    return Explanation(
        name=program.names[value],
        op=program.op(node),
        location=program.location(node),
        times=len(alike),
        meta=meta,
        sharding=sharding,
        local_bytes=sharding.local_type(meta, root, first).bytes,
        axes=tuple([_on_axis(program, value, axis) for axis in program.mesh.axis_names]),
        deliveries=_deliveries(program, value),
        seconds=program.seconds,
        likewise=tuple([name for first, name in reversed(others.items()) if first != alike[0]]),
    )


def _on_axis(program: DecidedProgram, value: int, axis: str) -> AxisReason:
    node = program.maker[value]
    position = program.problem.nodes[node].results.index(value)
    found = []
    for origin in origins(program, value, axis):
        name, otherwise = program.name(origin.node), program.without_annotation(origin.node, axis)
        if otherwise is not None:
            through = [program.names[one] for one in reversed(origin.path) if one != value]
            placed = str(otherwise.strategies[axis][node].results[position])
            without = tuple([other for other in through if other != name]), placed, otherwise.seconds
            found.append(Source(name, f"{axis}: {origin.placement}", *without))
    placement = program.strategies[axis][node].results[position]
    if placement.trait == "shard":
        return AxisReason(str(placement), _choice(program, node, axis), tuple(found))
    otherwise = program.with_sharded_result(node, axis, position)
    return AxisReason(str(placement), _beside(program, node, axis, otherwise, " that shards it"), tuple(found))


def _choice(program: DecidedProgram, node: int, axis: str) -> Choice:
    return _beside(program, node, axis, program.without_strategy(node, axis))


def _beside(program: DecidedProgram, node: int, axis: str, otherwise: Otherwise | None, sought: str = "") -> Choice:
    chosen = _text(program.strategies[axis][node])
    if otherwise is None:
        return Choice(axis, chosen, reasons=_reasons(program, node, axis), sought=sought)
    return Choice(axis, chosen, _text(otherwise.strategies[axis][node]), otherwise.seconds, sought=sought)


def _reasons(program: DecidedProgram, node: int, axis: str) -> tuple[str, ...]:
    """Return why a node has no other strategy on an axis."""
    annotated = program.annotated(node, axis)
    if annotated is not None:
        return (f"it is annotated {axis}: {annotated}",)
    rule = program.rule(node)
    if rule is None:
        return ("the op has no rule",)
    return tuple([str(one) for one in rule.considered(program.mesh.sizes[axis]) if isinstance(one, Dropped)][:REASONS])


def _deliveries(program: DecidedProgram, value: int) -> tuple[Delivery, ...]:
    made = program.nested.produced[value]
    by_need: dict[Sharding, dict[object, dict[int, int]]] = {}
    for node, slot in program.users[value]:
        equal = by_need.setdefault(program.nested.needed[node][slot], {})
        equal.setdefault(_look_of_node(program, node), {}).setdefault(node, slot)
    found = []
    for needed, equal in by_need.items():
        users = tuple([_user(program, value, *next(iter(nodes.items())), len(nodes)) for nodes in equal.values()])
        if needed == made:
            found.append(Delivery(str(needed), (), 0.0, 0.0, users))
            continue
        problem, meta = program.problem, program.problem.values[value]
        root, tree = program.mesh.root or program.mesh, program.reshard(value, (needed,))
        machine = root, problem.topology
        costs = [step_cost(step, meta.shape, meta.dtype.itemsize, *machine) for step in tree.steps.values()]
        steps, wire_bytes = tuple(map(str, tree.steps.values())), sum(cost.wire_bytes for cost in costs)
        found.append(Delivery(str(needed), steps, wire_bytes, tree.seconds, users))
    return tuple(found)


def _user(program: DecidedProgram, value: int, node: int, slot: int, times: int) -> UserReason:
    """Return why a node takes a value as it does, on the axes on which it is not made so."""
    maker = program.maker[value]
    position = program.problem.nodes[maker].results.index(value)
    changed = [
        axis
        for axis, chosen in program.strategies.items()
        if chosen[maker].results[position] != chosen[node].operands[slot]
    ]
    choices = tuple([_choice(program, node, axis) for axis in changed])
    return UserReason(program.name(node), program.op(node), program.location(node), choices, times)


def _text(strategy: Strategy) -> str:
    return f"({', '.join(map(str, strategy.operands))}) -> ({', '.join(map(str, strategy.results))})"
