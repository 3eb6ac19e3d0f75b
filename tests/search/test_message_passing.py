"""MessagePassing between parts: no decision costs less than their bound, which rises and finds the best one."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from spmdir.analysis.propagation.build_problem import build_problem
from spmdir.core.mesh import Mesh
from spmdir.dialects import ir
from spmdir.reshard.topology import H100X8
from spmdir.search import message_passing
from spmdir.search.assignment import Assignment
from spmdir.search.block_search import BlockSearch
from spmdir.search.message_passing import MessagePassing
from spmdir.search.value_factor import End, Use, ValueFactor
from tests.search.merged import merged
from tests.search.test_block_search import TOPOLOGIES, search_of

ROUNDING = 1e-9


def test_the_worked_example_of_the_module_reaches_its_bound() -> None:
    """Part A produces a value in placement 0 or 1 for 0 or 1 s, part B uses it in either for 1 or 0 s."""
    part_a, part_b = (message_passing._Part(np.array(cost)) for cost in ([0.0, 1.0], [1.0, 0.0]))
    producer, use = End(np.array([0, 1]), 2), Use([np.array([0, 1])])
    factor = ValueFactor(np.array([0, 1]), producer, [use], np.array([[0.0, 2.0], [2.0, 0.0]]))
    part_a.ends, producer.is_last = [(factor, producer)], (False, True)
    part_b.ends, use.is_last = [(factor, use)], (True, False)
    part_a.use_messages(np.zeros(2))
    part_b.use_messages(np.zeros(2))
    cost_a, value_costs_a = part_a.min_marginals()
    part_a.send(cost_a - cost_a.min(), value_costs_a, 0)
    assert producer.message.tolist() == [0, 1]
    cost_b, value_costs_b = part_b.min_marginals()
    assert value_costs_b.tolist() == [0, 1]
    assert cost_a.min() + cost_b.min() == 1


@TOPOLOGIES
def test_no_decision_costs_less_than_the_bound(topology) -> None:
    now, chance = search_of(topology)[1].assignment, random.Random(0)
    found = MessagePassing(now)
    for _ in range(20):
        turn(found)
        now.assume([chance.randrange(len(costs)) for costs in now.cost_rows])
        _descend(now)
        assert found.bound <= now.total() * (1 + ROUNDING)


@TOPOLOGIES
def test_a_decision_that_costs_what_the_bound_says_is_found(topology) -> None:
    now = search_of(topology)[1].assignment
    found = MessagePassing(now)
    for _ in range(20):
        turn(found)
    for _ in found.improve():
        now.assume(found.decide())
        assert now.total() == pytest.approx(found.bound, rel=1e-6)


@TOPOLOGIES
def test_the_bound_never_falls_without_momentum(topology, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_passing, "MOMENTUM", 0.0)
    found, bound = MessagePassing(search_of(topology)[1].assignment), 0.0
    for _ in range(10):
        turn(found)
        assert found.bound >= bound * (1 - ROUNDING)
        bound = found.bound


def test_momentum_raises_the_bound_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def bound(momentum: float) -> float:
        monkeypatch.setattr(message_passing, "MOMENTUM", momentum)
        found = MessagePassing(search_of(H100X8)[1].assignment)
        for _ in range(4):
            turn(found)
        return found.bound

    assert bound(0.8) >= bound(0.0)


def test_prices_that_are_read_again_count() -> None:
    now = search_of(H100X8)[1].assignment
    found = MessagePassing(now)
    for price in now.price:
        price *= 0.5
    found.read(range(len(now.price)))
    other = MessagePassing(now)
    turn(found)
    turn(other)
    assert found.bound == pytest.approx(other.bound)


def turn(found: MessagePassing) -> None:
    for _ in found.improve():
        pass


def test_equal_values_learn_prices_together() -> None:
    ops = "".join(f"  %{at + 1} = aten.exp(%{at}) : tensor<8x8xf32>\n" for at in range(6))
    module = ir.parse(
        "spmd.mesh @mesh <a = 2, b = 4>\n"
        f"func.func @f(%0: tensor<8x8xf32>) -> tensor<8x8xf32> {{\n{ops}  return %6 : tensor<8x8xf32>\n}}"
    )
    problem = build_problem(ir.main_function(module), Mesh({"a": 2, "b": 4}), ir.context().rules, H100X8)[1]
    now, chance = BlockSearch(problem, merged(problem, 10), ("a", "b"), (0, 1), None).assignment, random.Random(0)
    # So that there is something to learn: of values that are cut evenly, most prices are exact.
    for price in {id(price): price for price in now.price}.values():
        price *= 0.5
    changed: set[int] = set()
    for _ in range(5):
        now.assume([chance.randrange(len(costs)) for costs in now.cost_rows])
        before = {id(price): price.copy() for price in now.price}
        changed = {*now.learn_exact_prices()}
        assert changed == {at for at, price in enumerate(now.price) if (price != before[id(price)]).any()}
    assert len(changed) > 1


@pytest.mark.parametrize("turns", [0, 3])
@TOPOLOGIES
def test_all_decisions_below_a_limit_are_found(topology, turns: int) -> None:
    module = ir.parse(
        "spmd.mesh @mesh <a = 2, b = 4>\n"
        "func.func @f(%0: tensor<64x64xf32>, %1: tensor<64x64xf32>) -> tensor<64x64xf32> {\n"
        "  %2 = aten.mm(%0, %1) : tensor<64x64xf32>\n  return %2 : tensor<64x64xf32>\n}"
    )
    problem = build_problem(ir.main_function(module), Mesh({"a": 2, "b": 4}), ir.context().rules, topology)[1]
    now = BlockSearch(problem, merged(problem, 10), ("a",), (0,), None).assignment
    totals = {}
    for choice in itertools.product(*(range(len(costs)) for costs in now.cost_rows)):
        now.assume(choice)
        totals[choice] = now.total()
    least = min(totals.values())
    found = MessagePassing(now)
    for _ in range(turns):
        turn(found)
    limit = least * 1.5 + 1e-9
    below = {tuple(choice) for choice in found.decisions_below(lambda: limit)}
    assert below == {choice for choice, total in totals.items() if total < limit}
    assert 0 < len(below) < len(totals)


@TOPOLOGIES
def test_a_restriction_is_undone_and_decisions_have_its_state(topology) -> None:
    messages = MessagePassing(search_of(topology)[1].assignment)
    for _ in range(3):
        turn(messages)
    before, bound = messages._messages.copy(), messages.bound
    choice = messages.decide()
    (part, state), *_ = messages.alternatives(choice, np.inf, range(len(choice)))
    assert state != choice[part]
    with messages.restricted(part, state):
        turn(messages)
        assert messages.decide()[part] == state
    assert (messages._messages == before).all() and messages.bound == bound
    assert messages.decide() == choice
    assert [*messages.alternatives(choice, 0.0, range(len(choice)))] == []


def _descend(now: Assignment) -> None:
    """Let each part take the state that is cheapest beside the others."""
    for part, costs in enumerate(now.cost_rows):
        totals = []
        for state in range(len(costs)):
            now.choose(part, state)
            totals.append(now.total())
        now.choose(part, totals.index(min(totals)))
