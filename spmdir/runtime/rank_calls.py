"""The steps of a call on one rank: take the local shards of the inputs, and run the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp
from xdsl.traits import is_side_effect_free

from spmdir.core.errors import SpmdirError
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects.aten import AtenOp
from spmdir.dialects.ir import main_function
from spmdir.lowering.compile_program import executable
from spmdir.lowering.process_groups import device_groups
from spmdir.runtime.failures import failing_node, is_collective, run_failure
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import NO_SIZES, Argument
from spmdir.simulator.distribution import local_tensor
from spmdir.simulator.simulate import check_tensor
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.group_registry import resolve_group


def run_rank(graph: fx.GraphModule, shards: Sequence[Tensor], ranks: Ranks, *, draws: bool = False) -> Sequence[Tensor]:
    """Run a program of this rank together with the other ranks, and return its results.

    If `attach_compiled` has compiled the program, the compiled form runs. `torch.autocast` has no effect: the program
    contains the casts of the trace.

    Args:
        draws: whether the program draws random numbers, from the generator of the first rank.

    Raises:
        SpmdirError: a collective fails because another rank has ended, hangs, or had an error; or an op fails.
    """
    if draws:
        _share_generator(ranks)
    try:
        with torch.autocast(ranks.device.type, enabled=False):
            return executable(graph)(*shards)
    except Exception as error:
        node = failing_node(graph, error)
        failure = run_failure(node, error, ranks.index, ranks.group.reported_errors())
        if not is_collective(node):
            ranks.group.report_error(failure)
        raise failure from error


def input_shard(
    argument: Argument, tensor: Tensor, ranks: Ranks, *, sizes: Mapping[str, int] = NO_SIZES, is_local: bool
) -> Tensor:
    """Return the local shard of an input, on the device of this rank.

    Args:
        tensor: the input, or this rank's shard of it if `is_local`.
        sizes: the symbolic sizes of the program.

    Raises:
        SpmdirError: the shape or element type differs from that of the program, or the tensor has no values.
    """
    check_input(argument, tensor, ranks, sizes=sizes, is_local=is_local)
    return (tensor if is_local else local_tensor(tensor, argument.sharding, ranks.mesh, ranks.index)).to(ranks.device)


def check_input(
    argument: Argument, tensor: Tensor, ranks: Ranks, *, sizes: Mapping[str, int] = NO_SIZES, is_local: bool
) -> None:
    """Raise SpmdirError unless `input_shard` accepts the tensor."""
    whole = meta = TensorMeta(argument.shape(sizes), argument.meta.dtype)
    expected_shape = f"the global shape {list(whole.shape)}"
    if is_local:
        meta = argument.sharding.local_type(whole, ranks.mesh, ranks.mesh.coordinate(ranks.index))
        expected_shape = f"the local shape {list(meta.shape)}, this rank's shard of {list(whole.shape)}"
    if not argument.is_tangent:
        expected_shape += ", as in the example inputs" + _shape_advice(tensor, whole.shape, meta.shape)
    check_tensor(argument.name, tensor, meta.shape, meta.dtype, expected_shape)
    if tensor.is_meta:
        raise SpmdirError(
            f"'{argument.name}' is on the meta device, where tensors have no values; expected values: pass a "
            "tensor of another device"
        )
    expected = TORCH_DTYPES[meta.dtype]
    if tensor.dtype != expected:
        raise SpmdirError(
            f"'{argument.name}' has dtype {tensor.dtype}; expected {expected}, as the program was traced: "
            f"convert it with .to({expected}), or trace the program with {tensor.dtype}"
        )


def _shape_advice(tensor: Any, whole: Sequence[int], local: Sequence[int]) -> str:
    """Return the advice of an error about an input of the wrong shape.

    With the example shape (8, 5), of which this rank has the shard (2, 5), an input of shape (8, 5) is the shard of an
    example of shape (32, 5).

    Args:
        whole: the global shape of the example.
        local: the expected shape: of this rank's shard of the example, or `whole`.
    """
    shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else ()
    if len(shape) != len(whole):
        return ""
    if shape == tuple(whole):
        example = [
            size * (global_size // local_size if local_size else 1)
            for size, global_size, local_size in zip(shape, whole, local, strict=True)
        ]
        return (
            f": with local_inputs=True the example inputs have global shapes; if {list(shape)} is the shard of one "
            f"rank, give an example of {example}"
        )
    return ": give dynamic_shapes for calls with other sizes"


def copy_overwritten(
    results: Sequence[Any], overwritten: Iterable[Tensor], exempt: Set[int] = frozenset()
) -> list[Any]:
    """Return the results, with copies of those that share memory with tensors that calls overwrite.

    Args:
        results: the results; None for one that was not computed.
        overwritten: the tensors that calls overwrite.
        exempt: the indices of results that are not copied.
    """
    storages = {tensor.untyped_storage().data_ptr() for tensor in overwritten}
    copies = []
    for index, result in enumerate(results):
        if result is not None and index not in exempt and result.untyped_storage().data_ptr() in storages:
            result = result.detach().clone()
        copies.append(result)
    return copies


def copy_shared(results: Iterable[Tensor], arguments: Iterable[Tensor]) -> list[Tensor]:
    """Return the results, with copies of those that share elements with an argument, an earlier result or themselves.

    A result shares elements with itself if a stride is 0, as after `expand`. Afterwards each result may be written to,
    as gradients are when they are summed or clipped. Results that are disjoint parts of the buffer of one message are
    not copied.
    """
    ranges_in_use: dict[int, list[tuple[float, float]]] = {
        tensor.untyped_storage().data_ptr(): [(0, math.inf)] for tensor in arguments
    }
    copies = []
    for result in results:
        begin, end, repeats = _extent(result)
        ranges = ranges_in_use.get(result.untyped_storage().data_ptr(), ())
        if repeats or any(begin < range_end and range_begin < end for range_begin, range_end in ranges):
            result = result.clone(memory_format=torch.contiguous_format)
            begin, end, _ = _extent(result)
        ranges_in_use.setdefault(result.untyped_storage().data_ptr(), []).append((begin, end))
        copies.append(result)
    return copies


def _extent(tensor: Tensor) -> tuple[int, int, bool]:
    """Return (first byte in the storage, byte after the last, whether elements share memory) of a tensor.

    A float32 tensor of shape (3, 4) at element 10 of its storage, with the strides (4, 1), gives (40, 88, False).
    """
    sizes_and_strides = [
        (size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1
    ]
    begin = int(tensor.storage_offset())
    end = begin
    if tensor.numel():
        end += 1 + sum((size - 1) * stride for size, stride in sizes_and_strides)
    repeats = any(not stride for _, stride in sizes_and_strides)
    return begin * tensor.itemsize, end * tensor.itemsize, repeats


def draws(module: ModuleOp) -> bool:
    """Return whether a program draws random numbers."""
    ops = main_function(module).body.block.ops
    return any(isinstance(op, AtenOp) and not is_side_effect_free(op) for op in ops)


def _share_generator(ranks: Ranks) -> None:
    """Set the random generator of this rank to the state of the generator of the first rank; all ranks must call this.

    Only the generator of the device of the ranks is set.
    """
    source = torch.random if ranks.device.type == "cpu" else torch.get_device_module(ranks.device)
    state = source.get_rng_state().to(ranks.device)
    broadcast_first(state, "the state of the random generator", ranks)
    source.set_rng_state(state.cpu())


def used_anywhere(used: Set[int], count: int, ranks: Ranks) -> set[int]:
    """Return the indices of the outputs that the loss of at least one rank uses; all ranks must call this.

    Args:
        used: the indices of the outputs that the loss of this rank uses.
        count: the number of outputs.

    Raises:
        SpmdirError: another rank does not call this; with the error that it reported.
    """
    flags = torch.tensor([index in used for index in range(count)], dtype=torch.int32, device=ranks.device)
    _run_on_all_ranks(
        lambda group: dist.all_reduce(flags, dist.ReduceOp.MAX, group=group),
        "the exchange of the outputs that losses use",
        ranks,
    )
    return {index for index, flag in enumerate(flags.tolist()) if flag}


def broadcast_first(values: Tensor, subject: str, ranks: Ranks) -> None:
    """Overwrite `values` with those of the first rank; all ranks of the mesh must call this.

    Raises:
        SpmdirError: another rank does not call this; with the error that it reported.
    """
    _run_on_all_ranks(
        lambda group: dist.broadcast(values, group=group, group_src=0), f"the broadcast of {subject}", ranks
    )


def _run_on_all_ranks(collective: Callable[[Any], Any], operation: str, ranks: Ranks) -> None:
    """Run a collective in the group of all ranks of the mesh.

    Args:
        collective: process group → the result of the collective, which is ignored.
        operation: the name of the collective in errors.

    Raises:
        SpmdirError: the collective fails, because another rank has ended, hangs or had an error.
    """
    world: Any = device_groups(ranks.mesh, ranks.device_mesh)(ranks.mesh.axis_names)
    try:
        collective(resolve_group(world))
    except RuntimeError as error:
        axes, reason = ", ".join(ranks.mesh.axis_names), str(error).partition("\n")[0]
        raise SpmdirError(
            f"{operation} on mesh axes [{axes}] fails on rank {ranks.index}: "
            f"{ranks.group.reported_errors() or 'another rank has ended or hangs; '}{reason}"
        ) from error
