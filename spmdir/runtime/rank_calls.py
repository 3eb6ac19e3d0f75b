"""What a rank does in a call: takes its shards of the inputs, runs its program, shares the random generator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch._C._distributed_c10d import _resolve_process_group
from xdsl.dialects.builtin import ModuleOp
from xdsl.traits import is_side_effect_free

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.ir import main_function
from spmdir.lowering.compiled import executable
from spmdir.lowering.process_groups import device_groups
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.failures import failing_node, is_collective, run_failure
from spmdir.runtime.signature import Argument
from spmdir.simulator.distribution import local_tensor
from spmdir.simulator.simulate import check_tensor
from spmdir.torch_interop.dtypes import TORCH_DTYPES


def run_rank(graph: fx.GraphModule, shards: Sequence[Tensor], ranks: RankGroup) -> Sequence[Tensor]:
    """Run a program of this rank, compiled if `run_compiled` says so, together with the other ranks.

    `torch.autocast` changes nothing in it: the casts of its trace are in the program.

    Raises:
        SpmdirError: a collective fails since another rank has ended, stalls, or had an error; or an op fails.
    """
    device = shards[0].device.type if shards else "cpu"
    try:
        with torch.autocast(device, enabled=False):
            return executable(graph)(*shards)
    except Exception as error:
        node = failing_node(graph, error)
        failure = run_failure(node, error, ranks.index, ranks.reports())
        if not is_collective(node):
            ranks.report(failure)
        raise failure from error


def input_shard(
    argument: Argument, tensor: Tensor, shape: tuple[int, ...], mesh: Mesh, rank: int, is_local: bool
) -> Tensor:
    """Return what the program of `rank` takes for an input of global `shape`.

    Args:
        is_local: whether `tensor` is the shard itself.

    Raises:
        SpmdirError: the tensor has another shape or element type than the program takes.
    """
    meta, sharding = TensorMeta(shape, argument.meta.dtype), argument.sharding
    if is_local:
        meta = sharding.local_type(meta, mesh, mesh.coordinate(rank))
    check_tensor(argument.name, tensor, meta.shape, meta.dtype)
    expected = TORCH_DTYPES[meta.dtype]
    if tensor.dtype != expected:
        raise SpmdirError(
            f"'{argument.name}' has dtype {tensor.dtype}; expected {expected}, as the program was traced: "
            f"convert it with .to({expected}), or trace the program with {tensor.dtype}"
        )
    return tensor if is_local else local_tensor(tensor, sharding, mesh, rank)


def apart(results: Sequence[Any], held: Iterable[Tensor], kept: Set[int] = frozenset()) -> list[Any]:
    """Return the results, with copies of those in the memory of `held`, which calls overwrite, unless `kept`.

    None stands for a result that was left out.
    """
    owned = {tensor.untyped_storage().data_ptr() for tensor in held}
    return [
        r if r is None or index in kept or r.untyped_storage().data_ptr() not in owned else r.detach().clone()
        for index, r in enumerate(results)
    ]


def owned(results: Iterable[Tensor], held: Iterable[Tensor]) -> list[Tensor]:
    """Return the results, with copies of those that share memory with `held`, another result or their own elements.

    Each may then be written to: gradients are, where they are added up or clipped.
    """
    taken = {tensor.untyped_storage().data_ptr() for tensor in held}
    found = []
    for result in results:
        repeats = any(stride == 0 and size > 1 for size, stride in zip(result.shape, result.stride(), strict=True))
        if repeats or result.untyped_storage().data_ptr() in taken:
            result = result.clone(memory_format=torch.contiguous_format)
        taken.add(result.untyped_storage().data_ptr())
        found.append(result)
    return found


def draws(module: ModuleOp) -> bool:
    """Return whether a program draws random numbers."""
    ops = main_function(module).body.block.ops
    return any(isinstance(op, AtenOp) and not is_side_effect_free(op) for op in ops)


def share_generator(device: torch.device, mesh: Mesh, device_mesh: Any, ranks: RankGroup) -> None:
    """Set the generator of every rank's `device` to the state of the first rank's; all ranks must call this."""
    source = torch.random if device.type == "cpu" else torch.get_device_module(device)
    drawn = source.get_rng_state().to(device)
    what = "the random generator, which comes before the run,"
    broadcast_first(drawn, what, mesh, device_mesh, ranks)
    source.set_rng_state(drawn.cpu())


def mesh_group(mesh: Mesh, device_mesh: Any) -> Any:
    """Return the process group of all ranks of the mesh."""
    name: Any = device_groups(mesh, device_mesh)(mesh.axis_names)
    return _resolve_process_group(name)


def broadcast_first(values: Tensor, what: str, mesh: Mesh, device_mesh: Any, ranks: RankGroup) -> None:
    """Overwrite `values` by those of the first rank; all ranks of the mesh must call this.

    Raises:
        SpmdirError: another rank does not come, with what that one left.
    """
    try:
        dist.broadcast(values, group=mesh_group(mesh, device_mesh), group_src=0)
    except RuntimeError as error:
        axes, reason = ", ".join(mesh.axis_names), str(error).partition("\n")[0]
        raise SpmdirError(
            f"the broadcast of {what} on mesh axes [{axes}] fails on rank {ranks.index}: "
            f"{ranks.reports() or 'another rank has ended or is stuck; '}{reason}"
        ) from error
