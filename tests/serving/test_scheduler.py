"""The scheduler of a served model, with a model that counts: the token after n is n + 1."""

from __future__ import annotations

import numpy as np
import pytest

from spmdir.core.errors import SpmdirError
from spmdir.serving.scheduler import PADDING, ModelCall, Scheduler


def run(scheduler: Scheduler) -> list[ModelCall]:
    """Run all calls, and return them. The next token of a sequence is its last token plus 1."""
    calls = []
    while (call := scheduler.next_call()) is not None:
        calls.append(call)
        scheduler.record(call, [ids[-1] + 1 for ids in call.ids])
    return calls


def test_requests_wait_for_free_rows_and_long_prompts_are_prefilled_in_parts() -> None:
    scheduler = Scheduler(batch=2, max_length=16, prompt_lengths=[2, 4], vocabulary=50)
    prompts, counts = [range(10, 16), range(20, 23), range(30, 31)], [2, 1, 3]
    requests = [scheduler.submit([*prompt], count) for prompt, count in zip(prompts, counts, strict=True)]
    calls = run(scheduler)
    assert [request.tokens for request in requests] == [[16, 17], [23], [31, 32, 33]]
    assert [(call.length, call.rows) for call in calls] == [
        (4, (0,)),
        (2, (0,)),
        (4, (1,)),
        (2, (1,)),  # the third request gets the row of the second
        (1, None),
        (1, None),
    ]
    assert calls[2] == ModelCall(4, ((0, 20, 21, 22),), ((PADDING, 0, 1, 2),), (1,))
    assert calls[-1] == ModelCall(1, ((0,), (32,)), ((PADDING,), (2,)))


def test_a_request_ends_at_a_stop_token_and_may_fill_its_row() -> None:
    scheduler = Scheduler(batch=1, max_length=8, prompt_lengths=[4], vocabulary=50)
    stopped, full, none = scheduler.submit([1], 8, stop=[3]), scheduler.submit([1, 2], 7), scheduler.submit([1], 0)
    run(scheduler)
    assert (stopped.tokens, full.tokens, none.tokens) == ([2, 3], [*range(3, 10)], [])


@pytest.mark.parametrize(
    ("prompt", "count", "message"),
    [
        ([1, 2, 3], 7, "3 prompt tokens and 7 new tokens need 9 rows of a cache; expected at most 8"),
        ([], 1, "a prompt has no tokens"),
        ([50], 1, "the token 50; expected integers from 0 to 49"),
        ([True], 1, "the token True; expected integers"),
        ([1], -1, "max_new_tokens is -1; expected an integer of at least 0"),
    ],
)
def test_an_invalid_request_is_rejected(prompt: list[int], count: int, message: str) -> None:
    scheduler = Scheduler(batch=1, max_length=8, prompt_lengths=[4], vocabulary=50)
    with pytest.raises(SpmdirError, match=message):
        scheduler.submit(prompt, count)
    assert scheduler.next_call() is None


def test_a_token_outside_of_the_vocabulary_is_an_error() -> None:
    scheduler = Scheduler(batch=1, max_length=8, prompt_lengths=[4], vocabulary=50)
    scheduler.submit([1], 2)
    call = scheduler.next_call()
    assert call is not None
    with pytest.raises(SpmdirError, match="the logits of row 0 are not numbers"):
        scheduler.record(call, [50])


def test_requests_have_integers_of_any_kind_and_a_list_for_each_prompt() -> None:
    scheduler = Scheduler(batch=1, max_length=8, prompt_lengths=[4], vocabulary=50)
    first, second = scheduler.submit_all(np.array([[1, 2], [3, 4]]), np.int64(3), stop={np.int64(4)})
    run(scheduler)
    assert (first.tokens, second.tokens) == ([3, 4], [5, 6, 7])
    assert all(type(token) is int for token in (*first.prompt, *first.stop))
    assert [request.limit for request in scheduler.submit_all([[1], [2]], [0, 0], None)] == [0, 0]


@pytest.mark.parametrize(
    ("prompts", "count", "stop", "message"),
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
def test_arguments_of_another_kind_are_rejected(prompts, count, stop, message) -> None:
    scheduler = Scheduler(batch=1, max_length=8, prompt_lengths=[4], vocabulary=50)
    with pytest.raises(SpmdirError, match=message):
        scheduler.submit_all(prompts, count, stop)
