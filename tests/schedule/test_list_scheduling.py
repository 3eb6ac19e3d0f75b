"""Orders: what may run in which order, and what of transfers is hidden."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.schedule.list_scheduling import ListScheduler, order_tasks
from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.mobility import advance_transfers
from spmdir.schedule.program import Program, Task, Transfer, reorder_tasks
from spmdir.schedule.simulate import simulate
from tests.schedule.orders import check_order
from tests.schedule.programs import programs


@given(programs(are_async=True))
def test_an_order_keeps_dependences_and_the_rule_of_what_is_in_flight_and_is_not_slower(program: Program) -> None:
    order = order_tasks(program)
    check_order(program, order)
    assert simulate(program, order).seconds <= simulate(program).seconds
    assert peak_bytes(program, order) <= peak_bytes(program)


@given(programs(are_async=True), st.integers(0, 20))
def test_a_list_of_tasks_is_one_that_may_run_within_memory(program: Program, more: int) -> None:
    limit = peak_bytes(program) + more
    order = ListScheduler(program, limit).run()
    check_order(program, order)
    assert peak_bytes(program, order) <= limit


@given(programs(are_async=True), st.integers(-20, 20))
def test_an_order_holds_no_more_than_its_limit_or_what_the_given_one_holds(program: Program, more: int) -> None:
    before = peak_bytes(program)
    order = order_tasks(program, before + more)
    assert peak_bytes(program, order) <= max(before, before + more)
    assert simulate(program, order).seconds <= simulate(program).seconds


@settings(max_examples=400)
@given(programs(are_async=True), st.sampled_from([1.1, 20.0]))
def test_no_list_that_sends_late_or_early_takes_less_time_than_the_order(program: Program, slack: float) -> None:
    limit, first = 2 * sum(buffer.bytes for buffer in program.buffers), advance_transfers(program)
    listed = ListScheduler(reorder_tasks(program, first), limit, slack=slack).run()
    run = simulate(program, [first[at] for at in listed])
    assert simulate(program, order_tasks(program, limit)).seconds <= run.seconds


def test_a_backward_that_nothing_is_sent_before_goes_on_while_its_gradients_are_sent() -> None:
    transfer = Transfer("dp", ("dp",), latency=0.0, intra=3.0, inter=0.0, wire_bytes=1.0)
    tasks = (
        Task("dx2", "aten.mm", "", 2.0),
        Task("dw2", "aten.mm", "", 2.0, (0,)),
        Task("dw2.start", "spmd.all_reduce_start", "", 0.0, (1,), transfer=transfer),
        Task("dw2.sum", "spmd.wait", "", 0.0, (2,), waits_for=2),
        Task("dx1", "aten.mm", "", 2.0, (0,)),
        Task("dw1", "aten.mm", "", 2.0, (4,)),
        Task("dw1.start", "spmd.all_reduce_start", "", 0.0, (5,), transfer=transfer),
        Task("dw1.sum", "spmd.wait", "", 0.0, (6,), waits_for=6),
    )
    program = Program(tasks, ())
    assert simulate(program).seconds == 14.0
    assert simulate(program, order_tasks(program)).seconds == 11.0
