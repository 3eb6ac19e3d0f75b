"""Streams, links and waits: what an order of a program takes."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.schedule.program import Program, Task, Transfer
from spmdir.schedule.simulate import Execution, simulate


def compute(seconds: float) -> Task:
    return Task("c", "aten.mm", "", seconds)


def start(intra: float, inter: float = 0.0, fixed: float = 0.0, stream: str = "data", packing: float = 0.0) -> Task:
    return Task("s", "start", "", packing, transfer=Transfer(stream, (stream,), fixed, intra, inter, 1.0))


def wait(task: int, unpacking: float = 0.0) -> Task:
    return Task("w", "spmd.wait", "", unpacking, needs=(task,), waits_for=task)


def run(*tasks: Task, order: tuple[int, ...] | None = None) -> Execution:
    return simulate(Program(tasks, ()), order)


def test_compute_between_a_start_and_its_wait_hides_the_transfer() -> None:
    found = run(start(3.0), compute(2.0), wait(0), compute(1.0))
    assert (found.seconds, found.compute_seconds, found.exposed_seconds) == (4.0, 3.0, 1.0)
    assert list(found.hidden_by(0)) == [(1, 2.0)]


def test_a_synchronous_collective_hides_behind_nothing() -> None:
    found = run(compute(1.0), attrs.evolve(start(3.0, packing=0.5), is_blocking=True), compute(2.0))
    assert (found.seconds, found.exposed_seconds) == (6.5, 3.0)
    assert (found.begin[1], found.end[1]) == (1.0, 4.5)
    assert list(found.hidden_by(1)) == []


def test_a_task_that_works_while_it_sends_takes_as_long_as_the_longer_of_both() -> None:
    task = attrs.evolve(start(3.0, packing=4.0), is_blocking=True, overlap=2.0)
    assert (run(task).seconds, run(task).exposed_seconds) == (5.0, 1.0)
    assert run(attrs.evolve(task, overlap=4.0)).seconds == 4.0
    assert list(run(task).hidden_by(0)) == [(0, 2.0)]


def test_a_wait_unpacks_once_it_has_waited() -> None:
    found = run(start(3.0), wait(0, unpacking=1.0))
    assert found.seconds == 4.0
    assert found.busy_times(1) == (3.0, 4.0)


def test_transfers_of_one_stream_follow_each_other() -> None:
    found = run(start(2.0), start(3.0), wait(1), wait(0))
    assert [(found.transfers[at].begin, found.transfers[at].end) for at in (0, 1)] == [(0.0, 2.0), (2.0, 5.0)]
    assert [found.transfers[at].exposed for at in (0, 1)] == [0.0, 5.0]


def test_transfers_on_links_of_one_kind_share_them() -> None:
    found = run(start(2.0), start(4.0, stream="model"), wait(0), wait(1))
    assert [found.transfers[at].end for at in (0, 1)] == [4.0, 6.0]


def test_transfers_on_links_of_two_kinds_do_not_slow_each_other() -> None:
    found = run(start(2.0), start(0.0, inter=3.0, stream="model"), wait(0), wait(1))
    assert [found.transfers[at].end for at in (0, 1)] == [2.0, 3.0]


def test_a_transfer_in_its_latency_slows_no_other() -> None:
    found = run(start(2.0, fixed=1.0), start(1.0, stream="model"), wait(0), wait(1))
    assert [found.transfers[at].end for at in (0, 1)] == [3.0, 1.0]


def test_tasks_run_in_the_order_asked_for() -> None:
    tasks = (compute(2.0), start(3.0), wait(1))
    assert run(*tasks).seconds == 5.0
    assert run(*tasks, order=(1, 0, 2)).seconds == 3.0


TIMES = st.floats(0.0, 10.0, allow_subnormal=False)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random compute, starts on up to three streams, and waits for them later."""
    tasks: list[Task] = []
    open_: list[int] = []
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("compute", "start", "wait")))
        if kind == "wait" and open_:
            tasks.append(wait(open_.pop(draw(st.integers(0, len(open_) - 1))), draw(TIMES)))
        elif kind == "start":
            open_.append(len(tasks))
            stream = draw(st.sampled_from(("a", "b", "c")))
            tasks.append(start(draw(TIMES), draw(TIMES), draw(TIMES), stream, draw(TIMES)))
        else:
            tasks.append(compute(draw(TIMES)))
    return Program((*tasks, *map(wait, open_)), ())


@settings(max_examples=200)
@given(programs())
def test_the_time_is_between_that_of_the_busiest_resource_and_that_of_everything_in_turn(program: Program) -> None:
    found = simulate(program)
    transfers = [task.transfer for task in program.tasks if task.transfer is not None]
    serial = found.compute_seconds + sum(transfer.latency + transfer.intra + transfer.inter for transfer in transfers)
    links = (sum(transfer.intra for transfer in transfers), sum(transfer.inter for transfer in transfers))
    streams = {name: sum(one.seconds for one in transfers if one.stream == name) for name in "abc"}
    assert found.seconds <= serial + 1e-9
    assert found.seconds >= max(found.compute_seconds, *links, *streams.values()) - 1e-9
    assert found.seconds == pytest.approx(found.compute_seconds + found.exposed_seconds)


@settings(max_examples=100)
@given(programs())
def test_a_transfer_alone_on_its_links_takes_its_own_time(program: Program) -> None:
    alone = [
        attrs.evolve(task, is_blocking=task.transfer is not None) for task in program.tasks if task.waits_for is None
    ]
    found = simulate(Program(tuple(alone), ()))
    for at, sent in found.transfers.items():
        transfer = alone[at].transfer
        assert transfer is not None
        assert sent.end - sent.begin == pytest.approx(transfer.seconds, abs=1e-12)
        assert sent.exposed == pytest.approx(transfer.seconds, abs=1e-12)
