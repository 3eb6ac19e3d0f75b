"""Whether a gap is the fault of the search or of its bound: `python -m benchmarks.integer_program --models tiny`.

The tables of the search, after it has ended, are an integer program: one state for each part, and for each value one
placement at its producer and at each user, which agree with these states. HiGHS solves it. States and placements that
cannot belong to a better decision, by the bound of the messages, are left out, so the program is small.

    best decision < decision of the search: the search is at fault
    bound of the messages < relaxation: more turns would raise the bound
    relaxation < best decision: no messages of this kind prove that the decision is optimal

Equal nodes are decided alike, as in the search. The relaxation of a value with many users is weaker than the bound of
the messages. The package highspy is part of the extra `test`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import attrs
import numpy as np

from benchmarks.certified_gaps import read_mesh, training_step
from benchmarks.measure import Row, cold, listed, options, print_table
from spmdir.analysis.propagation.build_problem import build_problem
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.pipeline.options import load_pass
from spmdir.reshard.topology import DEFAULT
from spmdir.rules.rule_set import default
from spmdir.search.block_search import BlockSearch
from spmdir.search.colour_refinement import Colours
from spmdir.search.joint_placements import Numbers
from spmdir.search.merged_nodes import as_if_repeated, quotient
from spmdir.search.solve import AXES_TOGETHER, DECIDED_LAYERS, DEPTH
from spmdir.search.value_factor import ValueFactor

MOST_COMBINATIONS = 200_000
"""A value with more combinations of placements has a column for each of its copies, and for each source of a use."""

ROUNDING = 1e-6
"""The fraction by which rounding errors may lift a bound."""


class Unsolved(Exception):
    """HiGHS finds no optimum within its time limit."""


@attrs.frozen
class Optimum:
    """The result of the integer program, in seconds.

    Attributes:
        decided: the decision of the search.
        bound: the bound of its messages.
        relaxation: the linear relaxation of the integer program.
        cost: the best decision.
        planned: the best decision at exact prices.
        states: the number of states that were not left out, and of all states.
    """

    decided: float
    bound: float
    relaxation: float
    cost: float
    planned: float
    states: tuple[int, int]


class IntegerProgram:
    """The integer program of a block of axes; see the head of this file.

    Attributes:
        states: [part], the states that may belong to a better decision.
        costs: [column], seconds.
        whole: the columns that are 0 or 1.
    """

    def __init__(self, search: BlockSearch):
        self.search, self.messages = search, search.messages
        for part in self.messages._parts:
            part.decide(None)
        self.upper = search.least_cost * (1 + ROUNDING)
        own = sum(part.least_own_cost() for part in self.messages._parts)
        self.bound = own + sum(factor.lower_bound() for factor in self.messages._factors.values())
        self.states = [self._possible_states(part) for part in range(len(self.messages._parts))]
        self.costs: list[float] = []
        self.rows: dict[object, dict[int, float]] = {}
        self.column: dict[tuple[int, int], int] = {}
        self._index_of_end = {
            id(end): part for part, member in enumerate(self.messages._parts) for _, end in member.ends
        }
        for part, states in enumerate(self.states):
            for state in states:
                self.column[part, state] = self._add_column(float(self.messages._parts[part].cost[state]))
                self.rows.setdefault(("part", part), {})[self.column[part, state]] = 1.0
        self.whole = list(range(len(self.costs)))
        for value in self.messages._factors:
            self._add_value(value)

    def _possible_states(self, index: int) -> list[int]:
        part = self.messages._parts[index]
        cost, value_costs = part.min_marginals()
        lower_bounds = cost + (self.bound - part.least_own_cost() - part.least_value_cost(value_costs))
        return np.flatnonzero(lower_bounds <= self.upper).tolist()

    def _add_column(self, cost: float) -> int:
        self.costs.append(cost)
        return len(self.costs) - 1

    def _add_value(self, value: int) -> None:
        """Add a column for each combination of placements of a value, and rows that tie them to states."""
        factor, price = self.messages._factors[value], self.search.assignment.price[value]
        ends = [factor.producer, *factor.uses]
        placements = []
        for end in ends:
            part = self._index_of_end[id(end)]
            placements.append(np.unique(end.placement_of_state[self.states[part]]))
            for state in self.states[part]:
                row = ("end", id(end), int(end.placement_of_state[state]))
                self.rows.setdefault(row, {})[self.column[part, state]] = -1.0
        if math.prod(map(len, placements)) > MOST_COMBINATIONS:
            self._add_large_value(factor, placements, price)
            return
        produced = factor.produced[placements[0]]
        cost = sum(
            _spread(use.prices.price[np.ix_(produced, needed)], axis, len(ends))
            for axis, (use, needed) in enumerate(zip(factor.uses, placements[1:], strict=True), 1)
        )
        if len(factor.uses) > 1:
            for copy in range(len(price)):
                with_copy = price[produced, copy].reshape(-1, *[1] * len(factor.uses))
                for axis, (use, needed) in enumerate(zip(factor.uses, placements[1:], strict=True), 1):
                    serve = np.minimum(
                        use.prices.price[np.ix_(produced, needed)], use.prices.price[copy, needed][None, :]
                    )
                    with_copy = with_copy + _spread(serve, axis, len(ends))
                cost = np.minimum(cost, with_copy)
        reduced = cost
        for axis, (end, indices) in enumerate(zip(ends, placements, strict=True)):
            reduced = reduced + end.message[indices].reshape([-1 if at == axis else 1 for at in range(len(ends))])
        possible = reduced <= self.upper - self.bound + factor.lower_bound()
        for combination in np.argwhere(possible).tolist():
            column = self._add_column(float(cost[tuple(combination)]))
            for end, indices, position in zip(ends, placements, combination, strict=True):
                self.rows.setdefault(("end", id(end), int(indices[position])), {})[column] = 1.0

    def _add_large_value(self, factor: ValueFactor, placements: Sequence[Numbers], price: Numbers) -> None:
        """Add a column for each produced placement and copy, and for each placement that serves a use from one."""
        produced = factor.produced[placements[0]]
        least = price[produced] + factor.producer.message[placements[0]][:, None]
        for use, needed in zip(factor.uses, placements[1:], strict=True):
            served = (use.prices.price[:, needed] + use.message[needed])[:, None]
            least = least + np.minimum(served, served[produced].transpose(1, 0, 2)).min(2).T
        possible = least <= self.upper - self.bound + factor.lower_bound()
        sources: dict[int, list[int]] = {}
        for index, copy in np.argwhere(possible).tolist():
            column = self._add_column(float(price[produced[index], copy]))
            self.whole.append(column)
            row = ("end", id(factor.producer), int(placements[0][index]))
            self.rows.setdefault(row, {})[column] = 1.0
            for source in {int(produced[index]), copy}:
                sources.setdefault(source, []).append(column)
        for use, needed in zip(factor.uses, placements[1:], strict=True):
            for source, columns in sources.items():
                has_source = self.rows.setdefault(("source", id(use), source), dict.fromkeys(columns, -1.0))
                for place in needed.tolist():
                    column = self._add_column(float(use.prices.price[source, place]))
                    has_source[column] = 1.0
                    self.rows.setdefault(("end", id(use), place), {})[column] = 1.0

    def solve(self, is_relaxed: bool, seconds: float) -> tuple[float, list[int]]:
        """Return the least cost, and the state of each part; empty if the program is relaxed.

        Raises:
            Unsolved: HiGHS finds no optimum in `seconds`.
        """
        import highspy

        program = highspy.HighsLp()
        program.num_col_, program.num_row_ = len(self.costs), len(self.rows)
        scale = 1 / self.search.least_cost
        program.col_cost_ = scale * np.array(self.costs)
        program.col_lower_, program.col_upper_ = np.zeros(len(self.costs)), np.ones(len(self.costs))
        sides = np.array([float(key[0] == "part") for key in self.rows])  # type: ignore[index]  # keys are tuples
        is_limit = np.array([key[0] == "source" for key in self.rows])  # type: ignore[index]
        program.row_lower_, program.row_upper_ = np.where(is_limit, -np.inf, sides), sides
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.array([0, *itertools.accumulate(map(len, self.rows.values()))])
        program.a_matrix_.index_ = np.array([column for row in self.rows.values() for column in row])
        program.a_matrix_.value_ = np.array([entry for row in self.rows.values() for entry in row.values()])
        if not is_relaxed:
            kinds, whole = highspy.HighsVarType, {*self.whole}
            program.integrality_ = [
                kinds.kInteger if column in whole else kinds.kContinuous for column in range(len(self.costs))
            ]
        solver = highspy.Highs()
        for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 1e-7), ("time_limit", seconds)):
            solver.setOptionValue(option, value)
        solver.passModel(program)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            status = solver.modelStatusToString(solver.getModelStatus()).lower()
            kind = "relaxation" if is_relaxed else "integer program"
            size = f"{len(self.rows)} rows, {len(self.costs)} columns"
            raise Unsolved(f"HiGHS did not solve the {kind} ({size}) within {seconds:g} s: {status}")
        values = solver.getSolution().col_value
        choice = [max(states, key=lambda state: values[self.column[p, state]]) for p, states in enumerate(self.states)]
        return solver.getInfo().objective_function_value / scale, [] if is_relaxed else choice


def _spread(costs: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Return [produced, needed] with `needed` as dimension `axis` of `count` dimensions."""
    return costs.reshape([len(costs), *[-1 if at == axis else 1 for at in range(1, count)]])


def optimum(search: BlockSearch, seconds: float = 300.0) -> Optimum:
    """Return the best decision of a search that has ended.

    Raises:
        Unsolved: HiGHS needs more than `seconds`.
    """
    program, assignment = IntegerProgram(search), search.assignment
    relaxation, _ = program.solve(True, seconds)
    cost, choice = program.solve(False, seconds)
    assignment.assume(choice)
    assignment.learn_exact_prices()
    planned = assignment.total()
    states = sum(map(len, program.states)), sum(map(len, assignment.cost))
    return Optimum(search.least_cost, program.bound, relaxation, cost, planned, states)


def ended_search(
    model: str, layers: int | None, axes: tuple[tuple[str, int], ...], plan: str, effort: int
) -> BlockSearch:
    """Return the search for a model after it has ended. It decides all axes, three at most, in one block."""
    assert load_pass("propagate") and len(axes) <= AXES_TOGETHER
    module = training_step(model, layers, Mesh(axes), plan)
    _, problem = build_problem(ir.main_function(module), ir.mesh(module), default(), DEFAULT)
    shared = as_if_repeated(quotient(problem, Colours(problem, DEPTH).rounds[-1]), DECIDED_LAYERS)
    search = BlockSearch(problem, shared, problem.mesh.axis_names, range(len(axes)), None)
    search.run(effort)
    return search


def best_of(
    model: str, layers: int | None, axes: tuple[tuple[str, int], ...], plan: str, effort: int, seconds: float
) -> Optimum:
    return optimum(ended_search(model, layers, axes, plan, effort), seconds)


def rows_of(
    model: str, layers: int | None, axes: tuple[tuple[str, int], ...], plan: str, effort: int, seconds: float
) -> list[Row]:
    found = cold(best_of, model, layers, axes, plan, effort, seconds)
    name = f"{model} L={layers or 'all'} {'x'.join(str(size) for _, size in axes)} {plan}, effort {effort}"

    def row(what: str, less: float, more: float, limit: float | None = None) -> Row:
        detail = f"{1e3 * less:.6f} and {1e3 * more:.6f} ms"
        return Row(f"{name}: {what}, %", 100 * (more / less - 1), limit, form="{:.4f}", detail=detail)

    of = f"{found.states[0]} of {found.states[1]} states"
    return [
        row(f"search above the best decision ({of})", found.cost, found.decided, 0.05),
        row("best decision above the relaxation", found.relaxation, found.cost),
        row("relaxation above the bound", found.bound, found.relaxation),
        row("best decision at exact prices", found.cost, found.planned),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--models", type=listed(str), default=["8b"], help="8b,70b,gpt2-xl, or tiny")
    parser.add_argument("--layers", type=int, default=2, help="2; 0 for all layers")
    parser.add_argument("--meshes", type=listed(read_mesh), default=[read_mesh("8x8"), read_mesh("2x4x8")])
    parser.add_argument("--plan", default="fixed", help="fixed, or open")
    parser.add_argument("--effort", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=300.0, help="the time limit of HiGHS; 300")
    chosen = parser.parse_args()
    for axes in chosen.meshes:
        for model in chosen.models:
            arguments = model, chosen.layers or None, axes, chosen.plan, chosen.effort, chosen.seconds
            try:
                print_table("integer program", rows_of(*arguments))
            except Unsolved as error:
                shape = "x".join(str(size) for _, size in axes)
                print(f"{model} on {shape}: {error}; use a larger --seconds, fewer --layers or a smaller mesh")


if __name__ == "__main__":
    main()
