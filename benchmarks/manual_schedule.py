"""The schedule that torchtitan writes by hand: FSDP's collectives of a block, beside the compute of its neighbour.

All gathers of the weights of a block are one, and so are all reductions of its gradients. The gather of a block starts
before the wait for that of the block before; the reduction of a block is waited for once that of the next has started.
Everything else stays where it is. As in `torch._inductor.fx_passes.overlap_manual_scheduling`, of torch 2.13.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
from torch import fx

from benchmarks.plain_schedule import Packing, asynchronous, synchronous
from benchmarks.rank_graph import RankGraph, is_start
from spmdir.lowering.site import WAIT
from spmdir.schedule.program import Program

Groups = Sequence[Sequence[int]]

Blocks = Mapping[str, str]
"""Name of a task → the block of layers that its weight, or its gradient, is of."""


def gathers(found: RankGraph, block_of: Callable[[str], str]) -> Blocks:
    """Return the blocks of the collectives that bring a weight: what they send is made of one input alone.

    Args:
        block_of: name of an input → its block.
    """
    blocks: dict[str, str] = {}
    for start in found.operands:
        reached = _reached(start, lambda node: node.all_input_nodes)
        inputs = [node.name for node in reached or () if node.op == "placeholder"]
        if len(inputs) == 1:
            blocks[start.name] = block_of(inputs[0])
    return blocks


def reductions(found: RankGraph, names: Sequence[str], block_of: Callable[[str], str]) -> Blocks:
    """Return the blocks of the collectives that reduce a gradient: what they send goes to one result alone.

    Args:
        names: of the results.
    """
    blocks: dict[str, str] = {}
    (results,) = found.graph.graph.output_node().args
    name_of = {node: name for node, name in zip(results, names, strict=True) if isinstance(node, fx.Node)}  # type: ignore
    for start in found.operands:
        reached = _reached(start, lambda node: [user for user in node.users if user.op != "output"])
        made = [name_of[node] for node in reached or () if node in name_of]
        if len(made) == 1:
            blocks[start.name] = block_of(made[0])
    return blocks


def _reached(start: fx.Node, after: Callable[[fx.Node], Iterable[fx.Node]]) -> set[fx.Node] | None:
    """Return the nodes that `after` leads to from a collective; None if another collective is among them."""
    found: set[fx.Node] = set()
    left = [*after(start)]
    while left:
        node = left.pop()
        if is_start(node) or (node.target is WAIT and node.args[0] is not start):
            return None
        if node not in found:
            found.add(node)
            left += after(node)
    return found


def scheduled(program: Program, gathered: Blocks, reduced: Blocks, packing: Packing) -> Program:
    """Return a program of starts and waits, in the order of the schedule."""
    blocking = synchronous(program)
    first, last = _groups(blocking, gathered), _groups(blocking, reduced)
    found = asynchronous(blocking, _bucketed(blocking, first, last), packing)
    number = {task.name: at for at, task in enumerate(found.tasks)}
    starts = [[number[blocking.tasks[group[0]].name] for group in groups] for groups in (first, last)]
    order = _overlapped(found, *starts)
    place = {task: at for at, task in enumerate(order)}
    moved = (
        attrs.evolve(task, waits_for=None if task.waits_for is None else place[task.waits_for]) for task in found.tasks
    )
    tasks = [attrs.evolve(task, needs=tuple(place[need] for need in task.needs)) for task in moved]
    return attrs.evolve(found, tasks=tuple(tasks[at] for at in order))


def _groups(program: Program, blocks: Blocks) -> list[list[int]]:
    """Return the collectives that become one: of one block and alike, and next to each other."""
    of = [at for at, task in enumerate(program.tasks) if task.name in blocks]
    found: list[list[int]] = []
    for _, block in itertools.groupby(of, lambda at: blocks[program.tasks[at].name]):
        alike: dict[object, list[int]] = {}
        for at in block:
            task = program.tasks[at]
            alike.setdefault((task.op, task.transfer and task.transfer.stream), []).append(at)
        found += alike.values()
    return found


class _List:
    """Tasks that are listed one after the other, each after those that it needs.

    Attributes:
        order: the tasks so far.
    """

    def __init__(self, needs: Sequence[Sequence[int]]):
        self.needs, self.order, self.done = needs, list[int](), set[int]()

    def put(self, task: int) -> None:
        """List a task, and before it what it needs."""
        left = [task]
        while left:
            missing = [need for need in self.needs[left[-1]] if need not in self.done]
            if missing:
                left += missing
            elif (ready := left.pop()) not in self.done:
                self.done.add(ready)
                self.order.append(ready)

    def follows(self, task: int, held: set[int]) -> bool:
        """Return whether a task needs one of `held` that is not listed; it is held too then."""
        if held.difference(self.done).isdisjoint(self.needs[task]):
            return False
        held.add(task)
        return True


def _bucketed(program: Program, first: Groups, last: Groups) -> list[Sequence[int]]:
    """Return the tasks in order, those of a group together: where the first of them was, or the last."""
    of = {task: group[0] for group in (*first, *last) for task in group}
    members = {group[0]: group for group in (*first, *last)}
    needs: list[list[int]] = [[] for _ in program.tasks]
    for at, task in enumerate(program.tasks):
        needs[of.get(at, at)] += [of.get(need, need) for need in task.needs]
    found, held = _List(needs), {group[0] for group in last}
    ends = {group[-1] for group in last}
    for at in range(len(program.tasks)):
        if at in ends:
            found.put(of[at])
        elif of.get(at, at) not in held and not found.follows(of.get(at, at), held):
            found.put(of.get(at, at))
    for at in range(len(program.tasks)):
        found.put(of.get(at, at))
    return [members.get(at, [at]) for at in found.order]


def _overlapped(program: Program, gathers: Sequence[int], reductions: Sequence[int]) -> list[int]:
    """Return an order in which gathers start a block early, and reductions are waited for a block late."""
    waits = {task.waits_for: at for at, task in enumerate(program.tasks) if task.waits_for is not None}
    starts = {waits[start]: start for start in gathers}
    after = dict(itertools.pairwise(gathers))
    before = {late: early for early, late in itertools.pairwise(reductions)}
    found, held = _List([task.needs for task in program.tasks]), {waits[start] for start in reductions}
    for at in range(len(program.tasks)):
        if at in after or at in starts.values() or at in held or found.follows(at, held):
            continue
        if at in starts:
            found.put(starts[at])
            if starts[at] in after:
                found.put(after[starts[at]])
        found.put(at)
        if at in before:
            found.put(waits[before[at]])
    for at in range(len(program.tasks)):
        found.put(at)
    return found.order
