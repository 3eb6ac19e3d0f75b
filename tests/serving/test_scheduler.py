"""The scheduler of a served model, with a model that counts: the token after n is n + 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spmdir.core.errors import SpmdirError
from spmdir.serving.request_limits import Limits
from spmdir.serving.request_queue import RequestQueue
from spmdir.serving.requests import Request
from spmdir.serving.sampling_settings import Sampling
from spmdir.serving.scheduler import CLEAR, DECODE, PADDING, ModelCall, Scheduler


def queue_of(batch: int = 1, max_length: int = 8, lengths: tuple[int, ...] = (4,), size: int | None = None):
    """Return an empty queue of a model with 50 tokens."""
    return RequestQueue(Limits(batch, max_length, lengths, vocabulary=50, max_top_k=8), size)


def count(call: ModelCall) -> list[int]:
    """Return the last token plus 1 of each sequence."""
    return [ids[-1] + 1 for ids in call.inputs["ids"]]


def run(scheduler: Scheduler, model: Callable[[ModelCall], list[int]] = count) -> list[ModelCall]:
    """Run all calls, and return them."""
    calls = []
    while (call := scheduler.next_call()) is not None:
        calls.append(call)
        if call.name != CLEAR:
            scheduler.record(call, model(call))
    return calls


def test_requests_wait_for_free_rows_and_long_prompts_are_prefilled_in_parts() -> None:
    queue = queue_of(batch=2, max_length=16, lengths=(2, 4))
    prompts, counts = [range(10, 16), range(20, 23), range(30, 31)], [2, 1, 3]
    requests = [queue.submit([*prompt], limit) for prompt, limit in zip(prompts, counts, strict=True)]
    calls = run(Scheduler(queue))
    assert [request.tokens for request in requests] == [[16, 17], [23], [31, 32, 33]]
    assert [(call.name, call.rows) for call in calls] == [
        ("prefill_4", (None,)),
        ("prefill_2", (0,)),
        ("prefill_4", (1,)),
        ("prefill_2", (1,)),  # the third request gets the row of the second
        (DECODE, (0, 1)),
        (DECODE, (None, 1)),
    ]
    ids, positions, rows = (calls[2].inputs[name] for name in ("ids", "positions", "rows"))
    assert (ids, positions, rows) == ([(0, 20, 21, 22)], [(PADDING, 0, 1, 2)], [1])
    assert (calls[-1].inputs["ids"], calls[-1].inputs["positions"]) == ([(0,), (32,)], [(PADDING,), (2,)])


def test_prefills_delay_other_sequences_by_a_bounded_number_of_calls() -> None:
    queue = queue_of(batch=2, max_length=16, lengths=(2,))
    first, second = queue.submit([1], 3), queue.submit([*range(10, 18)], 1)
    calls = run(Scheduler(queue, max_prefills=2))
    assert (first.tokens, second.tokens) == ([2, 3, 4], [18])
    assert [call.name[:7] for call in calls] == [
        *("prefill", "prefill", DECODE, "prefill", "prefill", DECODE, "prefill")
    ]


def test_calls_have_the_sampling_of_each_row() -> None:
    queue = queue_of(batch=2)
    queue.submit([1], 2, sampling=Sampling(0.5, top_k=3, seed=7))
    queue.submit([2], 2, sampling=Sampling(2, top_p=0.25))
    calls = run(Scheduler(queue))
    names = ("temperatures", "top_k", "top_p", "seeds")
    assert [calls[0].inputs[name] for name in names] == [[0.5], [3], [1.0], [7]]
    assert [calls[-1].inputs[name] for name in names] == [[0.5, 2], [3, 0], [1.0, 0.25], [7, 0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0 of type float; expected a finite number of at least 0"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_p": 0}, "top_p is 0 of type int; expected a number above 0, and at most 1"),
        ({"top_k": 1.5}, "top_k is 1.5 of type float; expected an integer"),
        ({"seed": 2**63}, "seed is 9223372036854775808 of type int; expected an integer of 64 bits"),
        ({"top_k": 9}, "top_k is 9; expected at most 8, the max_top_k of serve"),
    ],
)
def test_an_invalid_sampling_is_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SpmdirError, match=message):
        queue_of().submit([1], 1, sampling=Sampling(**settings))
    with pytest.raises(SpmdirError, match=r"sampling is 0\.5 of type float; expected a Sampling"):
        queue_of().submit([1], 1, sampling=0.5)  # type: ignore[arg-type]


def test_requests_wait_for_free_pages_and_leave_them_to_the_next() -> None:
    queue = RequestQueue(Limits(3, 8, (4,), vocabulary=50, max_top_k=8, pages=4, page_rows=2))
    requests = [queue.submit(prompt, limit) for prompt, limit in (([1, 2], 3), ([10], 4), ([20], 1), ([30], 2))]
    calls = run(Scheduler(queue))
    assert [request.tokens for request in requests] == [[3, 4, 5], [11, 12, 13, 14], [21], [31, 32]]
    tables = [call.inputs["table"] for call in calls]
    assert tables[:2] == [[[0, 1, -1, -1]], [[2, 3, -1, -1]]]  # all pages, so the third request waits
    assert all("rows" not in call.inputs for call in calls)
    for call in calls:
        used = [page for row in call.inputs["table"] for page in row if page >= 0]
        assert len(used) == len(set(used)) <= 4


def test_a_request_ends_at_a_stop_token_and_may_fill_its_row() -> None:
    queue = queue_of()
    stopped, full, none = queue.submit([1], 8, stop=[3]), queue.submit([1, 2], 7), queue.submit([1], 0)
    run(Scheduler(queue))
    assert (stopped.tokens, full.tokens, none.tokens) == ([2, 3], [*range(3, 10)], [])
    assert [[*request.stream()] for request in (stopped, full, none)] == [[2, 3], [*range(3, 10)], []]


@pytest.mark.parametrize(
    ("prompt", "limit", "message"),
    [
        ([1, 2, 3], 7, "3 prompt tokens and 7 new tokens need 9 rows of a cache; expected at most 8"),
        ([], 1, "a prompt has no tokens"),
        ([50], 1, "the token 50; expected integers from 0 to 49"),
        ([True], 1, "the token True; expected integers"),
        (7, 1, "a prompt is 7; expected a list of tokens"),
        ([1], -1, "max_new_tokens is -1; expected an integer of at least 0"),
    ],
)
def test_an_invalid_request_is_rejected(prompt: list[int], limit: int, message: str) -> None:
    queue = queue_of()
    with pytest.raises(SpmdirError, match=message):
        queue.submit(prompt, limit)
    assert Scheduler(queue).next_call() is None


def test_logits_that_are_not_numbers_end_one_request_and_clear_the_caches() -> None:
    queue = queue_of(batch=2)
    bad, good = queue.submit([9], 3), queue.submit([1], 3)
    calls = run(Scheduler(queue), lambda call: [50 if token == 11 else token for token in count(call)])
    assert good.tokens == [2, 3, 4] and bad.tokens == [10]
    assert [call.name for call in calls].index(CLEAR) == 3
    with pytest.raises(SpmdirError, match="the logits of the request are not numbers"):
        [*bad.stream()]


def test_a_cancelled_request_leaves_its_row_to_the_next() -> None:
    queue = queue_of()
    running, waiting, last = (queue.submit([token], 5) for token in (1, 2, 3))
    scheduler = Scheduler(queue)
    call = scheduler.next_call()
    assert call is not None
    scheduler.record(call, [2])
    running.cancel()
    waiting.cancel()
    run(scheduler)
    assert (running.tokens, waiting.tokens, last.tokens) == ([2], [], [4, 5, 6, 7, 8])
    assert all(request.error == "the request was cancelled" for request in (running, waiting))


def test_a_queue_that_is_full_or_closed_rejects_requests_and_an_error_ends_all() -> None:
    queue = queue_of(size=1)
    scheduler = Scheduler(queue)
    running = queue.submit([1], 5)
    scheduler.next_call()
    waiting = queue.submit([2], 5)
    with pytest.raises(SpmdirError, match="1 requests wait already; expected fewer"):
        queue.submit([3], 5)
    scheduler.end_all("rank 1 has ended")
    for request in (running, waiting):
        with pytest.raises(SpmdirError, match="rank 1 has ended"):
            [*request.stream()]
    with pytest.raises(SpmdirError, match="rank 1 has ended; expected a queue that accepts requests"):
        queue.submit([3], 5)
    assert scheduler.next_call() is None


def test_a_reader_that_waits_too_long_cancels_its_request() -> None:
    request = queue_of().submit([1], 5)
    with pytest.raises(SpmdirError, match=r"no token within 0.01 s"):
        [*request.stream(timeout=0.01)]
    assert request.is_cancelled


def run_all(requests: list[Request], queue: RequestQueue) -> None:
    for request in requests:
        queue.add(request)
    run(Scheduler(queue))


def test_requests_have_integers_of_any_kind_and_a_list_for_each_prompt() -> None:
    queue = queue_of()
    first, second = requests = queue.limits.requests(np.array([[1, 2], [3, 4]]), np.int64(3), stop={np.int64(4)})
    run_all(requests, queue)
    assert (first.tokens, second.tokens) == ([3, 4], [5, 6, 7])
    assert all(type(token) is int for token in (*first.prompt, *first.stop))
    assert [request.limit for request in queue.limits.requests([[1], [2]], [0, 0], None)] == [0, 0]


@pytest.mark.parametrize(
    ("prompts", "limit", "stop", "message"),
    [
        ([1, 2, 3], 1, None, r"prompts is \[1, 2, 3\]; expected a list of prompts, each a list of tokens"),
        (None, 1, None, "prompts is None; expected a list of prompts"),
        (["text"], 1, None, "a prompt has the token 't'; expected integers from 0 to 49"),
        ([[1]], None, None, "max_new_tokens is None; expected an integer, or one for each prompt"),
        ([[1]], [1, 2], None, "max_new_tokens has 2 entries for 1 prompts"),
        ([[1]], 1, 2, "stop is 2; expected a list of tokens, or None"),
        ([[1]], 1, ["end"], "stop has the token 'end'; expected integers from 0 to 49"),
    ],
)
def test_arguments_of_another_kind_are_rejected(prompts, limit, stop, message) -> None:
    with pytest.raises(SpmdirError, match=message):
        queue_of().limits.requests(prompts, limit, stop)
