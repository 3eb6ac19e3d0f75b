"""Orders that go by no times."""

from __future__ import annotations

from hypothesis import given

from spmdir.schedule.early_starts import lengthen_flights
from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.program import Program, Task, Transfer
from tests.schedule.orders import check_order
from tests.schedule.programs import programs


def start(name: str, op: str, *needs: int) -> Task:
    return Task(name, op, "", 0.0, needs, transfer=Transfer("data", ("data",), 1.0, 1.0, 0.0, 1.0))


def wait(name: str, start: int) -> Task:
    return Task(name, "wait", "", 0.0, (start,), waits_for=start)


def compute(name: str, *needs: int) -> Task:
    return Task(name, "op", "", 1.0, needs)


def texts(*tasks: Task) -> list[str]:
    """The names of the tasks in the order that they get."""
    return [tasks[at].name for at in lengthen_flights(Program(tasks, ()))]


@given(programs(are_async=True))
def test_an_order_keeps_dependences_starts_and_memory(program: Program) -> None:
    order = lengthen_flights(program)
    check_order(program, order)
    starts = [at for at in order if program.tasks[at].transfer is not None]
    assert starts == sorted(starts)
    assert peak_bytes(program, order) <= peak_bytes(program)


def test_one_gather_is_under_way_while_the_result_of_another_is_used() -> None:
    tasks: list[Task] = [compute("x")]
    for name in "abc":
        at = len(tasks)
        tasks += [start(name, "gather"), wait(f"{name}.wait", at), compute(name.upper(), at - 1, at + 1)]
    assert " ".join(texts(*tasks)) == "a x b a.wait A c b.wait B c.wait C"


def test_a_reduction_is_waited_for_before_the_start_of_the_one_after_the_next() -> None:
    tasks: list[Task] = []
    for name in "abc":
        at = len(tasks)
        before = (at - 3,) if tasks else ()
        tasks += [compute(name.upper(), *before), start(name, "reduce", at), wait(f"{name}.wait", at + 1)]
    assert " ".join(texts(*tasks)) == "A a B b C a.wait c b.wait c.wait"


def test_views_of_operands_move_up_with_a_start() -> None:
    tasks = (
        compute("x"),
        Task("view", "view", "", 0.0),
        start("a", "gather", 1),
        wait("a.wait", 2),
        compute("y", 0, 3),
    )
    assert " ".join(texts(*tasks)) == "view a x a.wait y"
