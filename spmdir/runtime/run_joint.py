"""Run the forward and the backward of a sharded module on a rank, as an autograd function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.runtime.joint_program import JointProgram
from spmdir.runtime.local_state import like_shard, local_shard
from spmdir.runtime.rank_calls import copy_overwritten, copy_shared, input_shard, run_rank, used_anywhere
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument, Result
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import without_subclasses
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.tensors import version

FinishGradients = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]


def run_joint(
    program: JointProgram,
    ranks: Ranks,
    module_tensors: Mapping[str, DTensor],
    inputs: Sequence[Tensor],
    finish_gradients: FinishGradients,
) -> Any:
    """Return the output of the module for a call; gradients of outputs flow to `module_tensors` and to the inputs.

    Args:
        module_tensors: name → parameter or buffer. Buffers that the module updates are written to.
        inputs: the tensors of the call.
        finish_gradients: converts the gradients that the backward computes, by the names of arguments, to those that it
            returns.

    Raises:
        SpmdirError: the arguments do not fit, or a collective fails.
    """
    with ranks.group.report_errors():
        remaining_inputs = iter(inputs)
        tensors, shards = [], []
        for argument in program.forward_arguments:
            if argument.is_state:
                tensor = module_tensors[argument.name]
                shard = local_shard(tensor)
            else:
                tensor = next(remaining_inputs)
                shard = input_shard(argument, tensor.detach(), ranks, is_local=ranks.local_inputs)
            tensors.append(tensor)
            shards.append(shard)
    returned: Any = iter(_Run.apply(program, ranks, module_tensors, shards, finish_gradients, *tensors))
    leaves = [next(returned) if isinstance(leaf, Result) else leaf for leaf in program.leaves]
    return pytree.tree_unflatten(leaves, program.convention.out_spec)


class _Run(torch.autograd.Function):
    """Runs the forward on shards, and the backward on the tensors that the forward saved."""

    @staticmethod
    def forward(
        ctx: Any,
        program: JointProgram,
        ranks: Ranks,
        module_tensors: Mapping[str, DTensor],
        shards: Sequence[Tensor],
        finish_gradients: FinishGradients,
        *tensors: Tensor,
    ) -> Any:
        """Return the tensors among the outputs; gradients flow to `tensors`, whose local shards are `shards`."""
        results = run_rank(program.forward.graph, shards, ranks, draws=program.forward.draws)
        shard_of_argument = {
            argument.name: shard for argument, shard in zip(program.forward_arguments, shards, strict=True)
        }
        updates = [(shard_of_argument[argument.name], results[index]) for argument, index in program.buffer_updates]
        outputs = copy_overwritten(results[: len(program.tensors)], shards)
        saved = copy_overwritten(results[len(results) - program.saved :], [buffer for buffer, _ in updates])
        for buffer, new_value in updates:
            buffer.copy_(new_value)
        ctx.program, ctx.ranks = program, ranks
        ctx.finish_gradients, ctx.module_tensors = finish_gradients, module_tensors
        ctx.late_buffers = [shard_of_argument[name] for name in program.late_buffers]
        ctx.save_for_backward(*saved)
        ctx.versions = _versions(module_tensors, shard_of_argument, saved) if any(ctx.needs_input_grad) else []
        ctx.set_materialize_grads(False)
        differentiable_outputs = {output_index for output_index, _ in program.tangents}
        pairs = zip(program.tensors, outputs, strict=True)
        ctx.mark_non_differentiable(
            *(output for output_index, output in pairs if output_index not in differentiable_outputs)
        )
        return tuple(outputs)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise UnsupportedError(
            "cannot compute the forward-mode derivative of a sharded module; expected reverse-mode "
            "derivatives: use backward or torch.autograd.grad"
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Return the gradients of the tensors of the call; None for tensors without a gradient.

        A second backward through these gradients is an error.
        """
        with torch.no_grad():
            results = _gradients(ctx, gradients)
        if torch.is_grad_enabled():  # with create_graph=True
            # A second backward through these gradients must be an error. Autograd records a call only if one of its
            # arguments requires a gradient, so the call has an additional argument that does.
            results = {
                name: _WithoutSecondGradient.apply(gradient, torch.ones((), requires_grad=True))
                for name, gradient in results.items()
            }
        gradients_of_tensors = [results.get(argument.name) for argument in ctx.program.forward_arguments]
        # The first five arguments of `forward`, from `program` to `finish_gradients`, have no gradients.
        return None, None, None, None, None, *gradients_of_tensors


class _WithoutSecondGradient(torch.autograd.Function):
    """Returns a gradient whose backward is an error: autograd alone would silently ignore it."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, anchor: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.detach()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise UnsupportedError(
            "cannot compute the gradient of a gradient of a sharded module; expected first gradients: use "
            "spmdir.training_step, whose losses may contain gradients, or detach the gradient"
        )


def _gradients(ctx: Any, gradients: Sequence[Tensor | None]) -> Mapping[str, Tensor]:
    """Run the backward, and return argument name → gradient.

    Buffers that the backward writes to get their new values.

    Args:
        ctx: the context of `_Run`.
        gradients: the gradient of each tensor among the outputs; None if no loss depends on the output.

    Raises:
        SpmdirError: a tensor that the backward reads was written to after the forward, or a collective fails.
    """
    program, ranks = ctx.program, ctx.ranks
    for name, tensor, count in ctx.versions:
        if version(tensor) != count:
            raise SpmdirError(
                f"'{name}' was written to between a forward and its backward, which reads it; expected an "
                "unchanged tensor: call the backward before the write, or the forward again"
            )
    gradient_of_output = dict(zip(program.tensors, gradients, strict=True))
    used_outputs = {output for output, gradient in gradient_of_output.items() if gradient is not None}
    if program.must_agree_on_outputs:
        used_outputs = used_anywhere(used_outputs, program.outputs, ranks)
    computed_results = program.results_to_compute(used_outputs)
    tangents = {}
    for output, argument in program.tangents:
        tangents[argument.name] = _tangent(program, ranks, output, argument, gradient_of_output[output])
    buffers = dict(zip(program.late_buffers, ctx.late_buffers, strict=True))
    late_values = [
        tangents[argument.name] if argument.buffer is None else buffers[argument.buffer]
        for argument in program.late_arguments
    ]
    arguments = [*ctx.saved_tensors, *late_values]
    graph = program.backward_graph(computed_results, ranks)
    results = run_rank(graph, arguments, ranks, draws=program.backward.draws)
    for index, buffer in enumerate(ctx.late_buffers, len(program.gradients)):
        if index in computed_results:
            buffer.copy_(results[index])
    gradient_indices = [index for index in sorted(computed_results) if index < len(program.gradients)]
    gradient_names = [program.gradients[index] for index in gradient_indices]
    unshared_gradients = copy_shared([results[index] for index in gradient_indices], arguments)
    local_gradients = ctx.finish_gradients(dict(zip(gradient_names, unshared_gradients, strict=True)))
    return {
        name: like_shard(ctx.module_tensors[name], gradient) if name in ctx.module_tensors else gradient
        for name, gradient in local_gradients.items()
    }


def _versions(
    module_tensors: Mapping[str, DTensor], shards: Mapping[str, Tensor], saved: Sequence[Tensor]
) -> list[tuple[str, DTensor, int]]:
    """Return (name, DTensor, number of writes to it so far) of the DTensors whose memory `saved` shares.

    Autograd checks only the version counters of the saved local tensors, but writes to a DTensor increment its own.
    """
    saved_storages = {tensor.untyped_storage().data_ptr() for tensor in saved}
    with without_subclasses():
        return [
            (name, tensor, version(tensor))
            for name, tensor in module_tensors.items()
            if shards[name].untyped_storage().data_ptr() in saved_storages
        ]


def _tangent(program: JointProgram, ranks: Ranks, number: int, argument: Argument, gradient: Tensor | None) -> Tensor:
    """Return the local gradient of an output as an argument of the backward; zeros if no loss depends on the output.

    Args:
        number: the index of the output among the leaves.
        argument: the argument of the backward.
        gradient: the gradient that autograd passes; None if no loss depends on the output. For a sharded output, it is
            the gradient of the local loss, and the result is divided by the number of losses.
    """
    output = program.shardings[number]
    if gradient is None:
        global_type = TensorMeta(argument.shape(), argument.meta.dtype)
        local_type = argument.sharding.local_type(global_type, ranks.mesh, ranks.mesh.coordinate(ranks.index))
        return torch.zeros(local_type.shape, dtype=TORCH_DTYPES[local_type.dtype], device=ranks.device)
    if output is None or not output.entries:
        return input_shard(argument, gradient.detach(), ranks, is_local=False)
    return input_shard(argument, gradient.detach(), ranks, is_local=True) / _count_losses(program, ranks, output)


def _count_losses(program: JointProgram, ranks: Ranks, output: Sharding) -> int:
    """Return the number of losses whose mean the gradients belong to.

    With local inputs, each rank along the axes that shard both the inputs and the output has its own loss. Otherwise,
    there is one loss.
    """
    if not ranks.local_inputs:
        return 1
    return math.prod(ranks.mesh.sizes[axis] for axis, _ in output.entries if axis in program.input_axes)
