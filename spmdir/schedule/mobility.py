"""Find the tasks that move along with a collective, and the legal positions of a task in an order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from spmdir.schedule.program import Program

Neighbours = Sequence[Sequence[int]]
"""For each position in an order, the positions of the tasks that it needs, or of the tasks that need it."""


def find_users(needs: Neighbours) -> list[list[int]]:
    """Return for each position the positions of its users, in order."""
    users: list[list[int]] = [[] for _ in needs]
    for position, needed in enumerate(needs):
        for need in needed:
            users[need].append(position)
    return users


def is_view(program: Program, number: int) -> bool:
    """Return whether a task takes no time and allocates nothing, and is neither a transfer nor a wait."""
    task = program.tasks[number]
    return not (task.seconds or task.allocates or task.transfer or task.waits_for is not None)


def find_preparing(
    program: Program, numbers: Sequence[int], needs: Neighbours, collectives: Collection[int]
) -> list[bool]:
    """Return for each position whether the task only prepares operands of collectives, such as a cast of a weight.

    Such a task depends on inputs alone, and only collectives and such tasks use its result. Together with the tasks
    that it depends on, it takes no longer than the shortest transfer that it prepares. This limit excludes a backward
    part that depends on inputs alone because no collective precedes it.

    For example, a cast of 1 s prepares a gather of 3 s. The same cast does not prepare a gather of 0.5 s.

    Args:
        numbers: for each position, the task.
        needs: for each position, the positions of the tasks that it needs.
        collectives: the positions of the collectives, or of their starts.
    """
    tasks = [program.tasks[number] for number in numbers]
    # First find the tasks that depend on inputs alone, and the time of each with its direct and indirect needs.
    is_preparing = [False] * len(tasks)
    chain_seconds = [task.seconds for task in tasks]  # a shared need counts once for each user
    for position, needed in enumerate(needs):
        task = tasks[position]
        is_compute = task.transfer is None and task.waits_for is None
        is_preparing[position] = is_compute and all(is_preparing[need] for need in needed)
        chain_seconds[position] += sum([chain_seconds[need] for need in needed])
    # Then keep those that only lead to collectives, each with a transfer that takes at least as long.
    transfer_seconds = _transfer_seconds(program, numbers, collectives)  # 0 for a task that leads to other tasks too
    shortest_user = [math.inf] * len(tasks)  # for each task, the smallest `transfer_seconds` of its users
    for position in reversed(range(len(tasks))):
        if is_preparing[position]:
            limit = shortest_user[position] if shortest_user[position] < math.inf else 0.0  # infinite without users
            is_preparing[position] = bool(limit) and chain_seconds[position] <= limit
            transfer_seconds[position] = limit if is_preparing[position] else 0.0
        for need in needs[position]:
            if transfer_seconds[position] < shortest_user[need]:
                shortest_user[need] = transfer_seconds[position]
    return is_preparing


def find_following(
    program: Program, numbers: Sequence[int], needs: Neighbours, collectives: Collection[int]
) -> list[bool]:
    """Return for each position whether the task only processes results of collectives, such as a cast of a sum.

    Such a task needs only collectives and such tasks. It takes no longer than the shortest transfer among them. The
    arguments are those of `find_preparing`.
    """
    tasks = [program.tasks[number] for number in numbers]
    # for each collective, its seconds; for each following task, those of its shortest transfer; otherwise 0
    transfer_seconds = _transfer_seconds(program, numbers, collectives)
    for position, needed in enumerate(needs):
        task = tasks[position]
        if needed and task.transfer is None and task.waits_for is None:
            shortest = min([transfer_seconds[need] for need in needed])
            transfer_seconds[position] = shortest if task.seconds <= shortest else 0.0
    return [bool(seconds) and position not in collectives for position, seconds in enumerate(transfer_seconds)]


def _transfer_seconds(program: Program, numbers: Sequence[int], collectives: Collection[int]) -> list[float]:
    """Return for each position the seconds of the transfer, 0 if the task is not one of `collectives`."""
    transfers = {position: program.tasks[numbers[position]].transfer for position in collectives}
    return [transfer.seconds if (transfer := transfers.get(position)) else 0.0 for position in range(len(numbers))]


def find_intervals(needs: Neighbours, is_movable: Sequence[bool]) -> tuple[list[int], list[int]]:
    """Return for each task the earliest and the latest position that it can be placed before.

    Tasks that are not movable keep their positions. A movable task is placed after the fixed tasks that it needs, also
    through other movable tasks, and before the fixed tasks that need it.

    Args:
        needs: for each position, the positions of the tasks that it needs.
        is_movable: for each position.
    """
    earliest, latest = [0] * len(needs), [len(needs)] * len(needs)
    for position, needed in enumerate(needs):
        earliest[position] = max([earliest[need] if is_movable[need] else need + 1 for need in needed], default=0)
    for position in reversed(range(len(needs))):
        bound = latest[position] if is_movable[position] else position
        for need in needs[position]:
            if bound < latest[need]:
                latest[need] = bound
    return earliest, latest


def find_conflicts(program: Program, task: int, in_flight: Iterable[int]) -> list[int]:
    """Return the starts in flight whose streams the transfer of `task` excludes."""
    transfer = program.tasks[task].transfer
    if transfer is None or not transfer.excludes:
        return []
    transfers = [(start, program.tasks[start].transfer) for start in in_flight]
    return [
        start
        for start, in_flight_transfer in transfers
        if in_flight_transfer is not None and in_flight_transfer.stream in transfer.excludes
    ]


def advance_transfers(program: Program) -> tuple[int, ...]:
    """Return an order that runs transfers of results, and transfers that free memory, as early as possible.

    A transfer that frees memory, such as the reduce-scatter of a gradient, moves to right after its producer.
    Otherwise, all gradients would be held until the end of the backward. Any other transfer, wait or view moves only if
    all its users move, and so does the conversion of an operand of a transfer. The other tasks keep their order. For
    example, the order g, x, convert(g), reduce_scatter, y becomes g, convert(g), reduce_scatter, x, y.
    """
    tasks = program.tasks
    needs = [task.needs for task in tasks]
    users = find_users(needs)
    frees_memory = _find_freeing_transfers(program)
    moves = [False] * len(tasks)
    for index in reversed(range(len(tasks))):
        task = tasks[index]
        may_move = task.transfer is not None or task.waits_for is not None or is_view(program, index)
        users_move = all(moves[user] for user in users[index])
        # It reads one buffer and is not bound by compute, as a cast.
        converts = bool(users[index]) and len({*task.reads}) == 1 and task.kernel_cost.bound != "compute"
        moves[index] = (may_move and frees_memory[index]) or ((may_move or converts) and users_move)
    # A task that moves has the place of the last task that it needs, and follows it there.
    tasks_at: list[list[int]] = [[] for _ in tasks]  # task that keeps its place → itself, and the tasks that follow it
    place: list[int] = []  # for each task, the task that it follows; itself if it keeps its place
    for index, task in enumerate(tasks):
        place.append(max([place[need] for need in task.needs]) if moves[index] and task.needs else index)
        tasks_at[place[index]].append(index)
    return tuple([index for tasks_at_place in tasks_at for index in tasks_at_place])


def _find_freeing_transfers(program: Program) -> list[bool]:
    """Return for each task whether it ends a transfer whose result is smaller than the operands that it frees.

    An operand is freed if no other task reads it. The result is False for a copy to the host, which has no result.
    """
    tasks, sizes = program.tasks, [buffer.bytes for buffer in program.buffers]
    # buffer → the number of tasks that read it; the program itself reads its inputs and outputs
    reader_counts = Counter((*program.inputs, *program.outputs))
    for task in tasks:
        reader_counts.update({*task.reads})
    frees_memory: list[bool] = []
    for task in tasks:
        is_blocking_transfer = task.transfer is not None and task.is_blocking
        if task.waits_for is None and not is_blocking_transfer:
            frees_memory.append(False)  # it ends no transfer
            continue
        parts = [task] if task.waits_for is None else [tasks[task.waits_for], task]  # a start and its wait
        allocated = {buffer for part in parts for buffer in part.allocates}
        reads_of_parts = Counter(buffer for part in parts for buffer in {*part.reads})
        has_other_reader = {
            buffer for buffer in (*reads_of_parts, *allocated) if reads_of_parts[buffer] < reader_counts[buffer]
        }
        freed = reads_of_parts.keys() - allocated - has_other_reader
        results = allocated & has_other_reader
        result_bytes, freed_bytes = (sum(sizes[buffer] for buffer in buffers) for buffers in (results, freed))
        frees_memory.append(0 < result_bytes < freed_bytes)
    return frees_memory
