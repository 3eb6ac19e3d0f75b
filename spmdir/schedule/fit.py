"""Which tasks run again, and what is copied to the host, so that a program fits into memory, at the least time.

Values that are live across one task, most often the end of the forward part, are held, or made again or copied back
right before their first use after it. That is decided for blocks of the program by themselves, whose boundary values
are there after it, so that making values of one block again needs no other block. Equal blocks are decided once, for
the prices of a byte at which the decision changes; those of all blocks are then taken in the order of seconds per byte,
until the program fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.progress import say
from spmdir.schedule.across_cut import choose_repeats
from spmdir.schedule.block_answers import task_seconds
from spmdir.schedule.memory import live_bytes, peak_bytes
from spmdir.schedule.program import Program, Task
from spmdir.schedule.repeated_tasks import Repeat, insert_repeats, tasks_with_repeats

ROUNDS = 4
"""How often a peak is looked for, and values made again across it."""

PROGRESS = 0.1
"""The part of what is over the budget that a round has to free at the least."""


@attrs.frozen
class Fitted:
    """What brings a program within a budget, or as near as was found.

    Attributes:
        rounds: what runs again or is copied; the tasks of a round are those of the program that the round before made.
        program: with all of them.
        peak: the most bytes that it holds at once.
        again: the tasks that run again, as they are.
        copies: the tasks that copy to the host and back.
    """

    rounds: tuple[tuple[Repeat, ...], ...]
    program: Program
    peak: float
    again: tuple[Task, ...] = ()
    copies: tuple[Task, ...] = ()

    @property
    def seconds(self) -> float:
        """The time that it adds, if nothing hides it."""
        return sum(map(task_seconds, (*self.again, *self.copies)))


def fit(
    program: Program, budget: float, repeatable: Sequence[bool], copies: Mapping[int, float] | None = None
) -> Fitted:
    """Return what is to run again, or to be copied, so that `program` holds at most `budget` bytes, if that is found;
    else what a budget of nothing gives.

    So whatever holds no less than that is a budget that is met.

    Args:
        repeatable: by task, whether it may run again: it gives the same values, on all ranks alike.
        copies: buffer that may be copied to the host and back → the seconds of a copy in one direction.
    """
    found = _rounds(program, budget, repeatable, copies or {})
    return found if found.peak <= budget or not budget else _rounds(program, 0.0, repeatable, copies or {})


def _rounds(program: Program, budget: float, repeatable: Sequence[bool], copies: Mapping[int, float]) -> Fitted:
    """Return what several rounds bring, until the program fits or little more is freed."""
    found = Fitted((), program, peak_bytes(program))
    while program.tasks and found.peak > budget and len(found.rounds) < ROUNDS:
        over = size_text(found.peak - budget)
        say("fit-memory: round {} of {}, {} over the budget", len(found.rounds) + 1, ROUNDS, over)
        made = _next_round(found.program, budget, repeatable, copies)
        if found.peak - made.peak < PROGRESS * (found.peak - budget):
            break
        repeatable = [
            repeatable[index] and (repeat is None or repeat.action == "run")
            for index, repeat in tasks_with_repeats(found.program, made.rounds[0])
        ]
        rounds, again = found.rounds + made.rounds, found.again + made.again
        found = attrs.evolve(made, rounds=rounds, again=again, copies=found.copies + made.copies)
    return found


def _next_round(program: Program, budget: float, repeatable: Sequence[bool], copies: Mapping[int, float]) -> Fitted:
    """Return what bringing values back across one task gives: across the first that lets it fit, else the best one."""
    tried: list[Fitted] = []
    for cut in _cuts(program, budget):
        added = choose_repeats(program, budget, repeatable, cut, copies)
        runs = {does: [repeat for repeat in added if (repeat.action == "run") is does] for does in (True, False)}
        again, copying = (tuple([repeat.task_in(program) for repeat in runs[does]]) for does in (True, False))
        made = insert_repeats(program, added)
        tried.append(Fitted((added,), made, peak_bytes(made), again, copying))
        if tried[-1].peak <= budget:
            return tried[-1]
    return min(tried, key=lambda one: one.peak)


def _cuts(program: Program, budget: float) -> list[int]:
    """Return the tasks to make values again across: that over the budget at which most waits for later uses, and that
    at which most is live."""
    live, waiting = live_bytes(program), _waiting_bytes(program)
    over = [at for at, held in enumerate(live) if held > budget]
    return list(dict.fromkeys([max(over, key=waiting.__getitem__), max(over, key=live.__getitem__)]))


def _waiting_bytes(program: Program) -> list[float]:
    """Return the bytes of the buffers that are live at each task, but neither used there nor held after their last
    use."""
    change = [0.0] * (len(program.tasks) + 1)
    last: dict[int, int] = {}
    for index, task in enumerate(program.tasks):
        for buffer in (*task.reads, *task.allocates):
            if last.get(buffer, index) != index:
                change[last[buffer] + 1] += program.buffers[buffer].bytes
                change[index] -= program.buffers[buffer].bytes
            if buffer in last or buffer in task.allocates:
                last[buffer] = index
    return list(itertools.accumulate(change[:-1]))
