"""Random programs of tasks, whose given order is one in which they may run."""

from __future__ import annotations

from hypothesis import strategies as st

from spmdir.schedule.program import Buffer, Program, Task, Transfer

AXES = (("data",), ("model",), ("data", "model"))


def excluded(axes: tuple[str, ...]) -> frozenset[str]:
    """The streams of other axes whose groups share ranks with those of `axes`."""
    return frozenset(",".join(other) for other in AXES if other != axes and not set(other).isdisjoint(axes))


@st.composite
def programs(draw: st.DrawFn, are_async: bool) -> Program:
    """Draw a program of up to 24 ops, each of which makes one buffer or views its first operand's.

    Args:
        are_async: whether its collectives are starts with their waits right after them, or do both in one.
    """
    inputs = draw(st.integers(1, 3))
    buffers = [Buffer(f"%in{at}", float(draw(st.integers(0, 8))), "parameters") for at in range(inputs)]
    tasks: list[Task] = []
    values: list[tuple[int | None, int]] = [(None, at) for at in range(inputs)]
    for at in range(draw(st.integers(1, 24))):
        operands = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))
        needs = tuple(sorted({task for task, _ in operands if task is not None}))
        reads = tuple(sorted({buffer for _, buffer in operands}))
        kind = draw(st.sampled_from(("view", "op", "op", "collective", "collective")))
        if kind == "view":
            values.append((len(tasks), operands[0][1]))
            tasks.append(Task(f"%{at}", "view", "", 0.0, needs, (), reads))
            continue
        buffers.append(Buffer(f"%{at}", float(draw(st.integers(0, 8))), "activations"))
        made = (len(buffers) - 1,)
        seconds = float(draw(st.integers(0, 4)))
        if kind == "op":
            tasks.append(Task(f"%{at}", "op", "", seconds, needs, made, reads, float(draw(st.integers(0, 2)))))
        else:
            axes = draw(st.sampled_from(AXES))
            fixed, intra, inter = (float(draw(st.integers(0, most))) for most in (1, 6, 3))
            joining = float(draw(st.integers(0, 1)))
            transfer = Transfer(",".join(axes), axes, fixed, intra, inter, 1.0, excluded(axes), joining)
            start = len(tasks)
            tasks.append(
                Task(f"%{at}", "start", "", 0.0, needs, made, reads, transfer=transfer, is_blocking=not are_async)
            )
            if are_async:
                tasks.append(Task(f"%{at}.wait", "wait", "", 0.0, (start,), (), (*reads, *made), waits_for=start))
        values.append((len(tasks) - 1, made[0]))
    outputs = draw(st.lists(st.sampled_from(values), max_size=3))
    return Program(tuple(tasks), tuple(buffers), tuple(range(inputs)), tuple({buffer for _, buffer in outputs}))
