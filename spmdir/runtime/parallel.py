"""A model or a training step, partitioned, as one of the ranks that run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cached_property
from typing import Any

import attrs
import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from spmdir.core.errors import SpmdirError
from spmdir.core.mesh import Mesh
from spmdir.core.sharding import Sharding
from spmdir.core.symbolic.expressions import evaluate
from spmdir.dialects.attributes import sharding_attr, type_of
from spmdir.dialects.ir import main_function
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.sizes import open_sizes
from spmdir.dialects.values import sharding_of, signature_kind, signature_name
from spmdir.lowering.compiled import run_compiled
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.process_groups import name_groups
from spmdir.passes.finish import bound, localized, rest
from spmdir.passes.pipeline import Pipeline, run_passes
from spmdir.rules import RuleSet
from spmdir.runtime.agreement import RankGroup
from spmdir.runtime.capture import Convention
from spmdir.runtime.digests import program_digest
from spmdir.runtime.local_state import LocalShard, as_dtensor, own_shard
from spmdir.runtime.partial_runs import part_of
from spmdir.runtime.rank_calls import apart, draws, input_shard, run_rank, share_generator
from spmdir.runtime.signature import Argument, Result, Signature
from spmdir.runtime.training import TrainingStep
from spmdir.simulator.simulate import check_memory, initial_states, solve_shapes

Known = tuple[tuple[str, int], ...]
"""Symbolic sizes by name."""


@attrs.frozen(eq=False)
class Kept:
    """What this rank keeps for a step from one call to the next, of a tensor of global `shape`."""

    tensor: Tensor
    sharding: Sharding
    shape: tuple[int, ...]


def kept_for_steps(program: ModuleOp, mesh: Mesh, rank: int, device: torch.device) -> dict[str, Kept]:
    """Return name → what `rank` begins with, of what a program with collectives keeps for its steps."""
    function = main_function(program)
    initial, found = initial_states(function, mesh), {}
    for value in function.args:
        name = signature_name(function, "arg_attrs", value.index)
        if name in initial and signature_kind(function, "arg_attrs", value.index) == "state":
            sharding, whole = sharding_of(value) or Sharding((), mesh.name), initial[name]
            found[name] = Kept(own_shard(whole, sharding, mesh, rank, device), sharding, tuple(whole.shape))
    return found


@attrs.define(frozen=True, eq=False, slots=False)
class Parallel:
    """One rank's part of a partitioned program; calling it runs it together with the other ranks.

    Attributes:
        module: the partitioned program in the IR, with global shapes; if these are symbolic, it is decided but not
            lowered, which is done for each choice of sizes when it is first called with them.
        graph: the program of this rank; with symbolic sizes, that for the example arguments.
        mesh, rank: the ranks, and this one among them.
        device: where this one runs.
        pipeline: what has been run on the program.
        unset: the names in `state` of what was on the meta device and has no values yet.
    """

    module: ModuleOp
    graph: fx.GraphModule
    mesh: Mesh
    rank: int
    device: torch.device
    _held: dict[str, Tensor]
    _kept: dict[str, Kept]
    _device_mesh: Any
    _ranks: RankGroup
    _signature: Signature
    _convention: Convention
    _aliases: Mapping[str, str]
    _local_inputs: bool
    _graphs: dict[Known, fx.GraphModule]
    _step: TrainingStep | None
    _rates: dict[str, float]
    pipeline: Pipeline
    _rules: RuleSet
    unset: set[str]
    _compile: Mapping[str, Any] | None = None

    @torch.no_grad()
    def __call__(self, *args: Any) -> Any:
        """Return the outputs of the model or the step, in its structure; the new state overwrites the old.

        Every rank passes the same arguments and gets replicated outputs, but for those that `out_shardings` shards.
        A step that `training_step` made takes the learning rates that its optimizer has now, and cuts the arguments
        into its micro-batches.
        Autograd records nothing: gradients are part of a step. Random ops draw from
        the generator of the first rank.

        Args:
            args: built like the example arguments, with tensors of the same shapes and element types; this rank's
                shards of them with `local_inputs`.

        Raises:
            SpmdirError: the arguments do not fit, or share memory that is written to; sizes that are not those of the
                last call differ between ranks, or cannot be lowered on one of them; a collective fails since a rank
                has ended, stalls, or had an error.
        """
        if self._step is None:
            return self._called(args)
        with self._ranks.reporting():
            self._share_rates(self._step)
            *others, last = self._step.cut(args)
        for name in filter(self._step.is_sum, self._held):
            self._held[name].zero_()
        for micro in others:
            self._called(micro, is_last=False)
        return self._called(last)

    def _share_rates(self, step: TrainingStep) -> None:
        """Take the learning rates that the optimizer has got since the last call, or give it those that were loaded."""
        for name, rate in step.rates().items():
            if rate != self._rates[name]:
                self._held[name].fill_(rate)
            else:
                step.set_rate(name, self._held[name].item())
            self._rates[name] = self._held[name].item()

    def _called(self, args: tuple[Any, ...], is_last: bool = True) -> Any:
        """Return the outputs of one run, after it has renewed what it renews; of that only a part if not `is_last`."""
        with self._ranks.reporting():
            self.check_values()
            tensors = self._convention.tensors(args)
            given = {a.name: tensor for a, tensor in zip(self._signature.inputs, tensors, strict=True)}
            check_memory(given, (a.name for a, _ in self._signature.renewed if not a.held))
            sizes = self._sizes(given)
            shards = [
                self._held[a.name] if a.held else self._shard(a, given[a.name], sizes)
                for a in self._signature.arguments
            ]
        graph = self._graph(sizes)
        renewed = self._signature.renewed
        if not is_last and self._step is not None:
            renewed = [(argument, result) for argument, result in renewed if self._step.is_accumulated(argument.name)]
            graph = self._part(graph, frozenset(result.index for _, result in renewed))
        if self._draws:
            share_generator(self.device, self.mesh, self._device_mesh, self._ranks)
        returned, new = self._split(
            run_rank(graph, [*shards, *(kept.tensor for kept in self._kept.values())], self._ranks)
        )
        kept = {r.index for a, r in renewed if a.held and returned[r.index] is self._held[a.name]}
        results = apart(returned, self._held.values(), kept)
        for argument, result in renewed:
            if result.index not in kept:
                (self._held if argument.held else given)[argument.name].copy_(results[result.index])
        for state, tensor in zip(self._kept.values(), new, strict=True):
            state.tensor.copy_(tensor)
        flat = [
            results[leaf.index] if isinstance(leaf, Result) else evaluate(leaf, sizes)
            for leaf in self._signature.outputs
        ]
        return pytree.tree_unflatten(flat, self._convention.out_spec)

    @cached_property
    def rank_module(self) -> ModuleOp:
        """The program of a rank in the IR, after `localize` and what follows; with symbolic sizes, for the examples.

        Example:
            >>> print(spmdir.print_ir(parallel.rank_module))
        """
        with self._rules:
            sizes = dict(next(iter(self._graphs)))
            return localized(bound(self.module, sizes, self.pipeline) if sizes else self.module, self.pipeline)

    @cached_property
    def state(self) -> dict[str, Tensor | LocalShard]:
        """The shards of this rank by name, as DTensors; a nn.Parameter where the tensor was one.

        Calls update these in place, and what is written into them, as `torch.distributed.checkpoint.load` does, is what
        calls read. Partial values give a LocalShard, which cannot be saved. What ranks
        keep for steps, such as the error of a compressed sum, is there too, by the name of its argument in `module`.

        Example:
            >>> torch.distributed.checkpoint.save({"model": parallel.state}, checkpoint_id="checkpoint")
        """
        held = [(a.name, self._held[a.name], a.sharding, a.meta.shape) for a in self._signature.held]
        held += [(name, kept.tensor, kept.sharding, kept.shape) for name, kept in self._kept.items()]
        return {
            name: as_dtensor(name, tensor, sharding, shape, self.mesh, self._device_mesh)
            for name, tensor, sharding, shape in held
        }

    def check_values(self) -> None:
        """Raise SpmdirError if something of the state has no values yet."""
        if self.unset:
            raise SpmdirError(
                f"'{min(self.unset)}' has no values, for it was on the meta device; give it some by materialize, "
                "load_safetensors or load_checkpoint"
            )

    @property
    def is_step(self) -> bool:
        """Return whether this is a step with a state of its own, rather than a model."""
        return self._convention.state_spec is not None

    @property
    def tied(self) -> Mapping[str, str]:
        """Return the further names of tied parameters → the name that `state` has for them."""
        return self._aliases

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """Return the full state by name, gathered on every rank; all ranks must call it.

        Tied parameters are there by each of their names.

        Raises:
            SpmdirError: a collective fails since a rank has ended or stalls.

        Example:
            >>> model.load_state_dict(parallel.state_dict())
        """
        self.check_values()
        names = [argument.name for argument in self._signature.held]
        gathered = run_rank(self._gather, [self._held[name] for name in names], self._ranks)
        gathered = apart(gathered, self._held.values())
        full = dict(zip(names, gathered, strict=True))
        return {**full, **{alias: full[name] for alias, name in self._aliases.items()}}

    def gather_state(self) -> Any:
        """Return the full state of a step in its structure, or of a model as `state_dict`; all ranks must call it.

        Raises:
            SpmdirError: a collective fails since a rank has ended or stalls.

        Example:
            >>> loss, state = step(parallel.gather_state(), x, target)
        """
        full, spec = self.state_dict(), self._convention.state_spec
        if spec is None:
            return full
        leaves = [full[leaf.name] if isinstance(leaf, Argument) else leaf for leaf in self._signature.state]
        return pytree.tree_unflatten(leaves, spec)

    def _shard(self, argument: Argument, tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
        """Return what the program of this rank takes for an input."""
        shape = argument.shape(sizes)
        return input_shard(argument, tensor, shape, self.mesh, self.rank, self._local_inputs).to(self.device)

    @cached_property
    def _draws(self) -> bool:
        """True if the program draws random numbers."""
        return draws(self.module)

    def _split(self, returned: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return what the program returns, and the new values of what ranks keep for steps, which come last."""
        end = len(returned) - len(self._kept)
        return returned[:end], returned[end:]

    def _sizes(self, given: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the symbolic sizes of the program in a call with the inputs `given`."""
        known: dict[str, int] = {}
        declared = open_sizes(self.module)
        if declared.symbols:
            solve_shapes(known, [(a.name, a.sizes, given[a.name]) for a in self._signature.inputs])
            declared.check(known)
        return known

    def _part(self, graph: fx.GraphModule, results: Set[int]) -> fx.GraphModule:
        """Return what of a program of this rank makes these results."""
        if graph not in self._parts:
            self._parts[graph] = part_of(graph, results)
        return self._parts[graph]

    @cached_property
    def _parts(self) -> dict[fx.GraphModule, fx.GraphModule]:
        return {}

    def _graph(self, sizes: Mapping[str, int]) -> fx.GraphModule:
        """Return the program of this rank for `sizes`; the ranks agree on sizes that are not those of the last call."""
        key = tuple(sizes.items())
        if key == self._ranks.agreed:
            return self._graphs[key]
        with self._ranks.checked("a run with new sizes") as status:
            status["sizes"] = dict(sizes)
            graph = self._graphs.get(key)
            if graph is None:
                with self._rules:
                    module = bound(self.module, sizes, self.pipeline)
                    program, graph = lowered(module, self.pipeline, self.rank, self.device)
                status["program"] = program_digest(program, graph)
        if key not in self._graphs:
            name_groups(graph, self.mesh, self._device_mesh)
            if self._compile is not None:
                run_compiled(graph, self._compile)
            self._graphs[key] = graph
        self._ranks.agreed = key
        return graph

    @cached_property
    def _gather(self) -> fx.GraphModule:
        """The program that gathers the state."""
        program = lower_to_fx(_gathering(self._signature.held, self.mesh), self.rank).to(self.device)
        name_groups(program, self.mesh, self._device_mesh)
        return program


def lowered(module: ModuleOp, pipeline: Pipeline, rank: int, device: torch.device) -> tuple[ModuleOp, fx.GraphModule]:
    """Return a decided module with its collectives, and this rank's program, whose groups are named by mesh axes."""
    run_passes(module, rest(pipeline, module).before("localize"))
    return module, lower_to_fx(module, rank, pipeline=pipeline).to(device)


def _gathering(arguments: Sequence[Argument], mesh: Mesh) -> ModuleOp:
    """Return a program that gathers its arguments."""
    types = [type_of(argument.meta) for argument in arguments]
    block = Block(arg_types=types)
    block.add_op(ReturnOp(*block.args))
    held = [DictionaryAttr({"spmd.sharding": sharding_attr(argument.sharding)}) for argument in arguments]
    replicated = [DictionaryAttr({"spmd.sharding": sharding_attr(Sharding((), mesh.name))})] * len(types)
    function = FuncOp(
        "gather", (types, types), Region(block), arg_attrs=ArrayAttr(held), res_attrs=ArrayAttr(replicated)
    )
    return ModuleOp([MeshOp.build(mesh), function])
