"""What runs again is not listed before what its user waits for is under way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spmdir.schedule.delay_recomputations import delay_recomputations
from spmdir.schedule.list_scheduling import order_tasks
from spmdir.schedule.program import Buffer, Program, Task, Transfer
from tests.schedule.programs import programs

SENT = Transfer("model", ("model",), 0.0, 5.0, 0.0, 1.0)


def sent_and_used(again: float) -> Program:
    """Return a program that sends two gradients, one after the other; what the second is used with runs again."""
    tasks = (
        Task("product", "mm", "", 3.0, (), (0,)),
        Task("start", "start", "", 0.0, (0,), (1,), (0,), transfer=SENT),
        Task("wait", "wait", "", 0.0, (1,), (), (0, 1), waits_for=1),
        Task("next", "mm", "", 3.0, (2,), (2,), (1,)),
        Task("other.start", "start", "", 0.0, (3,), (3,), (2,), transfer=SENT),
        Task("other", "wait", "", 0.0, (4,), (), (2, 3), waits_for=4),
        Task("again", "silu", "", again, (), (4,)),
        Task("use", "mul", "", 1.0, (5, 6), (5,), (3, 4)),
    )
    return Program(tasks, tuple(Buffer(str(at), 1.0, "activations") for at in range(6)), (), (5,))


def test_it_hides_the_transfer_that_its_user_waits_for_and_none_before() -> None:
    program = sent_and_used(again=4.0)
    again = [task.name == "again" for task in program.tasks]
    names = [
        [program.tasks[at].name for at in order_tasks(one)] for one in (program, delay_recomputations(program, again))
    ]
    assert names[0].index("again") < names[0].index("next")
    assert names[1][4:] == ["other.start", "again", "other", "use"]


@given(programs(are_async=True), st.data())
def test_no_task_needs_a_later_one(program: Program, data: st.DataObject) -> None:
    again = [task.transfer is None and task.waits_for is None and data.draw(st.booleans()) for task in program.tasks]
    found = delay_recomputations(program, again)
    for at, (task, before) in enumerate(zip(found.tasks, program.tasks, strict=True)):
        assert all(need < at for need in task.needs)
        assert {*before.needs} <= {*task.needs}
        assert again[at] or task == before or (before.transfer is None and before.waits_for is None)


def test_a_task_that_computes_from_arguments_waits_for_what_its_user_waits_for() -> None:
    program = sent_and_used(again=4.0)
    names = [program.tasks[at].name for at in order_tasks(delay_recomputations(program, [False] * len(program.tasks)))]
    assert names[4:] == ["other.start", "other", "again", "use"]
