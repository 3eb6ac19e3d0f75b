"""Buckets: which collectives may become one, and where."""

from __future__ import annotations

import cProfile

import attrs
from hypothesis import given
from hypothesis import strategies as st

from spmdir.schedule.buckets import merge_collectives
from spmdir.schedule.program import Buffer, Program, Task, Transfer
from tests.schedule.programs import programs


def gather(name: str, needs: tuple[int, ...] = (), fixed: float = 1.0, busy: float = 1.0, joining: float = 0.0) -> Task:
    transfer = Transfer("data", ("data",), fixed, busy, 0.0, busy, packing_seconds=joining)
    return Task(name, "gather", "", 0.0, needs, transfer=transfer, is_blocking=True)


def compute(name: str, *needs: int, seconds: float = 10.0) -> Task:
    return Task(name, "op", "", seconds, needs)


def view(name: str, *needs: int) -> Task:
    return Task(name, "view", "", 0.0, needs)


def texts(*tasks: Task, buffers: tuple[Buffer, ...] = (), memory: float = 0.0) -> list[str]:
    """The buckets of all collectives of some tasks, each as the names of its members."""
    keys = {at: "same" for at, task in enumerate(tasks) if task.transfer}
    items = merge_collectives(Program(tasks, buffers), keys, memory)
    return [" ".join(tasks[task].name for task in item) for item in items]


@given(programs(are_async=False), st.integers(0, 100))
def test_each_task_runs_once_and_after_what_it_needs(program: Program, memory: float) -> None:
    keys = {at: task.transfer.axes for at, task in enumerate(program.tasks) if task.transfer}
    done: set[int] = set()
    for item in merge_collectives(program, keys, memory):
        assert len({keys.get(task) for task in item}) == 1
        assert all(done.issuperset(program.tasks[task].needs) for task in item)
        assert done.isdisjoint(item)
        done.update(item)
    assert len(done) == len(program.tasks)


def test_gathers_that_are_needed_one_after_the_other_are_one() -> None:
    found = texts(compute("x"), gather("a"), compute("y", 0, 1), gather("b"), compute("z", 2, 3))
    assert found == ["x", "a b", "y", "z"]


def test_a_member_whose_copies_take_longer_than_the_latency_stays_apart() -> None:
    tasks = [compute("x", seconds=0.5)]
    for name, joining in (("a", 0.1), ("large", 1.5), ("b", 0.2)):
        at = len(tasks)
        tasks += [gather(name, joining=joining), compute(name.upper(), at - 1, at, seconds=0.5)]
    assert texts(*tasks) == ["x", "a b", "A", "large", "LARGE", "B"]


def test_latency_that_is_hidden_anyway_saves_no_copies() -> None:
    def tasks(seconds: float) -> list[Task]:
        return [
            compute("x", seconds=seconds),
            gather("a", joining=0.2),
            compute("y", 0, 1, seconds=seconds),
            gather("b", joining=0.2),
            compute("z", 2, 3, seconds=seconds),
        ]

    assert texts(*tasks(100.0)) == ["x", "a", "y", "b", "z"]
    assert texts(*tasks(2.0)) == ["x", "a b", "y", "z"]


def test_views_of_operands_come_along() -> None:
    found = texts(compute("x"), gather("a"), compute("y", 0, 1), view("b.view"), gather("b", (3,)), compute("z", 2, 4))
    assert found == ["x", "b.view", "a b", "y", "z"]


def test_reductions_wait_for_each_other_and_what_takes_their_results_follows() -> None:
    tasks = (compute("x"), gather("a", (0,)), view("a.view", 1), compute("y", 0), gather("b", (3,)), compute("z", 3))
    assert texts(*tasks) == ["x", "y", "a b", "a.view", "z"]


def test_a_collective_that_depends_on_another_stays_apart() -> None:
    assert texts(compute("x"), gather("a", (0,)), view("v", 1), gather("b", (2,)), compute("y", 3)) == [
        "x",
        "a",
        "v",
        "b",
        "y",
    ]


def test_what_depends_on_another_through_compute_stays_apart() -> None:
    assert texts(gather("a"), compute("x", 0), gather("b", (1,)), compute("y", 2)) == ["a", "x", "b", "y"]


def test_a_bucket_is_closed_once_its_latency_is_a_tenth_of_its_time() -> None:
    tasks = [compute("x", seconds=100.0)]
    for name in "abcdef":
        tasks += [gather(name, busy=3.0), compute(name.upper(), len(tasks) - 1, len(tasks))]
    assert [item for item in texts(*tasks) if " " in item] == ["a b c", "d e f"]


def test_a_bucket_is_no_larger_than_what_is_hidden_before_its_first_use() -> None:
    tasks = [compute("x", seconds=5.0)]
    for name in "abc":
        tasks += [gather(name, busy=2.0), compute(name.upper(), len(tasks) - 1, len(tasks), seconds=20.0)]
    assert [item for item in texts(*tasks) if " " in item] == ["a b"]


def test_collectives_that_hold_the_program_up_do_not_take_along_what_can_be_hidden() -> None:
    up = gather("up", (0,), busy=4.0)
    found = texts(compute("x"), up, compute("y", 1), gather("w"), compute("z", 2, 3))
    assert found == ["x", "up", "y", "w", "z"]


def test_gathers_are_one_where_there_is_memory_for_both() -> None:
    def tasks() -> list[Task]:
        def makes(task: Task, buffer: int) -> Task:
            return attrs.evolve(task, allocates=(buffer,))

        def reads(task: Task, buffer: int) -> Task:
            return attrs.evolve(task, reads=(buffer,))

        return [
            compute("x"),
            makes(gather("a"), 0),
            reads(compute("y", 1), 0),
            makes(gather("b"), 1),
            reads(compute("z", 3), 1),
        ]

    buffers = (Buffer("%a", 10.0, "gathered weights"), Buffer("%b", 10.0, "gathered weights"))
    assert texts(*tasks(), buffers=buffers) == ["x", "a", "y", "b", "z"]
    assert texts(*tasks(), buffers=buffers, memory=40.0) == ["x", "a b", "y", "z"]


def test_the_work_for_a_bucket_grows_as_its_members() -> None:
    few, many = (calls_of_bucketing(members) for members in (250, 1000))
    assert many < 6 * few  # 16 times as many if each member looks at all others


def calls_of_bucketing(members: int) -> int:
    """Return the number of Python calls that put `members` reductions into one bucket."""
    tasks, buffers = [compute("x")], list[Buffer]()
    for member in range(members):
        gradient_buffer, reduced = len(buffers), len(buffers) + 1
        gradient = attrs.evolve(compute(f"g{member}", 0), allocates=(gradient_buffer,))
        reduction = gather(f"r{member}", (len(tasks),), busy=1e-9)
        tasks += [gradient, attrs.evolve(reduction, allocates=(reduced,), reads=(gradient_buffer,))]
        tasks += [compute(f"c{member}.{number}", 0) for number in range(10)]
        buffers += [Buffer(f"g{member}", 8.0, "gradients"), Buffer(f"r{member}", 4.0, "gradients")]
    outputs = tuple(range(1, len(buffers), 2))
    keys = {index: "same" for index, task in enumerate(tasks) if task.transfer}
    program, profile = Program(tuple(tasks), tuple(buffers), (), outputs), cProfile.Profile()
    items = profile.runcall(merge_collectives, program, keys, 1e9)
    assert max(map(len, items)) == members
    return sum(entry.callcount for entry in profile.getstats())
