"""Which tasks run again so that a program fits into memory, at the least time.

Values that are live across one task, most often the end of the forward part, are held, or made again right before their
first use after it. That is decided for blocks of the program by themselves, whose boundary values are held, so that
making values of one block again needs no other block. Equal blocks are decided once, for the prices of a byte at which
the decision changes; those of all blocks are then taken in the order of seconds per byte, until the program fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from spmdir.schedule.block_answers import Answer, Block, block_of, seconds_of
from spmdir.schedule.blocks import blocks
from spmdir.schedule.memory import live_bytes, peak_bytes
from spmdir.schedule.program import Program, Task
from spmdir.schedule.repeated_tasks import Repeat, order, peak_with_repeats, repeats, with_repeats

LAYERS = (1, 2, 4)
"""How many equal layers a block has; more if the program does not fit with fewer."""

ROUNDS = 4
"""How often a peak is looked for, and values made again across it."""

SPARE = 0.01
"""The part of what is over the budget that may be freed beyond it without a look at whether all is needed."""

PROGRESS = 0.1
"""The part of what is over the budget that a round has to free at the least."""


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
    """Return the tasks to run again so that `program` holds at most `budget` bytes, if that is found; else what a
    budget of nothing gives.

    So whatever holds no less than that is a budget that is met.

    Args:
        repeatable: by task, whether it may run again: it gives the same values, on all ranks alike.
    """
    found = _rounds(program, budget, repeatable)
    return found if found.peak <= budget or not budget else _rounds(program, 0.0, repeatable)


def _rounds(program: Program, budget: float, repeatable: Sequence[bool]) -> Fitted:
    """Return what several rounds bring, until the program fits or little more is freed."""
    found = Fitted((), program, peak_bytes(program))
    while program.tasks and found.peak > budget and len(found.rounds) < ROUNDS:
        made = _next_round(found.program, budget, repeatable)
        if found.peak - made.peak < PROGRESS * (found.peak - budget):
            break
        repeatable = [repeatable[index] for index, _ in order(found.program, made.rounds[0])]
        found = attrs.evolve(made, rounds=found.rounds + made.rounds, again=found.again + made.again)
    return found


def _next_round(program: Program, budget: float, repeatable: Sequence[bool]) -> Fitted:
    """Return what running tasks again across one task brings: across the first that lets it fit, else the best one."""
    tried: list[Fitted] = []
    for cut in _cuts(program, budget):
        tried.append(_Round(program, budget, repeatable, cut).run())
        if tried[-1].peak <= budget:
            return tried[-1]
    return min(tried, key=lambda one: one.peak)


@attrs.frozen(order=True)
class _Step:
    """An answer for a block that takes the place of a cheaper one.

    Attributes:
        price: the seconds more for each byte less.
        start: the first task of the block.
    """

    price: float
    start: int
    answer: Answer = attrs.field(order=False)


@attrs.frozen
class _Choice:
    """Tasks that run again, by the first task of their block, and what comes of them."""

    again: Mapping[int, frozenset[int]]
    repeats: tuple[Repeat, ...]
    peak: float
    seconds: float


class _Round:
    """The decision what is made again across one task, the `cut`.

    Attributes:
        over: the bytes that are over the budget, at most.
        worth: buffer → for how much of the bytes over the budget, summed over tasks, it waits for its next use.
    """

    def __init__(self, program: Program, budget: float, repeatable: Sequence[bool], cut: int):
        self.program, self.budget, self.repeatable, self.cut = program, budget, repeatable, cut
        live = live_bytes(program)
        over = [0.0, *itertools.accumulate(max(0.0, size - budget) for size in live)]
        last, following = self._uses_around_cut()
        self.over = max(live) - budget
        self.worth = {buffer: over[following[buffer]] - over[last[buffer] + 1] for buffer in following}
        self.kept = {*program.inputs, *program.outputs}
        self.kept.update(buffer for buffer, worth in self.worth.items() if worth <= 0)
        self.known: dict[Block, list[Answer]] = {}

    def _uses_around_cut(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the last use before or at the cut, and the first one after it, of the buffers with both."""
        last: dict[int, int] = {}
        following: dict[int, int] = {}
        for index, task in enumerate(self.program.tasks):
            for buffer in (*task.makes, *task.reads):
                if index <= self.cut:
                    last[buffer] = index
                elif buffer in last:
                    following.setdefault(buffer, index)
        return last, following

    def run(self) -> Fitted:
        """Return the first decision that fits, with blocks of few layers first, else the one that holds least."""
        tried: list[_Choice] = []
        for layers in LAYERS:
            tried.append(self._first_fitting(self._steps(blocks(self.program, self.cut + 1, layers))))
            if tried[-1].peak <= self.budget:
                break
        best = min(tried, key=self._badness)
        program = with_repeats(self.program, best.repeats)
        again = tuple([self.program.tasks[repeat.task] for repeat in best.repeats])
        return Fitted((best.repeats,), program, peak_bytes(program), again)

    def _steps(self, parts: Sequence[range]) -> list[_Step]:
        """Return what may be decided for blocks, the cheapest first; of equal blocks the first one first."""
        maker = {buffer: index for index, task in enumerate(self.program.tasks) for buffer in task.makes}
        boundary: set[int] = set()
        for part in parts:
            for task in self.program.tasks[part.start : part.stop]:
                boundary.update(buffer for buffer in task.reads if maker.get(buffer, part.start) < part.start)
        found: list[_Step] = []
        for part in parts:
            held = boundary if part.start else set()  # the first block reads nothing of other blocks
            may_repeat = [self.repeatable[index] and held.isdisjoint(self.program.tasks[index].makes) for index in part]
            block = block_of(self.program, part, may_repeat, self.kept, self.worth)
            if block not in self.known:
                self.known[block] = block.answers()
            for less, more in itertools.pairwise(self.known[block]):
                price = (more.seconds - less.seconds) / (less.held - more.held)
                found.append(_Step(price, part.start, more))
        return sorted(found)

    def _first_fitting(self, steps: Sequence[_Step]) -> _Choice:
        """Return what the first of `steps` decide, as many as it takes to fit; if none does, what holds least."""
        known: dict[int, _Choice] = {}

        def fits(count: int) -> bool:
            known[count] = self._choice({step.start: step.answer.again for step in steps[:count]})
            return known[count].peak <= self.budget

        most = len(steps)  # but making more again may hold more
        low, high = 0, next((count for count in (most, most * 3 // 4, most // 2) if fits(count)), 0)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        if not high:
            return min(known.values(), key=self._badness)
        return min(self._last_steps(steps, low), key=lambda choice: choice.seconds)

    def _last_steps(self, steps: Sequence[_Step], count: int) -> Iterator[_Choice]:
        """Yield what fits with the first `count` of `steps`, which do not, and one more: the next one, and that of all
        later ones which takes least time. What they free more than is asked for need not run again."""
        taken = {step.start: step.answer for step in steps[:count]}

        def longer(step: _Step) -> float:
            return step.answer.seconds - (taken[step.start].seconds if step.start in taken else 0.0)

        def followed_by(step: _Step) -> _Choice:
            return self._choice({start: one.again for start, one in {**taken, step.start: step.answer}.items()})

        shorter = [step for step in steps[count + 1 :] if longer(step) < longer(steps[count])]
        distinct = {longer(step): step for step in reversed(shorter)}
        found = (followed_by(distinct[seconds]) for seconds in sorted(distinct))
        fitting = next((choice for choice in found if choice.peak <= self.budget), None)
        for choice in filter(None, (followed_by(steps[count]), fitting)):
            is_exact = self.budget - choice.peak <= SPARE * self.over
            yield self._with_fewer_blocks(choice if is_exact else self._with_fewer_tasks(choice))

    def _with_fewer_blocks(self, choice: _Choice) -> _Choice:
        """Return a choice that fits without the last blocks that it does not need: what these make is used again
        soon."""
        while choice.again:
            last = max(choice.again)
            less = self._choice({start: again for start, again in choice.again.items() if start != last})
            if less.peak > self.budget:
                break
            choice = less
        return choice

    def _with_fewer_tasks(self, choice: _Choice) -> _Choice:
        """Return a choice that fits without the tasks that it does not need, the longest ones first and of equal ones
        the last: an answer for a block may free more than is asked for."""
        needed: set[object] = set()
        found = [(start, task) for start, tasks in choice.again.items() for task in tasks]
        for start, task in sorted(found, key=lambda one: (self._seconds(sum(one)), sum(one)), reverse=True):
            made = self.program.tasks[start + task].makes
            look = self._seconds(start + task), sum(self.program.buffers[buffer].bytes for buffer in made)
            if look in needed:
                continue
            less = self._choice({**choice.again, start: choice.again[start] - {task}})
            if less.peak > self.budget:
                needed.add(look)
            elif less.seconds < choice.seconds:
                choice = less
        return choice

    def _seconds(self, task: int) -> float:
        return seconds_of(self.program.tasks[task])

    def _badness(self, choice: _Choice) -> tuple[float, float]:
        return max(choice.peak, self.budget), choice.seconds

    def _choice(self, again: Mapping[int, frozenset[int]]) -> _Choice:
        added = repeats(self.program, self.cut, {start + task for start, tasks in again.items() for task in tasks})
        seconds = sum(self._seconds(repeat.task) for repeat in added)
        return _Choice(again, tuple(added), peak_with_repeats(self.program, added), seconds)


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
        for buffer in (*task.reads, *task.makes):
            if last.get(buffer, index) != index:
                change[last[buffer] + 1] += program.buffers[buffer].bytes
                change[index] -= program.buffers[buffer].bytes
            if buffer in last or buffer in task.makes:
                last[buffer] = index
    return list(itertools.accumulate(change[:-1]))
