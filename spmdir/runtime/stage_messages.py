"""Send and receive the values of a pipelined step between the coordinates of its axis.

Messages are sent in the order of the text. A send does not wait for its receiver, and a receive is waited for when its
value is first used. So ranks wait less than the proof of the order assumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from spmdir.core.placement.sharding import Sharding
from spmdir.core.placement.tensor import TensorMeta
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.pipeline_flow import StepFlow
from spmdir.dialects.values import sharding_of
from spmdir.pipelined.actions import StageMessage
from spmdir.runtime.stage_ranks import StageRanks
from spmdir.simulator.step_values import StepValues
from spmdir.torch_interop.dtypes import TORCH_DTYPES


@attrs.frozen
class StageLayout:
    """The global type and the sharding of a value of a step."""

    meta: TensorMeta
    sharding: Sharding

    def empty_shard(self, ranks: StageRanks, make: Any = torch.empty) -> Tensor:
        """Return a tensor like the shard of this rank; `make` is torch.empty or torch.zeros."""
        within = ranks.within
        local = self.sharding.local_type(self.meta, within.mesh, within.mesh.coordinate(within.index))
        return make(local.shape, dtype=TORCH_DTYPES[local.dtype], device=within.device)


def value_layouts(flow: StepFlow) -> dict[str, StageLayout]:
    """Return name → layout, for the arguments and results of all functions of a step."""
    layouts: dict[str, StageLayout] = {}
    for part, function in flow.functions.items():
        names = [*flow.arguments(part), *flow.results(part)]
        for name, value in zip(names, [*function.args, *ir.terminator(function).operands], strict=True):
            meta = meta_of(value.type)
            assert meta is not None  # all values of a step are tensors
            layouts[name] = StageLayout(meta, sharding_of(value) or Sharding())
    return layouts


@attrs.define(eq=False)
class Arrival:
    """A started receive. It is waited for once: a second wait for a receive of gloo does not return."""

    work: Any
    ranks: StageRanks

    def wait(self) -> None:
        """Wait until the receive has ended."""
        work, self.work = self.work, None
        if work is not None:
            with self.ranks.exchange("a message between stages"):
                work.wait()


@attrs.frozen(eq=False)
class ReceivedValue:
    """A value of a message that may not have arrived."""

    tensor: Tensor
    arrival: Arrival

    def wait(self) -> Tensor:
        """Wait for the message, and return the value."""
        self.arrival.wait()
        return self.tensor


@attrs.define(eq=False)
class StageMessages:
    """The messages of one run of a step on one rank. Values of one element type travel in one buffer.

    Attributes:
        sends: the sends that may not have ended, with their buffers.
    """

    flow: StepFlow
    ranks: StageRanks
    layouts: Mapping[str, StageLayout]
    sends: list[tuple[Any, Tensor]] = attrs.field(factory=list)

    def send(self, message: StageMessage, values: StepValues[Any]) -> None:
        """Start to send the values of a message: one buffer for each element type, with the values end to end.

        Buffers are kept until they have been sent.
        """
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for name in self.flow.carried(message):
            value = values.send(message, name)
            value = value.wait() if isinstance(value, ReceivedValue) else value
            by_type.setdefault(value.dtype, []).append(value.reshape(-1))
        self.sends = [sent for sent in self.sends if not sent[0].is_completed()]
        for parts in by_type.values():
            buffer = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
            if buffer.numel():
                with self.ranks.exchange("a message between stages"):
                    work = dist.isend(buffer, self.ranks.peers[message.target], group=self.ranks.group)
                self.sends.append((work, buffer))

    def receive(self, message: StageMessage, values: StepValues[Any]) -> None:
        """Start to receive the values of a message, and add each to `values` as a view of its future buffer.

        The buffers have the form that `send` gives them.
        """
        by_type: dict[torch.dtype, dict[str, torch.Size]] = {}
        for name in self.flow.carried(message):
            dtype = TORCH_DTYPES[self.layouts[name].meta.dtype]
            by_type.setdefault(dtype, {})[name] = self._local_shape(name)
        source = self.ranks.peers[self.flow.step.stages[message.action.stage].coordinate]
        for dtype, shapes in by_type.items():
            sizes = [shape.numel() for shape in shapes.values()]
            buffer = torch.empty(sum(sizes), dtype=dtype, device=self.ranks.within.device)
            with self.ranks.exchange("a message between stages"):
                work = dist.irecv(buffer, source, group=self.ranks.group) if buffer.numel() else None
            arrival = Arrival(work, self.ranks)
            for (name, shape), part in zip(shapes.items(), buffer.split(sizes), strict=True):
                values.receive(message, name, ReceivedValue(part.view(shape), arrival))

    def _local_shape(self, name: str) -> torch.Size:
        """Return the shape of the shard of a value on this rank."""
        layout, within = self.layouts[name], self.ranks.within
        shape = layout.sharding.local_shape(layout.meta.shape, within.mesh, within.mesh.coordinate(within.index))
        return torch.Size(shape)

    def wait(self) -> None:
        """Wait for all sends."""
        with self.ranks.exchange("a message between stages"):
            for work, _ in self.sends:
                work.wait()
