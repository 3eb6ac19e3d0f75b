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

    A cell lasts as long as the shortest action, and a longer action has dashes after its label. Of two stages on a
    rank, the actions of the second are in lower case.
    """
    durations = [timeline.end[action] - timeline.start[action] for action in order.actions]
    seconds_per_cell = min((duration for duration in durations if duration > 0), default=1.0)
    cell_width = len(str(order.micro - 1)) + 2
    label_width = len(f"rank {order.stage_map.ranks - 1}")
    columns = (WIDTH - label_width - 2) // cell_width
    is_cut = timeline.seconds / seconds_per_cell > columns
    used_columns = min(round(timeline.seconds / seconds_per_cell), columns)
    lines = []
    for rank in range(order.stage_map.ranks):
        stages = order.stage_map.stages_on(rank)
        cells = ["."] * columns
        for action in order.actions:
            if action.stage not in stages:
                continue
            is_second = stages.index(action.stage) % 2 == 1
            label = f"{action.kind.lower() if is_second else action.kind}{action.micro}"
            first_column = round(timeline.start[action] / seconds_per_cell)
            end_column = round(timeline.end[action] / seconds_per_cell)
            for column in range(first_column, min(max(end_column, first_column + 1), columns)):
                cells[column] = label if column == first_column else "-"
        row = "".join(text.ljust(cell_width) for text in cells[:used_columns]).rstrip()
        lines.append(f"{f'rank {rank}'.ljust(label_width)}  {row}{' …' if is_cut else ''}")
    return lines
