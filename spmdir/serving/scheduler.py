"""Choose the next call of a served model: requests get rows of the caches, prompts are prefilled in parts, rows decode.

The scheduler runs on one rank, without torch. For example, with 2 rows, prefills of 4 tokens, and requests A of 6
prompt tokens and 2 new ones, B of 3 and 1:

    prefill A[0:4]    prefill A[4:6] → 1st token of A    prefill B[0:3] → 1st token of B, row 1 is free
    decode A → 2nd token, row 0 is free
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from spmdir.serving.page_allocator import PageAllocator
from spmdir.serving.request_limits import Limits
from spmdir.serving.request_queue import RequestQueue
from spmdir.serving.requests import CANCELLED, Request
from spmdir.serving.sampling_settings import GREEDY, Sampling

DECODE = "decode"
"""The name of the program that computes one token of each sequence."""

PREFILL = "prefill_"
"""The names of programs for prompts start with this, followed by the number of tokens."""

CLEAR = "clear"
"""The name of the call that replaces numbers of the caches that are not finite by 0. It has no program."""

PADDING = -1
"""The position of padding: such a token is neither written to caches nor attended to."""


@attrs.frozen
class ModelCall:
    """A call of one program, on all ranks.

    Attributes:
        name: the name of the program, or `CLEAR`.
        rows: the row of the caches of each sequence that gets a token; None for a sequence that gets none.
        inputs: name → values of an input of the program. Sequences are padded on the left with position `PADDING`.
    """

    name: str
    rows: tuple[int | None, ...] = ()
    inputs: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _Sequence:
    """A request with a row of the caches, which hold the first `prefilled` tokens of its prompt, in `pages`."""

    request: Request
    pages: tuple[int, ...] = ()
    prefilled: int = 0

    @property
    def remaining(self) -> tuple[int, ...]:
        """The tokens of the prompt that are not in the caches."""
        return self.request.prompt[self.prefilled :]


@attrs.define(eq=False)
class Scheduler:
    """The running sequences of a served model.

    Attributes:
        queue: the requests that wait for a row.
        max_prefills: the largest number of prefills between two steps of sequences that decode.
    """

    queue: RequestQueue
    max_prefills: int = 4
    _allocator: PageAllocator = attrs.field(
        default=attrs.Factory(lambda self: PageAllocator.of(self.limits.pages or 0), takes_self=True), init=False
    )
    _sequences: dict[int, _Sequence] = attrs.field(factory=dict, init=False)
    _prefills: int = attrs.field(default=0, init=False)
    _is_unclean: bool = attrs.field(default=False, init=False)

    @property
    def limits(self) -> Limits:
        """The sizes of the served model."""
        return self.queue.limits

    def next_call(self) -> ModelCall | None:
        """Return the next call; None if no request runs or waits.

        While sequences decode, at most `max_prefills` prefills delay their next step.
        """
        self._admit()
        if self._is_unclean:
            self._is_unclean = False
            return ModelCall(CLEAR)
        partial = [row for row, sequence in self._sequences.items() if sequence.remaining]
        has_decoding = len(partial) < len(self._sequences)
        if partial and (self._prefills < self.max_prefills or not has_decoding):
            self._prefills += 1
            return self._prefill(partial[0])
        self._prefills = 0
        return self._decode() if has_decoding else None

    def record(self, call: ModelCall, tokens: Sequence[int]) -> None:
        """Add the next token of each sequence of a call. The rows of requests that end are free.

        A request whose logits are not numbers ends with an error. Before the next call, the caches are cleared of such
        numbers.
        """
        for row, token in zip(call.rows, tokens, strict=True):
            if row is None:
                continue
            request = self._sequences[row].request
            if 0 <= token < self.limits.vocabulary:
                request.add(token)
            else:
                request.end("the logits of the request are not numbers; expected finite parameters and activations")
                self._is_unclean = True
            if request.has_ended:
                self._free(row)

    def end_all(self, error: str) -> None:
        """End all requests with an error, and close the queue."""
        self.queue.close(error)
        for sequence in self._sequences.values():
            sequence.request.end(error)
        self._sequences.clear()

    def _admit(self) -> None:
        """End cancelled requests, and give free rows to waiting requests."""
        for row, sequence in [*self._sequences.items()]:
            if sequence.request.is_cancelled:
                sequence.request.end(CANCELLED)
                self._free(row)
        for row in range(self.limits.batch):
            if row not in self._sequences and (request := self.queue.take(self._fits)) is not None:
                pages = self._allocator.take(self._count_pages(request))
                self._sequences[row] = _Sequence(request, pages)

    def _count_pages(self, request: Request) -> int:
        """Return the number of pages that a request gets; 0 if each row of the caches is one page."""
        return 0 if self.limits.pages is None else self.limits.count_pages(request)

    def _fits(self, request: Request) -> bool:
        """Return whether enough pages are free for a request."""
        return self._count_pages(request) <= len(self._allocator.free)

    def _free(self, row: int) -> None:
        """Let a row of the caches and its pages be free."""
        self._allocator.give_back(self._sequences.pop(row).pages)

    def _table(self, rows: Sequence[int | None]) -> list[list[int]]:
        """Return the pages of the sequence of each row; -1 for absent pages."""
        columns = self.limits.max_length // self.limits.page_rows
        pages = [() if row is None else self._sequences[row].pages for row in rows]
        return [[*of_row, *[-1] * (columns - len(of_row))] for of_row in pages]

    def _prefill(self, row: int) -> ModelCall:
        """Return the call that writes the next part of a prompt into the caches.

        The part is padded at its start to a prompt length. The prompt [5, 6, 7] with the prompt lengths 2 and 4 takes
        one call, with the ids [0, 5, 6, 7] and the positions [PADDING, 0, 1, 2]. With the length 2 only, it takes two
        calls: [5, 6], then [0, 7].
        """
        sequence = self._sequences[row]
        remaining, lengths = sequence.remaining, self.limits.prompt_lengths
        length = next((length for length in lengths if length >= len(remaining)), lengths[-1])
        part = remaining[:length]
        padding = length - len(part)
        positions = range(sequence.prefilled, sequence.prefilled + len(part))
        sequence.prefilled += len(part)
        inputs = {
            "ids": [(0,) * padding + part],
            "positions": [(PADDING,) * padding + (*positions,)],
            **({"rows": [row]} if self.limits.pages is None else {"table": self._table([row])}),
            **_sampling_inputs([sequence.request.sampling]),
        }
        return ModelCall(f"{PREFILL}{length}", (None if sequence.remaining else row,), inputs)

    def _decode(self) -> ModelCall:
        """Return the call that computes the next token of each sequence whose prompt is in the caches."""
        batch = self.limits.batch
        rows: list[int | None] = [None] * batch
        ids, positions, samplings = [(0,)] * batch, [(PADDING,)] * batch, [GREEDY] * batch
        for row, sequence in self._sequences.items():
            if not sequence.remaining:
                request = sequence.request
                rows[row], ids[row], samplings[row] = row, (request.tokens[-1],), request.sampling
                positions[row] = (len(request.prompt) + len(request.tokens) - 1,)
        inputs = {"ids": ids, "positions": positions, **_sampling_inputs(samplings)}
        if self.limits.pages is not None:
            inputs["table"] = self._table(rows)
        return ModelCall(DECODE, tuple(rows), inputs)


def _sampling_inputs(samplings: Sequence[Sampling]) -> dict[str, list[Any]]:
    """Return the inputs of a program that specify how the token of each sequence is chosen."""
    return {
        "temperatures": [sampling.temperature for sampling in samplings],
        "top_k": [sampling.top_k for sampling in samplings],
        "top_p": [sampling.top_p for sampling in samplings],
        "seeds": [sampling.seed for sampling in samplings],
    }
