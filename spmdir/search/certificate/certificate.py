"""The certificate of a decision: its cost, and a lower bound on the cost of every decision."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spmdir.core.errors import UnsupportedError
from spmdir.core.time_text import milliseconds
from spmdir.search.certificate.dual_bound import DualBound
from spmdir.search.problem import Problem

DEPTH = 4
"""The number of steps to which neighbourhoods are compared. Nodes with equal neighbourhoods share their messages."""

ROUNDS = 8
"""The number of rounds that plan reshards exactly where this may raise the bound."""

TURNS = 60
"""The largest number of turns in a round."""

SETTLED, PATIENCE = 0.01, 4
"""A round ends after PATIENCE turns that each close less than this fraction of the gap."""

PROVED = 1e-4
"""The gap, as a fraction of the objective, at which no more rounds and turns are run."""

NEAR_CHEAPEST = 0.0003
"""The slack of `DualBound.add_plans`, as a fraction of the gap."""


_UNBOUNDED_OBJECTIVE = "; the decision minimises the scheduled time, which has no bound"

_ROUNDING = 1e-6
"""The fraction of the objective by which rounding errors may lift a bound above it."""


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
        imbalance: as of `propagate`, for a program whose rows may be dispatched to experts; else None. The objective
            assumes it. The lower bound holds for every router.
    """

    objective: float
    lower_bound: float
    floor: float
    mesh: str = ""
    overlap: str = "none"
    imbalance: float | None = None

    @property
    def gap(self) -> float:
        """Return (objective − lower bound) / objective; 0 if the objective is 0 or below the bound."""
        return self._gap(self.objective)

    @property
    def gap_above_floor(self) -> float:
        """Return (objective − lower bound) / (objective − floor); 0 if the objective is at most floor or bound."""
        return self._gap(self.objective - self.floor)

    def _gap(self, cost: float) -> float:
        """Return the gap as a fraction of `cost`; 0 if the cost is not positive."""
        return max(self.objective - self.lower_bound, 0.0) / cost if cost > 0.0 else 0.0

    @property
    def bound_text(self) -> str:
        """Return the lower bound and the gap as text."""
        on = f"on {self.mesh} " if self.mesh else ""
        return (
            f"no decision {on}costs less than {milliseconds(self.lower_bound)} ms{self._left_out}: gap {self.gap:.2%}, "
            f"or {self.gap_above_floor:.1%} of what is above the least compute of {milliseconds(self.floor)} ms"
            f"{_UNBOUNDED_OBJECTIVE if self.overlap == 'schedule' else ''}{self._assumption}"
        )

    @property
    def _assumption(self) -> str:
        """Return the end of the text for a program whose rows may be dispatched to experts; "" for others."""
        if self.imbalance is None:
            return ""
        return (
            f"; assumes that a rank of experts receives at most {self.imbalance:g} times the rows of a balanced router"
        )

    @property
    def _left_out(self) -> str:
        """Return the text that follows a cost without the latency of shared messages; "" if the cost includes it."""
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
        UnsupportedError: nodes have too many joint strategies, the topology has measured costs, or the bound exceeds
            the objective, which is a bug.
    """
    if problem.topology.costs is not None:
        raise UnsupportedError(
            "certify found a table of measured costs; expected the constants of a topology, by which it "
            "bounds times: omit the table"
        )
    topology = problem.topology
    # The bound must hold for every router, so it assumes that all ranks of experts receive equally many rows.
    balanced = attrs.evolve(problem, topology=attrs.evolve(topology, imbalance=1.0))
    dual = DualBound(balanced, DEPTH, counted_fractions)
    bound = _rise(dual, objective)
    for _ in range(ROUNDS):
        if objective - bound <= PROVED * objective or not dual.add_plans(NEAR_CHEAPEST * (objective - bound)):
            break
        bound = _rise(dual, objective)
    floor = dual.floor()
    if not bound <= objective * (1 + _ROUNDING):  # also if the bound is NaN
        raise UnsupportedError(
            f"the decision costs {milliseconds(objective)} ms; expected at least the bound, "
            f"{milliseconds(bound)} ms: the bound is wrong, please report the program"
        )
    mesh = str(problem.mesh) if problem.mesh.root is not None else ""
    has_rows = any(placement.varies for placement in problem.plugin_placements)
    return Certificate(objective, min(bound, objective), floor, mesh, overlap, topology.imbalance if has_rows else None)


def _rise(dual: DualBound, objective: float) -> float:
    """Run turns until the bound settles or proves the objective, and return the highest bound."""
    dual.restart_momentum()
    bound, last_progress = dual.bound(), 0
    for turn in range(TURNS):
        turn_bound = dual.turn()  # may be lower than `bound`, because of momentum
        if turn_bound - bound > SETTLED * (objective - bound):
            last_progress = turn
        bound = max(bound, turn_bound)
        if turn - last_progress >= PATIENCE or objective - bound <= PROVED * objective:
            break
    return bound
