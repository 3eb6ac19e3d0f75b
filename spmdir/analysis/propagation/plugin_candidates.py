"""Find the candidate plug-in placements of each value on each mesh axis: those in annotations, and those ops derive.

A placement is a candidate on the axes where the user annotates it. A placement with `offered = True` is a candidate on
all axes. Other axes get no candidates: S shards as well there, and the number of priced reshards grows with the square
of the number of joint placements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import plugins
from spmdir.rules import OpRule
from spmdir.search.problem import Annotation, Node, Problem

MAX_CANDIDATES = 8
"""The largest number of candidates of a value on one axis that ops derive."""

Candidates = list[dict[Placement, None]]
"""[value], its candidates on one axis, in the order in which they were found."""


def find_candidates(
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
        for value in (*node.operands, *node.results) if exact else ():
            candidates[value] |= dict.fromkeys(exact)
            queue |= nodes_of_value[value]
    for node, rule in zip(problem.nodes, rules, strict=True):
        for value, placement in offered_placements(node, rule, problem.mesh):
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


def offered_placements(node: Node, rule: OpRule | None, mesh: Mesh) -> Iterator[tuple[int, Placement]]:
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


def candidates_of_node(node: Node, candidates: Candidates) -> tuple[Placement, ...]:
    """Return the candidates of all values of `node`, each once."""
    return tuple(dict.fromkeys(p for value in (*node.operands, *node.results) for p in candidates[value]))


def _derived_candidates(
    node: Node, rule: OpRule | None, candidates: Candidates, mesh: Mesh
) -> Iterator[tuple[int, Placement]]:
    """Yield (value, placement) for the placements in strategies of a node that has a candidate for one of its values.

    An input, constraint or output passes each candidate on to all its values.
    """
    values, node_candidates = (*node.operands, *node.results), candidates_of_node(node, candidates)
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
            if any(placement in candidates[value] for value, placement in exact_pairs):
                yield from exact_pairs
