"""`serve`: capture a language model, decide its shardings once, and lower its programs on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import ShardingLike
from spmdir.core.placement.sharding_plan import ShardingPlan
from spmdir.dialects import ir
from spmdir.dialects.caches import CACHE_KIND
from spmdir.dialects.values import signature_kind
from spmdir.pipeline.remaining_passes import localize
from spmdir.runtime.decision import decide
from spmdir.runtime.digests import agreement
from spmdir.runtime.initial_state import initial_state
from spmdir.runtime.parallel_options import ChosenOptions, ParallelOptions
from spmdir.runtime.rank_programs import lower_rank_graph
from spmdir.runtime.set_up import SetUp, set_up
from spmdir.runtime.signature import Argument, read_signature
from spmdir.serving.capture_model import capture
from spmdir.serving.programs import limits_of, program_of
from spmdir.serving.served_model import Served, ServedProgram
from spmdir.torch_interop.dtypes import TORCH_DTYPES

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
    max_top_k: int = 64,
    new_tokens: int | None = None,
    pages: int | None = None,
    page_rows: int = 16,
    **options: Unpack[ParallelOptions],
) -> Served:
    """Return a served language model on this rank; all ranks must call this with equal arguments.

    The first rank captures the model and decides the shardings of all programs, with one sharding of each parameter and
    cache. All programs are lowered before this returns, so nothing is lowered while the model serves.

    Args:
        model: the model, in eval mode, with equal values on all ranks. It does not change, and can be deleted.
        mesh: a Mesh, or a torch DeviceMesh with named axes.
        plan, batch, max_length, prompt_lengths, max_top_k, new_tokens, pages, page_rows: as for
            `capture`.
        options: see `ParallelOptions`; except out_shardings, local_inputs, dynamic_shapes and cache.

    Raises:
        SpmdirError: there is no process group; the model cannot be captured or partitioned; or ranks differ.

    Example:
        >>> served = spmdir.serving.serve(model, spmdir.Mesh({"tp": 4}), batch=8, max_length=2048)
        >>> served.generate([[1, 15, 27]], max_new_tokens=20)
    """
    for name in _UNSUPPORTED:
        if name in options:
            raise UnsupportedError(f"serve does not support the option '{name}'; expected other options: remove it")
    chosen = ChosenOptions.of(options)
    setup = set_up("serve", mesh, chosen)

    def decide_on_first() -> str:
        module = capture(
            model,
            setup.mesh,
            plan,
            batch=batch,
            max_length=max_length,
            prompt_lengths=prompt_lengths,
            max_top_k=max_top_k,
            new_tokens=new_tokens,
            pages=pages,
            page_rows=page_rows,
        )
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
    return Served(module, setup.pipeline, limits_of(module), ranks, programs, {**shards, **caches})


def _lower(module: ModuleOp, setup: SetUp) -> ServedProgram:
    """Return the program of this rank for a decided module with one function."""
    function = ir.main_function(module)
    signature = read_signature(function, 1)
    caches = {
        argument.name: argument
        for index, argument in enumerate(signature.arguments)
        if signature_kind(function, "arg_attrs", index) == CACHE_KIND
    }
    graph = lower_rank_graph(
        module,
        partial(localize, pipeline=setup.pipeline),
        pipeline=setup.pipeline,
        rank=setup.rank,
        device=setup.device,
    )
    return ServedProgram(signature, graph, caches)


def _empty_cache(argument: Argument, setup: SetUp) -> Tensor:
    """Return the local shard of a cache, with zeros."""
    local = argument.sharding.local_type(argument.meta, setup.mesh, setup.mesh.coordinate(setup.rank))
    return torch.zeros(local.shape, dtype=TORCH_DTYPES[local.dtype], device=setup.device)
