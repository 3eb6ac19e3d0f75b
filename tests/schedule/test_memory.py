"""What is live while tasks run in some order."""

from __future__ import annotations

from spmdir.schedule.memory import Memory, live_bytes, peak_bytes
from spmdir.schedule.program import Buffer, MemoryStep, Program, Task


def task(makes: tuple[int, ...] = (), reads: tuple[int, ...] = (), **given: float | tuple[MemoryStep, ...]) -> Task:
    return Task("t", "aten.exp", "", 0.0, allocates=makes, reads=reads, **given)  # type: ignore


def buffers(*sizes: float) -> tuple[Buffer, ...]:
    return tuple(Buffer(f"%{at}", size, "activations") for at, size in enumerate(sizes))


def test_a_buffer_is_freed_after_the_last_task_that_reads_it() -> None:
    program = Program((task((1,), (0,)), task((2,), (1,)), task((3,), (2,))), buffers(1, 10, 100, 1000), (0,), (3,))
    assert live_bytes(program) == [11, 111, 1101]


def test_inputs_and_results_are_live_to_the_end() -> None:
    program = Program((task((1,), (0,)), task((2,)), task((3,))), buffers(1, 10, 100, 1000), (0,), (1,))
    assert live_bytes(program) == [11, 111, 1011]


def test_what_nobody_reads_is_freed_at_once() -> None:
    program = Program((task((0,)), task((1,))), buffers(10, 100))
    assert live_bytes(program) == [10, 100]


def test_the_order_decides_what_is_live_together() -> None:
    tasks = (task((0,)), task((1,)), task((), (0,)), task((), (1,)))
    program = Program(tasks, buffers(10, 100))
    assert peak_bytes(program) == 110
    assert peak_bytes(program, (0, 2, 1, 3)) == 100


def test_what_a_task_holds_inside_counts_while_it_runs() -> None:
    program = Program((task((0,), transient=5.0), task((), (0,))), buffers(10))
    assert live_bytes(program) == [15, 10]


def test_an_operand_that_is_needed_no_longer_is_freed_between_two_stages() -> None:
    stages = (MemoryStep((1,), (0,)), MemoryStep((2,), (1,)))
    gather = task((2,), (0,), memory_steps=stages)
    program = Program((task((0,)), gather, task((), (2,))), buffers(1, 10, 100))
    assert live_bytes(program) == [1, 110, 100]
    kept = Program((task((0,)), gather, task((), (2, 0))), buffers(1, 10, 100))
    assert live_bytes(kept) == [1, 111, 101]


def test_a_peak_that_is_asked_for_is_the_one_that_comes() -> None:
    stages = (MemoryStep((1,), (0,)), MemoryStep((2,), (1,)))
    program = Program((task((0,)), task((2,), (0,), memory_steps=stages), task((), (2,))), buffers(1, 10, 100))
    memory = Memory(program)
    for at in range(3):
        asked = memory.peak_of(at)
        assert asked == max(memory.moments(at))
    assert memory.bytes == 0
