"""The certificate of a decision: its cost, and a lower bound on the cost of every decision."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.errors import UnsupportedError
from spmdir.core.time_text import milliseconds
from spmdir.search.certificate.all_states import states_of
from spmdir.search.certificate.dual_bound import DualBound
from spmdir.search.certificate.node_classes import AlikeNodes, alike
from spmdir.search.certificate.reshard_bounds import ReshardBounds
from spmdir.search.joint_cost import node_seconds
from spmdir.search.joint_strategies import Joint
from spmdir.search.problem import Problem

DEPTH = 4
"""The number of steps to which neighbourhoods are compared; nodes with equal ones share their prices in the bound."""

ROUNDS = 2
"""The number of rounds that plan reshards exactly where this may raise the bound."""

SWEEPS = 20
"""The largest number of sweeps in a round."""

SETTLED = 0.002
"""A round ends when a sweep closes less than this fraction of the gap."""

NEAR_CHEAPEST = 0.0003
"""Reshards between states within this fraction of the gap from the cheapest are planned exactly."""


_UNBOUNDED_OBJECTIVE = "; the decision minimises the scheduled time, which has no bound"

_ROUNDING = 1e-6
"""The fraction by which rounding errors may lift a bound above the objective."""


@attrs.frozen
class Certificate:
    """A proof of how good a decision is.

    Attributes:
        objective: the cost of the decision in seconds.
        lower_bound: seconds; no decision costs less.
        floor: seconds; the sum of the least time of each node, without reshards.
        mesh: the mesh of the decisions as text, if it splits axes of the program's mesh into sub-axes. Decisions on
            another mesh may cost less.
        overlap: as of `propagate`. With `messages`, costs omit the latency of messages that a schedule shares.
    """

    objective: float
    lower_bound: float
    floor: float
    mesh: str = ""
    overlap: str = "none"

    @property
    def gap(self) -> float:
        """Return (objective - lower bound) / objective."""
        return self._gap(self.objective)

    @property
    def gap_above_floor(self) -> float:
        """Return (objective - lower bound) / (objective - floor)."""
        return self._gap(self.objective - self.floor)

    def _gap(self, cost: float) -> float:
        return max(self.objective - self.lower_bound, 0.0) / cost if cost > 0.0 else 0.0

    @property
    def bound_text(self) -> str:
        """Return the lower bound and the gap as text."""
        on = f"on {self.mesh} " if self.mesh else ""
        return (
            f"no decision {on}costs less than {milliseconds(self.lower_bound)} ms{self._left_out}: gap {self.gap:.2%}, "
            f"or {self.gap_above_floor:.1%} of what is above the least compute of {milliseconds(self.floor)} ms"
            f"{_UNBOUNDED_OBJECTIVE if self.overlap == 'schedule' else ''}"
        )

    @property
    def _left_out(self) -> str:
        return " without the latency that messages share" if self.overlap == "messages" else ""

    def __str__(self) -> str:
        return f"objective {milliseconds(self.objective)} ms{self._left_out}; {self.bound_text}"


def certify(
    problem: Problem, objective: float, counted_fractions: Sequence[float] = (), overlap: str = "none"
) -> Certificate:
    """Return the certificate of a decision that costs `objective` seconds.

    Args:
        counted_fractions: [value], the fraction of the time of its reshards in the objective; 1 if empty.
        overlap: the option of `propagate` that determined these fractions.

    Raises:
        UnsupportedError: nodes have too many joint strategies, or the topology has measured costs.
    """
    if problem.topology.costs is not None:
        raise UnsupportedError(
            "certify bounds times by the constants of a topology and cannot use measured costs; omit the table of costs"
        )
    classes = alike(problem, DEPTH, counted_fractions)

    def seconds(node_class: AlikeNodes, joint: Joint) -> float:
        return node_seconds(node_class.node.source.work, joint, problem.mesh.axis_names, problem.mesh, problem)

    states = states_of(problem, classes, seconds)
    dual = DualBound(classes, states, ReshardBounds(problem))
    bound = _rise(dual, objective)
    for _ in range(ROUNDS):
        if not dual.add_plans(NEAR_CHEAPEST * max(objective - bound, 0.0)):
            break
        bound = _rise(dual, objective)
    floor = sum(
        node_class.count * float(bound.seconds.min()) for node_class, bound in zip(classes, states, strict=True)
    )
    if not bound <= objective * (1 + _ROUNDING):  # as NaN is not
        raise UnsupportedError(
            f"no decision should cost less than {milliseconds(bound)} ms, but one costs {milliseconds(objective)} ms; "
            "the bound is wrong, please report the program"
        )
    mesh = str(problem.mesh) if problem.mesh.root is not None else ""
    return Certificate(objective, min(bound, objective), floor, mesh, overlap)


def _rise(dual: DualBound, objective: float) -> float:
    """Sweep until the bound settles, and return it."""
    bound = dual.bound()
    for _ in range(SWEEPS):
        previous = bound
        dual.sweep()
        bound = dual.bound()
        if bound - previous <= SETTLED * (objective - bound):
            break
    return bound
