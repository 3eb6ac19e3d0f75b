"""How far a decision may be from the best: what it costs, beside a lower bound on the cost of all decisions."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.errors import UnsupportedError
from spmdir.core.time_text import milliseconds
from spmdir.search.certificate.alike import AlikeNodes, alike
from spmdir.search.certificate.all_states import states_of
from spmdir.search.certificate.dual_bound import DualBound
from spmdir.search.certificate.reshard_bounds import ReshardBounds
from spmdir.search.joint_cost import node_seconds
from spmdir.search.joint_strategies import Joint
from spmdir.search.problem import Problem

DEPTH = 4
"""How far nodes have to look alike to share their numbers in the bound."""

ROUNDS = 2
"""How often prices of reshards are made exact where that may raise the bound."""

SWEEPS = 20
"""The most sweeps in a round."""

SETTLED = 0.002
"""A round ends when a sweep closes less than this fraction of the gap."""

NEAR = 0.0003
"""Reshards of states that are within this fraction of the gap from the cheapest are planned."""


_OTHER_OBJECTIVE = "; the decision is for its time as scheduled, which has no bound"

_ROUNDING = 1e-6
"""By what fraction a bound may be above what it bounds, for rounding errors."""


@attrs.frozen
class Certificate:
    """How good a decision is.

    Attributes:
        objective: what it costs, in seconds.
        lower_bound: no decision costs less.
        floor: the part of the bound that no reshard can change: the least time of each node by itself, added up.
        mesh: the mesh of the decisions as text, if it splits axes of the program's in sub-axes; those on another mesh
            may cost less.
        overlap: as of propagate. With `messages`, costs leave out the latency of messages that a schedule shares.
    """

    objective: float
    lower_bound: float
    floor: float
    mesh: str = ""
    overlap: str = "none"

    @property
    def gap(self) -> float:
        """Return by what fraction of its cost the decision may be too dear."""
        return self._gap(self.objective)

    @property
    def gap_above_floor(self) -> float:
        """Return by what fraction of its cost above the floor the decision may be too dear."""
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
            f"{_OTHER_OBJECTIVE if self.overlap == 'schedule' else ''}"
        )

    @property
    def _left_out(self) -> str:
        return " without the latency that messages share" if self.overlap == "messages" else ""

    def __str__(self) -> str:
        return f"objective {milliseconds(self.objective)} ms{self._left_out}; {self.bound_text}"


def certify(problem: Problem, objective: float, counted: Sequence[float] = (), overlap: str = "none") -> Certificate:
    """Return how good a decision is that costs `objective` seconds.

    Args:
        counted: by value, the part of the time of its reshards that counts in the objective; all of it if empty.
        overlap: which option of propagate makes it so.

    Raises:
        UnsupportedError: nodes have too many strategies on all axes together, or times are measured.
    """
    if problem.topology.costs is not None:
        raise UnsupportedError(
            "certify bounds times by the constants of a topology, and a table of costs has others; leave out the table"
        )
    classes = alike(problem, DEPTH, counted)

    def seconds(one: AlikeNodes, joint: Joint) -> float:
        return node_seconds(one.node.source.work, joint, problem.mesh.axis_names, problem.mesh, problem)

    states = states_of(problem, classes, seconds)
    dual = DualBound(classes, states, ReshardBounds(problem))
    found = _rise(dual, objective)
    for _ in range(ROUNDS):
        if not dual.plan(NEAR * max(objective - found, 0.0)):
            break
        found = _rise(dual, objective)
    floor = sum(one.count * float(found.seconds.min()) for one, found in zip(classes, states, strict=True))
    if not found <= objective * (1 + _ROUNDING):  # as NaN is not
        raise UnsupportedError(
            f"no decision should cost less than {milliseconds(found)} ms, but one costs {milliseconds(objective)} ms; "
            "the bound is wrong, please report the program"
        )
    mesh = str(problem.mesh) if problem.mesh.root is not None else ""
    return Certificate(objective, min(found, objective), floor, mesh, overlap)


def _rise(dual: DualBound, objective: float) -> float:
    """Sweep until the bound hardly rises, and return it."""
    found = dual.bound()
    for _ in range(SWEEPS):
        before = found
        dual.sweep()
        found = dual.bound()
        if found - before <= SETTLED * (objective - found):
            break
    return found
