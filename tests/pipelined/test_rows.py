"""Rows of torch's pipeline schedules: read, written, and rejected if ranks would wait for each other."""

from __future__ import annotations

import re

import pytest
import torch.distributed.pipelining.schedules as torch_schedules

from spmdir.core.errors import SpmdirError
from spmdir.pipelined.kinds import KINDS, make_order
from spmdir.pipelined.rows import parse_csv, print_csv
from spmdir.pipelined.times import equal_stages


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("messages", [False, True], ids=["actions", "messages"])
def test_a_written_order_reads_as_the_same_rows_of_actions(kind: str, messages: bool):
    order = make_order(kind, 2, 4, equal_stages(4, 1, 1.5, 0.5))
    again = parse_csv(print_csv(order, messages), "order.csv")
    assert print_csv(again) == print_csv(order)
    assert again.stage_map == order.stage_map
    assert not messages or again.rows == order.rows


def torch_rows(name: str, ranks: int, micro: int, deferred: bool) -> str:
    """Return the rows of a schedule of torch, lowered to messages as its runtime does."""
    stages = 2 * ranks

    def rank_of(stage: int) -> int:
        return min(stage, stages - 1 - stage) if name == "ScheduleZBVZeroBubble" else stage % ranks

    kind = getattr(torch_schedules, name)
    rows = {}
    for rank in range(ranks):
        schedule = kind.__new__(kind)
        schedule.pp_group_size, schedule._n_microbatches, schedule.n_local_stages = ranks, micro, 2
        schedule.num_stages, schedule._num_stages, schedule.rank = stages, stages, rank
        schedule._stages = [None, None]
        schedule.number_of_rounds = max(1, micro // ranks)
        schedule.microbatches_per_round = micro // schedule.number_of_rounds
        rows[rank] = schedule._calculate_single_rank_operations(rank)
    compute = {rank: [action for action in row if action is not None] for rank, row in rows.items()}
    lowered = torch_schedules._add_send_recv(compute, stage_to_rank=rank_of, num_stages=stages)
    if deferred:
        lowered = torch_schedules._defer_recv_ops(lowered, rank_of)
    return "\n".join(",".join(map(str, lowered[rank])) for rank in range(ranks))


ACCEPTED = ["ScheduleLoopedBFS", "ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble"]


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize(("ranks", "micro"), [(4, 8), (4, 4), (8, 16)])
def test_the_orders_of_torch_are_accepted(name: str, ranks: int, micro: int):
    order = parse_csv(torch_rows(name, ranks, micro, deferred=False), "torch.csv")
    assert order.micro == micro
    assert order.stage_map.stages == 2 * ranks


@pytest.mark.parametrize("name", ACCEPTED)
def test_deferred_receives_of_torch_are_rejected(name: str):
    with pytest.raises(SpmdirError, match=r"torch\.csv:1:1: error: ranks wait for each other: .* before "):
        parse_csv(torch_rows(name, 4, 8, deferred=True), "torch.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0BACK3\n", "order.csv:1:5: error: invalid action '0BACK3'; expected one such as 0F0, 1B2 or 0SEND_F0"),
        ("0F0, 0F1x\n", "order.csv:1:6: error: invalid action '0F1x'"),
        ("\n", "order.csv:1:1: error: the file has no actions; expected a row for each rank"),
        ("0F0,0F999999,999999F0,0B0\n", "order.csv:1:1: error: no rank has stage 1; expected the stages 0 to 999999"),
        ("0F0,0F999999,0B0\n", "order.csv:1:1: error: 0F1 is on no rank; expected it once, on rank 0"),
        ("0F9999999\n", "order.csv:1:1: error: invalid action '0F9999999'"),
        ("0F0,2F0\n", "order.csv:1:1: error: no rank has stage 1; expected the stages 0 to 2"),
        ("0F0,0B0\n0F1,0B1\n", "order.csv:2:1: error: stage 0 is on rank 0 and here; expected one rank"),
        ("0F0,0B0\n1F0\n", "order.csv:1:1: error: 1B0 is on no rank; expected it once, on rank 1"),
        ("0F0,0F0,0B0\n", "order.csv:1:1: error: 0F0 is on rank 0, 0; expected it once, on rank 0"),
        ("0F0,0I0\n", "order.csv:1:1: error: 0W0 is on no rank; expected it once, on rank 0"),
        ("0F0,0I0,0W0,0B0\n", "order.csv:1:1: error: unexpected 0B0; expected I and W for the backward of all stages"),
        (
            "0B0,0F0\n",
            "no rank can continue: they wait in 0B0",
        ),
        ("0F0,0SEND_F0,0B0\n", "order.csv:1:5: error: '0SEND_F0' sends nothing to another rank"),
        (
            "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0\n",
            "order.csv:1:1: error: the message after 0F0 is on rank 0; expected it once on each of rank 0, 1",
        ),
        (
            "0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
            "order.csv:1:1: error: ranks wait for each other: ",
        ),
    ],
)
def test_wrong_rows_are_rejected_with_a_location(text: str, message: str):
    with pytest.raises(SpmdirError, match=re.escape(message)):
        parse_csv(text, "order.csv")
