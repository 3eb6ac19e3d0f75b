"""Find the candidate plug-in placements of each value on each mesh axis: those in annotations, and those ops derive.

A placement is a candidate on the axes where the user annotates it. A placement with `offered = True` is a candidate on
all axes. Other axes get no candidates: S shards as well there, and the number of priced reshards grows with the square
of the number of joint placements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from spmdir.analysis.propagation.op_strategies import OpStrategies, rules_of
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import plugins
from spmdir.rules import OpRule
from spmdir.search.problem import Annotation, AxisPlacements, Node, Problem, StrategySource

MAX_CANDIDATES = 8
"""The largest number of candidates of a value on one axis that ops derive."""

Candidates = list[dict[Placement, None]]
"""[value], its candidates on one axis, in the order in which they were found."""


_AxisEntries = tuple[tuple[str, Placement], ...]
"""Root axes, each with a placement."""


def with_candidates(problem: Problem) -> Problem:
    """Return the problem with the candidate plug-in placements of its values on each axis; unchanged without any."""
    rules = rules_of(problem)
    annotations_by_node = [_annotated_placements(node.source, problem.mesh) for node in problem.nodes]
    axis_candidates: dict[str, Candidates] = {}
    for axis in _axes_with_candidates(problem, rules, annotations_by_node):
        annotated = [
            [placement for entry_axis, placement in entries if entry_axis == axis] for entries in annotations_by_node
        ]
        axis_candidates[axis] = _find_candidates(problem, rules, annotated)
    if not axis_candidates:
        return problem
    nodes = tuple([_with_node_candidates(node, axis_candidates) for node in problem.nodes])
    placements = [placement for entries in annotations_by_node for _, placement in entries]
    for value_candidates in axis_candidates.values():
        placements += itertools.chain.from_iterable(value_candidates)
    return attrs.evolve(problem, nodes=nodes, plugin_placements=plugins(placements))


def _axes_with_candidates(
    problem: Problem, rules: Sequence[OpRule | None], annotations_by_node: Sequence[_AxisEntries]
) -> list[str]:
    """Return the root axes on which values may have plug-in placements.

    These are the axes with such an annotation, or all axes if a rule offers plug-in placements.

    Args:
        annotations_by_node: for each node, the entries of its user annotations.
    """
    mesh = problem.mesh
    if any(any(_offered_placements(node, rule, mesh)) for node, rule in zip(problem.nodes, rules, strict=True)):
        return list(dict.fromkeys(map(mesh.root_axis, mesh.axis_names)))
    return list(
        dict.fromkeys(axis for entries in annotations_by_node for axis, placement in entries if plugins([placement]))
    )


def _with_node_candidates(node: Node, axis_candidates: Mapping[str, Candidates]) -> Node:
    """Return the node with the candidates of its operands and results.

    Args:
        axis_candidates: axis → [value], the candidate plug-in placements.
    """
    placements_by_axis = [(axis, _candidates_of_node(node, by_value)) for axis, by_value in axis_candidates.items()]
    plugin_placements = AxisPlacements(
        tuple((axis, placements) for axis, placements in placements_by_axis if placements)
    )
    return attrs.evolve(node, source=attrs.evolve(node.source, plugin_placements=plugin_placements))  # type: ignore


def _annotated_placements(source: StrategySource, mesh: Mesh) -> _AxisEntries:
    """Return (root axis, placement) for each entry of the user annotations of an op, input, constraint or output."""
    shardings = source.results if isinstance(source, OpStrategies) else (source.sharding,)  # type: ignore  # an Annotation
    return tuple(
        (mesh.root_axis(axis), placement) for sharding in shardings if sharding for axis, placement in sharding.entries
    )


def _find_candidates(
    problem: Problem, rules: Sequence[OpRule | None], annotated: Sequence[Iterable[Placement]]
) -> Candidates:
    """Return for each value of `problem` its candidates on one axis, at most `MAX_CANDIDATES` derived ones.

    First, candidates are the placements in user annotations, and offered placements in strategies of ops. Then, if a
    strategy of an op has a candidate for one value, its placements of the other values become candidates too. Lossy
    placements are never candidates: only the user decides where they are used.

    Args:
        rules: for each node, the rule if it is a torch op.
        annotated: for each node, the placements on the axis in user annotations.
    """
    candidates: Candidates = [{} for _ in problem.values]
    nodes_of_value: list[dict[int, None]] = [{} for _ in problem.values]
    for index, node in enumerate(problem.nodes):
        for value in (*node.operands, *node.results):
            nodes_of_value[value].setdefault(index)
    queue: dict[int, None] = {}  # the nodes with a value that has a new candidate
    for node, placements in zip(problem.nodes, annotated, strict=True):
        exact = [placement for placement in plugins(placements) if not placement.error]
        if not exact:
            continue
        for value in (*node.operands, *node.results):
            candidates[value] |= dict.fromkeys(exact)
            queue |= nodes_of_value[value]
    for node, rule in zip(problem.nodes, rules, strict=True):
        for value, placement in _offered_placements(node, rule, problem.mesh):
            candidates[value].setdefault(placement)
            queue |= nodes_of_value[value]
    while queue:
        index = next(iter(queue))
        del queue[index]
        for value, placement in list(_derived_candidates(problem.nodes[index], rules[index], candidates, problem.mesh)):
            if placement not in candidates[value] and len(candidates[value]) < MAX_CANDIDATES:
                candidates[value].setdefault(placement)
                queue |= nodes_of_value[value]
    return candidates


def _offered_placements(node: Node, rule: OpRule | None, mesh: Mesh) -> Iterator[tuple[int, Placement]]:
    """Yield (value, placement) for each offered placement in the strategies of an op on any axis of the mesh.

    Only strategies in text are searched. A pair may occur several times.

    Args:
        rule: the rule of the op; None if the node has none.
    """
    if rule is None or not rule.rules.text_strategies(rule.name):
        return
    for count in sorted(set(mesh.sizes.values())):
        for strategy in rule.strategies(count):
            if not strategy.text:
                continue
            placements = (*strategy.operands, *strategy.results)
            for value, placement in zip((*node.operands, *node.results), placements, strict=True):
                if plugins([placement]) and type(placement).offered and not placement.error:
                    yield value, placement


def _candidates_of_node(node: Node, candidates: Candidates) -> tuple[Placement, ...]:
    """Return the candidates of all values of `node`, each once."""
    return tuple(
        dict.fromkeys(placement for value in (*node.operands, *node.results) for placement in candidates[value])
    )


def _derived_candidates(
    node: Node, rule: OpRule | None, candidates: Candidates, mesh: Mesh
) -> Iterator[tuple[int, Placement]]:
    """Yield (value, placement) for the placements in strategies of a node that has a candidate for one of its values.

    An input, constraint or output passes each candidate on to all its values.
    """
    values, node_candidates = (*node.operands, *node.results), _candidates_of_node(node, candidates)
    if isinstance(node.source, Annotation):
        yield from ((value, placement) for value in values for placement in node_candidates)
    if rule is None or not node_candidates:
        return
    for count in sorted(set(mesh.sizes.values())):
        for strategy in rule.strategies(count, placements=node_candidates):
            pairs = zip(values, (*strategy.operands, *strategy.results), strict=True)
            exact_pairs = [
                (value, placement) for value, placement in pairs if plugins([placement]) and not placement.error
            ]
            is_searched = all(placement.is_searched for _, placement in exact_pairs)
            if is_searched and any(placement in candidates[value] for value, placement in exact_pairs):
                yield from exact_pairs
