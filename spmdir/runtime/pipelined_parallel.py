"""A pipelined training step on one rank. The rank runs the actions of its coordinate on the pipeline axis in order.

Each function of its stages has one graph. The kinds of functions, such as the forward "F" and the update "U", are those
of `spmdir.pipelined.actions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import UnsupportedError
from spmdir.core.placement.sharding import Sharding
from spmdir.dialects.pipeline_flow import StepFlow, part_of
from spmdir.lowering.in_place import add_in_place
from spmdir.pipelined.actions import Action
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.rank_calls import copy_overwritten, input_shard, run_rank
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.signature import Argument, Result
from spmdir.runtime.stage_messages import ReceivedValue, StageLayout, StageMessages
from spmdir.runtime.stage_ranks import StageRanks
from spmdir.simulator.step_values import StepValues
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dtypes import TORCH_DTYPES

StageState = dict[tuple[int, str], Tensor]
"""(stage, name) → the new value of a tensor of its state."""


@attrs.frozen(eq=False)
class StagePrograms:
    """The programs of a pipelined step on one rank.

    Attributes:
        module: the step in the IR, equal on all ranks.
        flow: the values that its functions exchange.
        graphs: function of a stage on this rank → its graph.
        layouts: name of an argument or result → its layout.
        ranks: the ranks of the step; None before the programs are connected.
    """

    module: ModuleOp
    flow: StepFlow
    graphs: Mapping[Action, fx.GraphModule]
    layouts: Mapping[str, StageLayout]
    ranks: StageRanks | None = None

    @property
    def agreement(self) -> dict[str, Any]:
        """The properties that must be equal on all ranks: none, because all ranks read the same text."""
        return {}

    def connect(self, ranks: Ranks) -> None:
        """Prepare the graphs to run, in place; all ranks must call this, because it creates process groups."""
        assert self.ranks is not None
        for part, graph in self.graphs.items():
            arguments = {name: index for index, name in enumerate(self.flow.arguments(part))}
            results = {name: index for index, name in enumerate(self.flow.results(part))}
            sums = [name for name in results if name in arguments and self.flow.step.is_sum(name)]
            add_in_place(graph, {results[name]: arguments[name] for name in sums})
        self.ranks.connect(self.graphs.values())


@attrs.frozen(eq=False, slots=False, kw_only=True)
class PipelinedParallel(Parallel):
    """A training step whose model is cut into stages, on one rank, which keeps the state of its stages."""

    _programs: StagePrograms = attrs.field(alias="programs")
    _stage_ranks: StageRanks = attrs.field(alias="stage_ranks")

    @property
    def graph(self) -> fx.GraphModule:
        """A pipelined step has a graph for each function: see `graphs`."""
        raise UnsupportedError(
            "a pipelined step has no single graph, but one for each function; expected a use of these: read `graphs`"
        )

    @property
    def graphs(self) -> dict[str, fx.GraphModule]:
        """Name of a function of the stages of this rank → its graph."""
        return {self._flow.functions[part].sym_name.data: graph for part, graph in self._programs.graphs.items()}

    @property
    def rank_module(self) -> ModuleOp:
        """The pipelined step: the functions of all stages, and the order in which ranks run them."""
        return self.module

    def check(self, *args: Any) -> int:
        """Raise UnsupportedError: the values of a pipelined step cannot be compared with one device."""
        raise UnsupportedError(
            "check does not support pipelined steps; expected a program without stages: compare "
            "spmdir.testing.simulate_step(parallel.module, …) with the step instead"
        )

    @property
    def absent(self) -> frozenset[str]:
        """The names of tensors of the state that only other ranks keep."""
        return frozenset(argument.name for argument in self._traces.first.signature.state_arguments) - {
            *self._state.shards
        }

    @property
    def _arguments(self) -> list[Argument]:
        """The arguments of the state that this rank keeps."""
        return [argument for argument in super()._arguments if argument.name in self._state.shards]

    @property
    def _state_ranks(self) -> Ranks:
        """The ranks over which the state of this rank is sharded."""
        return self._stage_ranks.within

    def _connect(self, graph: fx.GraphModule) -> None:
        """Give the collectives of a graph over the ranks of one coordinate their process groups."""
        self._stage_ranks.connect([graph])

    @property
    def _flow(self) -> StepFlow:
        """The values that the functions of the step exchange."""
        return self._programs.flow

    @property
    def _coordinates(self) -> list[int]:
        """[stage]: the coordinate on the pipeline axis of the ranks that run the stage."""
        return list(self._flow.step.coordinates)

    def _run(self, args: tuple[Any, ...], records_gradients: bool) -> Any:
        """Run the actions that the schedule gives to this rank, in order, and update the state of its stages.

        An entry of the schedule is an action, such as the forward of stage 1 on micro-batch 0, or a message between
        stages. Entries that belong to other coordinates of the pipeline axis are skipped.
        """
        step, trace = self._flow.step, self._traces.first
        assert self._step is not None
        with self._ranks.group.report_errors():
            self.check_values()
            self._state.share_rates(self._step)
            micro_batches = [trace.convention.tensors(part) for part in self._step.split_batch(args)]
        for tensors in micro_batches:
            trace.programs.find_sizes(tensors)
        values: StepValues[Any] = StepValues(self._flow)
        messages = StageMessages(self._flow, self._stage_ranks, self._programs.layouts)
        new_state, coordinate = self._empty_sums(), self._stage_ranks.coordinate
        with self._ranks.group.report_errors():
            for entry in step.entries:
                if coordinate not in self._flow.stage_map.coordinates_of(entry):
                    continue
                if isinstance(entry, Action):
                    self._run_action(entry, micro_batches, values, new_state)
                elif entry.target == coordinate:
                    messages.receive(entry, values)
                else:
                    messages.send(entry, values)
            messages.wait()
            outputs = iter([self._output(name, values, new_state) for name in step.outputs])
            for stage, name in list(new_state):
                self._write(stage, name, new_state)
        leaves = [next(outputs) if isinstance(leaf, Result) else leaf for leaf in trace.signature.outputs]
        return pytree.tree_unflatten(leaves, trace.convention.out_spec)

    def _empty_sums(self) -> StageState:
        """Return the sums over micro-batches of this rank's stages at the start of a step."""
        return {
            (stage, name): self._programs.layouts[name].empty_shard(self._stage_ranks, torch.zeros)
            for stage, coordinate in enumerate(self._coordinates)
            if coordinate == self._stage_ranks.coordinate
            for name in self._flow.state_names(stage)
            if self._flow.step.is_sum(name)
        }

    def _run_action(
        self, action: Action, micro_batches: Sequence[Sequence[Tensor]], values: StepValues[Any], new_state: StageState
    ) -> None:
        """Run the graph of an action. After the last round of its update, the state of a stage is written.

        Args:
            micro_batches: [micro-batch][input], the inputs of the step.
            values: the values between the functions of the step; the operands are read, and the results are added.
            new_state: the new state of stages, as far as it has been computed; results that are state are added.
        """
        part, flow, signature = part_of(action), self._flow, self._traces.first.signature
        if part in self._programs.graphs:
            inputs: list[Tensor] = []
            positions = {argument.name: index for index, argument in enumerate(signature.inputs)}
            for name in flow.arguments(part):
                if name in positions:
                    tensor = micro_batches[action.micro][positions[name]]
                    argument = signature.inputs[positions[name]]
                    inputs.append(input_shard(argument, tensor, self._stage_ranks.within, is_local=False))
                elif flow.step.is_state(name):
                    value = new_state.get((action.stage, name))
                    inputs.append(self._state.shards[name] if value is None else value)
                else:
                    value = values.operand(action, name)
                    inputs.append(value.wait() if isinstance(value, ReceivedValue) else value)
            shards = self._state.shards
            returned = run_rank(self._programs.graphs[part], inputs, self._stage_ranks.within)
            # Copy the results that share memory with shards, because the shards are overwritten while these results are
            # still read. Exempt are results that are themselves the new value of a shard, and all that are neither
            # state nor from an update: they are read before the shards change.
            exempt = {
                index
                for index, (name, result) in enumerate(zip(flow.results(part), returned, strict=True))
                if result is shards.get(name) or not (part.kind == "U" or flow.step.is_state(name))
            }
            results = copy_overwritten(returned, shards.values(), exempt)
            for name, result in zip(flow.results(part), results, strict=True):
                if flow.step.is_state(name):
                    new_state[action.stage, name] = result
                else:
                    values.hold(action, name, result)
            values.use_operands(action)
        if action.kind == "U" and action.micro == flow.updates.rounds[action.stage] - 1:
            self._end_stage(action.stage, new_state)

    def _end_stage(self, stage: int, new_state: StageState) -> None:
        """Free the sums of a stage, and write its state.

        Outputs of the step, and state that another stage of this rank reads, are written at the end of the step.
        """
        coordinate = self._coordinates[stage]
        other_stages = [
            index for index, place in enumerate(self._coordinates) if place == coordinate and index != stage
        ]
        shared = {name for index in other_stages for name in self._flow.state_names(index)}
        for _, name in [key for key in new_state if key[0] == stage]:
            if name not in shared and name not in self._flow.step.outputs:
                self._write(stage, name, new_state)

    def _write(self, stage: int, name: str, new_state: StageState) -> None:
        """Write a new value of the state into the memory of the old one."""
        value, old = new_state.pop((stage, name)), self._state.shards.get(name)
        if old is not None and value is not old:
            old.detach().copy_(value)

    def _output(self, name: str, values: StepValues[Any], new_state: StageState) -> Tensor:
        """Return an output of the step. The coordinate that has it sends it to all others.

        The output is a result of the update ("U") of a stage, or a tensor of the state of a stage.
        """
        layout, flow = self._programs.layouts[name], self._flow
        part = next((part for part in flow.producers.get(name, ()) if part.kind == "U"), None)
        stages = [stage for stage in range(len(flow.step.stages)) if name in flow.state_names(stage)]
        stage = part.stage if part is not None else stages[0]
        source, local = self._coordinates[stage], None
        if source == self._stage_ranks.coordinate:
            local = values.operand(part, name) if part is not None else new_state.get((stage, name))
            local = self._state.shards[name] if local is None else local
        return self._broadcast(local, layout, source)

    def _broadcast(self, local: Tensor | None, layout: StageLayout, source: int) -> Tensor:
        """Return a replicated tensor, sent from the coordinate `source` to all others.

        Args:
            local: the tensor, on the ranks at `source`; None on all others.
            layout: its global shape and element type.
        """
        shape, dtype = layout.meta.shape, TORCH_DTYPES[layout.meta.dtype]
        buffer = torch.empty(shape, dtype=dtype, device=self.device) if local is None else local.detach().contiguous()
        with self._stage_ranks.exchange("the exchange of a result of the step"):
            dist.broadcast(buffer, self._stage_ranks.peers[source], group=self._stage_ranks.group)
        return buffer

    def _whole_state(self) -> dict[str, Tensor]:
        """Return name → whole tensor of the state, with the tensors of the stages of other ranks."""
        local_state, whole = super()._whole_state(), {}
        names_of_peers: list[list[str]] = [[] for _ in self._stage_ranks.peers]
        dist.all_gather_object(names_of_peers, list(local_state), group=self._stage_ranks.group)
        replicated = Sharding((), self._stage_ranks.within.mesh.name)
        for argument in self._traces.first.signature.state_arguments:
            layout = StageLayout(argument.meta, replicated)
            source = next((index for index, names in enumerate(names_of_peers) if argument.name in names), None)
            if source is None:  # a sum over micro-batches, which is 0 between steps
                whole[argument.name] = layout.empty_shard(self._stage_ranks, torch.zeros)
            else:
                whole[argument.name] = self._broadcast(local_state.get(argument.name), layout, source)
        return whole
