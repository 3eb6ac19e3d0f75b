"""Choose the next call of a served model: requests get rows of the caches, prompts are prefilled in parts, rows decode.

The scheduler runs on one rank, without torch. For example, with 2 rows, prefills of 4 tokens, and requests A of 6
prompt tokens and 2 new ones, B of 3 and 1:

    prefill A[0:4]    prefill A[4:6] → 1st token of A    prefill B[0:3] → 1st token of B, row 1 is free
    decode A → 2nd token, row 0 is free
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import attrs

from spmdir.core.errors import SpmdirError, shown

PADDING = -1
"""The position of a token that is no token: it is neither written to caches nor attended to."""


@attrs.frozen
class ModelCall:
    """A call of one program.

    Attributes:
        length: the number of tokens of each sequence: 1 for `decode`, or the length of a prefill.
        ids, positions: [sequence][token], padded on the left with position `PADDING`.
        rows: the row of the caches of each sequence; None for `decode`, where sequence i has row i.
    """

    length: int
    ids: tuple[tuple[int, ...], ...]
    positions: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...] | None = None


@attrs.define(eq=False)
class Request:
    """A prompt and its generated tokens.

    Attributes:
        prompt: the tokens of the prompt.
        limit: the number of tokens after which the request ends.
        stop: tokens after which the request ends.
        tokens: the generated tokens.
        prefilled: the number of prompt tokens in the caches.
    """

    prompt: tuple[int, ...]
    limit: int
    stop: frozenset[int]
    tokens: list[int] = attrs.field(factory=list)
    prefilled: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether all tokens are generated."""
        return len(self.tokens) >= self.limit or bool(self.tokens and self.tokens[-1] in self.stop)


@attrs.define(eq=False)
class Scheduler:
    """The requests of a served model.

    Attributes:
        batch: the number of rows of the caches.
        max_length: the number of tokens that a row holds.
        prompt_lengths: the lengths of prefills, ascending.
        vocabulary: the number of tokens of the vocabulary.
    """

    batch: int
    max_length: int
    prompt_lengths: Sequence[int]
    vocabulary: int
    _waiting: deque[Request] = attrs.field(factory=deque, init=False)
    _active: dict[int, Request] = attrs.field(factory=dict, init=False)

    def submit(self, prompt: Sequence[int], max_new_tokens: int, stop: Collection[int] = ()) -> Request:
        """Add a request. It gets a row of the caches when one is free; earlier requests are first.

        Raises:
            SpmdirError: the prompt is empty or has an invalid token, or the request does not fit in a row.
        """
        tokens = [*prompt]
        if not tokens:
            raise SpmdirError("a prompt has no tokens; expected at least one, such as the beginning-of-text token")
        for token in tokens:
            if type(token) is not int or not 0 <= token < self.vocabulary:
                raise SpmdirError(
                    f"a prompt has the token {shown(token)}; expected integers from 0 to {self.vocabulary - 1}"
                )
        if type(max_new_tokens) is not int or max_new_tokens < 0:
            raise SpmdirError(f"max_new_tokens is {shown(max_new_tokens)}; expected an integer of at least 0")
        needed = len(tokens) + max(max_new_tokens, 1) - 1  # the last token is not written
        if needed > self.max_length:
            raise SpmdirError(
                f"{len(tokens)} prompt tokens and {max_new_tokens} new tokens need {needed} rows of a cache; "
                f"expected at most {self.max_length}, the max_length of the served model"
            )
        request = Request(tuple(tokens), max_new_tokens, frozenset(stop))
        if not request.has_ended:
            self._waiting.append(request)
        return request

    def next_call(self) -> ModelCall | None:
        """Return the next call: a part of a prompt if a row has or gets one, else a token of each row; None if idle."""
        while self._waiting and len(self._active) < self.batch:
            free_row = next(row for row in range(self.batch) if row not in self._active)
            self._active[free_row] = self._waiting.popleft()
        for row, request in self._active.items():
            remaining = request.prompt[request.prefilled :]
            if remaining:
                fitting = [length for length in self.prompt_lengths if length >= len(remaining)]
                length = fitting[0] if fitting else self.prompt_lengths[-1]
                part = remaining[:length]
                padding = length - len(part)
                positions = range(request.prefilled, request.prefilled + len(part))
                return ModelCall(length, ((0,) * padding + part,), ((PADDING,) * padding + (*positions,),), (row,))
        if not self._active:
            return None
        ids, positions = [(0,)] * self.batch, [(PADDING,)] * self.batch
        for row, request in self._active.items():
            ids[row], positions[row] = (request.tokens[-1],), (len(request.prompt) + len(request.tokens) - 1,)
        return ModelCall(1, tuple(ids), tuple(positions))

    def record(self, call: ModelCall, tokens: Sequence[int]) -> None:
        """Add the next token of each sequence of a call. Rows of requests that end are free.

        Raises:
            SpmdirError: a token is not in the vocabulary, because its logits are not numbers.
        """
        rows = range(self.batch) if call.rows is None else call.rows
        for row, positions, token in zip(rows, call.positions, tokens, strict=True):
            request = self._active.get(row)
            if request is None or positions[-1] == PADDING:
                continue
            if call.rows is not None:
                request.prefilled = positions[-1] + 1
                if request.prefilled < len(request.prompt):
                    continue
            if not 0 <= token < self.vocabulary:
                raise SpmdirError(
                    f"the logits of row {row} are not numbers; expected finite parameters and activations"
                )
            request.tokens.append(token)
            if request.has_ended:
                del self._active[row]

    def clear(self) -> None:
        """Drop all requests, and free all rows."""
        self._waiting.clear()
        self._active.clear()
