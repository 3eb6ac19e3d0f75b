"""Ranks that run each by itself give what they give in lock step, and those that wait for each other are found."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

from spmdir.core.errors import DivergenceError, Location
from spmdir.core.mesh import Mesh
from spmdir.lowering.site import WAIT, functional
from spmdir.simulator.interleaved import check_orders, run_interleaved
from spmdir.simulator.lockstep import run_lockstep

MESH = Mesh({"dp": 2, "tp": 2})


def program(*steps: tuple[str, str]) -> fx.GraphModule:
    """Return a program of one input: ("tp", "a") starts a sum over tp and names it a, ("wait", "a") adds that,
    and ("op", "relu_") calls a function of torch.
    """
    graph = fx.Graph()
    value, flying = graph.placeholder("x"), {}
    for what, name in steps:
        if what == "wait":
            value = graph.call_function(torch.add, (value, graph.call_function(WAIT, (flying.pop(name),))))
        elif what == "op":
            value = graph.call_function(getattr(torch, name), (value,))
        else:
            kind = functional.all_reduce.default if what != "broadcast" else functional.broadcast.default
            axes, argument = ("tp", 0) if what == "broadcast" else (what, "sum")
            flying[name] = graph.create_node("call_function", kind, (value, argument, f"mesh:{axes}"), name=name)
            flying[name].meta["location"] = Location("model.py", 7, 3)
    graph.output((value,))
    return fx.GraphModule(torch.nn.Module(), graph)


INPUTS = [[torch.tensor([1.0 + rank, -rank])] for rank in range(4)]


def orders(programs: Sequence[fx.GraphModule], count: int = 6, **given: Any) -> list[list[torch.Tensor]]:
    return [
        [outputs[0] for outputs in run_interleaved(programs, INPUTS, MESH, order=order, **given)]
        for order in range(count)
    ]


def scheduled(seed: int) -> fx.GraphModule:
    """Return a random program of eight collectives, some on streams, which are waited for later, in any order."""
    draw, steps, flying = random.Random(seed), [], []
    for number in range(8):
        steps.append((draw.choice(("tp", "dp", "dp,tp", "tp#other", "dp#other")), f"c{number}"))
        flying.append(f"c{number}")
        draw.shuffle(flying)
        steps += [("wait", flying.pop()) for _ in range(draw.randint(0, len(flying)))]
        steps.append(("op", "sin"))
    return program(*steps, *(("wait", name) for name in flying))


@pytest.mark.parametrize("seed", range(5))
def test_programs_of_one_text_give_the_same_in_every_order(seed: int) -> None:
    programs = [scheduled(seed)] * 4
    returned = run_lockstep(programs, INPUTS, MESH)
    assert not torch.equal(returned[0][0], returned[1][0])
    check_orders(returned, programs, INPUTS, MESH, 0, 6)


CYCLE = (
    [("tp", "a"), ("wait", "a"), ("dp", "b"), ("wait", "b")],
    [("dp", "b"), ("wait", "b"), ("tp", "a"), ("wait", "a")],
)


def test_ranks_that_wait_for_each_other_in_a_ring_are_named() -> None:
    first, second = (program(*steps) for steps in CYCLE)
    message = (
        "'a' (_c10d_functional.all_reduce.default) of rank 0 in mesh:tp never ends: rank 1 waits for 'b' in mesh:dp"
    )
    for order in range(6):
        with pytest.raises(DivergenceError, match=re.escape(message)) as caught:
            run_interleaved([first, second, second, first], INPUTS, MESH, order=order)
        assert str(caught.value).startswith("model.py:7:3: error: 'a' (_c10d_functional.all_reduce.default) of rank 0")


def test_other_orders_of_waiting_need_not_be_a_deadlock() -> None:
    first, second = (program(*steps) for steps in CYCLE)
    orders([first, second, first, second])
    with pytest.raises(DivergenceError, match="rank 1 issues"):
        run_lockstep([first, second, first, second], INPUTS, MESH)


def test_starts_in_another_order_hang_where_a_rank_does_one_collective_at_a_time() -> None:
    waits = [("wait", "a"), ("wait", "b")]
    first, second = program(("tp", "a"), ("tp#other", "b"), *waits), program(("tp#other", "b"), ("tp", "a"), *waits)
    programs = [first, second, first, second]
    assert len({str(found) for found in orders(programs)}) == 1
    for order in range(6):
        with pytest.raises(
            DivergenceError, match=r"of rank 0 in mesh:tp never ends: rank 1 has 'b' in mesh:tp#other to"
        ):
            run_interleaved(programs, INPUTS, MESH, order=order, one_at_a_time=True)


def test_a_group_whose_ranks_do_different_collectives_is_found_in_every_order() -> None:
    programs = [program((what, "a"), ("wait", "a")) for what in ("tp", "tp", "tp", "broadcast")]
    for order in range(6):
        with pytest.raises(DivergenceError, match=r"is issued by rank 2 in mesh:tp while rank 3 issues .*broadcast"):
            run_interleaved(programs, INPUTS, MESH, order=order)


def test_a_rank_that_has_ended_is_waited_for_in_vain() -> None:
    programs = [program(("dp", "a"), ("wait", "a"))] * 3 + [program(("op", "sin"))]
    for order in range(6):
        with pytest.raises(DivergenceError, match="of rank 1 in mesh:dp never ends: rank 3 has ended"):
            run_interleaved(programs, INPUTS, MESH, order=order)


def test_what_is_sent_is_read_when_the_collective_runs_so_that_a_write_in_between_shows() -> None:
    programs = [program(("op", "sin"), ("tp", "a"), ("op", "relu_"), ("wait", "a"))] * 4
    assert len({str(found) for found in orders(programs, 8)}) > 1
    returned = run_lockstep(programs, INPUTS, MESH)
    with pytest.raises(DivergenceError, match="expected the same result in every order"):
        check_orders(returned, programs, INPUTS, MESH, 0, 8)


def test_results_of_any_strides_are_compared() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.t.default, (graph.placeholder("x"),)),))
    programs = [fx.GraphModule(torch.nn.Module(), graph)] * 2
    inputs = [[torch.zeros(1, 2)[:, :1]]] * 2
    mesh = Mesh({"dp": 2})
    check_orders(run_lockstep(programs, inputs, mesh), programs, inputs, mesh, 0, 1)
