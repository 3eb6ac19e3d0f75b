"""Orders: what may run in which order, and what of transfers is hidden."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spmdir.schedule.headroom import Headroom
from spmdir.schedule.list_scheduling import _Listing, ordered
from spmdir.schedule.memory import live_bytes, peak_bytes
from spmdir.schedule.program import Program, Transfer
from spmdir.schedule.simulate import simulate
from tests.schedule.programs import programs


def check_runs(program: Program, order: tuple[int, ...]) -> None:
    assert sorted(order) == list(range(len(program.tasks)))
    place = {task: at for at, task in enumerate(order)}
    assert all(place[need] < place[task] for task in order for need in program.tasks[task].needs)


def may_fly_together(one: Transfer | None, other: Transfer) -> bool:
    return one is None or one.stream == other.stream or set(one.axes).isdisjoint(other.axes)


def check_in_flight(program: Program, order: tuple[int, ...]) -> None:
    in_flight: set[int] = set()
    for at in order:
        task = program.tasks[at]
        in_flight.discard(-1 if task.waits is None else task.waits)
        if task.transfer is not None:
            for other in in_flight:
                assert may_fly_together(program.tasks[other].transfer, task.transfer)
            in_flight.add(at)


@given(programs(are_async=True))
def test_an_order_keeps_dependences_and_the_rule_of_what_is_in_flight_and_is_not_slower(program: Program) -> None:
    order = ordered(program)
    check_runs(program, order)
    check_in_flight(program, order)
    assert simulate(program, order).seconds <= simulate(program).seconds
    assert peak_bytes(program, order) <= peak_bytes(program)


@given(programs(are_async=True), st.integers(0, 20))
def test_a_list_of_tasks_is_one_that_may_run_within_memory(program: Program, more: int) -> None:
    limit = peak_bytes(program) + more
    order = _Listing(program, limit).run()
    check_runs(program, order)
    check_in_flight(program, order)


@given(programs(are_async=True), st.data())
def test_headroom_is_what_is_live_if_the_rest_follows_in_the_given_order(program: Program, data: st.DataObject) -> None:
    limit = peak_bytes(program) + data.draw(st.integers(0, 20))
    headroom, order = Headroom(program, limit), list[int]()
    while not headroom.is_done:
        ready = [
            at
            for at, task in enumerate(program.tasks)
            if not headroom.has_run(at) and all(map(headroom.has_run, task.needs)) and headroom.fits(at)
        ]
        task = data.draw(st.sampled_from(ready))
        rest = [at for at in range(len(program.tasks)) if not headroom.has_run(at) and at != task]
        assert peak_bytes(program, [*order, task, *rest]) <= limit
        headroom.run(task)
        order.append(task)
        live = live_bytes(program, [*order, *rest])
        assert [headroom._live[at] for at in rest] == [live[at] for at in rest]
