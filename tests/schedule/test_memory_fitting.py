"""What runs again so that a program fits into memory: the cheapest choice, in the bytes that it promises."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmdir.schedule.block_decisions import Block
from spmdir.schedule.blocks import split_into_blocks
from spmdir.schedule.memory import find_peak, peak_bytes, program_of_steps
from spmdir.schedule.memory_fitting import Fitted, fit
from spmdir.schedule.min_cut import minimum_cut
from spmdir.schedule.program import Buffer, MemoryStep, Program, Task, Transfer
from spmdir.schedule.repeated_tasks import find_repeats, insert_repeats, peak_with_repeats


class Maker:
    """A program that is told task by task."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.buffers: list[Buffer] = []
        self.maker: dict[int, int] = {}

    def buffer(self, name: str, size: float) -> int:
        self.buffers.append(Buffer(name, size, "activations"))
        return len(self.buffers) - 1

    def task(self, name: str, size: float, *reads: int, seconds: float = 1.0, sent: float = 0.0) -> int:
        """Return the buffer that a new task makes of others."""
        made = self.buffer(name, size)
        needs = tuple(sorted({self.maker[buffer] for buffer in reads if buffer in self.maker}))
        transfer = Transfer("axes", ("axes",), sent, 0.0, 0.0, 1.0) if sent else None
        self.tasks.append(Task(name, name.rstrip("0123456789"), "", seconds, needs, (made,), reads, transfer=transfer))
        self.maker[made] = len(self.tasks) - 1
        return made

    def program(self, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Program:
        return Program(tuple(self.tasks), tuple(self.buffers), inputs, outputs)


def training(layers: int) -> Program:
    """Return a step of a chain of layers: each gathers its weight, and its backward part needs all that it made."""
    make = Maker()
    weights = [make.buffer(f"weight{layer}", 2.0) for layer in range(layers)]
    x = given = make.buffer("x", 4.0)
    saved, outputs = [], []
    for layer, weight in enumerate(weights):
        gathered = make.task(f"gather{layer}", 16.0, weight, seconds=0.0, sent=0.1)
        normed = make.task(f"norm{layer}", 4.0, x, seconds=0.1)
        hidden = make.task(f"up{layer}", 16.0, normed, gathered)
        active = make.task(f"gelu{layer}", 16.0, hidden, seconds=0.2)
        dropped = make.task(f"dropout{layer}", 16.0, active, seconds=0.2)
        down = make.task(f"down{layer}", 4.0, dropped)
        saved.append((x, gathered, normed, hidden, dropped))
        x = make.task(f"add{layer}", 4.0, x, down, seconds=0.1)
    gradient = make.task("loss", 4.0, x)
    for x, gathered, normed, hidden, dropped in reversed(saved):
        outputs.append(make.task("down_gradient", 2.0, dropped, gradient))
        wide = make.task("gelu_backward", 16.0, gradient, hidden)
        outputs.append(make.task("up_gradient", 2.0, wide, normed))
        gradient = make.task("norm_backward", 4.0, wide, gathered, x, gradient)
    return make.program((*weights, given), tuple(outputs))


def fitted(program: Program, part: float) -> Fitted:
    """Return what fits a program into a part of what it holds, where no random numbers are drawn again."""
    return fit(program, part * peak_bytes(program), [task.op != "dropout" for task in program.tasks])


def test_a_program_that_fits_stays_as_it_is() -> None:
    program = training(4)
    assert fitted(program, 1.0) == Fitted((), program, peak_bytes(program))


def test_what_costs_least_for_a_byte_is_made_again_first() -> None:
    found = fitted(training(8), 0.9)
    assert found.peak <= 0.9 * peak_bytes(training(8))
    assert {task.op for task in found.recomputed} == {"gather"}
    assert found.seconds == pytest.approx(0.1 * len(found.recomputed))


def test_later_values_are_made_of_what_is_held_and_of_what_is_made_again() -> None:
    found = fitted(training(8), 0.5)
    assert {task.op for task in found.recomputed} == {"gather", "norm", "up"}
    names = [task.name for task in found.program.tasks]
    again = [len(names) - 1 - names[::-1].index(name) for name in ("norm2", "gather2", "up2")]
    assert max(again[:2]) < again[2]
    assert set(found.program.tasks[again[2]].needs) == set(again[:2])


def test_random_numbers_are_never_drawn_again() -> None:
    found = fitted(training(8), 0.1)
    assert "dropout" not in {task.op for task in found.recomputed}
    assert found.peak > 0.1 * peak_bytes(training(8))
    assert "dropout0" in {found.program.buffers[buffer].name for buffer in find_peak(found.program)[2]}


def test_gathered_weights_are_live_in_few_layers_only() -> None:
    found = fitted(training(12), 0.75).program
    live, most = 0, 0
    last = {buffer: at for at, task in enumerate(found.tasks) for buffer in (*task.allocates, *task.reads)}
    for at, task in enumerate(found.tasks):
        live += sum(found.buffers[buffer].name.startswith("gather") for buffer in task.allocates)
        most = max(most, live)
        live -= sum(
            found.buffers[b].name.startswith("gather") and last[b] == at for b in {*task.allocates, *task.reads}
        )
    assert most <= 2


@pytest.mark.parametrize("part", [0.8, 0.5])
def test_equal_layers_are_decided_alike(part: float) -> None:
    per_layer: dict[str, list[str]] = {}
    for task in fitted(training(24), part).recomputed:
        per_layer.setdefault(task.name[len(task.op) :], []).append(task.op)
    decisions = [tuple(sorted(ops)) for _, ops in sorted(per_layer.items(), key=lambda entry: int(entry[0] or -1))]
    assert len(set(decisions)) <= 3
    assert sum(one != other for one, other in itertools.pairwise(decisions)) <= 3


def test_less_memory_takes_more_time() -> None:
    seconds = [fitted(training(12), part).seconds for part in (1.0, 0.8, 0.6, 0.5)]
    assert seconds == sorted(seconds)


def test_the_blocks_of_equal_layers_are_layers() -> None:
    program = training(8)
    lengths = [len(part) for part in split_into_blocks(program, 8 * 7, 1)]
    assert lengths.count(7) >= 6
    assert sum(lengths) == 8 * 7


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Return a random program, whose tasks read anything made before."""
    make = Maker()
    given = make.buffer("given", 1.0)
    made = [given]
    for index in range(draw(st.integers(2, 14))):
        reads = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
        made.append(make.task(f"task{index}", float(draw(st.integers(1, 9))), *reads, seconds=draw(st.integers(1, 5))))
    return make.program((given,), (made[-1],))


@given(programs(), st.data())
def test_every_task_comes_after_what_it_needs_and_finds_what_it_reads(program: Program, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(program.tasks) - 1))
    again = data.draw(st.sets(st.integers(0, cut)))
    may_be = [buffer for task in program.tasks[: cut + 1] for buffer in task.allocates]
    copied = dict.fromkeys(data.draw(st.sets(st.sampled_from(may_be))), 0.5)
    added = find_repeats(program, cut, again, copied)
    made = insert_repeats(program, added)
    for at, task in enumerate(made.tasks):
        if task.op == "spmd.offload":  # it is the last that reads what it copies
            assert not any(set(task.reads) & set(later.reads) for later in made.tasks[at + 1 :])
    assert peak_with_repeats(program, added) == peak_bytes(made)
    live = {*program.inputs}
    for index, task in enumerate(made.tasks):
        assert all(need < index for need in task.needs)
        assert live.issuperset(task.reads)
        for need, buffer in itertools.product(task.needs, task.reads):
            original = made.buffers[buffer].name == made.tasks[need].name
            assert not original or made.tasks[need].allocates == (buffer,)
        live.update(task.allocates)


def copied(program: Program, part: float, seconds: float) -> Fitted:
    """Return what fits a program into a part of what it holds, where each copy to the host or back takes so long."""
    copies = {buffer: seconds for task in program.tasks for buffer in task.allocates}
    return fit(program, part * peak_bytes(program), [task.op != "dropout" for task in program.tasks], copies)


def test_what_may_not_run_again_is_copied() -> None:
    program = training(8)
    found = copied(program, 0.3, 0.01)
    assert found.peak <= 0.3 * peak_bytes(program) < fitted(program, 0.3).peak
    assert {task.op for task in found.copies} == {"spmd.offload", "spmd.reload"}
    assert "dropout0.offload" in {task.name for task in found.copies}


def test_copies_that_take_long_are_the_last_resort() -> None:
    program = training(8)
    assert copied(program, 0.7, 100.0) == fitted(program, 0.7)
    assert copied(program, 0.3, 100.0).copies


def test_copies_of_one_direction_take_no_longer_than_the_part_of_the_program_that_hides_them() -> None:
    program = training(12)
    half = sum(task.seconds for task in program.tasks) / 2
    for seconds in (0.1, 0.5, 1.0):
        found = copied(program, 0.6, seconds)
        sent = sum(task.transfer.seconds for task in found.copies if task.op == "spmd.offload" and task.transfer)
        assert found.peak <= 0.6 * peak_bytes(program)
        assert sent <= half
    assert copied(program, 0.6, 0.1).copies


@settings(max_examples=50)
@given(programs(), st.floats(0.3, 1.0), st.floats(0.01, 4.0))
def test_what_is_promised_of_copies_holds(program: Program, part: float, seconds: float) -> None:
    found = copied(program, part, seconds)
    assert found.peak == peak_bytes(found.program) <= peak_bytes(program)
    assert len(found.program.tasks) == len(program.tasks) + len(found.recomputed) + len(found.copies)


@given(programs(), st.floats(0.3, 1.0))
def test_what_is_promised_of_a_program_holds(program: Program, part: float) -> None:
    found = fit(program, part * peak_bytes(program), [True] * len(program.tasks))
    assert found.peak == peak_bytes(found.program) <= peak_bytes(program)
    assert len(found.program.tasks) == len(program.tasks) + len(found.recomputed)


def test_what_a_task_holds_inside_counts_when_it_runs_again() -> None:
    tasks = [(Task("gather", "gather", "", 1.0), [MemoryStep((1,), (0,)), MemoryStep((2,), (1,))])]
    needs = {3: (0,), 4: (1,), 5: (0, 2)}
    for reads in ((2, 3), (3, 4), (2, 4, 5)):
        tasks.append((Task("use", "use", "", 1.0, needs[reads[-1]]), [MemoryStep(reads[-1:], reads[:-1])]))
    sizes = [Buffer(str(index), size, "activations") for index, size in enumerate((1.0, 50.0, 20.0, 1.0, 60.0, 1.0))]
    program = program_of_steps(tasks, sizes, (0,), (5,))
    added = find_repeats(program, 2, {0})
    assert peak_with_repeats(program, added) == peak_bytes(insert_repeats(program, added)) == 1 + 60 + 70


@given(programs(), st.floats(0.2, 1.0))
def test_a_budget_is_met_if_none_at_all_brings_as_little(program: Program, part: float) -> None:
    budget, repeatable = part * peak_bytes(program), [True] * len(program.tasks)
    least = fit(program, 0.0, repeatable).peak
    assert fit(program, budget, repeatable).peak <= max(budget, least)


def test_no_more_runs_again_than_is_asked_for() -> None:
    make = Maker()
    given = make.buffer("given", 1.0)
    one, other = make.task("one", 20.0, given), make.task("other", 20.0, given)
    wide = make.task("wide", 100.0, given)
    narrow = make.task("narrow", 1.0, wide)
    program = make.program((given,), (make.task("end", 1.0, one, other, narrow),))
    again = [fit(program, peak_bytes(program) - less, [True] * len(program.tasks)).recomputed for less in (15.0, 30.0)]
    assert [len(tasks) for tasks in again] == [1, 2]


def test_what_is_made_of_inputs_alone_runs_again_although_later_blocks_use_it() -> None:
    make = Maker()
    given = make.buffer("given", 1.0)
    table = make.task("table", 50.0, given)
    x, saved = given, []
    for layer in range(16):
        x = make.task(f"up{layer}", 4.0, x, table, seconds=9.0)
        saved.append(x)
    gradient = make.task("narrow", 4.0, make.task("wide", 100.0, x))
    for x in reversed(saved):
        gradient = make.task("gradient", 4.0, x, gradient, table)
    program = make.program((given,), (gradient,))
    assert len(split_into_blocks(program, 17, 1)) > 1
    found = fit(program, peak_bytes(program) - 30.0, [True] * len(program.tasks))
    assert [task.name for task in found.recomputed] == ["table"]


@st.composite
def small_blocks(draw: st.DrawFn) -> Block:
    """Return a block in which task i makes buffer i, of some of those before."""
    count = draw(st.integers(1, 6))
    reads = [
        tuple(sorted(draw(st.sets(st.integers(0, index - 1), max_size=3)))) if index else () for index in range(count)
    ]
    seconds = [draw(st.one_of(st.none(), st.integers(1, 5).map(float))) for _ in range(count)]
    sizes = [draw(st.one_of(st.none(), st.integers(1, 9).map(float))) for _ in range(count)]
    needed = [index for index in sorted(draw(st.sets(st.integers(0, count - 1)))) if sizes[index] is not None]
    return Block(tuple(seconds), tuple((index,) for index in range(count)), tuple(reads), tuple(sizes), tuple(needed))


@given(small_blocks())
def test_no_choice_for_a_block_is_better_than_an_answer_in_both_bytes_and_time(block: Block) -> None:
    possible = []
    for again in itertools.product((False, True), repeat=len(block.seconds)):
        if any(run and seconds is None for run, seconds in zip(again, block.seconds, strict=True)):
            continue
        available = {*block.needed, *(read for task, run in enumerate(again) if run for read in block.reads[task])}
        held = sum(block.sizes[buffer] or 0.0 for buffer in available if not again[buffer])
        possible.append((held, sum(seconds or 0.0 for run, seconds in zip(again, block.seconds, strict=True) if run)))
    for answer in block.decisions():
        assert (answer.held_bytes, answer.seconds) in possible
        assert not any(held <= answer.held_bytes and seconds < answer.seconds for held, seconds in possible)
        assert not any(held < answer.held_bytes and seconds <= answer.seconds for held, seconds in possible)


@given(st.data())
def test_no_cut_is_cheaper(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(2, 6))
    node = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(node, node, st.integers(0, 9)), max_size=15))

    def price(side: set[int]) -> int:
        return sum(capacity for start, end, capacity in edges if start in side and end not in side)

    others = range(1, nodes - 1)
    sides = [{0, *some} for count in range(nodes - 1) for some in itertools.combinations(others, count)]
    found = minimum_cut(nodes, edges, 0, nodes - 1)
    assert found in sides
    assert price(found) == min(map(price, sides))


def test_a_wait_waits_for_the_start_that_it_waited_for() -> None:
    program = training(2)
    start = len(program.tasks)
    tasks = (*program.tasks, Task("start", "start", "", 0.0), Task("wait", "wait", "", 0.0, (start,), waits_for=start))
    longer = attrs.evolve(program, tasks=tasks)
    found = fit(longer, 0.8 * peak_bytes(longer), [task.op == "gather" for task in tasks])
    assert found.program.tasks[-1].waits_for == len(found.program.tasks) - 2
