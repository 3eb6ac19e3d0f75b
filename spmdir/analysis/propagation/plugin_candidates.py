"""The plug-in placements that each value of a program may have on each mesh axis: those of user annotations, and what
ops make of them.

A placement is a candidate on the axes on which the user names it, and an offered one on all: on others, S shards as
well, and candidates there would square the number of joint placements between which reshards are priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Placement
from spmdir.core.placement.standard import plugins
from spmdir.rules import OpRule
from spmdir.search.problem import Annotation, Node, Problem

MOST = 8
"""The most candidates that a value gets from ops on one axis."""

Found = list[dict[Placement, None]]
"""Value → its candidates on one axis."""


def candidates(problem: Problem, rules: Sequence[OpRule | None], annotated: Sequence[Iterable[Placement]]) -> Found:
    """Return the candidates of each value of `problem` on one axis.

    They are those of user annotations, and offered placements for the values of ops with a strategy that names them.
    A strategy of an op's rule that uses a candidate of one of its values adds candidates to the others. Lossy
    placements are never candidates: only the user decides where they are used.

    Args:
        rules: the rule of each node that is a torch op.
        annotated: the placements on the axis in the user annotations of each node.
    """
    found: Found = [{} for _ in problem.values]
    around: list[dict[int, None]] = [{} for _ in problem.values]
    for index, node in enumerate(problem.nodes):
        for value in (*node.operands, *node.results):
            around[value].setdefault(index)
    queue: dict[int, None] = {}
    for node, placements in zip(problem.nodes, annotated, strict=True):
        exact = [placement for placement in plugins(placements) if not placement.error]
        for value in (*node.operands, *node.results) if exact else ():
            found[value] |= dict.fromkeys(exact)
            queue |= around[value]
    for node, rule in zip(problem.nodes, rules, strict=True):
        for value, placement in offered(node, rule, problem.mesh):
            found[value].setdefault(placement)
            queue |= around[value]
    while queue:
        index = next(iter(queue))
        del queue[index]
        for value, placement in list(_made(problem.nodes[index], rules[index], found, problem.mesh)):
            if placement not in found[value] and len(found[value]) < MOST:
                found[value].setdefault(placement)
                queue |= around[value]
    return found


def offered(node: Node, rule: OpRule | None, mesh: Mesh) -> Iterator[tuple[int, Placement]]:
    """Yield (value, placement) of the strategies of an op that name an offered placement."""
    if rule is None or not rule.rules.text_strategies(rule.name):
        return
    for strategy in (one for count in sorted(set(mesh.sizes.values())) for one in rule.strategies(count) if one.text):
        placed = zip((*node.operands, *node.results), (*strategy.operands, *strategy.results), strict=True)
        yield from ((value, p) for value, p in placed if plugins([p]) and type(p).offered and not p.error)


def of_node(node: Node, found: Found) -> tuple[Placement, ...]:
    """Return the candidates of the values of `node`."""
    return tuple(dict.fromkeys(p for value in (*node.operands, *node.results) for p in found[value]))


def _made(node: Node, rule: OpRule | None, found: Found, mesh: Mesh) -> Iterator[tuple[int, Placement]]:
    values, extras = (*node.operands, *node.results), of_node(node, found)
    if isinstance(node.source, Annotation):
        yield from ((value, placement) for value in values for placement in extras)
    counts = sorted(set(mesh.sizes.values())) if extras else ()
    for strategies in (rule.strategies(count, placements=extras) for count in counts) if rule else ():
        for strategy in strategies:
            placed = zip(values, (*strategy.operands, *strategy.results), strict=True)
            placed = [(value, placement) for value, placement in placed if plugins([placement]) and not placement.error]
            if any(placement in found[value] for value, placement in placed):
                yield from placed
