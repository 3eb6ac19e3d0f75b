"""`Served`: the programs of a language model on one rank, which run requests.

The first rank schedules requests. Before each call it sends all ranks one message with the program and its inputs, so
ranks never decide separately.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import attrs
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError, shown
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.runtime.rank_calls import broadcast_first, input_shard, run_rank
from spmdir.runtime.rank_programs import RankGraph
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument, Signature
from spmdir.serving.call_messages import END, FAILED, IDLE, CallMessages
from spmdir.serving.programs import program_of
from spmdir.serving.request_limits import Limits
from spmdir.serving.request_queue import RequestQueue
from spmdir.serving.requests import Request
from spmdir.serving.sampling_settings import GREEDY, Sampling
from spmdir.serving.scheduler import CLEAR, ModelCall, Scheduler

_Result = TypeVar("_Result")


@attrs.frozen(eq=False)
class ServedProgram:
    """A program of this rank.

    Attributes:
        signature: its arguments and results.
        graph: its graph.
        caches: name → argument, for the caches.
    """

    signature: Signature
    graph: RankGraph
    caches: Mapping[str, Argument]

    @property
    def parameters(self) -> dict[str, Argument]:
        """Name → argument, for the parameters and buffers."""
        return {arg.name: arg for arg in self.signature.state_arguments if arg.name not in self.caches}


@attrs.frozen(eq=False)
class Served:
    """A language model that ranks serve together.

    Attributes:
        module: the decided programs of all ranks, with one sharding of each parameter and cache.
        pipeline: the passes of the programs.
        limits: the requests that the model accepts.
    """

    module: ModuleOp
    pipeline: Pipeline
    limits: Limits
    _ranks: Ranks
    _programs: Mapping[str, ServedProgram]
    _state: Mapping[str, Tensor]

    def rank_module(self, name: str) -> ModuleOp:
        """Return the program of a rank in the IR for the function `name`, such as `decode`, with its schedule.

        Raises:
            SpmdirError: there is no such program.
        """
        with self.pipeline.rules:
            return localize(program_of(self.module, name), self.pipeline)

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int | Sequence[int],
        *,
        stop: Collection[int] | None = None,
        sampling: Sampling | Sequence[Sampling] = GREEDY,
    ) -> list[list[int]]:
        """Return the tokens that follow each prompt; all ranks must call this.

        There may be more prompts than rows: a request starts when the row of an earlier one is free. The prompts of
        the first rank are used, and all ranks return its results.

        Args:
            prompts: the tokens of each prompt, of any lengths.
            max_new_tokens: the largest number of new tokens, of all prompts or of each.
            stop: tokens after which a sequence ends; None if there are none. The result contains the stop token.
            sampling: how tokens are chosen, of all prompts or of each; by default, the most probable ones.

        Raises:
            SpmdirError: on all ranks: an argument is invalid, a request does not fit in the caches, or a collective
                fails.

        Example:
            >>> served.generate([[1, 15, 27], [1, 9]], max_new_tokens=20, stop=[2])
        """
        requests: list[Request] = []
        queue = None
        with self._ranks.group.check_agreement("generate"):
            if self._is_first:
                requests += self.limits.requests(prompts, max_new_tokens, stop, sampling)
                queue = RequestQueue(self.limits)
                for request in requests:
                    queue.add(request)
                queue.close()
        self._run_queue(queue)

        def result_text() -> str:
            for index, request in enumerate(requests):
                if request.error is not None:
                    raise SpmdirError(f"prompt {index}: {request.error}")
            return json.dumps([request.tokens for request in requests])

        return json.loads(self._ranks.group.broadcast_text("the results of generate", result_text))

    def queue(self, max_waiting: int | None = None) -> RequestQueue:
        """Return an empty queue for `run`, to which any thread of the first rank can add requests.

        Args:
            max_waiting: the largest number of requests that wait for a row of the caches; None for any number.
        """
        return RequestQueue(self.limits, max_waiting)

    @torch.no_grad()
    def run(self, queue: RequestQueue | None = None) -> None:
        """Run the requests of a queue until it is closed and all have ended; all ranks must call this.

        If this raises, all requests have ended with the error, and the queue is closed. The ranks cannot run again.

        Args:
            queue: the queue, on the first rank. Other ranks take no queue.

        Raises:
            SpmdirError: a rank has no queue, or one too many; or another rank has ended, hangs or had an error.

        Example:
            >>> queue = served.queue()
            >>> request = queue.submit([1, 15, 27], max_new_tokens=20)
            >>> queue.close()
            >>> served.run(queue)
            >>> request.tokens
        """
        with self._ranks.group.check_agreement("run"):
            if (queue is not None) is not self._is_first:
                expected = "a queue of this served model" if self._is_first else "None on ranks other than the first"
                raise SpmdirError(f"queue is {shown(queue)}; expected {expected}")
        self._run_queue(queue)

    def _run_queue(self, queue: RequestQueue | None) -> None:
        """Run the requests of a queue of the first rank."""
        scheduler = None if queue is None else Scheduler(queue)
        messages = CallMessages(
            {
                **dict.fromkeys((END, IDLE, FAILED, CLEAR), ()),
                **{name: program.signature.inputs for name, program in self._programs.items()},
            }
        )
        try:
            while self._run_call(scheduler, messages):
                pass
        except Exception as error:
            if scheduler is not None:
                scheduler.end_all(
                    error.message if isinstance(error, SpmdirError) else f"{type(error).__name__}: {error}"
                )
            self._clear_caches(lambda cache: cache.zero_())
            raise

    def _run_call(self, scheduler: Scheduler | None, messages: CallMessages) -> bool:
        """Run the next call of the scheduler of the first rank, on all ranks; return False after the last call."""
        call = None
        message = torch.zeros(messages.width, dtype=torch.int64)
        if scheduler is not None:
            call = self._or_end(messages, lambda: self._next_call(scheduler))
            message = messages.encode(call.name, call.inputs)
        name, inputs = messages.decode(self._send(message))
        if name == FAILED:
            raise SpmdirError(f"{self._ranks.group.reported_errors()}the first rank cannot schedule the next call")
        if name == CLEAR:
            self._clear_caches(lambda cache: cache.masked_fill_(~cache.isfinite(), 0))
        if name in self._programs:
            tokens = self._run(self._programs[name], inputs)
            if scheduler is not None and call is not None:
                self._or_end(messages, lambda: scheduler.record(call, tokens))
        return name != END

    def _next_call(self, scheduler: Scheduler) -> ModelCall:
        """Return the next call of the first rank. Without requests, wait for one, but not as long as the timeout."""
        call = scheduler.next_call()
        if call is None:
            has_changed = scheduler.queue.wait(min(self._timeout / 4, 10.0))
            is_over = has_changed and scheduler.queue.is_closed and not scheduler.queue.waiting
            call = ModelCall(END if is_over else IDLE)
        return call

    @property
    def _is_first(self) -> bool:
        """Whether this rank schedules."""
        return self._ranks.index == 0

    @property
    def _timeout(self) -> float:
        """The timeout of collectives, in seconds."""
        return self._ranks.timeout or self._ranks.group.timeout

    def _clear_caches(self, clear: Callable[[Tensor], object]) -> None:
        """Change all caches of this rank in place, so that rows that are not numbers do not reach later sequences."""
        for name in next(iter(self._programs.values())).caches:
            clear(self._state[name])

    def _send(self, message: Tensor) -> Tensor:
        """Return the message of the first rank on all ranks."""
        on_device = message.to(self._ranks.device)
        broadcast_first(on_device, "the next call", self._ranks)
        return on_device.cpu()

    def _or_end(self, messages: CallMessages, task: Callable[[], _Result]) -> _Result:
        """Return the result of a task of the first rank. If it raises, let all ranks end, and raise."""
        try:
            return task()
        except Exception as error:
            self._ranks.group.report_error(error)
            self._send(messages.encode(FAILED, {}))
            raise

    def _run(self, program: ServedProgram, inputs: Mapping[str, Tensor]) -> list[int]:
        """Run a program with the other ranks, and return the next token of each sequence. Caches change in place."""
        with self._ranks.group.report_errors():
            tensors = [
                self._state[argument.name]
                if argument.is_state
                else input_shard(argument, inputs[argument.name], self._ranks, is_local=False)
                for argument in program.signature.arguments
            ]
        return run_rank(program.graph.graph, tensors, self._ranks)[0].tolist()
