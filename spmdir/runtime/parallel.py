"""A partitioned model or training step, on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import ModuleOp

from spmdir.core.errors import UnsupportedError
from spmdir.core.mesh import Mesh
from spmdir.core.placement.sharding import Sharding
from spmdir.core.symbolic.expressions import evaluate
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.process_groups import name_groups
from spmdir.pipeline.pipeline import Pipeline
from spmdir.runtime.local_state import LocalShard
from spmdir.runtime.rank_calls import copy_overwritten, input_shard, run_rank
from spmdir.runtime.rank_programs import bind_open_sizes
from spmdir.runtime.rank_state import RankState
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.resharding import LayoutChange, build_reshard_program
from spmdir.runtime.signature import Argument, Result
from spmdir.runtime.traces import Trace, Traces
from spmdir.runtime.training import TrainingStep
from spmdir.runtime.value_check_on_ranks import check_values_on_ranks
from spmdir.simulator.simulate import check_memory
from spmdir.torch_interop import pytree


@attrs.frozen(eq=False, slots=False, kw_only=True)
class Parallel:
    """A partitioned model or training step on one rank. A call runs it together with the other ranks.

    Attributes:
        _ranks: the ranks that run the program.
        _traces: the traces of the program: that of the examples (`first`), and those for other sizes.
        _state: the tensors that this rank keeps between calls.
        _tied: further name of a tied parameter → its name in the state.
        _step: the training step; None for a model, or a step that `training_step` did not make.
    """

    _ranks: Ranks = attrs.field(alias="ranks")
    _traces: Traces = attrs.field(alias="traces")
    _state: RankState = attrs.field(alias="state")
    _tied: Mapping[str, str] = attrs.field(alias="tied")
    _step: TrainingStep | None = attrs.field(alias="step")

    def __repr__(self) -> str:
        kind, tensors = "step" if self.is_step else "model", len(self._state.shards)
        return (
            f"<Parallel {kind}: rank {self.rank} of the mesh {self.mesh} on {self.device}, {tensors} tensors of state>"
        )

    @property
    def module(self) -> ModuleOp:
        """The partitioned program in the IR, with global shapes.

        If shapes are symbolic, this is the decided program. It is lowered at the first call with each choice of sizes.
        """
        return self._traces.first.programs.module

    @property
    def undecided(self) -> ModuleOp:
        """The imported program with the user's annotations; `explain` and `what_if` decide it again."""
        return self._traces.first.programs.undecided

    @property
    def pipeline(self) -> Pipeline:
        """The passes that were run on the program."""
        return self._traces.first.programs.pipeline

    @property
    def graph(self) -> fx.GraphModule:
        """The graph of this rank; with symbolic sizes, the one for the example arguments."""
        return self._traces.first.programs.first.graph

    @property
    def rank_module(self) -> ModuleOp:
        """The scheduled program of a rank in the IR; with symbolic sizes, the one for the example arguments.

        Example:
            >>> print(spmdir.print_ir(parallel.rank_module))
        """
        return self._traces.first.programs.rank_module

    @property
    def mesh(self) -> Mesh:
        """The mesh of the ranks."""
        return self._ranks.mesh

    @property
    def rank(self) -> int:
        """The index of this rank in the mesh."""
        return self._ranks.index

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self._ranks.device

    @property
    def unset(self) -> frozenset[str]:
        """The names in `state` of tensors that were on the meta device and have no values yet."""
        return frozenset(self._state.unset)

    @property
    def tied(self) -> Mapping[str, str]:
        """Further name of a tied parameter → its name in `state`."""
        return self._tied

    @property
    def is_step(self) -> bool:
        """Whether this is a step, whose state is an argument and a result, rather than a model."""
        return self._traces.first.convention.state_spec is not None

    def __call__(self, *args: Any) -> Any:
        """Return the outputs of the model or the step, in its structure; the new state overwrites the old.

        Every rank passes the same arguments and gets replicated outputs, except for outputs that `out_shardings`
        shards. A step of `training_step` uses the present learning rates of its optimizer, and cuts the arguments into
        micro-batches. Autograd records nothing: gradients are part of a step. Random ops draw from the generator of
        the first rank.

        Args:
            args: arguments with the structure, shapes and element types of the example arguments. With `local_inputs`,
                this rank's shards of such arguments.

        Raises:
            SpmdirError: the arguments do not fit, or share memory that is written to; state of the model or of Python
                that the trace read has changed; new sizes differ between ranks, or cannot be lowered on one of them;
                a collective fails because a rank has ended, hangs, or had an error.
        """
        with self._ranks.group.report_errors():
            self._traces.first.guards.check()
        records_gradients = torch.is_grad_enabled()
        with torch.no_grad():
            return self._run(args, records_gradients)

    def _run(self, args: tuple[Any, ...], records_gradients: bool) -> Any:
        """Run a model once, or a step once for each of its micro-batches."""
        if self._step is None:
            return self._run_once(args, records_gradients)
        with self._ranks.group.report_errors():
            self._state.share_rates(self._step)
            *earlier, last_batch = self._step.split_batch(args)
        for name in filter(self._step.is_sum, self._state.shards):
            self._state.shards[name].zero_()
        for micro_batch in earlier:
            self._run_once(micro_batch, records_gradients, is_last=False)
        return self._run_once(last_batch, records_gradients)

    def _run_once(self, args: tuple[Any, ...], records_gradients: bool, is_last: bool = True) -> Any:
        """Run the program once, update the state, and return the outputs.

        Args:
            records_gradients: whether the caller has gradients enabled, which a trace may depend on.
            is_last: whether this is the last micro-batch. Otherwise only the accumulated part of the state is updated.
        """
        # Select the trace, the sizes and the program for the arguments.
        trace = self._select_trace(args, records_gradients)
        signature, programs = trace.signature, trace.programs
        state_tensors, edge_states = {**self._state.shards, **trace.constants}, self._state.edge_states
        with self._ranks.group.report_errors():
            tensors = trace.convention.tensors(args)
            inputs = {argument.name: tensor for argument, tensor in zip(signature.inputs, tensors, strict=True)}
            check_memory(inputs, (argument.name for argument, _ in signature.updates if not argument.is_state))
        sizes = programs.find_sizes(tensors)
        # Take the local shards.
        with self._ranks.group.report_errors():
            shards = []
            for argument in signature.arguments:
                if argument.is_state:
                    shards.append(state_tensors[argument.name])
                else:
                    tensor, is_local = inputs[argument.name], self._ranks.local_inputs
                    shards.append(input_shard(argument, tensor, self._ranks, sizes=sizes, is_local=is_local))
        # Run the graph, or the part of it that accumulates.
        program = programs.program_for(sizes, tensors)
        graph = program.graph
        updates = signature.updates
        if not is_last and self._step is not None:
            updates = [(argument, result) for argument, result in updates if self._step.is_accumulated(argument.name)]
            graph = program.part({result.index for _, result in updates})
        local_tensors = [*shards, *(edge_state.tensor for edge_state in edge_states.values())]
        returned = run_rank(graph, local_tensors, self._ranks, draws=programs.draws)
        result_count = len(returned) - len(edge_states)
        returned, new_edge_states = returned[:result_count], returned[result_count:]
        # Write the new state, inputs and edge states. A result that shares memory with the state is copied before.
        indices_in_place = {
            result.index
            for argument, result in updates
            if argument.is_state and returned[result.index] is state_tensors[argument.name]
        }
        results = copy_overwritten(returned, state_tensors.values(), indices_in_place)
        for argument, result in updates:
            if result.index not in indices_in_place:
                written_tensors = state_tensors if argument.is_state else inputs
                written_tensors[argument.name].copy_(results[result.index])
        for edge_state, new_value in zip(edge_states.values(), new_edge_states, strict=True):
            edge_state.tensor.copy_(new_value)
        leaves = [
            results[leaf.index] if isinstance(leaf, Result) else evaluate(leaf, sizes) for leaf in signature.outputs
        ]
        return pytree.tree_unflatten(leaves, trace.convention.out_spec)

    def _select_trace(self, args: tuple[Any, ...], records_gradients: bool) -> Trace:
        """Return the trace for these arguments, after a check of its guards.

        Args:
            records_gradients: as for `_run_once`.
        """
        with self._ranks.group.report_errors():
            self.check_values()
            fixed = self._traces.find_fixed_dims(args)
        with torch.set_grad_enabled(records_gradients):  # a trace depends on the mode of the caller
            trace = self._traces.trace_for(fixed, args)
            if trace is not self._traces.first:  # `__call__` has checked the guards of the first trace
                with self._ranks.group.report_errors():
                    trace.guards.check()
        return trace

    @torch.no_grad()
    def check(self, *args: Any) -> int:
        """Compare every value of a call with one device, on each rank, and return how many values were compared.

        All ranks must call it. It runs the program once on the ranks and once whole on each rank, which needs memory
        for the whole program. The state does not change. A step is checked with its last micro-batch.

        Args:
            args: as for a call.

        Raises:
            UnsupportedError: the program draws random numbers, has edge states, or gets local inputs.
            SpmdirError: a value differs. The error names the first op in program order, its source line and the ranks.

        Example:
            >>> parallel.check(x, y)
        """
        if self._step is not None:
            *_, args = self._step.split_batch(args)
        trace = self._traces.trace_for(self._traces.find_fixed_dims(args), args)
        programs, tensors = trace.programs, trace.convention.tensors(args)
        if self._state.edge_states or self._ranks.local_inputs:
            raise UnsupportedError(
                "the program has edge states or gets local inputs, so its values cannot be compared with "
                "one device; expected a program without them: make it with exact placements and whole "
                "inputs"
            )
        inputs = {argument.name: tensor for argument, tensor in zip(trace.signature.inputs, tensors, strict=True)}
        state_shards, whole_state = {**self._state.shards, **trace.constants}, self.state_dict()
        shards: list[Tensor] = []
        whole: dict[str, Tensor] = {}
        for argument in trace.signature.arguments:
            if argument.is_state:
                shards.append(state_shards[argument.name])
                whole[argument.name] = whole_state.get(argument.name, state_shards[argument.name])
            else:
                shards.append(input_shard(argument, inputs[argument.name], self._ranks, is_local=False))
                whole[argument.name] = inputs[argument.name]
        module = bind_open_sizes(programs.module, programs.find_sizes(tensors), self.pipeline)
        return check_values_on_ranks(module, self.pipeline, self._ranks, shards, whole)

    @cached_property
    def state(self) -> dict[str, Tensor | LocalShard]:
        """Name → shard of this rank as a DTensor; a nn.Parameter if the tensor was one.

        Calls update the tensors in place and read them, so `torch.distributed.checkpoint.load` may write into them. A
        partial value is a LocalShard, which cannot be saved. Edge states, such as the error of a compressed sum, are
        included by the name of their argument in `module`.

        Example:
            >>> torch.distributed.checkpoint.save({"model": parallel.state}, checkpoint_id="checkpoint")
        """
        return self._state.as_dtensors(self._arguments, self._state_ranks)

    @property
    def absent(self) -> frozenset[str]:
        """The names of tensors of the state that only ranks with other stages keep; empty without a pipeline axis."""
        return frozenset()

    @property
    def saved_state(self) -> dict[str, Tensor | LocalShard]:
        """The part of `state` that checkpoints contain: all except sums over micro-batches, which start at 0."""
        is_sum = self._step.is_sum if self._step is not None else lambda name: False
        return {name: tensor for name, tensor in self.state.items() if not is_sum(name)}

    @property
    def _arguments(self) -> list[Argument]:
        """The arguments of the state that this rank keeps."""
        return self._traces.first.signature.state_arguments

    @property
    def _state_ranks(self) -> Ranks:
        """The ranks over which the state of this rank is sharded."""
        return self._ranks

    def _connect(self, graph: fx.GraphModule) -> None:
        """Give the collectives of a graph over `_state_ranks` their process groups; all ranks must call this."""
        name_groups(graph, self.mesh, self._ranks.device_mesh)

    def check_values(self) -> None:
        """Raise SpmdirError if a tensor of the state has no values yet."""
        self._state.check_values()

    def note_values(self, names: Iterable[str]) -> None:
        """Note that the tensors of `state` with these names have values now."""
        self._state.unset.difference_update(names)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Return name → whole tensor of the state, gathered on every rank; all ranks must call it.

        A tied parameter has an entry for each of its names.

        Raises:
            SpmdirError: a collective fails because a rank has ended or hangs.

        Example:
            >>> model.load_state_dict(parallel.state_dict())
        """
        self.check_values()
        whole_tensors = self._whole_state()
        return {**whole_tensors, **{alias: whole_tensors[name] for alias, name in self._tied.items()}}

    def _whole_state(self) -> dict[str, Tensor]:
        """Return name → whole tensor of the state, gathered on every rank; all ranks must call it."""
        shards = {argument.name: self._state.shards[argument.name] for argument in self._arguments}
        gathered = copy_overwritten(run_rank(self._gather, [*shards.values()], self._state_ranks), shards.values())
        return dict(zip(shards, gathered, strict=True))

    def gather_state(self) -> Any:
        """Return the whole state of a step in its structure, or of a model as `state_dict`; all ranks must call it.

        Raises:
            SpmdirError: a collective fails because a rank has ended or hangs.

        Example:
            >>> loss, state = step(parallel.gather_state(), x, target)
        """
        whole_tensors, spec = self.state_dict(), self._traces.first.convention.state_spec
        if spec is None:
            return whole_tensors
        leaves = [
            whole_tensors[leaf.name] if isinstance(leaf, Argument) else leaf
            for leaf in self._traces.first.signature.state
        ]
        return pytree.tree_unflatten(leaves, spec)

    @cached_property
    def _gather(self) -> fx.GraphModule:
        """The graph that takes the shards of `_arguments` and returns whole tensors, in the same order."""
        ranks, whole = self._state_ranks, Sharding((), self.mesh.name)
        changes = [LayoutChange(argument.meta, argument.sharding, whole) for argument in self._arguments]
        program = lower_to_fx(build_reshard_program("gather", changes, ranks.mesh), ranks.index).to(self.device)
        self._connect(program)
        return program
