"""`serve`: the programs of a language model on real ranks, and `generate`.

The first rank schedules requests. Before each call it sends all ranks one message with the tokens, positions and rows
of the call, so ranks never decide separately.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Unpack

import attrs
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects import ir
from spmdir.dialects.caches import KIND
from spmdir.dialects.values import signature_kind
from spmdir.pipeline.pipeline import Pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.runtime.decision import decide
from spmdir.runtime.digests import agreement
from spmdir.runtime.initial_state import initial_state
from spmdir.runtime.parallel_options import ChosenOptions, ParallelOptions
from spmdir.runtime.rank_calls import broadcast_first, input_shard, run_rank
from spmdir.runtime.rank_programs import RankGraph, lower_rank_graph
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.set_up import SetUp, set_up
from spmdir.runtime.signature import Argument, Signature, read_signature
from spmdir.serving.capture_model import capture
from spmdir.serving.programs import DECODE, PREFILL, program_of, scheduler_of
from spmdir.serving.scheduler import ModelCall, Request, Scheduler
from spmdir.torch_interop.dtypes import TORCH_DTYPES

_FAILED = -1
"""The length of a call in the message by which the first rank ends the calls of all ranks after an error."""

_UNSUPPORTED = ("out_shardings", "local_inputs", "dynamic_shapes", "cache")
"""The options of `parallelize` that `serve` does not take."""


def serve(
    model: nn.Module,
    mesh: Mesh | DeviceMesh,
    plan: Mapping[str, ShardingLike | None] | ShardingPlan | str | None = None,
    *,
    batch: int,
    max_length: int,
    prompt_lengths: Sequence[int] = (32, 256),
    **options: Unpack[ParallelOptions],
) -> Served:
    """Return a served language model on this rank; all ranks must call this with equal arguments.

    The first rank captures the model and decides the shardings of `decode`. The prefills get the same shardings of
    parameters and caches. All programs are lowered before this returns, so nothing is lowered while the model serves.

    Args:
        model: the model, in eval mode, with equal values on all ranks. It does not change, and can be deleted.
        mesh: a Mesh, or a torch DeviceMesh with named axes.
        plan, batch, max_length, prompt_lengths: as for `capture`.
        options: see `ParallelOptions`; except out_shardings, local_inputs, dynamic_shapes and cache.

    Raises:
        SpmdirError: there is no process group; the model cannot be captured or partitioned; or ranks differ.

    Example:
        >>> served = spmdir.serving.serve(model, spmdir.Mesh({"tp": 4}), batch=8, max_length=2048)
        >>> served.generate([[1, 15, 27]], max_new_tokens=20)
    """
    for name in _UNSUPPORTED:
        if name in options:
            raise UnsupportedError(f"serve does not support the option '{name}'; remove it")
    chosen = ChosenOptions.of(options)
    setup = set_up("serve", mesh, chosen)

    def decide_on_first() -> str:
        module = capture(model, setup.mesh, plan, batch=batch, max_length=max_length, prompt_lengths=prompt_lengths)
        return ir.print_ir(decide(module, setup.pipeline, None, type(model).__name__), debuginfo=True)

    with setup.pipeline.rules:
        module = ir.read_printed(setup.group.broadcast_text("the capture of the model", decide_on_first))
        with setup.group.check_agreement("lowering") as status:
            programs = {
                function.sym_name.data: _lower(program_of(module, function.sym_name.data), setup)
                for function in ir.functions(module)
            }
            status |= agreement(*((program.graph.module, program.graph.graph) for program in programs.values()))
            arguments = {name: arg for program in programs.values() for name, arg in program.parameters.items()}
            tensors = dict(
                (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
            )
            originals = {name: tensors[name] for name in arguments}
            initial = initial_state(list(arguments.values()), originals, setup, status)
            caches = {
                name: _empty_cache(argument, setup)
                for program in programs.values()
                for name, argument in program.caches.items()
            }
    with setup.group.report_errors():
        ranks = setup.connect_ranks()
        for program in programs.values():
            program.graph.connect(ranks)
        initial.copy_from_first_rank(ranks)
    shards = {name: shard.detach() for name, shard in initial.shards.items()}
    return Served(module, setup.pipeline, ranks, programs, {**shards, **caches}, scheduler_of(module))


@attrs.frozen(eq=False)
class _Program:
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


def _lower(module: ModuleOp, setup: SetUp) -> _Program:
    """Return the program of this rank for a decided module with one function."""
    function = ir.main_function(module)
    signature = read_signature(function, 1)
    caches = {
        argument.name: argument
        for index, argument in enumerate(signature.arguments)
        if signature_kind(function, "arg_attrs", index) == KIND
    }
    graph = lower_rank_graph(
        module,
        partial(localize, pipeline=setup.pipeline),
        pipeline=setup.pipeline,
        rank=setup.rank,
        device=setup.device,
    )
    return _Program(signature, graph, caches)


def _empty_cache(argument: Argument, setup: SetUp) -> Tensor:
    """Return the local shard of a cache, with zeros."""
    local = argument.sharding.local_type(argument.meta, setup.mesh, setup.mesh.coordinate(setup.rank))
    return torch.zeros(local.shape, dtype=TORCH_DTYPES[local.dtype], device=setup.device)


@attrs.frozen(eq=False)
class Served:
    """A language model that ranks serve together.

    Attributes:
        module: the decided programs of all ranks, with one sharding of each parameter and cache.
        pipeline: the passes of the programs.
    """

    module: ModuleOp
    pipeline: Pipeline
    _ranks: Ranks
    _programs: Mapping[str, _Program]
    _state: Mapping[str, Tensor]
    _scheduler: Scheduler

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
    ) -> list[list[int]]:
        """Return the tokens that follow each prompt, the most probable ones; all ranks must call this.

        There may be more prompts than rows: a request starts when the row of an earlier one is free. The prompts of
        the first rank are used, and all ranks return its results.

        Args:
            prompts: the tokens of each prompt, of any lengths.
            max_new_tokens: the largest number of new tokens, of all prompts or of each.
            stop: tokens after which a sequence ends; None if there are none. The result contains the stop token.

        Raises:
            SpmdirError: on all ranks: an argument is invalid, a request does not fit in the caches, or a collective
                fails.

        Example:
            >>> served.generate([[1, 15, 27], [1, 9]], max_new_tokens=20, stop=[2])
        """
        requests: list[Request] = []
        with self._ranks.group.check_agreement("generate"):
            if self._ranks.index == 0:
                self._scheduler.clear()
                requests += self._scheduler.submit_all(prompts, max_new_tokens, stop)
        try:
            while (call := self._next_call()) is not None:
                tokens = self._run(call)
                if self._ranks.index == 0:
                    with self._ending_calls():
                        self._scheduler.record(call, tokens)
        except Exception:
            for name in self._programs[DECODE].caches:
                self._state[name].zero_()  # rows that are not numbers would reach later sequences
            raise
        results = self._ranks.group.broadcast_text(
            "the results of generate", lambda: json.dumps([request.tokens for request in requests])
        )
        return json.loads(results)

    @property
    def _message_width(self) -> int:
        """The largest number of tokens of a call."""
        return max(self._scheduler.batch, *self._scheduler.prompt_lengths)

    def _next_call(self) -> ModelCall | None:
        """Return the next call of the scheduler of the first rank, on all ranks; None if all requests have ended.

        The message has the length of the call, 0 at the end; the row of a prefill; then tokens and positions.
        """
        width = self._message_width
        message = torch.zeros(2 + 2 * width, dtype=torch.int64)
        if self._ranks.index == 0:
            with self._ending_calls():
                call = self._scheduler.next_call()
            if call is not None:
                ids, positions = itertools.chain(*call.ids), itertools.chain(*call.positions)
                for start, values in ((0, (call.length, *(call.rows or (-1,)))), (2, ids), (2 + width, positions)):
                    values = torch.tensor([*values])
                    message[start : start + len(values)] = values
        length, row, *numbers = self._send(message)
        if length == _FAILED:
            raise SpmdirError(f"{self._ranks.group.reported_errors()}the first rank cannot schedule the next call")
        if length == 0:
            return None
        count = self._scheduler.batch if row < 0 else 1
        ids, positions = (
            tuple(tuple(numbers[start + index * length :][:length]) for index in range(count)) for start in (0, width)
        )
        return ModelCall(length, ids, positions, None if row < 0 else (row,))

    def _send(self, message: Tensor) -> list[int]:
        """Return the message of the first rank on all ranks."""
        on_device = message.to(self._ranks.device)
        broadcast_first(on_device, "the next call", self._ranks)
        return on_device.tolist()

    @contextmanager
    def _ending_calls(self) -> Iterator[None]:
        """If the body raises on the first rank, let all ranks end, and raise."""
        try:
            yield
        except Exception as error:
            self._ranks.group.report_error(error)
            message = torch.zeros(2 + 2 * self._message_width, dtype=torch.int64)
            message[0] = _FAILED
            self._send(message)
            raise

    def _run(self, call: ModelCall) -> list[int]:
        """Run a call with the other ranks, and return the next token of each sequence. The caches change in place."""
        program = self._programs[DECODE if call.rows is None else f"{PREFILL}{call.length}"]
        inputs = {"ids": call.ids, "positions": call.positions, "rows": call.rows}
        with self._ranks.group.report_errors():
            tensors = [
                self._state[argument.name]
                if argument.is_state
                else input_shard(argument, torch.tensor(inputs[argument.name]), self._ranks, is_local=False)
                for argument in program.signature.arguments
            ]
        return run_rank(program.graph.graph, tensors, self._ranks)[0].tolist()
