"""Choose the next call of a served model: requests get rows of the caches, prompts are prefilled in parts, rows decode.

The scheduler runs on one rank, without torch. For example, with 2 rows, prefills of 4 tokens, and requests A of 6
prompt tokens and 2 new ones, B of 3 and 1:

    prefill A[0:4]    prefill A[4:6] → 1st token of A    prefill B[0:3] → 1st token of B, row 1 is free
    decode A → 2nd token, row 0 is free
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from spmdir.core.errors import SpmdirError, shown

PADDING = -1
"""The position of padding: such a token is neither written to caches nor attended to."""


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

    def submit_all(self, prompts: Any, max_new_tokens: Any, stop: Any = None) -> list[Request]:
        """Add a request for each prompt; `max_new_tokens` is one number, or one for each prompt.

        Raises:
            SpmdirError: an argument is of the wrong kind, or a request is invalid.
        """
        expected = "a list of prompts, each a list of tokens"
        prompts = [
            _list(prompt, "prompts", prompts, expected) for prompt in _list(prompts, "prompts", prompts, expected)
        ]
        limits = [max_new_tokens] * len(prompts)
        if _integer(max_new_tokens) is None:
            limits = _list(max_new_tokens, "max_new_tokens", max_new_tokens, "an integer, or one for each prompt")
        if len(limits) != len(prompts):
            raise SpmdirError(
                f"max_new_tokens has {len(limits)} entries for {len(prompts)} prompts; expected one for each"
            )
        stop = [] if stop is None else _list(stop, "stop", stop, "a list of tokens, or None")
        return [self.submit(prompt, limit, stop) for prompt, limit in zip(prompts, limits, strict=True)]

    def submit(self, prompt: Sequence[int], max_new_tokens: int, stop: Iterable[int] = ()) -> Request:
        """Add a request. It gets a row of the caches when one is free; earlier requests are first.

        Raises:
            SpmdirError: the prompt is empty or has an invalid token, or the request does not fit in a row.
        """
        if not len(prompt):
            raise SpmdirError("a prompt has no tokens; expected at least one, such as the beginning-of-text token")
        tokens, stop_tokens = self._tokens(prompt, "a prompt"), self._tokens(stop, "stop")
        limit = _integer(max_new_tokens)
        if limit is None or limit < 0:
            raise SpmdirError(f"max_new_tokens is {shown(max_new_tokens)}; expected an integer of at least 0")
        needed = len(tokens) + max(limit, 1) - 1  # the last token is not written
        if needed > self.max_length:
            raise SpmdirError(
                f"{len(tokens)} prompt tokens and {limit} new tokens need {needed} rows of a cache; "
                f"expected at most {self.max_length}, the max_length of the served model"
            )
        request = Request(tuple(tokens), limit, frozenset(stop_tokens))
        if not request.has_ended:
            self._waiting.append(request)
        return request

    def _tokens(self, values: Iterable[Any], owner: str) -> list[int]:
        """Return tokens as integers of Python; raise SpmdirError if one is not in the vocabulary."""
        tokens = []
        for value in values:
            token = _integer(value)
            if token is None or not 0 <= token < self.vocabulary:
                raise SpmdirError(
                    f"{owner} has the token {shown(value)}; expected integers from 0 to {self.vocabulary - 1}"
                )
            tokens.append(token)
        return tokens

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


def _integer(value: Any) -> int | None:
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
