"""The memory that is left to tasks which come before their turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spmdir.schedule.memory import live_bytes, peak_bytes
from spmdir.schedule.memory_headroom import Headroom
from spmdir.schedule.program import Program
from tests.schedule.programs import programs


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
