"""Which tasks move up in the order that a scheduler starts from."""

from __future__ import annotations

import pytest

from spmdir.schedule.memory import peak_bytes
from spmdir.schedule.mobility import advance_transfers
from spmdir.schedule.program import Buffer, Program, Task, Transfer

SENT = Transfer("data", ("data",), 0.0, 1.0, 0.0, 1.0)


def backward(reduced: float) -> Program:
    """Return a program of two gradients of 8 bytes that are converted and reduced at the end, and then used."""
    tasks = (
        Task("a", "mm", "", 3.0, (), (0,)),
        Task("b", "mm", "", 3.0, (), (1,)),
        Task("wide a", "to", "", 1.0, (0,), (2,), (0,)),
        Task("sum a", "reduce_scatter", "", 0.0, (2,), (4,), (2,), transfer=SENT, is_blocking=True),
        Task("wide b", "to", "", 1.0, (1,), (3,), (1,)),
        Task("sum b", "reduce_scatter", "", 0.0, (4,), (5,), (3,), transfer=SENT, is_blocking=True),
        Task("update", "add", "", 1.0, (3, 5), (6,), (4, 5)),
    )
    sizes = (8.0, 8.0, 16.0, 16.0, reduced, reduced, 1.0)
    return Program(tasks, tuple(Buffer(str(index), size, "gradients") for index, size in enumerate(sizes)), (), (6,))


@pytest.mark.parametrize(
    ("reduced", "order", "peak"), [(2.0, (0, 2, 3, 1, 4, 5, 6), 26.0), (32.0, (0, 1, 2, 3, 4, 5, 6), 80.0)]
)
def test_a_reduction_that_frees_memory_runs_early_with_the_conversion_of_its_operand(
    reduced: float, order: tuple[int, ...], peak: float
) -> None:
    program = backward(reduced)
    assert advance_transfers(program) == order
    assert peak_bytes(program, order) == peak
