"""The inputs of a pipelined step: its state by name, and its batch, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from spmdir.core.errors import SpmdirError, did_you_mean
from spmdir.pipelined.step import PipelinedStep


def flat_state(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return name → tensor of a state: `parameters.up.weight` for the entry `up.weight` of `parameters`."""
    flat: dict[str, Tensor] = {}
    for key, value in state.items():
        entries = (
            {f"{key}.{name}": tensor for name, tensor in value.items()} if isinstance(value, Mapping) else {key: value}
        )
        flat.update(entries)
    return flat


def like_state(flat: Mapping[str, Tensor], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of `flat` in the form of `state`, the inverse of `flat_state`."""
    return {
        key: {name: flat[f"{key}.{name}"] for name in value} if isinstance(value, Mapping) else flat[key]
        for key, value in state.items()
    }


def named_batch(step: PipelinedStep, batch: Sequence[Tensor] | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return name → tensor of the inputs of a step.

    Raises:
        SpmdirError: the number of inputs differs from that of the step.
    """
    if isinstance(batch, Mapping):
        return batch
    if len(batch) != len(step.batch):
        raise SpmdirError(
            f"the step got {len(batch)} inputs; expected {len(step.batch)}: {', '.join(step.batch) or 'nothing'}"
        )
    return dict(zip(step.batch, batch, strict=True))


def micro_batches_of(step: PipelinedStep, name: str, batch: Mapping[str, Tensor]) -> Sequence[Tensor]:
    """Return the micro-batches of an input of a step.

    Raises:
        SpmdirError: the input is missing, or the number of micro-batches does not divide its first dimension.
    """
    if name not in batch:
        raise SpmdirError(f"no '{name}' in batch{did_you_mean(name, batch)}; expected {', '.join(step.batch)}")
    tensor = batch[name]
    if tensor.dim() and tensor.shape[0] % step.micro:
        raise SpmdirError(
            f"'{name}' has shape {list(tensor.shape)}; expected a first dimension that is a multiple of the "
            f"{step.micro} micro-batches"
        )
    return tensor.chunk(step.micro) if tensor.dim() else [tensor] * step.micro
