"""`RequestQueue`: the requests that wait for a row of the caches. Any thread may add requests.

queue = served.queue()
request = queue.submit([1, 15, 27], max_new_tokens=20)     in a thread of a server
served.run(queue)                                          in another thread, on all ranks
for token in request.stream(timeout=60): …                 in the first thread
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import attrs

from spmdir.core.errors import SpmdirError
from spmdir.serving.request_limits import Limits
from spmdir.serving.requests import CANCELLED, Request
from spmdir.serving.sampling_settings import GREEDY, Sampling


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
    _requests: deque[Request] = attrs.field(factory=deque, init=False)
    _changed: threading.Condition = attrs.field(factory=threading.Condition, init=False)

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._requests)

    def submit(
        self, prompt: Sequence[int], max_new_tokens: int, *, stop: Iterable[int] = (), sampling: Sampling = GREEDY
    ) -> Request:
        """Add a request, and return it.

        Args:
            prompt: the tokens of the prompt.
            max_new_tokens: the largest number of new tokens.
            stop: tokens after which the request ends. The result contains the stop token.
            sampling: how tokens are chosen; by default, the most probable ones.

        Raises:
            SpmdirError: the request is invalid or does not fit in the caches, the queue is full, or it is closed.
        """
        request = self.limits.request(prompt, max_new_tokens, stop, sampling)
        self.add(request)
        return request

    def add(self, request: Request) -> None:
        """Add a request; raise SpmdirError if the queue is full or closed."""
        with self._changed:
            if self.is_closed:
                raise SpmdirError(f"{self._closing_error}; expected a queue that accepts requests")
            if self.max_waiting is not None and len(self._requests) >= self.max_waiting:
                raise SpmdirError(f"{self.max_waiting} requests wait already; expected fewer: try again later")
            if not request.has_ended:
                self._requests.append(request)
                self._changed.notify_all()

    def take(self, fits: Callable[[Request], bool] = lambda request: True) -> Request | None:
        """Remove and return the first request that is not cancelled; None if there is none, or if it does not fit.

        Later requests never overtake the first, so it does not wait for ever.
        """
        with self._changed:
            while self._requests:
                request = self._requests[0]
                if not request.is_cancelled and not fits(request):
                    return None
                self._requests.popleft()
                if not request.is_cancelled:
                    return request
                request.end(CANCELLED)
        return None

    def wait(self, seconds: float) -> bool:
        """Wait until a request waits or the queue is closed; return whether one of both is true."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._requests) or self.is_closed, seconds)

    def close(self, error: str | None = None) -> None:
        """Accept no more requests. Waiting requests still run, except after an error: they end with it."""
        with self._changed:
            self.is_closed = True
            if error is not None:
                self._closing_error = error
                while self._requests:
                    self._requests.popleft().end(error)
            self._changed.notify_all()
