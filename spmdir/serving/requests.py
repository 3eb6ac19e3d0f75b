"""Requests of a served model, and the queue in which they wait. Other threads may add requests and read their tokens.

    queue = served.queue()
    request = queue.submit([1, 15, 27], max_new_tokens=20)     in a thread of a server
    served.run(queue)                                          in another thread, on all ranks
    for token in request.stream(timeout=60): …                 in the first thread

Each request ends exactly once: with its tokens, or with an error.
"""

from __future__ import annotations

import operator
import queue as queues
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError, shown

CANCELLED = "the request was cancelled"
"""The error of a request that its reader has cancelled."""


@attrs.define(eq=False)
class Request:
    """A prompt and its generated tokens.

    Attributes:
        prompt: the tokens of the prompt.
        limit: the number of tokens after which the request ends.
        stop: tokens after which the request ends.
        tokens: the generated tokens.
        error: the reason why the request has no more tokens; None if there was no error.
        has_ended: whether there will be no more tokens.
        is_cancelled: whether nobody reads the request any more, so it ends before the next call.
    """

    prompt: tuple[int, ...]
    limit: int
    stop: frozenset[int]
    tokens: list[int] = attrs.field(factory=list)
    error: str | None = None
    has_ended: bool = False
    is_cancelled: bool = False
    _events: queues.SimpleQueue[int | None] = attrs.field(factory=queues.SimpleQueue, init=False)

    def add(self, token: int) -> None:
        """Add a generated token. The request ends if this is its last one."""
        self.tokens.append(token)
        self._events.put(token)
        if len(self.tokens) >= self.limit or token in self.stop:
            self.end()

    def end(self, error: str | None = None) -> None:
        """End the request, with its tokens or with an error; only the first call has an effect."""
        if not self.has_ended:
            self.error, self.has_ended = error, True
            self._events.put(None)

    def cancel(self) -> None:
        """Let the request end before the next call, since nobody reads it any more."""
        self.is_cancelled = True

    def stream(self, timeout: float | None = None) -> Iterator[int]:
        """Yield the tokens as they are generated; once.

        Args:
            timeout: the longest wait for a token, in seconds; None to wait until the request ends.

        Raises:
            SpmdirError: the request ends with an error, or there is no token within the timeout. After a timeout, the
                request is cancelled.
        """
        while True:
            try:
                token = self._events.get(timeout=timeout)
            except queues.Empty:
                self.cancel()
                raise SpmdirError(f"the request has no token within {timeout:g} s; it is cancelled") from None
            if token is None:
                break
            yield token
        if self.error is not None:
            raise SpmdirError(self.error)


@attrs.frozen
class Limits:
    """The requests that a served model accepts.

    Attributes:
        batch: the number of rows of the caches: the largest number of sequences at one time.
        max_length: the number of tokens that a row holds.
        prompt_lengths: the lengths of prefills, ascending.
        vocabulary: the number of tokens of the vocabulary.
    """

    batch: int
    max_length: int
    prompt_lengths: Sequence[int]
    vocabulary: int

    def request(self, prompt: Any, max_new_tokens: Any, stop: Iterable[Any] = ()) -> Request:
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
        request = Request(tuple(tokens), limit, frozenset(stop_tokens))
        if not limit:
            request.end()
        return request

    def requests(self, prompts: Any, max_new_tokens: Any, stop: Any = None) -> list[Request]:
        """Return a request for each prompt; `max_new_tokens` is one number, or one for each prompt.

        Raises:
            SpmdirError: an argument is of the wrong kind, or a request is invalid.
        """
        expected = "a list of prompts, each a list of tokens"
        prompts = [
            _list(prompt, "prompts", prompts, expected) for prompt in _list(prompts, "prompts", prompts, expected)
        ]
        limits = [max_new_tokens] * len(prompts)
        if as_integer(max_new_tokens) is None:
            limits = _list(max_new_tokens, "max_new_tokens", max_new_tokens, "an integer, or one for each prompt")
        if len(limits) != len(prompts):
            raise SpmdirError(
                f"max_new_tokens has {len(limits)} entries for {len(prompts)} prompts; expected one for each"
            )
        stop = [] if stop is None else _list(stop, "stop", stop, "a list of tokens, or None")
        return [self.request(prompt, limit, stop) for prompt, limit in zip(prompts, limits, strict=True)]

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


@attrs.define(eq=False)
class RequestQueue:
    """Requests that wait for a row of the caches, first come, first served. Any thread may use it.

    Attributes:
        limits: the requests that the model accepts.
        max_waiting: the largest number of requests that wait; None for any number.
        is_closed: whether the queue takes no more requests.
    """

    limits: Limits
    max_waiting: int | None = None
    is_closed: bool = False
    _closing_error: str = "the queue is closed"
    _waiting: deque[Request] = attrs.field(factory=deque, init=False)
    _changed: threading.Condition = attrs.field(factory=threading.Condition, init=False)

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._waiting)

    def submit(self, prompt: Sequence[int], max_new_tokens: int, *, stop: Iterable[int] = ()) -> Request:
        """Add a request, and return it.

        Args:
            prompt: the tokens of the prompt.
            max_new_tokens: the largest number of new tokens.
            stop: tokens after which the request ends. The result contains the stop token.

        Raises:
            SpmdirError: the request is invalid or does not fit in the caches, the queue is full, or it is closed.
        """
        request = self.limits.request(prompt, max_new_tokens, stop)
        self.add(request)
        return request

    def add(self, request: Request) -> None:
        """Add a request; raise SpmdirError if the queue is full or closed."""
        with self._changed:
            if self.is_closed:
                raise SpmdirError(f"{self._closing_error}; expected a queue that accepts requests")
            if self.max_waiting is not None and len(self._waiting) >= self.max_waiting:
                raise SpmdirError(f"{self.max_waiting} requests wait already; expected fewer: try again later")
            if not request.has_ended:
                self._waiting.append(request)
                self._changed.notify_all()

    def take(self) -> Request | None:
        """Remove and return the first request that is not cancelled; None if no request waits."""
        with self._changed:
            while self._waiting:
                request = self._waiting.popleft()
                if not request.is_cancelled:
                    return request
                request.end(CANCELLED)
        return None

    def wait(self, seconds: float) -> bool:
        """Wait until a request waits or the queue is closed; return whether one of both is true."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._waiting) or self.is_closed, seconds)

    def close(self, error: str | None = None) -> None:
        """Accept no more requests. Waiting requests still run, except after an error: they end with it."""
        with self._changed:
            self.is_closed = True
            if error is not None:
                self._closing_error = error
                while self._waiting:
                    self._waiting.popleft().end(error)
            self._changed.notify_all()


def as_integer(value: Any) -> int | None:
    """Return an integer of Python, numpy or torch as an integer of Python; None for other values."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _list(value: Any, name: str, argument: Any, expected: str) -> list[Any]:
    """Return a list of the entries of a value; raise SpmdirError for `argument` if the value has no entries."""
    try:
        return [*value]
    except TypeError:
        raise SpmdirError(f"{name} is {shown(argument)}; expected {expected}") from None
