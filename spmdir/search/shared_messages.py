"""The reshards whose latency others share: a schedule puts those of parameters and gradients into a few messages.

A parameter can be sent as soon as a step starts, and a gradient until it ends, so many of them share a message, which
starts once. An activation is needed at once: its message starts by itself.

Example: on `cpu-gloo` a gather of a weight of 256 kB among four ranks takes 1.6 ms to start and 0.3 ms to send. Of it
0.16 counts. A gather of an activation of 1 MB counts in full, 2.7 ms, though four weights send as much.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import attrs

from spmdir.reshard.collectives import between
from spmdir.reshard.cost import node_count, terms
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import Sizes
from spmdir.search.hidden import LEAST
from spmdir.search.problem import Annotation, Problem

Value = TypeVar("Value", bound=Hashable)

_SHORT = 1e-8
"""Seconds that a message of several takes to start: of plans that send as much, the one with fewest steps is best."""


@attrs.frozen
class Dependence(Generic[Value]):
    """What an op does with values.

    Attributes:
        is_input: whether it stands for an argument of the program.
        is_contraction: as `RuleInstance.is_contraction`.
    """

    operands: Sequence[Value]
    results: Sequence[Value]
    is_input: bool
    is_contraction: bool


def shared_values(uses: Sequence[Dependence[Value]]) -> set[Value]:
    """Return the values whose reshards share messages, of a program in order.

    They are the arguments, and the results of views, casts and the like of one argument; and the values that no
    contraction depends on: those that are returned, or update one that is. The operand of the gradient of an embedding
    is not one of them: it is an activation, whose gather shares no message.
    """
    early: set[Value] = set()
    for use in uses:
        if use.is_input or (not use.is_contraction and len(use.operands) == 1 and use.operands[0] in early):
            early.update(use.results)
    late = {value for use in uses for value in use.results}
    for use in reversed(uses):
        if use.is_contraction or not late.issuperset(use.results):
            late.difference_update(use.operands)
    return early | late


def without_latency(topology: Topology) -> Topology:
    """Return the topology by which plans for shared messages are compared."""
    return attrs.evolve(topology, base_latency=_SHORT, intra_latency=0.0, inter_latency=0.0)


def counted_parts(problem: Problem) -> tuple[float, ...]:
    """Return, by value, the part of the time of its reshards that counts where messages are shared: at least LEAST.

    It is that of the quickest gather of the value.
    """
    shared = shared_values(
        [
            Dependence(
                node.operands,
                node.results,
                isinstance(node.source, Annotation) and node.source.role == "input",
                node.source.work.is_contraction,
            )
            for node in problem.nodes
        ]
    )
    axes = problem.mesh.axis_names
    group, nodes = problem.mesh.group_size(axes), node_count(axes, problem.mesh)
    gathers = between("shard", "replicated", problem.collectives)

    def part(size: float) -> float:
        sizes = Sizes(group, size / group, size)
        times = [terms(spec.traffic, sizes, nodes, problem.topology) for spec in gathers]
        found = min(times, key=lambda one: one.seconds)
        return max(1 - found.latency / found.seconds, LEAST) if found.seconds else 1.0

    return tuple(part(meta.bytes) if value in shared else 1.0 for value, meta in enumerate(problem.values))
