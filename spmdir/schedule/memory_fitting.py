"""Choose recomputations and copies to the host that fit a program into memory in the least time.

The *cut* is one task, most often at the end of the forward part, where the most bytes are live. A value that is live
across the cut is held, or *restored* right before its first use after the cut: recomputed, or copied back from the
host. The program is split into blocks (`blocks.py`). The values between blocks are held, so each block is decided
separately. A minimum cut finds the decisions of a block for several prices of memory (`block_decisions.py`). Then the
blocks change to decisions that hold less, in the order of seconds per byte, until the program fits
(`choose_repeats.py`).

For example, block A can free 4 bytes in 1 s, and 4 more in 2 s. Block B can free 6 bytes in 2 s. If the program is 9
bytes over the budget, A changes first (0.25 s per byte), then B (0.33): 10 bytes are freed in 3 s.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import attrs

from spmdir.core.byte_size import size_text
from spmdir.core.progress import say
from spmdir.schedule.block_decisions import task_seconds
from spmdir.schedule.choose_repeats import choose_repeats
from spmdir.schedule.memory import live_bytes, peak_bytes
from spmdir.schedule.program import Program, Task
from spmdir.schedule.repeated_tasks import Repeat, find_repeats, insert_repeats, tasks_with_repeats

MAX_ROUNDS = 4
"""The largest number of rounds. Each round restores values across one cut."""

LEAST_PROGRESS = 0.1
"""The fraction of the bytes over the budget that a round must free; otherwise, it is the last round."""


@attrs.frozen
class Fitted:
    """A program with recomputations and copies. Its peak is within the budget, or the smallest peak that was found.

    Attributes:
        rounds: for each round, the recomputations and copies. Their tasks are those of the program after the previous
            round.
        program: the program after the last round.
        peak: the peak of that program in bytes.
        recomputed: the tasks that run again.
        copies: the tasks that copy to the host and back.
    """

    rounds: tuple[tuple[Repeat, ...], ...]
    program: Program
    peak: float
    recomputed: tuple[Task, ...] = ()
    copies: tuple[Task, ...] = ()

    @property
    def seconds(self) -> float:
        """The time that the recomputations and copies add, if nothing hides them."""
        return sum(map(task_seconds, (*self.recomputed, *self.copies)))


def fit(
    program: Program, budget: float, repeatable: Sequence[bool], copies: Mapping[int, float] | None = None
) -> Fitted:
    """Fit a program into `budget` bytes.

    If no solution is found, the result is that of a budget of 0: the smallest peak that the search finds. So a user who
    sets the budget to the reported peak gets a solution.

    Args:
        repeatable: for each task, whether it may run again: whether it computes equal values again on all ranks.
        copies: buffer that may be copied to the host and back → the seconds of a copy in one direction.
    """
    fitted = _run_rounds(program, budget, repeatable, copies or {})
    return fitted if fitted.peak <= budget or not budget else _run_rounds(program, 0.0, repeatable, copies or {})


def gather_again(program: Program, gathered: Collection[int], repeatable: Sequence[bool]) -> Fitted:
    """Free gathered weights after their last use in the forward part, and gather them again for the backward part.

    FSDP calls this `reshard_after_forward`. The cut between both parts is the task across which the most bytes of
    weights are held. The innermost weight, such as that of the head, stays held: no other weight is used between its
    uses before and after the cut.

    Args:
        gathered: the buffers of gathered weights.
        repeatable: as for `fit`.
    """
    held_across = _unused_live_bytes(program, gathered)
    cut = max(range(len(held_across)), key=held_across.__getitem__, default=-1)
    last_use, next_use = dict[int, int](), dict[int, int]()  # weight → its last use up to the cut; its first use after
    for index, task in enumerate(program.tasks):
        for buffer in (*task.allocates, *task.reads):
            if buffer in gathered and index <= cut:
                last_use[buffer] = index
            elif buffer in last_use:
                next_use.setdefault(buffer, index)
    # The innermost weight is the last one used up to the cut and the first one used after it.
    latest_use = max((last_use[buffer] for buffer in next_use), default=-1)
    earliest_next_use = min(next_use.values(), default=-1)
    restored = {buffer for buffer in next_use if last_use[buffer] < latest_use or next_use[buffer] > earliest_next_use}
    repeated = [
        index
        for index, task in enumerate(program.tasks[: cut + 1])
        if repeatable[index] and restored.intersection(task.allocates)
    ]
    repeats = tuple(find_repeats(program, cut, repeated))
    new_program = insert_repeats(program, repeats)
    recomputed = tuple([repeat.task_in(program) for repeat in repeats])
    return Fitted((repeats,) if repeats else (), new_program, peak_bytes(new_program), recomputed)


def _run_rounds(program: Program, budget: float, repeatable: Sequence[bool], copies: Mapping[int, float]) -> Fitted:
    """Run rounds until the program fits or a round frees too little; return the result of the last useful round.

    Copies are not repeated in a later round. The arguments are those of `fit`.
    """
    fitted = Fitted((), program, peak_bytes(program))
    while program.tasks and fitted.peak > budget and len(fitted.rounds) < MAX_ROUNDS:
        excess = size_text(fitted.peak - budget)
        say("fit-memory: round {} of {}, {} over the budget", len(fitted.rounds) + 1, MAX_ROUNDS, excess)
        next_round = _run_round(fitted.program, budget, repeatable, copies)
        if fitted.peak - next_round.peak < LEAST_PROGRESS * (fitted.peak - budget):
            break
        repeatable = [  # of the tasks of the next program
            repeatable[index] and (repeat is None or repeat.action == "run")
            for index, repeat in tasks_with_repeats(fitted.program, next_round.rounds[0])
        ]
        fitted = attrs.evolve(
            next_round,
            rounds=fitted.rounds + next_round.rounds,
            recomputed=fitted.recomputed + next_round.recomputed,
            copies=fitted.copies + next_round.copies,
        )
    return fitted


def _run_round(program: Program, budget: float, repeatable: Sequence[bool], copies: Mapping[int, float]) -> Fitted:
    """Return the result of restoring values across one cut: the first cut that meets the budget, or else the best.

    The best result has the smallest peak. The arguments are those of `fit`.
    """
    candidates: list[Fitted] = []
    for cut in _find_cuts(program, budget):
        repeats = choose_repeats(program, budget, repeatable, cut, copies)
        recomputed = tuple([repeat.task_in(program) for repeat in repeats if repeat.action == "run"])
        copy_tasks = tuple([repeat.task_in(program) for repeat in repeats if repeat.action != "run"])
        new_program = insert_repeats(program, repeats)
        candidates.append(Fitted((repeats,), new_program, peak_bytes(new_program), recomputed, copy_tasks))
        if candidates[-1].peak <= budget:
            return candidates[-1]
    return min(candidates, key=lambda candidate: candidate.peak)


def _find_cuts(program: Program, budget: float) -> list[int]:
    """Return one or two tasks that may be the cut, among those with more live bytes than the budget.

    The first has the most live bytes in buffers that it does not use: these could be restored later. The second has
    the most live bytes. At least one task must exceed the budget.
    """
    live, unused = live_bytes(program), _unused_live_bytes(program)
    tasks_over_budget = [index for index, size in enumerate(live) if size > budget]
    most_unused = max(tasks_over_budget, key=unused.__getitem__)
    most_live = max(tasks_over_budget, key=live.__getitem__)
    return list(dict.fromkeys([most_unused, most_live]))


def _unused_live_bytes(program: Program, buffers: Collection[int] | None = None) -> list[float]:
    """Return for each task the bytes of the buffers that are used before and after it, but not by it.

    For example, task 0 allocates 4 bytes that task 3 reads: tasks 1 and 2 have 4 unused bytes, tasks 0 and 3 have none.

    Args:
        buffers: the buffers that count; all if None.
    """
    # A buffer is unused from the task after one use up to the task before the next use.
    change = [0.0] * (len(program.tasks) + 1)  # for each task, the unused bytes minus those of the task before it
    last_use: dict[int, int] = {}
    for index, task in enumerate(program.tasks):
        for buffer in (*task.reads, *task.allocates):
            if buffers is not None and buffer not in buffers:
                continue
            if last_use.get(buffer, index) != index:
                change[last_use[buffer] + 1] += program.buffers[buffer].bytes
                change[index] -= program.buffers[buffer].bytes
            if buffer in last_use or buffer in task.allocates:  # not an input, which no task allocates
                last_use[buffer] = index
    return list(itertools.accumulate(change[:-1]))
