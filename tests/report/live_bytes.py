"""The bytes that are live while the emitted graph of a rank runs op by op, on a rank alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

import spmdir
from spmdir.dialects import ir
from spmdir.dialects.values import sharding_of, updated_arguments
from spmdir.lowering.in_place import write_updates
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
    """Return the peak of a rank as `memory_report` says it, and as it is when the emitted graph runs.

    Of all ranks the first and the last run: exchanges let them hold chunks of their own for longer or less long.
    """
    module = spmdir.run_passes(spmdir.import_fx(program.traced, mesh, shardings), passes)
    last = mesh.group_size(mesh.axis_names) - 1
    return spmdir.report.memory_report(module).peak_bytes, max(
        _peak(module, program.inputs, rank) for rank in (0, last)
    )


def of_text(text: str) -> tuple[float, int]:
    """Return the peak of the rank that holds most in the decided program `text`, as modelled and as it is."""
    module = spmdir.parse(text)
    inputs = [torch.zeros(value.type.get_shape()) for value in ir.main_function(module).args]  # type: ignore  # a tensor
    mesh = ir.mesh(module)
    measured = max(_peak(module, inputs, rank) for rank in range(mesh.group_size(mesh.axis_names)))
    return spmdir.report.memory_report(module).peak_bytes, measured


def _peak(module: ModuleOp, inputs: Sequence[Tensor], rank: int) -> int:
    arguments = [
        local_tensor(tensor, sharding_of(value) or spmdir.Sharding(), ir.mesh(module), rank).clone()
        for value, tensor in zip(ir.main_function(module).args, inputs, strict=True)
    ]
    graph, updated = spmdir.lower_to_fx(module, rank), updated_arguments(ir.main_function(module))
    write_updates(graph, {result: argument.index for result, argument in updated.items() if argument is not None})
    return peak_of(graph, arguments)
