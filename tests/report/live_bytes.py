"""The bytes that are live while the emitted graph of a rank runs op by op, on a rank alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

import spmdir
from spmdir.dialects import ir
from spmdir.dialects.values import sharding_of
from spmdir.simulator.distribution import local_tensor
from tests.models import cases

_SENT = torch.ops._c10d_functional

ALONE: dict[Any, Callable[..., Tensor]] = {
    _SENT.all_gather_into_tensor.default: lambda x, ranks, _: x.new_zeros((ranks * x.shape[0], *x.shape[1:])),
    _SENT.all_reduce.default: lambda x, *_: x.clone(memory_format=torch.contiguous_format),
    _SENT.reduce_scatter_tensor.default: lambda x, _, ranks, *__: x.new_zeros((x.shape[0] // ranks, *x.shape[1:])),
    _SENT.all_to_all_single.default: lambda x, received, *_: x.new_zeros((sum(received), *x.shape[1:])),
    _SENT.broadcast.default: lambda x, *_: x.clone(),
    _SENT.wait_tensor.default: lambda x: x,
}
"""Functional collective → what allocates as it does."""


class _Watched(fx.Interpreter):
    """Runs a graph, frees each value after its last use, and records the live bytes after each node."""

    def __init__(self, graph: fx.GraphModule, held: Sequence[Tensor]):
        super().__init__(graph)
        self.held, self.live = [*held, *graph.buffers()], []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return ALONE[target](*args, **kwargs) if target in ALONE else super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        for unused in [node for node in self.env if not node.users]:
            del self.env[unused]  # as the emitted code does, and an interpreter does not
        found = super().run_node(n)
        tensors = [*self.held, *_tensors(list(self.env.values())), *_tensors(found)]
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
        self.live.append(sum(storages.values()))
        return found


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def peak_of(graph: fx.GraphModule, arguments: Sequence[Tensor]) -> int:
    """Return the most bytes that are live while `graph` runs on `arguments`, which the caller holds."""
    watched = _Watched(graph, arguments)
    with torch.no_grad():
        watched.run(*arguments)
    return max(watched.live)


def modelled_and_measured(
    program: cases.Program, mesh: spmdir.Mesh, shardings: dict[str, str], passes: str = "propagate"
) -> tuple[float, int]:
    """Return the peak of the first rank as `memory_report` says it, and as it is when the emitted graph runs."""
    module = spmdir.run_passes(spmdir.import_fx(program.traced, mesh, shardings), passes)
    modelled = spmdir.memory_report(module).peak_bytes
    arguments = [
        local_tensor(tensor, sharding_of(value) or spmdir.Sharding(), mesh, 0).clone()
        for value, tensor in zip(ir.main_function(module).args, program.inputs, strict=True)
    ]
    return modelled, peak_of(spmdir.lower_to_fx(module), arguments)
