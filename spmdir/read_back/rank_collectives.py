"""Find the collective of the IR that a message performs, from the placements of its operand and the moved elements.

Element ids decide which dimension a message gathers or scatters. The placements decide whether this is
legal: an all-gather of dimension 1 requires an operand whose innermost shards along it are those of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from spmdir.core.errors import ShardingError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import PartialPlacement
from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.read_back.moved_elements import PackedMessage
from spmdir.reshard.conditions import refinement
from spmdir.reshard.steps import Step, make_step


@attrs.frozen
class CollectiveCall:
    """The collective that a message performs on one tensor.

    Attributes:
        steps: the steps, in order; none if the tensor does not change.
        factor: the number by which the result is multiplied afterwards.
    """

    steps: tuple[Step, ...]
    factor: float = 1.0


def collective_kind(name: str) -> str:
    """Return the collective of the IR for the name of a functional collective."""
    base = name.rpartition(".")[2]
    return {
        "all_gather_into_tensor": "all_gather",
        "all_gather_into_tensor_out": "all_gather",
        "reduce_scatter_tensor": "reduce_scatter",
        "all_to_all_single": "all_to_all",
        "shard_dim_alltoall": "all_to_all",
    }.get(base, base)


class CollectiveTyper:
    """Finds the collectives of messages on one mesh."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh

    def calls(
        self, message: PackedMessage, meta: TensorMeta, sharding: Sharding, packed: Tensor
    ) -> Iterator[tuple[CollectiveCall, Tensor]]:
        """Yield (collective, element ids of its result) for each collective that the message may stand for.

        Nothing is yielded if no collective of the kind of the message is possible for the sharding.

        Args:
            meta, sharding: the global type and the sharding of a tensor in the message.
            packed: the element ids of this tensor on this rank.
        """
        kind = collective_kind(message.op.name)
        try:
            yield from getattr(self, f"_{kind}")(message, meta, sharding, packed)
        except ShardingError:
            return

    def _all_gather(
        self, message: PackedMessage, meta: TensorMeta, sharding: Sharding, packed: Tensor
    ) -> Iterator[tuple[CollectiveCall, Tensor]]:
        """Yield the all-gather along the dimension that the ranks of the group shard; see `calls`."""
        gathered = self._gathered(message, sharding)
        if gathered is None:
            return
        dim, members, axes = gathered
        shards = [message.of_member(packed, member) for member in members]
        step = make_step("all_gather", sharding, self.mesh, meta.shape, axes=axes, dim=dim)
        elements = torch.cat(shards, dim)
        if len(axes) == len(sharding.dim_axes(dim)):  # the shards of the last ranks may be shorter, and padded
            elements = elements.narrow(dim, 0, min(meta.shape[dim], elements.shape[dim]))
        yield CollectiveCall((step,)), elements

    def _reduce_scatter(
        self, message: PackedMessage, meta: TensorMeta, sharding: Sharding, packed: Tensor
    ) -> Iterator[tuple[CollectiveCall, Tensor]]:
        """Yield the reduce-scatter along each dimension; see `calls`."""
        count = len(message.group)
        reduction, factor = self._reduction(message, sharding)
        for dim in range(packed.dim()):
            chunks = packed.chunk(count, dim)
            if message.position < len(chunks):
                step = make_step(
                    "reduce_scatter", sharding, self.mesh, meta.shape, axes=message.axes, dim=dim, reduction=reduction
                )
                yield CollectiveCall((step,), factor), chunks[message.position]

    def _all_reduce(
        self, message: PackedMessage, meta: TensorMeta, sharding: Sharding, packed: Tensor
    ) -> Iterator[tuple[CollectiveCall, Tensor]]:
        """Yield the all-reduce, which keeps all elements; see `calls`."""
        reduction, factor = self._reduction(message, sharding)
        step = make_step("all_reduce", sharding, self.mesh, meta.shape, axes=message.axes, reduction=reduction)
        yield CollectiveCall((step,), factor), packed

    def _all_to_all(
        self, message: PackedMessage, meta: TensorMeta, sharding: Sharding, packed: Tensor
    ) -> Iterator[tuple[CollectiveCall, Tensor]]:
        """Yield the all-to-all from the dimension that the group shards to each other dimension; see `calls`."""
        gathered, count = self._gathered(message, sharding), len(message.group)
        if gathered is None:
            return
        dim, members, axes = gathered
        for to_dim, size in enumerate(packed.shape):
            if to_dim != dim and size % count == 0:
                chunks = [
                    message.of_member(packed, member).chunk(count, to_dim)[message.position] for member in members
                ]
                step = make_step("all_to_all", sharding, self.mesh, meta.shape, axes=axes, dim=dim, to_dim=to_dim)
                yield CollectiveCall((step,)), torch.cat(chunks, dim)

    def _gathered(
        self, message: PackedMessage, sharding: Sharding
    ) -> tuple[int, Sequence[int], tuple[str, ...]] | None:
        """Return (sharded dimension, members of the group in the order of their shards, axes in nesting order).

        None if the axes of the group are not the innermost axes of a dimension: then its shards are not consecutive.
        """
        fine = refinement(self.mesh, sharding, message.axes)
        refined = sharding.refined(fine)
        group_axes = {part for axis in message.axes for part in fine.parts(axis)}
        for dim in {placement.dim for _, placement in refined.entries if placement.dim is not None}:
            axes = refined.dim_axes(dim)
            innermost = axes[len(axes) - len(group_axes) :]
            if len(axes) >= len(group_axes) and set(innermost) == group_axes:
                members = sorted(
                    range(len(message.group)), key=lambda member: fine.index(message.group[member], innermost)
                )
                return dim, members, fine.merge(innermost)
        return None

    def _reduction(self, message: PackedMessage, sharding: Sharding) -> tuple[str, float]:
        """Return (reduction of the partial value, number by which the result is multiplied) of a reducing message.

        The average of partial sums is the sum divided by the number of ranks. The sum of partial averages is the
        average times the number of ranks.

        Raises:
            ShardingError: the value is not partial along all axes of the group, or has another reduction.
        """
        fine = refinement(self.mesh, sharding, message.axes)
        refined = sharding.refined(fine)
        placements = {refined[part] for axis in message.axes for part in fine.parts(axis)}
        placement = placements.pop()
        requested, axes = str(message.op.argument["reduce_op"]), ", ".join(message.axes)
        if placements or not isinstance(placement, PartialPlacement):
            raise ShardingError(f"the operand has the sharding <{sharding}>; expected P({requested}) on {axes}")
        if placement.op == requested or (placement.op not in ("sum", "avg") and placement.reduce == requested):
            return placement.op, 1.0
        count = len(message.group)
        scale: dict[tuple[Any, str], float] = {("sum", "avg"): 1 / count, ("avg", "sum"): count}
        if (placement.op, requested) in scale:
            return placement.op, scale[placement.op, requested]
        raise ShardingError(f"the operand has the sharding <{sharding}>; expected P({requested}) on {axes}")
