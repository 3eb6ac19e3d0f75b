"""`Request`: a prompt and its tokens, which another thread can read as they are generated.

Each request ends exactly once: with its tokens, or with an error.
"""

from __future__ import annotations

import queue as queues
from collections.abc import Iterator

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.serving.sampling_settings import GREEDY, Sampling

CANCELLED = "the request was cancelled"
"""The error of a request that its reader has cancelled."""


@attrs.define(eq=False)
class Request:
    """A prompt and its generated tokens.

    Attributes:
        prompt: the tokens of the prompt.
        limit: the number of tokens after which the request ends.
        stop: tokens after which the request ends.
        sampling: how tokens are chosen.
        tokens: the generated tokens.
        error: the reason why the request has no more tokens; None if there was no error.
        has_ended: whether there will be no more tokens.
        is_cancelled: whether nobody reads the request any more, so it ends before the next call.
    """

    prompt: tuple[int, ...]
    limit: int
    stop: frozenset[int]
    sampling: Sampling = GREEDY
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
