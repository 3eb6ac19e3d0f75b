"""Choose the values that are restored after one cut of a program: recomputed, or copied back from the host.

Each block has decisions that hold fewer and fewer bytes. A *move* replaces a decision of a block by the next one. Moves
are applied in the order of their seconds per byte until the program fits. Then repeats that are not needed are removed.

Copies that can be hidden share the compute time before and after the cut, so the price of one depends on the others.
Therefore all blocks are decided several times, with several prices of copies, and the fastest result that fits is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from spmdir.core.progress import say
from spmdir.schedule.block_decisions import Block, BlockDecision, Restored, make_block, task_seconds
from spmdir.schedule.blocks import split_into_blocks
from spmdir.schedule.host_copies import HIDDEN_PRICE, Copies
from spmdir.schedule.memory import live_bytes
from spmdir.schedule.program import Program
from spmdir.schedule.repeated_tasks import Repeat, find_repeats, peak_with_repeats

LAYERS = (1, 2, 4)
"""The numbers of equal layers in a block that are tried in turn, until the program fits."""

TOLERANCE = 0.01
"""If a solution frees at most this fraction more than the bytes over the budget, single repeats are not tried out."""

RATES = (HIDDEN_PRICE, 0.2)
"""The prices that are tried for a copy that can be hidden, as fractions of its time."""

FULL_RATE = 1.0
"""The price of a copy, as a fraction of its time, if more copies are allowed than can be hidden."""


def choose_repeats(
    program: Program, budget: float, repeatable: Sequence[bool], cut: int, copies: Mapping[int, float]
) -> tuple[Repeat, ...]:
    """Return the repeats across the task `cut` that fit a program into its budget in the least time.

    If none fit, return those with the smallest peak.

    Args:
        budget: bytes. A budget of 0 is for the smallest peak; then all copies have the full price.
        repeatable, copies: as for `fit`.
    """

    def solve(copies: Mapping[int, float], rate: float = FULL_RATE) -> _Solution:
        """Return the best solution with these copies; `rate` is the price of one that can be hidden."""
        return _CutProblem(program, budget, repeatable, cut, copies, rate).solve()

    candidates = [solve({})]
    if copies and budget:
        candidates += [solve(copies, rate) for rate in RATES]
    if copies and all(solution.peak > budget for solution in candidates):
        candidates.append(solve(copies))
    return min(candidates, key=lambda solution: (max(solution.peak, budget), solution.seconds)).repeats


@attrs.frozen(order=True)
class _Move:
    """A decision for a block that replaces one which takes less time and holds more.

    Attributes:
        price: the additional seconds for each byte that is no longer held.
        start: the first task of the block.
        decision: the new decision.
        without_copies: the decision without copies to use instead, if the copies of `decision` cannot be hidden.
    """

    price: float
    start: int
    decision: BlockDecision = attrs.field(order=False)
    without_copies: BlockDecision = attrs.field(order=False)


@attrs.frozen
class _Solution:
    """The restored values of all blocks.

    Attributes:
        restored: first task of a block → its restored values.
        repeats: the same as repeats of the program.
        peak: bytes, with the repeats.
        seconds: the time of the recomputations, and the price of the copies.
    """

    restored: Mapping[int, frozenset[Restored]]
    repeats: tuple[Repeat, ...]
    peak: float
    seconds: float


class _CutProblem:
    """The choice of the values that are restored across the task `cut`.

    Args:
        repeatable: as for `fit`.
        seconds: buffer that may be copied → the seconds of a copy in one direction.
        rate: the price of a copy that can be hidden, as a fraction of its time.

    Attributes:
        excess: the largest number of bytes over the budget.
        weights: buffer that is used before and after the cut → the weight of a byte. It is the sum of the bytes over
            the budget at the tasks between its last use up to the cut and its next use.
            For example, with a budget of 10 bytes, tasks 1 to 3 have 12, 15 and 9 live bytes. A buffer that is used
            by tasks 0 and 4 only has the weight 2 + 5 + 0 = 7.
        held: the buffers that are always held.
        copies: the prices of copies of the buffers that may be copied, are used on both sides of the cut and are not
            always held.
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
        # for each task, the sum of the bytes over the budget at all tasks before it
        excess_before = [0.0, *itertools.accumulate(max(0.0, size - budget) for size in live)]
        last_use, next_use = self._uses_around_cut()
        self.excess = max(live) - budget
        self.weights = {
            buffer: excess_before[next_use[buffer]] - excess_before[last_use[buffer] + 1] for buffer in next_use
        }
        self.held = {*program.inputs, *program.outputs}
        self.held.update(buffer for buffer, weight in self.weights.items() if weight <= 0)
        may_be_copied = {
            buffer: seconds[buffer] for buffer in next_use if buffer in seconds and buffer not in self.held
        }
        self.copies = Copies(program, cut, last_use, next_use, may_be_copied)
        self.rate = rate
        self._decisions: dict[Block, list[BlockDecision]] = {}  # a cache, because equal layers are equal blocks

    def _uses_around_cut(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return two dicts: buffer → last use up to the cut, and buffer → first use after the cut.

        The second contains only buffers that are used on both sides.
        """
        last_use: dict[int, int] = {}
        next_use: dict[int, int] = {}
        for index, task in enumerate(self.program.tasks):
            for buffer in (*task.allocates, *task.reads):
                if index <= self.cut:
                    last_use[buffer] = index
                elif buffer in last_use:
                    next_use.setdefault(buffer, index)
        return last_use, next_use

    def solve(self) -> _Solution:
        """Return the first solution that fits, with blocks of few layers first, or else the one with the least peak."""
        candidates: list[_Solution] = []
        for layers in LAYERS:
            moves = self._find_moves(split_into_blocks(self.program, self.cut + 1, layers))
            candidates.append(self._apply_until_fit(moves))
            if candidates[-1].peak <= self.budget:
                break
        return min(candidates, key=self._badness)

    def _find_moves(self, blocks: Sequence[range]) -> list[_Move]:
        """Return the moves of all blocks, cheapest first; of moves with equal prices, that of the first block first.

        A move replaces a decision of a block by its next one, which takes more time and holds fewer bytes. For example,
        if the decisions of a block hold 8, 4 and 0 bytes and take 0, 1 and 3 s, its moves cost 0.25 and 0.5 s per byte.
        A task that allocates a buffer for a later block does not run again: such buffers are held.

        Args:
            blocks: the tasks of each block.
        """
        boundary_buffers = self._find_boundary_buffers(blocks)
        moves: list[_Move] = []
        for block in blocks:
            say("fit-memory: what runs again of tasks {} to {}", block.start + 1, block.stop)
            # The first block reads no buffer of another block, so it may recompute its boundary buffers.
            fixed_buffers = boundary_buffers if block.start else set()
            may_repeat = [
                self.repeatable[index] and fixed_buffers.isdisjoint(self.program.tasks[index].allocates)
                for index in block
            ]
            decisions_without_copies = decisions = self._decide(block, may_repeat, {})
            if self.copies.seconds:
                decisions = self._decide(block, may_repeat, self.copies.prices(self.rate))
            for before, after in itertools.pairwise(decisions):
                added_seconds, freed_bytes = after.seconds - before.seconds, before.held_bytes - after.held_bytes
                # the first decision without copies that holds no more, or else the one that holds least
                without_copies = next(
                    (decision for decision in decisions_without_copies if decision.held_bytes <= after.held_bytes),
                    decisions_without_copies[-1],
                )
                moves.append(_Move(added_seconds / freed_bytes, block.start, after, without_copies))
        return sorted(moves)

    def _find_boundary_buffers(self, blocks: Sequence[range]) -> set[int]:
        """Return the buffers that a block reads and an earlier block allocates."""
        producer = {buffer: index for index, task in enumerate(self.program.tasks) for buffer in task.allocates}
        boundary_buffers: set[int] = set()
        for block in blocks:
            for task in self.program.tasks[block.start : block.stop]:
                boundary_buffers.update(
                    buffer for buffer in task.reads if producer.get(buffer, block.start) < block.start
                )
        return boundary_buffers

    def _decide(
        self, tasks: range, may_repeat: Sequence[bool], copy_prices: Mapping[int, float]
    ) -> list[BlockDecision]:
        """Return the decisions of a block, computed once for equal blocks. The arguments are those of `make_block`."""
        block = make_block(self.program, tasks, may_repeat, self.held, self.weights, copy_prices)
        if block not in self._decisions:
            self._decisions[block] = block.decisions()
        return self._decisions[block]

    def _apply(self, moves: Sequence[_Move]) -> dict[int, BlockDecision]:
        """Return first task of a block → its decision after `moves`. A later move of a block replaces an earlier one.

        A move whose copies would exceed the time that can hide copies uses its decision without copies instead. At the
        full rate, copies are not limited.

        Args:
            moves: in the order of their prices.
        """
        decisions: dict[int, BlockDecision] = {}
        copy_seconds: dict[int, float] = {}  # first task of a block → the seconds of its copies in one direction
        total_copy_seconds = 0.0
        for move in moves:
            decision = move.decision
            copied = [self._copied_buffer(move.start, item) for item in decision.restored if item.copied is not None]
            seconds = sum([self.copies.seconds[buffer] for buffer in copied])
            replaced_seconds = copy_seconds.pop(move.start, 0.0)
            is_exposed = total_copy_seconds - replaced_seconds + seconds > self.copies.hidden_limit
            if is_exposed and self.rate < FULL_RATE:
                decision, seconds = move.without_copies, 0.0
            decisions[move.start], copy_seconds[move.start] = decision, seconds
            total_copy_seconds += seconds - replaced_seconds
        return decisions

    def _apply_until_fit(self, moves: Sequence[_Move]) -> _Solution:
        """Return a solution that fits with few moves, or else the solution with the least peak.

        Bisection finds a number of first moves that fit, although one move fewer does not. `_with_last_move` then
        chooses the last of these moves.
        """
        solutions: dict[int, _Solution] = {}

        def fits(count: int) -> bool:
            """Return whether the first `count` moves fit, and enter their solution in `solutions`."""
            solutions[count] = self._solution_of(self._apply(moves[:count]))
            return solutions[count].peak <= self.budget

        # Fewer moves are tried too, because recomputation can raise the peak.
        counts = (len(moves), len(moves) * 3 // 4, len(moves) // 2)
        too_few, enough = 0, next((count for count in counts if fits(count)), 0)
        while enough - too_few > 1:
            middle = (too_few + enough) // 2
            too_few, enough = (too_few, middle) if fits(middle) else (middle, enough)
        if not enough:
            return min(solutions.values(), key=self._badness)
        return min(self._with_last_move(moves, too_few), key=lambda solution: solution.seconds)

    def _with_last_move(self, moves: Sequence[_Move], count: int) -> Iterator[_Solution]:
        """Yield one or two solutions that fit, with the first `count` moves and one more.

        The first `count` moves alone do not fit, but they fit with the next move. In the second solution, the added
        move is the fastest later one that fits, if it is faster than the next move. Unnecessary repeats are removed.

        For example, 9 bytes have to be freed. The moves free 6 bytes in 1 s, 8 bytes in 2 s, and 3 bytes in 1.5 s. With
        the first move, the second one frees 14 bytes in 3 s, and the third one 9 bytes in 2.5 s.
        """
        decisions = self._apply(moves[:count])

        def added_seconds(move: _Move) -> float:
            """Return the seconds by which a move makes the decision of its block longer."""
            return move.decision.seconds - (decisions[move.start].seconds if move.start in decisions else 0.0)

        def solve_with(move: _Move) -> _Solution:
            """Return the solution with the first `count` moves and `move`."""
            return self._solution_of({**decisions, move.start: move.decision})

        next_move, later_moves = moves[count], moves[count + 1 :]
        solutions = [solve_with(next_move)]
        # Of moves that add equal seconds, only the first one is tried.
        first_by_seconds: dict[float, _Move] = {}
        for move in later_moves:
            first_by_seconds.setdefault(added_seconds(move), move)
        for seconds in sorted(seconds for seconds in first_by_seconds if seconds < added_seconds(next_move)):
            solution = solve_with(first_by_seconds[seconds])
            if solution.peak <= self.budget:
                solutions.append(solution)
                break
        for solution in solutions:
            is_exact = self.budget - solution.peak <= TOLERANCE * self.excess
            yield self._without_last_blocks(solution) if is_exact else self._without_long_repeats(solution)

    def _without_last_blocks(self, solution: _Solution) -> _Solution:
        """Remove the repeats of the last blocks before the cut, as long as the rest fits.

        In a training step, the backward part uses their values first. So holding them takes memory for the shortest
        time.
        """
        while solution.restored:
            last_block = max(solution.restored)
            smaller = self._solve_with(
                {start: items for start, items in solution.restored.items() if start != last_block}
            )
            if smaller.peak > self.budget:
                break
            solution = smaller
        return solution

    def _without_long_repeats(self, solution: _Solution) -> _Solution:
        """Remove repeats that are not needed to fit, longest first; of equally long ones, the last first.

        If a repeat cannot be removed, others of equal seconds and bytes are not tried, to save time.
        """
        needed: set[tuple[float, float]] = set()  # (seconds, bytes) of a repeat that could not be removed
        # (seconds, task of the program, first task of its block, repeat)
        repeats = [
            (self._seconds(start, item), start + item.task, start, item)
            for start, restored in solution.restored.items()
            for item in restored
        ]
        for seconds, task, start, item in sorted(repeats, key=lambda repeat: repeat[:2], reverse=True):
            buffers = self.program.tasks[task].allocates
            if item.copied is not None:
                buffers = (self._copied_buffer(start, item),)
            seconds_and_bytes = seconds, sum(self.program.buffers[buffer].bytes for buffer in buffers)
            if seconds_and_bytes in needed:
                continue
            smaller = self._solve_with({**solution.restored, start: solution.restored[start] - {item}})
            if smaller.peak > self.budget:
                needed.add(seconds_and_bytes)
            elif smaller.seconds < solution.seconds:
                solution = smaller
        return solution

    def _seconds(self, start: int, item: Restored) -> float:
        """Return the time of a task that runs again, or the price of a copy."""
        if item.copied is None:
            return task_seconds(self.program.tasks[start + item.task])
        return self.copies.price(self._copied_buffer(start, item), HIDDEN_PRICE)

    def _copied_buffer(self, start: int, item: Restored) -> int:
        """Return the buffer that `item` of the block from the task `start` copies."""
        assert item.copied is not None
        return self.program.tasks[start + item.task].allocates[item.copied]

    def _badness(self, solution: _Solution) -> tuple[float, float]:
        """Return a key for `min`: solutions that fit come first, the fastest of them first."""
        return max(solution.peak, self.budget), solution.seconds

    def _solution_of(self, decisions: Mapping[int, BlockDecision]) -> _Solution:
        """Return the solution with the given decisions, by the first task of their block."""
        return self._solve_with({start: decision.restored for start, decision in decisions.items()})

    def _solve_with(self, restored: Mapping[int, frozenset[Restored]]) -> _Solution:
        """Return the solution with the given restored values, by the first task of their block.

        Its peak and time are those of the whole program. Views of restored values run again too.
        """
        items = [(start, item) for start, block_items in restored.items() for item in block_items]
        recomputed_tasks = {start + item.task for start, item in items if item.copied is None}
        copied_buffers = [self._copied_buffer(start, item) for start, item in items if item.copied is not None]
        copy_seconds = {buffer: self.copies.seconds[buffer] for buffer in copied_buffers}
        repeats = find_repeats(self.program, self.cut, recomputed_tasks, copy_seconds)
        run_seconds = [task_seconds(self.program.tasks[repeat.task]) for repeat in repeats if repeat.action == "run"]
        reloaded_buffers = [repeat.buffer for repeat in repeats if repeat.action == "reload"]
        seconds = sum(run_seconds) + self.copies.total_price(reloaded_buffers)
        return _Solution(restored, tuple(repeats), peak_with_repeats(self.program, repeats), seconds)
