"""`Limits`: the requests that a served model accepts. Requests are checked before they wait."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError, shown, wrong_argument
from spmdir.serving.requests import Request
from spmdir.serving.sampling_settings import GREEDY, Sampling


@attrs.frozen
class Limits:
    """The requests that a served model accepts.

    Attributes:
        batch: the number of rows of the caches: the largest number of sequences at one time.
        max_length: the number of tokens that a row holds.
        prompt_lengths: the lengths of prefills, ascending.
        vocabulary: the number of tokens of the vocabulary.
        max_top_k: the largest number of tokens from which `top_k` and `top_p` draw.
        pages: the number of pages that sequences share; None if each row of the caches is one page.
        page_rows: the number of tokens that a page holds.
    """

    batch: int
    max_length: int
    prompt_lengths: Sequence[int]
    vocabulary: int
    max_top_k: int
    pages: int | None = None
    page_rows: int = 1

    def count_pages(self, request: Request) -> int:
        """Return the number of pages that a request needs. Its last token is not written."""
        return -(-(len(request.prompt) + request.limit - 1) // self.page_rows)

    def request(self, prompt: Any, max_new_tokens: Any, stop: Any = (), sampling: Any = GREEDY) -> Request:
        """Return a request. It has ended already if it asks for no tokens.

        Raises:
            SpmdirError: the prompt is empty or has an invalid token, or the request does not fit in a row.
        """
        tokens = self._tokens(prompt, "a prompt")
        if not tokens:
            raise SpmdirError("a prompt has no tokens; expected at least one, such as the beginning-of-text token")
        stop_tokens, limit = self._tokens(stop, "stop"), as_integer(max_new_tokens)
        if limit is None or limit < 0:
            raise SpmdirError(f"max_new_tokens is {shown(max_new_tokens)}; expected an integer of at least 0")
        needed = len(tokens) + max(limit, 1) - 1  # the last token is not written
        if needed > self.max_length:
            raise SpmdirError(
                f"{len(tokens)} prompt tokens and {limit} new tokens need {needed} rows of a cache; "
                f"expected at most {self.max_length}, the max_length of the served model"
            )
        if not isinstance(sampling, Sampling):
            raise wrong_argument("sampling", sampling, "a Sampling, such as Sampling(temperature=0.7)")
        if sampling.top_k > self.max_top_k:
            raise SpmdirError(f"top_k is {sampling.top_k}; expected at most {self.max_top_k}, the max_top_k of serve")
        request = Request(tuple(tokens), limit, frozenset(stop_tokens), sampling)
        if not limit:
            request.end()
        return request

    def requests(self, prompts: Any, max_new_tokens: Any, stop: Any = None, sampling: Any = GREEDY) -> list[Request]:
        """Return a request for each prompt; `max_new_tokens` and `sampling` are one value, or one for each prompt.

        Raises:
            SpmdirError: an argument is of the wrong kind, or a request is invalid.
        """
        expected = "a list of prompts, each a list of tokens"
        prompts = [
            _list(prompt, "prompts", prompts, expected) for prompt in _list(prompts, "prompts", prompts, expected)
        ]
        is_one = as_integer(max_new_tokens) is not None
        limits = _each(max_new_tokens, "max_new_tokens", is_one, len(prompts), "an integer")
        samplings = _each(sampling, "sampling", isinstance(sampling, Sampling), len(prompts), "a Sampling")
        stop = [] if stop is None else _list(stop, "stop", stop, "a list of tokens, or None")
        settings = zip(prompts, limits, samplings, strict=True)
        return [self.request(prompt, limit, stop, one) for prompt, limit, one in settings]

    def _tokens(self, values: Any, owner: str) -> list[int]:
        """Return tokens as integers of Python; raise SpmdirError if one is not in the vocabulary."""
        tokens = []
        for value in _list(values, owner, values, "a list of tokens"):
            token = as_integer(value)
            if token is None or not 0 <= token < self.vocabulary:
                raise SpmdirError(
                    f"{owner} has the token {shown(value)}; expected integers from 0 to {self.vocabulary - 1}"
                )
            tokens.append(token)
        return tokens


def as_integer(value: Any) -> int | None:
    """Return an integer of Python, numpy or torch as an integer of Python; None for other values."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _each(value: Any, name: str, is_one: bool, count: int, expected: str) -> list[Any]:
    """Return an argument for each of `count` prompts: the value if it is one, else its entries."""
    if is_one:
        return [value] * count
    entries = _list(value, name, value, f"{expected}, or one for each prompt")
    if len(entries) != count:
        raise SpmdirError(f"{name} has {len(entries)} entries for {count} prompts; expected one for each")
    return entries


def _list(value: Any, name: str, argument: Any, expected: str) -> list[Any]:
    """Return a list of the entries of a value; raise SpmdirError for `argument` if the value has no entries."""
    try:
        return [*value]
    except TypeError:
        raise SpmdirError(f"{name} is {shown(argument)}; expected {expected}") from None
