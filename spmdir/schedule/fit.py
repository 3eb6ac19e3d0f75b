"""Which tasks run again so that a program fits into memory, at the least time.

Values that are live across one task, most often the end of the forward part, are held, or made again right before their
first use after it. That is decided for blocks of the program by themselves, whose boundary values are held, so that
making values of one block again needs no other block. Equal blocks are decided once, for the prices of a byte at which
the decision changes; those of all blocks are then taken in the order of seconds per byte, until the program fits.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence

import attrs

from spmdir.schedule.block_answers import Answer, Block, block_of, seconds_of
from spmdir.schedule.blocks import blocks
from spmdir.schedule.memory import live_bytes, peak_bytes
from spmdir.schedule.program import Program, Task
from spmdir.schedule.repeated_tasks import Repeat, order, peak_with_repeats, repeats, with_repeats

LAYERS = (1, 2, 4)
"""How many equal layers a block may have."""

ROUNDS = 8
"""How often a peak is looked for, and values made again across it."""


@attrs.frozen
class Fitted:
    """What brings a program within a budget, or as near as was found.

    Attributes:
        rounds: the tasks that run again; those of a round are tasks of the program that the round before it made.
        program: with all of them.
        peak: the most bytes that it holds at once.
        again: the tasks that run again, as they are.
    """

    rounds: tuple[tuple[Repeat, ...], ...]
    program: Program
    peak: float
    again: tuple[Task, ...] = ()

    @property
    def seconds(self) -> float:
        """The time that it adds, if nothing hides it."""
        return sum(map(seconds_of, self.again))


def fit(program: Program, budget: float, repeatable: Sequence[bool]) -> Fitted:
    """Return the tasks to run again so that `program` holds at most `budget` bytes, if that can be done.

    Args:
        repeatable: by task, whether it may run again: it gives the same values, on all ranks alike.
    """
    found = Fitted((), program, peak_bytes(program))
    while found.peak > budget and len(found.rounds) < ROUNDS:
        made = _Round(found.program, budget, repeatable).run()
        if made.peak >= found.peak:
            break
        repeatable = [repeatable[index] for index, _ in order(found.program, made.rounds[0])]
        found = attrs.evolve(made, rounds=found.rounds + made.rounds, again=found.again + made.again)
    return found


@attrs.frozen(order=True)
class _Step:
    """An answer for a block that takes the place of a cheaper one.

    Attributes:
        price: the seconds more for each byte less.
        start: the first task of the block.
        seconds: that it takes more.
    """

    price: float
    start: int
    seconds: float
    answer: Answer = attrs.field(order=False)


@attrs.frozen
class _Choice:
    """Answers for blocks, by the first task of each, and what comes of them."""

    answers: Mapping[int, Answer]
    repeats: tuple[Repeat, ...]
    peak: float

    @property
    def seconds(self) -> float:
        return sum(answer.seconds for answer in self.answers.values())


class _Round:
    """The decision what is made again across one task, the `cut`: that above the budget at which most is held for later
    tasks."""

    def __init__(self, program: Program, budget: float, repeatable: Sequence[bool]):
        self.program, self.budget, self.repeatable = program, budget, repeatable
        waiting = _waiting_bytes(program)
        over = (at for at, live in enumerate(live_bytes(program)) if live > budget)
        self.cut = max(over, key=waiting.__getitem__)
        self.needed = {buffer for task in program.tasks[self.cut + 1 :] for buffer in task.reads}
        self.known: dict[Block, list[Answer]] = {}

    def run(self) -> Fitted:
        """Return the cheapest decision that fits, else the one that holds least."""
        best = self._choice({})
        for layers in LAYERS:
            parts = blocks(self.program, self.cut + 1, layers)
            best = self._first_fitting(self._steps(parts), best)
        program = with_repeats(self.program, best.repeats)
        again = tuple([self.program.tasks[repeat.task] for repeat in best.repeats])
        return Fitted((best.repeats,), program, peak_bytes(program), again)

    def _steps(self, parts: Sequence[range]) -> list[_Step]:
        """Return what may be decided for blocks, the cheapest first; of equal blocks the first one first."""
        kept = {*self.program.inputs, *self.program.outputs}
        maker = {buffer: index for index, task in enumerate(self.program.tasks) for buffer in task.makes}
        boundary: set[int] = set()
        for part in parts:
            for task in self.program.tasks[part.start : part.stop]:
                boundary.update(buffer for buffer in task.reads if maker.get(buffer, part.start) < part.start)
        found: list[_Step] = []
        for part in parts:
            may_repeat = [
                self.repeatable[index] and boundary.isdisjoint(self.program.tasks[index].makes) for index in part
            ]
            block = block_of(self.program, part, may_repeat, kept, self.needed)
            if block not in self.known:
                self.known[block] = block.answers()
            for less, more in itertools.pairwise(self.known[block]):
                seconds = more.seconds - less.seconds
                found.append(_Step(seconds / (less.held - more.held), part.start, seconds, more))
        return sorted(found)

    def _first_fitting(self, steps: Sequence[_Step], best: _Choice) -> _Choice:
        """Return `best` or what the first of `steps` decide, as many as it takes to fit, whatever is better."""
        known: dict[int, _Choice] = {}

        def fits(count: int) -> bool:
            known[count] = self._choice({step.start: step.answer for step in steps[:count]})
            return known[count].peak <= self.budget

        low, high = 0, len(steps)
        if best.peak <= self.budget:
            high = bisect.bisect_left([*itertools.accumulate(step.seconds for step in steps)], best.seconds)
        # Making more again may hold more.
        high = next((count for count in (high, high * 3 // 4, high // 2) if fits(count)), 0)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        found = min(known.values(), key=self._badness)
        return min(best, self._with_fewer_blocks(found), key=self._badness)

    def _with_fewer_blocks(self, choice: _Choice) -> _Choice:
        """Return a choice that fits without its answers for the last blocks that it does not need: what these make is
        used again soon."""
        while choice.peak <= self.budget and choice.answers:
            last = max(choice.answers)
            less = self._choice({start: answer for start, answer in choice.answers.items() if start != last})
            if less.peak > self.budget:
                break
            choice = less
        return choice

    def _badness(self, choice: _Choice) -> tuple[float, float]:
        return max(choice.peak, self.budget), choice.seconds

    def _choice(self, answers: Mapping[int, Answer]) -> _Choice:
        again = {start + task for start, answer in answers.items() for task in answer.again}
        added = repeats(self.program, self.cut, again)
        return _Choice(answers, tuple(added), peak_with_repeats(self.program, added))


def _waiting_bytes(program: Program) -> list[float]:
    """Return the bytes of the buffers that are live at each task, but neither used there nor held after their last
    use."""
    change = [0.0] * (len(program.tasks) + 1)
    last: dict[int, int] = {}
    for index, task in enumerate(program.tasks):
        for buffer in (*task.reads, *task.makes):
            if last.get(buffer, index) != index:
                change[last[buffer] + 1] += program.buffers[buffer].bytes
                change[index] -= program.buffers[buffer].bytes
            if buffer in last or buffer in task.makes:
                last[buffer] = index
    return list(itertools.accumulate(change[:-1]))
