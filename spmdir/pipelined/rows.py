"""Read and write the rows of an order, one a rank, and prove that no rank waits for ever.

A row lists the actions of a rank, in the CSV of `torch.distributed.pipelining`: `0F0,0F1,0B0`. Rows may also contain
messages, `0SEND_F0` on the sender and `1RECV_F0` on the receiver. Rows without messages get each message right after
its action.

A send may wait until its receiver arrives. So rows are accepted only if they are the projections of one global order:
each send and its receive are one entry, and the order of all rows and of the dependences has no cycle. Then take the
first entry of the global order that has not ended. All entries before it have ended, so all its ranks reach it.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from spmdir.core.errors import Location, SpmdirError, raise_all
from spmdir.pipelined.actions import Action, Entry, StageMap, StageMessage, StepOrder, all_actions, parse_action

_MESSAGE = re.compile(r"([0-9]{1,6})(SEND|RECV)_([FB])([0-9]{1,6})")

SHOWN = 20
"""The most errors of one file that are reported."""


def order_of_rows(
    stage_map: StageMap, micro: int, rows: Sequence[Sequence[Entry]], split: bool, where: Location | None = None
) -> StepOrder:
    """Return the global order of rows: a topological sort of their actions and messages.

    An entry depends on the entry before it in each of its rows, and on its operands. Of the entries whose dependences
    are in the order, the one at the earliest position of its row is next. Two ranks with one micro-batch:

        row 0: 0F0 0F0>1 1B0>0 0B0        row 1: 0F0>1 1F0 1B0 1B0>0        order: 0F0 0F0>1 1F0 1B0 1B0>0 0B0

    Source: Kahn, Topological sorting of large networks, 1962.

    Args:
        rows: [coordinate], its actions and messages. A message is in the rows of both its coordinates.
        where: the location of the rows, for errors.

    Raises:
        SpmdirError: an action is missing or on another rank, a message is missing, or ranks wait for each other.
    """
    faults = itertools.chain(
        _find_action_faults(stage_map, micro, rows, split), _find_message_faults(stage_map, micro, rows, split)
    )
    raise_all([SpmdirError(message, where) for message in itertools.islice(faults, SHOWN)])
    followers: dict[Entry, set[Entry]] = {}
    missing_count = {entry: 0 for row in rows for entry in row}  # entry → its dependences that are not in the order yet

    def add_dependence(before: Entry, after: Entry) -> None:
        """Require that `after` comes after `before` in the order."""
        if after not in followers.setdefault(before, set()):
            followers[before].add(after)
            missing_count[after] = missing_count.get(after, 0) + 1

    for row in rows:
        for entry, next_entry in itertools.pairwise(row):
            add_dependence(entry, next_entry)
    for action in all_actions(stage_map.stages, micro, split):
        for operand in stage_map.operands(action, split):
            message = stage_map.message_to(operand, action)
            if message is not None:
                add_dependence(operand, message)
            add_dependence(message or operand, action)
    entries: list[Entry] = []
    position_of = {entry: position for row in rows for position, entry in enumerate(row)}
    ready = [(position_of[entry], str(entry), entry) for entry, count in missing_count.items() if not count]
    heapq.heapify(ready)
    while ready:
        _, _, entry = heapq.heappop(ready)
        entries.append(entry)
        for follower in followers.get(entry, ()):
            missing_count[follower] -= 1
            if not missing_count[follower]:
                heapq.heappush(ready, (position_of[follower], str(follower), follower))
    if len(entries) < len(missing_count):
        stuck = {entry for entry, count in missing_count.items() if count}
        raise SpmdirError(_cycle_text(stuck, followers), where)
    return StepOrder(stage_map, micro, tuple(entries), split)


def with_messages(stage_map: StageMap, micro: int, rows: Sequence[Sequence[Action]], split: bool) -> StepOrder:
    """Return the global order of rows of actions, with each message right after its action."""
    return order_of_rows(stage_map, micro, _messages_at_both_ends(stage_map, micro, rows, split), split)


def _messages_at_both_ends(
    stage_map: StageMap, micro: int, rows: Sequence[Sequence[Action]], split: bool
) -> list[list[Entry]]:
    """Return rows with messages: after their actions on the senders, and where they arrive in time on the receivers.

    The actions of all rows are replayed, each in one second. A receiver takes a message when it is sent.
    """
    end: dict[Action, int] = {}
    next_position, free = [0] * len(rows), [0] * len(rows)
    result: list[list[Entry]] = [[] for _ in rows]
    total = sum(map(len, rows))
    while len(end) < total:
        unfinished = [rank for rank, row in enumerate(rows) if next_position[rank] < len(row)]
        next_actions = {rank: rows[rank][next_position[rank]] for rank in unfinished}
        candidates: list[tuple[int, int]] = []  # (start, rank)
        for rank, action in next_actions.items():
            operands = list(stage_map.operands(action, split))
            if all(operand in end for operand in operands):
                candidates.append((max([free[rank], *(end[operand] for operand in operands)]), rank))
        if not candidates:
            stuck = ", ".join(map(str, next_actions.values()))
            raise SpmdirError(
                f"no rank can continue: they wait in {stuck}; expected each action after the results that "
                "it uses: reorder the rows"
            )
        start, rank = min(candidates)
        action = next_actions[rank]
        end[action] = free[rank] = start + 1
        next_position[rank] += 1
        result[rank].append(action)
        for message in stage_map.messages(action):
            result[rank].append(message)
            result[message.target].append(message)
    return result


def _find_action_faults(stage_map: StageMap, micro: int, rows: Sequence[Sequence[Entry]], split: bool) -> Iterator[str]:
    """Yield a message for each action that is missing, repeated, on a wrong rank, or unexpected."""
    ranks_of = _ranks_of(rows)
    for action in all_actions(stage_map.stages, micro, split):
        ranks, expected = ranks_of.pop(action, []), [stage_map.coordinates[action.stage]]
        if ranks != expected:
            yield f"{action} is on {_ranks(ranks)}; expected it once, on {_ranks(expected)}"
    for entry in ranks_of:
        if isinstance(entry, Action):
            yield f"unexpected {entry}; expected {'I and W' if split else 'B'} for the backward of all stages"


def _find_message_faults(
    stage_map: StageMap, micro: int, rows: Sequence[Sequence[Entry]], split: bool
) -> Iterator[str]:
    """Yield a message for each message between ranks that is missing at an end, repeated, or unexpected."""
    ranks_of = {entry: ranks for entry, ranks in _ranks_of(rows).items() if not isinstance(entry, Action)}
    for action in all_actions(stage_map.stages, micro, split):
        for message in stage_map.messages(action):
            ranks, ends = ranks_of.pop(message, []), sorted(stage_map.coordinates_of(message))
            if sorted(ranks) != ends:
                yield f"the message after {action} is on {_ranks(ranks)}; expected it once on each of {_ranks(ends)}"
    for message in ranks_of:
        yield f"unexpected message {message}; no action of the file sends it"


def _ranks_of(rows: Sequence[Sequence[Entry]]) -> dict[Entry, list[int]]:
    """Return entry → the ranks whose rows contain it, once for each occurrence."""
    ranks_of: dict[Entry, list[int]] = {}
    for rank, row in enumerate(rows):
        for entry in row:
            ranks_of.setdefault(entry, []).append(rank)
    return ranks_of


def _ranks(coordinates: Sequence[int]) -> str:
    return "no rank" if not coordinates else f"rank {', '.join(map(str, coordinates))}"


def _cycle_text(stuck: set[Entry], followers: Mapping[Entry, set[Entry]]) -> str:
    """Return the error about a cycle among the entries that never become ready.

    Each such entry follows another one. So the walk from follower to predecessor reaches an entry twice.
    """
    predecessors: dict[Entry, Entry] = {}
    for entry in sorted(stuck, key=str):
        for follower in followers.get(entry, ()):
            if follower in stuck:
                predecessors.setdefault(follower, entry)
    entry = min(predecessors, key=str)
    path: list[Entry] = []
    while entry not in path:
        path.append(entry)
        entry = predecessors[entry]
    cycle = path[path.index(entry) :][::-1]
    return (
        f"ranks wait for each other: {' before '.join(map(str, [*cycle, cycle[0]]))}; expected rows that do not "
        "deadlock if each send waits for its receiver"
    )


def print_csv(order: StepOrder, messages: bool = False) -> str:
    """Return the CSV of torch for an order, a row a rank. With messages, it has the format `compute_comms`."""
    lines = []
    for coordinate in range(order.stage_map.ranks):
        tokens = (_token(entry, coordinate, order.stage_map) for entry in order.row(coordinate))
        lines.append(",".join(token for token in tokens if messages or "_" not in token))
    return "\n".join(lines) + "\n"


def _token(entry: Entry, coordinate: int, stage_map: StageMap) -> str:
    """Return the text of an entry in the row of a coordinate: `0F0`, or `0SEND_F0` and `1RECV_F0` at the two ends."""
    if isinstance(entry, Action):
        return str(entry)
    direction = "F" if entry.action.kind == "F" else "B"
    is_sender = stage_map.coordinates[entry.action.stage] == coordinate
    stage = entry.action.stage if is_sender else stage_map.consumer(entry.action)
    return f"{stage}{'SEND' if is_sender else 'RECV'}_{direction}{entry.action.micro}"


def parse_csv(text: str, file: str) -> StepOrder:
    """Parse the CSV of torch's pipeline schedules, with or without messages, and return the global order.

    Raises:
        SpmdirError: a cell is not an action or a message, a stage is on two ranks, or `order_of_rows` rejects the rows.
    """
    cells = [
        [(cell.strip(), Location(file, number, column + 1)) for cell, column in _cells(line)]
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    coordinate_of = _read_coordinates(cells)
    actions = [[action for token, _ in row if (action := parse_action(token))] for row in cells]
    all_parsed_actions = [action for row in actions for action in row]
    where = Location(file, 1, 1)
    if not all_parsed_actions:
        raise SpmdirError("the file has no actions; expected a row for each rank, such as 0F0,0B0", where)
    stages, micro = max(coordinate_of) + 1, max(action.micro for action in all_parsed_actions) + 1
    missing = next((stage for stage in range(stages) if stage not in coordinate_of), None)
    if missing is not None:
        raise SpmdirError(f"no rank has stage {missing}; expected the stages 0 to {stages - 1}", where)
    stage_map = StageMap(tuple(coordinate_of[stage] for stage in range(stages)))
    split = any(action.kind in "IW" for action in all_parsed_actions)
    has_messages = any("_" in token for row in cells for token, _ in row)
    if not has_messages:
        faults = itertools.islice(_find_action_faults(stage_map, micro, actions, split), SHOWN)
        raise_all([SpmdirError(message, where) for message in faults])
        return with_messages(stage_map, micro, actions, split)
    rows: list[list[Entry]] = [[_entry(token, location, stage_map, split) for token, location in row] for row in cells]
    return order_of_rows(stage_map, micro, rows, split, where)


def _read_coordinates(cells: Sequence[Sequence[tuple[str, Location]]]) -> dict[int, int]:
    """Return stage → the coordinate whose row has its actions.

    Args:
        cells: [coordinate], the text and the location of each cell of its row.

    Raises:
        SpmdirError: a cell is not an action or a message, or a stage is on two ranks.
    """
    coordinate_of: dict[int, int] = {}
    errors: list[SpmdirError] = []
    for coordinate, row in enumerate(cells):
        for token, location in row:
            action = parse_action(token)
            if action is None and _MESSAGE.fullmatch(token) is None:
                errors.append(
                    SpmdirError(f"invalid action '{token}'; expected one such as 0F0, 1B2 or 0SEND_F0", location)
                )
            elif action is not None and coordinate_of.setdefault(action.stage, coordinate) != coordinate:
                earlier = coordinate_of[action.stage]
                errors.append(
                    SpmdirError(f"stage {action.stage} is on rank {earlier} and here; expected one rank", location)
                )
    raise_all(errors)
    return coordinate_of


def _cells(line: str) -> Iterator[tuple[str, int]]:
    """Yield the non-empty cells of a line, with their columns from 0."""
    column = 0
    for cell in line.split(","):
        if cell.strip():
            yield cell, column + len(cell) - len(cell.lstrip())
        column += len(cell) + 1


def _entry(token: str, location: Location, stage_map: StageMap, split: bool) -> Entry:
    """Return the action or the message of a cell."""
    if action := parse_action(token):
        return action
    match = _MESSAGE.fullmatch(token)
    assert match is not None  # parse_csv has checked it
    stage, end, direction, micro = match.groups()
    sender = int(stage) if end == "SEND" else int(stage) + (-1 if direction == "F" else 1)
    backward = "I" if split else "B"
    messages: tuple[StageMessage, ...] = ()
    if 0 <= sender < stage_map.stages:
        messages = stage_map.messages(Action(sender, "F" if direction == "F" else backward, int(micro)))  # type: ignore
    if messages:  # at most one, because each stage sends only to its neighbour
        return messages[0]
    raise SpmdirError(f"'{token}' sends nothing to another rank; expected only messages between ranks", location)
