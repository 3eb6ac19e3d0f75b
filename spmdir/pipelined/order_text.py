"""Print a step order: its time beside the lower bound, memory, and the diagram of ranks over time."""

from __future__ import annotations

from spmdir.pipelined.actions import StepOrder
from spmdir.pipelined.times import StageTimes, Timeline, lower_bound, replay

WIDTH = 160
"""The largest width of the diagram, in characters."""


def order_text(order: StepOrder, times: StageTimes) -> str:
    """Return a summary and the diagram of an order. Each rank is a row, and each action its kind and micro-batch."""
    timeline = replay(order, times)
    bound = lower_bound(order.stage_map, order.micro, times, order.is_split)
    gap = max(timeline.seconds / bound - 1, 0.0) if bound else 0.0
    ranks, per_rank = order.stage_map.ranks, order.stage_map.stages / order.stage_map.ranks
    shares = [saved * ranks for saved in timeline.peak_saved]
    lines = [
        f"{order.stage_map.stages} stages on {ranks} ranks ({per_rank:g} each), {order.micro} micro-batches",
        f"time         {timeline.seconds:g} s",
        f"lower bound  {bound:g} s  (the order is {gap:.1%} above it)",
        f"idle         {timeline.bubble:.1%} of the ranks' time",
        f"activations  {max(shares):g} of a rank's share of the model, at most  ({_list(shares)})",
        "",
        *_diagram(order, timeline),
    ]
    return "\n".join(lines) + "\n"


def _list(numbers: list[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _diagram(order: StepOrder, timeline: Timeline) -> list[str]:
    """Return one line a rank, with time from left to right; as many actions as fit.

    Of two stages on a rank, the actions of the second are in lower case.
    """
    lengths = [timeline.end[action] - timeline.start[action] for action in order.actions]
    unit = min((length for length in lengths if length > 0), default=1.0)
    cell = len(str(order.micro - 1)) + 2
    label = len(f"rank {order.stage_map.ranks - 1}")
    columns = (WIDTH - label - 2) // cell
    lines = []
    for rank in range(order.stage_map.ranks):
        cells = ["."] * columns
        for action in order.actions:
            if order.stage_map.coordinates[action.stage] != rank:
                continue
            is_odd = order.stage_map.stages_on(rank).index(action.stage) % 2
            label_of_action = f"{action.kind.lower() if is_odd else action.kind}{action.micro}"
            first, last = (round(when / unit) for when in (timeline.start[action], timeline.end[action]))
            for column in range(first, min(max(last, first + 1), columns)):
                cells[column] = label_of_action if column == first else "-"
        used = min(round(timeline.seconds / unit), columns)
        row = "".join(text.ljust(cell) for text in cells[:used]).rstrip()
        is_cut = timeline.seconds / unit > columns
        lines.append(f"{f'rank {rank}'.ljust(label)}  {row}{' …' if is_cut else ''}")
    return lines
