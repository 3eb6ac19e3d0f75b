"""Run a pipelined step on all ranks in one process: each coordinate of the pipeline axis runs its actions.

A message takes place when its sender and its receiver have both reached it, as if each send waited for its receiver. So
an order that would deadlock on ranks also stops here. A coordinate uses only values that it computed or received.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from spmdir.core.arguments import SEED, accepts, instance
from spmdir.core.errors import DivergenceError, SpmdirError, did_you_mean
from spmdir.core.mesh import Mesh
from spmdir.core.placement.base import Noise
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects import ir
from spmdir.dialects.arguments import MODULE
from spmdir.dialects.attributes import meta_of
from spmdir.dialects.locations import location_of
from spmdir.dialects.pipeline_flow import StepFlow, part_of
from spmdir.dialects.pipeline_op import PipelineOp
from spmdir.dialects.values import sharding_of
from spmdir.lowering.emit import emit
from spmdir.lowering.process_groups import symbolic_group
from spmdir.pipeline.pipeline import PIPELINE, Pipeline, as_pipeline
from spmdir.pipeline.remaining_passes import localize
from spmdir.pipelined.actions import Action, Entry, StageMessage
from spmdir.simulator.distribution import collect, distribute, random_like
from spmdir.simulator.lockstep import run_lockstep
from spmdir.simulator.step_inputs import flat_state, like_state, micro_batches_of, named_batch
from spmdir.simulator.step_values import StepValues, scheduled_step
from spmdir.torch_interop.dtypes import TORCH_DTYPES

Tensor = torch.Tensor
Shards = list[Tensor]
"""[rank of the mesh without the pipeline axis], its local tensor."""


@accepts(
    module=MODULE,
    state=instance(Mapping, expected="the state of training_step, a dict"),
    batch=instance(list, tuple, Mapping, expected="a list of tensors, or a dict by name"),
    pipeline=PIPELINE,
    seed=SEED,
)
@torch.no_grad()
def simulate_step(
    module: ModuleOp,
    state: Mapping[str, Any],
    batch: Sequence[Tensor] | Mapping[str, Tensor],
    pipeline: Pipeline | str | None = None,
    seed: int = 0,
) -> tuple[list[Tensor], dict[str, Any]]:
    """Simulate one pipelined training step, and return its outputs and the new state.

    Args:
        module: a module with a pipelined step that has an order. The remaining passes run on copies of its functions.
        state: the state of `training_step` with global tensors, or a dict from names such as `parameters.up.weight`.
        batch: the inputs of the step as global tensors, with all micro-batches along the first dimension, in order or
            by name.
        pipeline: the pipeline whose remaining passes run; the standard one if None.
        seed: the seed of random partial values of inputs.

    Returns: the outputs, such as the loss, and the new state in the form of `state`.

    Raises:
        SpmdirError: the module has no step or the step no order; a tensor is missing, or cannot be cut into
            micro-batches; ranks wait for each other; stages disagree on the new value of a shared tensor.

    Example:
        >>> (loss,), state = spmdir.testing.simulate_step(module, state, (x, y))
    """
    op = scheduled_step(module)
    flow, chosen = StepFlow.of(op), as_pipeline(pipeline)
    with chosen.rules:
        programs = {part: StageProgram.of(module, function, chosen) for part, function in flow.functions.items()}
    run = StepRun(op, flow, programs, random_like(torch.Generator().manual_seed(seed)), seed)
    outputs, new = run.run(flat_state(state), named_batch(op.step, batch))
    return outputs, like_state(new, state)


@attrs.frozen(eq=False)
class StageProgram:
    """A function of a stage, lowered for all ranks.

    Attributes:
        function: the localized function.
        programs: [rank], its graph; [] if the function has no results.
    """

    function: FuncOp
    programs: Sequence[Any]

    @classmethod
    def of(cls, module: ModuleOp, function: FuncOp, pipeline: Pipeline) -> StageProgram:
        """Return the program of a function of `module`. The remaining passes of `pipeline` run on a copy."""
        if not function.function_type.outputs.data:
            return cls(function, [])
        localized = localize(stage_module(module, function), pipeline)
        mesh, local = ir.mesh(localized), ir.main_function(localized)
        return cls(local, [emit(local, mesh, rank, symbolic_group) for rank in range(mesh.world_size)])

    def argument_sharding(self, index: int, mesh: Mesh) -> Sharding:
        """Return the sharding of an argument; replicated if it has none."""
        return sharding_of(self.function.args[index]) or Sharding((), mesh.name)


def stage_module(module: ModuleOp, function: FuncOp) -> ModuleOp:
    """Return a module with a copy of one function of a pipelined step as its program."""
    copy = function.clone()
    copy.location = function.location
    copy.properties.pop("sym_visibility", None)
    return ModuleOp([ir.mesh_op(module).clone(), copy])


@attrs.define(eq=False)
class StepRun:
    """A run of a step.

    Attributes:
        kept: (stage, name) → the local tensors of its state.
        values: the local tensors of other values.
        peak: [coordinate], the most bytes of values that it held at once, on the rank with the most.
    """

    op: PipelineOp
    flow: StepFlow
    programs: Mapping[Action, StageProgram]
    noise: Noise
    seed: int
    kept: dict[tuple[int, str], Shards] = attrs.field(factory=dict)
    values: StepValues[Shards] = attrs.field(init=False)
    peak: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.values = StepValues(self.flow)

    @property
    def mesh(self) -> Mesh:
        """Return the mesh without the pipeline axis."""
        module: Any = self.op.parent_op()
        return ir.mesh(module)

    def run(self, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Run the step; see `simulate_step`."""
        step = self.op.step
        self.peak = [0] * step.ranks
        micro_batches = {name: micro_batches_of(step, name, batch) for name in step.batch}
        for stage in range(len(step.stages)):
            for name in self.flow.state_names(stage):
                self._keep(stage, name, state)
        rows = [
            [entry for entry in step.entries if coordinate in self._coordinates(entry)]
            for coordinate in range(step.ranks)
        ]
        positions = [0] * step.ranks
        while any(position < len(row) for position, row in zip(positions, rows, strict=True)):
            entry = self._next(rows, positions)
            for coordinate in self._coordinates(entry):
                positions[coordinate] += 1
            if isinstance(entry, Action):
                self._run(entry, micro_batches)
            else:
                self._send(entry)
            self._measure()
        return self._outputs(), self._new_state(state)

    def _coordinates(self, entry: Entry) -> set[int]:
        return set(self.flow.stage_map.coordinates_of(entry))

    def _next(self, rows: Sequence[Sequence[Entry]], positions: Sequence[int]) -> Entry:
        """Return an entry that all its coordinates have reached."""
        heads = [row[position] if position < len(row) else None for row, position in zip(rows, positions, strict=True)]
        for entry in heads:
            if entry is not None and all(heads[coordinate] == entry for coordinate in self._coordinates(entry)):
                return entry
        waiting = ", ".join(f"{self.op.step.axis} {c} in {entry}" for c, entry in enumerate(heads) if entry is not None)
        raise DivergenceError(
            f"all ranks wait for others: {waiting}; expected an order without cycles: move one of these actions",
            location_of(self.op),
        )

    def _keep(self, stage: int, name: str, state: Mapping[str, Tensor]) -> None:
        """Distribute the state of a stage. Sums start at 0."""
        for part, program in self.programs.items():
            names = self.flow.arguments(part)
            if part.stage == stage and name in names and program.programs:
                index = names.index(name)
                tensor = self._initial(part, name, index, state)
                self.kept[stage, name] = self._distribute(program, index, tensor)
                return

    def _initial(self, part: Action, name: str, index: int, state: Mapping[str, Tensor]) -> Tensor:
        """Return the global tensor of `name` when the step starts: its state, or zeros if it is a sum.

        Args:
            part: a function of the step that has `name` as argument `index`.

        Raises:
            SpmdirError: `state` lacks a tensor that is not a sum.
        """
        meta = meta_of(self.flow.functions[part].function_type.inputs.data[index])
        if name not in state and not self.flow.step.is_sum(name):
            raise SpmdirError(
                f"no '{name}' in state; expected the state of the training step{did_you_mean(name, state)}"
            )
        if name in state:
            return torch.zeros_like(state[name]) if self.flow.step.is_sum(name) else state[name]
        assert meta is not None
        like = next((tensor for key, tensor in state.items() if key.startswith("parameters.")), None)
        device = like.device if like is not None else None
        return torch.zeros(meta.shape, dtype=TORCH_DTYPES[meta.dtype], device=device)

    def _distribute(self, program: StageProgram, index: int, tensor: Tensor) -> Shards:
        return distribute(tensor, program.argument_sharding(index, self.mesh), self.mesh, self.noise)

    def _run(self, action: Action, micro_batches: Mapping[str, Sequence[Tensor]]) -> None:
        """Run a function on all ranks of a coordinate, and free the values that it uses last."""
        part = part_of(action)
        program, step, flow = self.programs[part], self.op.step, self.flow
        if not program.programs:
            return
        inputs: list[Shards] = []
        for index, name in enumerate(flow.arguments(part)):
            if name in step.batch:
                inputs.append(self._distribute(program, index, micro_batches[name][action.micro]))
            else:
                is_state = step.is_state(name)
                inputs.append(self.kept[action.stage, name] if is_state else self.values.operand(action, name))
        per_rank = [[shards[rank] for shards in inputs] for rank in range(self.mesh.world_size)]
        outputs = run_lockstep(program.programs, per_rank, self.mesh, self.seed)
        for index, name in enumerate(flow.results(part)):
            shards = [of_rank[index] for of_rank in outputs]
            if step.is_state(name):
                self.kept[action.stage, name] = shards
            else:
                self.values.hold(action, name, shards)
        self.values.use_operands(action)

    def _send(self, message: StageMessage) -> None:
        """Copy the values of a message to its target."""
        for name in self.flow.carried(message):
            self.values.receive(message, name, self.values.send(message, name))

    def _measure(self) -> None:
        """Update the peak of each coordinate, in bytes, with the values that it holds now."""
        for coordinate in range(self.op.step.ranks):
            bytes_of_rank = [0] * self.mesh.world_size
            for (holder, _, _), shards in self.values.values.items():
                if holder == coordinate:
                    for rank, shard in enumerate(shards):
                        bytes_of_rank[rank] += shard.numel() * shard.element_size()
            self.peak[coordinate] = max(self.peak[coordinate], *bytes_of_rank)

    def _outputs(self) -> list[Tensor]:
        """Return the outputs of the step as global tensors: new state, such as the loss, or results of updates."""
        step = self.op.step
        outputs = []
        for name in step.outputs:
            if step.is_state(name):
                stage = next(stage for stage, kept_name in self.kept if kept_name == name)
                outputs.append(self._collect(self._holder(stage, name), name, self.kept[stage, name]))
                continue
            part = next(part for part in self.flow.producers[name] if part.kind == "U")
            outputs.append(self._collect(part, name, self.values.operand(part, name)))
        return outputs

    def _holder(self, stage: int, name: str) -> Action:
        """Return a function of a stage that returns the state `name`, or else takes it."""
        parts = [part for part, program in self.programs.items() if part.stage == stage and program.programs]
        returning = [part for part in parts if name in self.flow.results(part)]
        # The last function has the final value, such as that after the update.
        return (returning or [part for part in parts if name in self.flow.arguments(part)])[-1]

    def _collect(self, part: Action, name: str, shards: Shards) -> Tensor:
        """Return the global tensor of a result or an argument of a function."""
        function = self.flow.functions[part]
        results = self.flow.results(part)
        if name in results:
            index = results.index(name)
            returned = ir.terminator(function).operands[index]
            return collect(
                shards, sharding_of(returned) or Sharding((), self.mesh.name), self.mesh, _shape_of(returned)
            )
        value = function.args[self.flow.arguments(part).index(name)]
        return collect(shards, sharding_of(value) or Sharding((), self.mesh.name), self.mesh, _shape_of(value))

    def _new_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state after the step.

        Raises:
            DivergenceError: two stages have different new values of one tensor.
        """
        new = dict(state)
        collected: dict[str, Tensor] = {}
        for (stage, name), shards in self.kept.items():
            tensor = self._collect(self._holder(stage, name), name, shards)
            if name in collected and not torch.equal(collected[name], tensor):
                raise DivergenceError(
                    f"stages disagree on the new value of '{name}'; expected equal values: compute it on one stage, or "
                    "in the same way on all stages",
                    location_of(self.op),
                )
            collected[name] = tensor
        return new | {name: tensor for name, tensor in collected.items() if name in state}


def _shape_of(value: Any) -> tuple[int, ...]:
    meta = meta_of(value.type)
    assert meta is not None
    return meta.shape
