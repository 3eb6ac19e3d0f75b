"""What runs again, and what is copied to the host, so that less is held across one task of a program.

Copies that could be hidden beside other work have no price of their own, but share one time: that of the accelerator
before the cut, and that after it. So several prices are tried, and what takes least time of what fits is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from spmdir.core.progress import say
from spmdir.schedule.block_answers import Block, BlockDecision, Restored, make_block, task_seconds
from spmdir.schedule.blocks import split_into_blocks
from spmdir.schedule.host_copies import HIDDEN, Copies
from spmdir.schedule.memory import live_bytes
from spmdir.schedule.program import Program
from spmdir.schedule.repeated_tasks import Repeat, find_repeats, peak_with_repeats

LAYERS = (1, 2, 4)
"""How many equal layers a block has; more if the program does not fit with fewer."""

SPARE = 0.01
"""The part of what is over the budget that may be freed beyond it without a look at whether all is needed."""

RATES = (HIDDEN, 0.2)
"""What a copy that could be hidden is priced as, in parts of its time."""

WHOLE = 1.0
"""What it is priced as where there may be more copies than can be hidden."""


def choose_repeats(
    program: Program, budget: float, repeatable: Sequence[bool], cut: int, copies: Mapping[int, float]
) -> tuple[Repeat, ...]:
    """Return what lets a program fit across the task `cut` in the least time, else what lets it hold least."""

    def decided(copies: Mapping[int, float], rate: float = WHOLE) -> _Choice:
        return _Decision(program, budget, repeatable, cut, copies, rate).run()

    tried = [decided({}), *(decided(copies, rate) for rate in (RATES if copies and budget else ()))]
    if copies and all(choice.peak > budget for choice in tried):
        tried.append(decided(copies))
    return min(tried, key=lambda choice: (max(choice.peak, budget), choice.seconds)).repeats


@attrs.frozen(order=True)
class _Step:
    """An answer for a block that takes the place of a cheaper one.

    Attributes:
        price: the seconds more for each byte less.
        start: the first task of the block.
        without: the answer that takes its place if there is no time for more copies.
    """

    price: float
    start: int
    answer: BlockDecision = attrs.field(order=False)
    without: BlockDecision = attrs.field(order=False)


@attrs.frozen
class _Choice:
    """What runs again or is copied, by the first task of its block, and what comes of it."""

    again: Mapping[int, frozenset[Restored]]
    repeats: tuple[Repeat, ...]
    peak: float
    seconds: float


class _Decision:
    """The decision what is brought back across one task, the `cut`.

    Args:
        rate: what a copy that could be hidden is priced as, in parts of its time.

    Attributes:
        over: the bytes that are over the budget, at most.
        worth: buffer → for how much of the bytes over the budget, summed over tasks, it waits for its next use.
        copies: what copies take of the buffers that may be copied.
    """

    def __init__(
        self,
        program: Program,
        budget: float,
        repeatable: Sequence[bool],
        cut: int,
        seconds: Mapping[int, float],
        rate: float,
    ):
        self.program, self.budget, self.repeatable, self.cut = program, budget, repeatable, cut
        live = live_bytes(program)
        over = [0.0, *itertools.accumulate(max(0.0, size - budget) for size in live)]
        last, following = self._uses_around_cut()
        self.over = max(live) - budget
        self.worth = {buffer: over[following[buffer]] - over[last[buffer] + 1] for buffer in following}
        self.kept = {*program.inputs, *program.outputs}
        self.kept.update(buffer for buffer, worth in self.worth.items() if worth <= 0)
        copied = {buffer: seconds[buffer] for buffer in following if buffer in seconds and buffer not in self.kept}
        self.copies = Copies(program, cut, last, following, copied)
        self.rate = rate
        self.known: dict[Block, list[BlockDecision]] = {}

    def _uses_around_cut(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the last use before or at the cut, and the first one after it, of the buffers with both."""
        last: dict[int, int] = {}
        following: dict[int, int] = {}
        for index, task in enumerate(self.program.tasks):
            for buffer in (*task.allocates, *task.reads):
                if index <= self.cut:
                    last[buffer] = index
                elif buffer in last:
                    following.setdefault(buffer, index)
        return last, following

    def run(self) -> _Choice:
        """Return the first decision that fits, with blocks of few layers first, else the one that holds least."""
        tried: list[_Choice] = []
        for layers in LAYERS:
            tried.append(self._first_fitting(self._steps(split_into_blocks(self.program, self.cut + 1, layers))))
            if tried[-1].peak <= self.budget:
                break
        return min(tried, key=self._badness)

    def _steps(self, parts: Sequence[range]) -> list[_Step]:
        """Return what may be decided for blocks, the cheapest first; of equal blocks the first one first."""
        maker = {buffer: index for index, task in enumerate(self.program.tasks) for buffer in task.allocates}
        boundary: set[int] = set()
        for part in parts:
            for task in self.program.tasks[part.start : part.stop]:
                boundary.update(buffer for buffer in task.reads if maker.get(buffer, part.start) < part.start)
        found: list[_Step] = []
        for part in parts:
            say("fit-memory: what runs again of tasks {} to {}", part.start + 1, part.stop)
            held = boundary if part.start else set()  # the first block reads nothing of other blocks
            may_repeat = [
                self.repeatable[index] and held.isdisjoint(self.program.tasks[index].allocates) for index in part
            ]
            plain, *copying = (
                self._answers(make_block(self.program, part, may_repeat, self.kept, self.worth, prices))
                for prices in ({}, self.copies.prices(self.rate))[: 1 + bool(self.copies.seconds)]
            )
            for less, more in itertools.pairwise(copying[0] if copying else plain):
                price = (more.seconds - less.seconds) / (less.held - more.held)
                without = next((answer for answer in plain if answer.held <= more.held), plain[-1])
                found.append(_Step(price, part.start, more, without))
        return sorted(found)

    def _answers(self, block: Block) -> list[BlockDecision]:
        if block not in self.known:
            self.known[block] = block.decisions()
        return self.known[block]

    def _taken(self, steps: Sequence[_Step]) -> dict[int, BlockDecision]:
        """Return what `steps` decide for blocks: with copies as long as there is time for them."""
        taken: dict[int, BlockDecision] = {}
        spent: dict[int, float] = {}
        total = 0.0
        for step in steps:
            answer, before = step.answer, spent.pop(step.start, 0.0)
            copying = sum([self.copies.seconds[self._copied(step.start, way)] for way in _copies(answer)])
            if self.rate < WHOLE and total - before + copying > self.copies.hidden_limit:
                answer, copying = step.without, 0.0
            taken[step.start], spent[step.start] = answer, copying
            total += copying - before
        return taken

    def _first_fitting(self, steps: Sequence[_Step]) -> _Choice:
        """Return what the first of `steps` decide, as many as it takes to fit; if none does, what holds least."""
        known: dict[int, _Choice] = {}

        def fits(count: int) -> bool:
            known[count] = self._choice(self._taken(steps[:count]))
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
        taken = self._taken(steps[:count])

        def longer(step: _Step) -> float:
            return step.answer.seconds - (taken[step.start].seconds if step.start in taken else 0.0)

        def followed_by(step: _Step) -> _Choice:
            return self._choice({**taken, step.start: step.answer})

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
            less = self._with({start: again for start, again in choice.again.items() if start != last})
            if less.peak > self.budget:
                break
            choice = less
        return choice

    def _with_fewer_tasks(self, choice: _Choice) -> _Choice:
        """Return a choice that fits without the tasks that it does not need, the longest ones first and of equal ones
        the last: an answer for a block may free more than is asked for."""
        needed: set[object] = set()
        found = [(self._seconds(start, way), start + way.task, start, way)
                 for start, ways in choice.again.items() for way in ways]  # fmt: skip
        for seconds, task, start, way in sorted(found, key=lambda one: one[:2], reverse=True):
            made = self.program.tasks[task].allocates if way.copied is None else (self._copied(start, way),)
            look = seconds, sum(self.program.buffers[buffer].bytes for buffer in made)
            if look in needed:
                continue
            less = self._with({**choice.again, start: choice.again[start] - {way}})
            if less.peak > self.budget:
                needed.add(look)
            elif less.seconds < choice.seconds:
                choice = less
        return choice

    def _seconds(self, start: int, way: Restored) -> float:
        """Return what something takes in a block: a task that runs again, or the part of copies that is not hidden."""
        if way.copied is None:
            return task_seconds(self.program.tasks[start + way.task])
        return self.copies.price(self._copied(start, way), HIDDEN)

    def _copied(self, start: int, way: Restored) -> int:
        """Return the buffer that is copied."""
        assert way.copied is not None
        return self.program.tasks[start + way.task].allocates[way.copied]

    def _badness(self, choice: _Choice) -> tuple[float, float]:
        return max(choice.peak, self.budget), choice.seconds

    def _choice(self, taken: Mapping[int, BlockDecision]) -> _Choice:
        return self._with({start: answer.again for start, answer in taken.items()})

    def _with(self, again: Mapping[int, frozenset[Restored]]) -> _Choice:
        ways = [(start, way) for start, ways in again.items() for way in ways]
        run = {start + way.task for start, way in ways if way.copied is None}
        copied = {buffer: self.copies.seconds[buffer] for start, way in ways if way.copied is not None
                  for buffer in (self._copied(start, way),)}  # fmt: skip
        added = find_repeats(self.program, self.cut, run, copied)
        spent = [task_seconds(self.program.tasks[repeat.task]) for repeat in added if repeat.action == "run"]
        reloaded = [repeat.buffer for repeat in added if repeat.action == "reload"]
        seconds = sum(spent) + self.copies.total(reloaded)
        return _Choice(again, tuple(added), peak_with_repeats(self.program, added), seconds)


def _copies(answer: BlockDecision) -> list[Restored]:
    return [way for way in answer.again if way.copied is not None]
