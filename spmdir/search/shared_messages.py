"""Find reshards that share latency: a schedule puts those of parameters and gradients into a few messages.

A parameter can be sent from the start of a step on, and a gradient until its end. So many of them share a message and
pay its latency once. An activation is needed at once, so its message is not shared.

For example, on `cpu-gloo` a gather of a weight of 256 kB over four ranks has a latency of 1.6 ms and 0.3 ms of
transfer. The fraction 0.16 counts. A gather of an activation of 1 MB counts in full, 2.7 ms.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import attrs

from spmdir.reshard.collectives import collectives_between
from spmdir.reshard.cost import node_count, terms
from spmdir.reshard.topology import Topology
from spmdir.reshard.traffic import Sizes
from spmdir.search.hidden_transfers import LEAST_FRACTION
from spmdir.search.problem import Annotation, Problem

Value = TypeVar("Value", bound=Hashable)

_SHORT = 1e-8
"""Latency in seconds of a shared message. It is not 0, so plans with fewer steps win among those with equal bytes."""


@attrs.frozen
class Dependence(Generic[Value]):
    """The values and kind of an op.

    Attributes:
        operands, results: the values that it uses and produces.
        is_input: whether it is an argument of the program.
        is_contraction: as `RuleInstance.is_contraction`.
    """

    operands: Sequence[Value]
    results: Sequence[Value]
    is_input: bool
    is_contraction: bool


def shared_values(uses: Sequence[Dependence[Value]]) -> set[Value]:
    """Return the values whose reshards share messages.

    *Early* values are available from the start of a step: the arguments, and what views, casts and other ops of one
    operand compute from early values. Contractions compute no early values. *Late* values are needed only at the end of
    a step: no contraction depends on them. So gradients are late. An operand of the op that computes the gradient of an
    embedding is an activation, so it is not late.

    Args:
        uses: the ops in program order.
    """
    early: set[Value] = set()
    for use in uses:
        if use.is_input or (not use.is_contraction and len(use.operands) == 1 and use.operands[0] in early):
            early.update(use.results)
    late = {value for use in uses for value in use.results}
    for use in reversed(uses):
        # A contraction depends on the operands of this op, directly or through its results.
        if use.is_contraction or not late.issuperset(use.results):
            late.difference_update(use.operands)
    return early | late


def without_latency(topology: Topology) -> Topology:
    """Return the topology that prices plans for shared messages: with almost no latency, and without protocols.

    Shared messages are large, so they take the full bandwidth, which needs no other protocol.
    """
    return attrs.evolve(topology, base_latency=_SHORT, intra_latency=0.0, inter_latency=0.0, protocols=())


def counted_fractions(problem: Problem) -> tuple[float, ...]:
    """Return for each value the fraction of the time of its reshards that counts if messages are shared.

    For a value whose reshards share messages, it is the fraction of the quickest gather over all axes that is not
    latency, and at least `LEAST_FRACTION`. For other values, and if the gather takes no time, it is 1.
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
    gathers = collectives_between("shard", "replicated", problem.collectives)

    def counted_fraction(size: float) -> float:
        """Return the fraction for a value of `size` bytes."""
        sizes = Sizes(group, size / group, size)
        times = [terms(spec.traffic, sizes, nodes, problem.topology) for spec in gathers]
        quickest = min(times, key=lambda time: time.seconds)
        return max(1 - quickest.latency / quickest.seconds, LEAST_FRACTION) if quickest.seconds else 1.0

    return tuple(counted_fraction(meta.bytes) if value in shared else 1.0 for value, meta in enumerate(problem.values))
