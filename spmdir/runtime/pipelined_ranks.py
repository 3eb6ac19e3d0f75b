"""Run a pipelined step on real ranks: each rank runs the row of its coordinate, one graph for each function.

Messages are sent in the order of the text, over one stream for each pair of ranks. A send does not wait for its
receiver, and a receive is waited for when its value is first used. So ranks wait less than the proof of the order
assumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import SpmdirError, did_you_mean
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_flow import StepFlow, part_of
from spmdir.dialects.values import sharding_of
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.process_groups import device_groups, device_rank, group_names, name_groups, symbolic_axes
from spmdir.pipeline.pipeline import Pipeline, as_pipeline
from spmdir.pipelined.actions import Action, StageMessage
from spmdir.runtime.local_state import as_dtensor, copy_shard
from spmdir.runtime.rank_mesh import rank_device
from spmdir.runtime.training import TrainingStep
from spmdir.simulator.distribution import local_tensor
from spmdir.simulator.pipelined_step import stage_module
from spmdir.simulator.step_inputs import flat_state, micro_batches_of, named_batch
from spmdir.simulator.step_values import StepValues, scheduled_step
from spmdir.torch_interop.dtypes import TORCH_DTYPES


@attrs.frozen(eq=False)
class PipelinedRank:
    """The part of a pipelined step that one rank runs. `PipelinedRank.of` makes it on all ranks of a device mesh.

    Attributes:
        flow: the step.
        mesh: the mesh without the pipeline axis.
        rank: the index of this rank in `mesh`.
        coordinate: the index of this rank along the pipeline axis.
        peers: [coordinate], the global rank with the same index in `mesh`.
        device_mesh: the torch mesh without the pipeline axis; None if it has no other axis.
        group: the process group along the pipeline axis.
        programs: function → its graph, for the stages of this rank.
        shardings: name of an argument or result → its sharding and global shape, for the stages of this rank.
        step: the training step, whose optimizer has the learning rates; None to keep those of the state.
        kept: (stage, name) → the local tensor of its state.
    """

    flow: StepFlow
    mesh: Mesh
    rank: int
    coordinate: int
    peers: tuple[int, ...]
    device_mesh: Any
    group: Any
    device: torch.device
    programs: Mapping[Action, Any]
    layouts: Mapping[str, tuple[Sharding, tuple[int, ...], torch.dtype]]
    step: TrainingStep | None = None
    kept: dict[tuple[int, str], Tensor] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls,
        module: ModuleOp,
        device_mesh: DeviceMesh,
        state: Mapping[str, Any],
        pipeline: Pipeline | str | None = None,
        step: TrainingStep | None = None,
    ) -> PipelinedRank:
        """Return the part of this rank. All ranks of `device_mesh` call this with equal arguments.

        Args:
            module: a module with a pipelined step that has an order.
            device_mesh: a torch mesh with the pipeline axis and the axes of the module.
            state: the state of `training_step`. Each rank keeps its shards of the tensors of its stages.
            pipeline: the pipeline whose remaining passes run; the standard one if None.
            step: the training step. Each call reads the learning rates from its optimizer, so schedulers work.

        Raises:
            SpmdirError: the device mesh has other axes or sizes than the step, or state is missing; located.
        """
        op, mesh = scheduled_step(module), ir.mesh(module)
        flow, declared = StepFlow.of(op), op.step
        names = tuple(device_mesh.mesh_dim_names or ())
        sizes = dict(zip(names, device_mesh.mesh.shape, strict=True))
        if sizes != {declared.axis: declared.ranks, **mesh.sizes}:
            raise SpmdirError(
                f"the device mesh has axes {sizes}; expected the axis {{'{declared.axis}': {declared.ranks}}} and "
                f"those of the module, {dict(mesh.sizes)}",
                location_of(op),
            )
        place, axis = list(device_mesh.get_coordinate() or ()), names.index(declared.axis)
        coordinate = place[axis]
        peers = tuple(int(device_mesh.mesh[(*place[:axis], c, *place[axis + 1 :])]) for c in range(declared.ranks))
        own_mesh = device_mesh[mesh.axis_names] if mesh.axis_names else None
        chosen, group = as_pipeline(pipeline), device_mesh.get_group(declared.axis)
        own = {part: f for part, f in flow.functions.items() if declared.stages[part.stage].coordinate == coordinate}
        programs = {
            part: lower_to_fx(stage_module(module, function), device_rank(own_mesh) if own_mesh else 0, pipeline=chosen)
            for part, function in own.items()
            if function.function_type.outputs.data
        }
        device = rank_device(device_mesh)
        _name_groups(programs, mesh, own_mesh, group)
        for program in programs.values():
            program.to(device)
        rank = cls(
            flow,
            mesh,
            device_rank(own_mesh) if own_mesh else 0,
            coordinate,
            peers,
            own_mesh,
            group,
            device,
            programs,
            _layouts(flow, mesh),
            step,
        )
        rank.load(state)
        return rank

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the state of this rank by its shards of global tensors.

        Raises:
            SpmdirError: a tensor is missing.
        """
        tensors = flat_state(state)
        for stage in range(len(self.flow.step.stages)):
            if self.flow.step.stages[stage].coordinate != self.coordinate:
                continue
            for name in self.flow.state_names(stage):
                sharding, shape, dtype = self.layouts[name]
                if self.flow.step.is_sum(name):
                    tensors[name] = torch.zeros(shape, dtype=dtype)
                if name not in tensors:
                    raise SpmdirError(f"no '{name}' in state{did_you_mean(name, tensors)}")
                self.kept[stage, name] = copy_shard(tensors[name], sharding, self.mesh, self.rank, self.device).detach()

    @property
    def state(self) -> dict[str, Any]:
        """Return name → tensor of the state of this rank's stages, as DTensors over the other axes of the mesh."""
        return {name: self._as_dtensor(name, tensor) for (_, name), tensor in self.kept.items()}

    def _as_dtensor(self, name: str, tensor: Tensor) -> Any:
        sharding, shape, _ = self.layouts[name]
        if self.device_mesh is None:
            return tensor
        return as_dtensor(name, tensor, sharding, shape, self.mesh, self.device_mesh)

    @torch.no_grad()
    def __call__(self, *batch: Any) -> list[Tensor]:
        """Run one step, and return its outputs on all ranks.

        Args:
            batch: the inputs as global tensors, with all micro-batches along the first dimension.

        Raises:
            SpmdirError: the number or the sizes of the inputs do not fit the step.
        """
        step = self.flow.step
        named = named_batch(step, batch)
        micro_batches = {name: micro_batches_of(step, name, named) for name in step.batch}
        rates = self.step.rates() if self.step is not None else {}
        for key, tensor in self.kept.items():
            if step.is_sum(key[1]) or key[1] in rates:
                self.kept[key] = torch.full_like(tensor, rates.get(key[1], 0.0))
        values: StepValues[Any] = StepValues(self.flow)
        sends: list[tuple[Any, Tensor]] = []
        for entry in step.entries:
            if self.coordinate not in self.flow.stage_map.coordinates_of(entry):
                continue
            if isinstance(entry, Action):
                self._run(entry, micro_batches, values)
            elif entry.target == self.coordinate:
                self._receive(entry, values)
            else:
                sends = [sent for sent in sends if not sent[0].is_completed()] + self._send(entry, values)
        for work, _ in sends:
            work.wait()
        return [self._output(name, values) for name in step.outputs]

    def _run(self, action: Action, micro_batches: Mapping[str, Sequence[Tensor]], values: StepValues[Any]) -> None:
        """Run the graph of an action."""
        part, step = part_of(action), self.flow.step
        if part not in self.programs:
            return
        inputs: list[Tensor] = []
        for name in self.flow.arguments(part):
            if name in step.batch:
                tensor = micro_batches[name][action.micro].to(self.device)
                inputs.append(local_tensor(tensor, self.layouts[name][0], self.mesh, self.rank))
            elif step.is_state(name):
                inputs.append(self.kept[action.stage, name])
            else:
                value = values.operand(action, name)
                inputs.append(value.wait() if isinstance(value, _Received) else value)
        results = self.programs[part](*inputs)
        for name, result in zip(self.flow.results(part), results, strict=True):
            if step.is_state(name):
                self.kept[action.stage, name] = result
            else:
                values.hold(action, name, result)
        values.use_operands(action)

    def _send(self, message: StageMessage, values: StepValues[Any]) -> list[tuple[Any, Tensor]]:
        """Send the values of a message, those of one element type together. Return the works with their buffers."""
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for name in self.flow.carried(message):
            value = values.send(message, name)
            by_type.setdefault(value.dtype, []).append(value.reshape(-1))
        works = []
        for parts in by_type.values():
            buffer = torch.cat(parts) if len(parts) > 1 else parts[0].contiguous()
            if buffer.numel():
                works.append((dist.isend(buffer, self.peers[message.target], group=self.group), buffer))
        return works

    def _receive(self, message: StageMessage, values: StepValues[Any]) -> None:
        """Start to receive the values of a message."""
        by_type: dict[torch.dtype, list[str]] = {}
        shapes: dict[str, torch.Size] = {}
        for name in self.flow.carried(message):
            sharding, shape, dtype = self.layouts[name]
            example = torch.empty((), dtype=dtype, device="meta").expand(shape)
            shapes[name] = local_tensor(example, sharding, self.mesh, self.rank).shape
            by_type.setdefault(dtype, []).append(name)
        source = self.peers[self.flow.step.stages[message.action.stage].coordinate]
        for dtype, names in by_type.items():
            sizes = [shapes[name].numel() for name in names]
            buffer = torch.empty(sum(sizes), dtype=dtype, device=self.device)
            arrival = _Arrival(dist.irecv(buffer, source, group=self.group) if buffer.numel() else None)
            for name, part in zip(names, buffer.split(sizes), strict=True):
                values.receive(message, name, _Received(part.view(shapes[name]), arrival))

    def _output(self, name: str, values: StepValues[Any]) -> Tensor:
        """Return an output of the step, sent from its coordinate to all others."""
        sharding, shape, dtype = self.layouts[name]
        if any(placement.trait != "replicated" for _, placement in sharding.entries):
            raise SpmdirError(f"the output '{name}' has the sharding <{sharding}>; expected a replicated output")
        stages = range(len(self.flow.step.stages))
        if self.flow.step.is_state(name):
            stage = next(stage for stage in stages if name in self.flow.state_names(stage))
            local = self.kept.get((stage, name))
        else:
            part = next(part for part in self.flow.producers[name] if part.kind == "U")
            stage = part.stage
            is_here = self.flow.step.stages[stage].coordinate == self.coordinate
            local = values.operand(part, name) if is_here else None
        buffer = torch.empty(shape, dtype=dtype, device=self.device) if local is None else local.contiguous()
        dist.broadcast(buffer, self.peers[self.flow.step.stages[stage].coordinate], group=self.group)
        return buffer


@attrs.define(eq=False)
class _Arrival:
    """A started receive. It is waited for once: a second wait for a receive of gloo does not return."""

    work: Any

    def wait(self) -> None:
        work, self.work = self.work, None
        if work is not None:
            work.wait()


@attrs.frozen(eq=False)
class _Received:
    """A value of a message that may not have arrived."""

    tensor: Tensor
    arrival: _Arrival

    def wait(self) -> Tensor:
        self.arrival.wait()
        return self.tensor


def _layouts(flow: StepFlow, mesh: Mesh) -> dict[str, tuple[Sharding, tuple[int, ...], torch.dtype]]:
    """Return name → (sharding, global shape, element type) of all arguments and results."""
    layouts: dict[str, tuple[Sharding, tuple[int, ...], torch.dtype]] = {}
    for part, function in flow.functions.items():
        values = zip(
            [*flow.arguments(part), *flow.results(part)],
            [*function.args, *ir.terminator(function).operands],
            strict=True,
        )
        for name, value in values:
            meta = meta_of(value.type)
            assert meta is not None
            layouts[name] = sharding_of(value) or Sharding((), mesh.name), meta.shape, TORCH_DTYPES[meta.dtype]
    return layouts


def _name_groups(programs: Mapping[Action, Any], mesh: Mesh, device_mesh: Any, group: Any) -> None:
    """Set the process groups of the collectives in graphs. All ranks create the groups of all stages in one order."""
    own = sorted({name for program in programs.values() for name in group_names(program)})
    everywhere: list[list[str]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everywhere, own, group=group)
    if device_mesh is None:
        return
    group_of = device_groups(mesh, device_mesh)
    for name in sorted({name for names in everywhere for name in names}):
        group_of(symbolic_axes(name) or (), name.partition("#")[2] or None)
    for program in programs.values():
        name_groups(program, mesh, device_mesh)
