"""`parallelize`: a model or a training step, partitioned and run by real ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch._C._distributed_c10d import _resolve_process_group
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region

from spmdir.dialects import ir
from spmdir.dialects.attributes import sharding_attr, type_of
from spmdir.dialects.mesh_op import MeshOp
from spmdir.dialects.sizes import open_sizes
from spmdir.errors import SpmdirError
from spmdir.importer import import_fx
from spmdir.lowering.capture import Capture, Convention, capture_model, capture_step
from spmdir.lowering.emit import lower_to_fx
from spmdir.lowering.groups import device_groups, device_rank
from spmdir.lowering.layout import held_piece
from spmdir.lowering.signature import Argument, Result, Signature, keep_places, read_signature
from spmdir.lowering.simulate import check_tensor, solve_shapes
from spmdir.lowering.stages import bound
from spmdir.mesh import Mesh
from spmdir.passes import run_passes
from spmdir.rules import RuleSet, default
from spmdir.sharding import Sharding
from spmdir.size import evaluate

Known = tuple[tuple[str, int], ...]
"""Symbolic sizes by name."""


@attrs.define(frozen=True, eq=False, slots=False)
class Parallel:
    """One rank's part of a partitioned program; calling it runs it together with the other ranks.

    Attributes:
        module: the partitioned program in the IR, with global shapes; if these are symbolic, it is decided but not
            lowered, which is done for each choice of sizes when it is first called with them.
        graph: the program of this rank; with symbolic sizes, that for the example arguments.
        state: name → what this rank holds of it; a nn.Parameter where it was one.
        mesh, rank: the ranks, and this one among them.
        device: where this one runs.
    """

    module: ModuleOp
    graph: fx.GraphModule
    state: dict[str, Tensor]
    mesh: Mesh
    rank: int
    device: torch.device
    _device_mesh: Any
    _signature: Signature
    _convention: Convention
    _aliases: Mapping[str, str]
    _local_inputs: bool
    _graphs: dict[Known, fx.GraphModule]
    _rules: RuleSet = attrs.field(factory=default, init=False)

    @torch.no_grad()
    def __call__(self, *args: Any) -> Any:
        """The outputs of the model or the step, in its structure; the new state overwrites the old.

        Every rank passes the same arguments, built like the example arguments, and gets whole outputs but for those
        that `out_shardings` divides. Autograd records nothing: gradients are part of a step. Random ops draw from
        the generator of the first rank.

        Raises:
            SpmdirError: the arguments do not fit.
        """
        tensors = self._convention.tensors(args)
        given = {a.name: tensor for a, tensor in zip(self._signature.inputs, tensors, strict=True)}
        sizes = self._sizes(given)
        pieces = [
            self.state[a.name] if a.held else self._piece(a, given[a.name], sizes) for a in self._signature.arguments
        ]
        graph = self._graph(sizes)
        if self._draws:
            self._share_generator()
        results = self._apart(graph(*pieces))
        for argument, result in self._signature.renewed:
            (self.state if argument.held else given)[argument.name].copy_(results[result.index])
        flat = [
            results[leaf.index] if isinstance(leaf, Result) else evaluate(leaf, sizes)
            for leaf in self._signature.outputs
        ]
        return pytree.tree_unflatten(flat, self._convention.out_spec)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Tensor]:
        """The whole state by name, gathered on every rank; all ranks must call it."""
        names = [argument.name for argument in self._signature.held]
        gathered = self._apart(self._gather(*(self.state[name] for name in names)))
        whole = dict(zip(names, gathered, strict=True))
        return {**whole, **{alias: whole[name] for alias, name in self._aliases.items()}}

    def gather_state(self) -> Any:
        """The whole state of a step in its structure, or of a model as `state_dict`; all ranks must call it."""
        whole, spec = self.state_dict(), self._convention.state_spec
        if spec is None:
            return whole
        leaves = [whole[leaf.name] if isinstance(leaf, Argument) else leaf for leaf in self._signature.state]
        return pytree.tree_unflatten(leaves, spec)

    def _sizes(self, given: Mapping[str, Tensor]) -> dict[str, int]:
        """The symbolic sizes of the program in a call with the inputs `given`."""
        known: dict[str, int] = {}
        declared = open_sizes(self.module)
        if declared.symbols:
            solve_shapes(known, [(a.name, a.sizes, given[a.name]) for a in self._signature.inputs])
            declared.check(known)
        return known

    def _graph(self, sizes: Mapping[str, int]) -> fx.GraphModule:
        """The program of this rank for `sizes`; all ranks must ask alike."""
        key = tuple(sizes.items())
        if key not in self._graphs:
            with self._rules:
                self._graphs[key] = _lowered(bound(self.module, sizes), self.mesh, self._device_mesh)[1]
        return self._graphs[key]

    def _piece(self, argument: Argument, tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
        """What the program of this rank takes for an input."""
        shape, sharding = argument.shape(sizes), argument.sharding
        if self._local_inputs:
            shape = sharding.local_shape(shape, self.mesh, self.mesh.coordinate(self.rank))
        check_tensor(argument.name, tensor, shape, argument.meta.dtype)
        piece = tensor if self._local_inputs else held_piece(tensor, sharding, self.mesh, self.rank)
        return piece.to(self.device)

    def _apart(self, results: Sequence[Tensor]) -> list[Tensor]:
        """The results, with copies of those that are held state, which later calls overwrite."""
        held = {tensor.untyped_storage().data_ptr() for tensor in self.state.values()}
        return [r.detach().clone() if r.untyped_storage().data_ptr() in held else r for r in results]

    @cached_property
    def _gather(self) -> fx.GraphModule:
        """The program that makes whole tensors of what the ranks hold."""
        return lower_to_fx(_gathering(self._signature.held, self.mesh), device_mesh=self._device_mesh)

    @cached_property
    def _draws(self) -> bool:
        """Whether the program draws random numbers."""
        return any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in self.graph.graph.nodes)

    def _share_generator(self) -> None:
        """Put the generator of every rank where that of the first rank is."""
        source = torch.random if self.device.type == "cpu" else torch.get_device_module(self.device)
        drawn = source.get_rng_state().to(self.device)
        dist.broadcast(drawn, group=_group(self.mesh, self._device_mesh), group_src=0)
        source.set_rng_state(drawn.cpu())


def parallelize(
    model: nn.Module | Callable[..., Any],
    example_args: Sequence[Any],
    mesh: Mesh,
    shardings: Mapping[str, object] | None = None,
    *,
    out_shardings: Sequence[object] | None = None,
    state: Any = None,
    device_mesh: Any = None,
    local_inputs: bool = False,
    dynamic_shapes: Any = None,
    missing_rule: Literal["warn", "error"] = "warn",
) -> Parallel:
    """Partition a model or a training step; every rank calls this, alike, and gets its part.

    Each rank keeps only its pieces of parameters, buffers and state: once the caller lets go of the originals, no
    rank holds a whole copy of what is divided. Originals must be equal on all ranks, so seed before making them;
    they may lie on the CPU whatever the ranks run on.

    Args:
        model: a module, whose forward is run; or, with `state`, a function `step(state, *args) → (outputs,
            new_state)` of tensor ops, as `training_step` makes.
        example_args: positional arguments with global shapes; numbers among them become constants.
        shardings: as for `import_fx`; what is not named is left to the compiler. Leaves of the state go by their
            path, `input:N` counts them before the arguments.
        out_shardings: one entry an output; None for whole on every rank. What is given comes back as local pieces.
        state: the pytree of tensors that a step begins with.
        device_mesh: a torch DeviceMesh like `mesh`. If None, it is made over the default process group, on CUDA if
            the group has NCCL, else on the CPU.
        local_inputs: whether calls are given this rank's pieces of the inputs instead of global inputs.
        dynamic_shapes: which dimensions of the arguments may have other sizes in calls, as for torch.export.export;
            of a step, one entry an argument. Shardings are decided once, for the example arguments.
        missing_rule: as for `import_fx`.

    Raises:
        SpmdirError: there is no process group, or it has another size than the mesh; the program cannot be traced
            or partitioned; ranks would run different programs.
    """
    if state is None and not isinstance(model, nn.Module):
        raise SpmdirError(
            f"cannot parallelize a {type(model).__name__}; expected a nn.Module, or a function "
            "step(state, *args) → (outputs, new_state) together with state="
        )
    if not isinstance(example_args, (tuple, list)):
        raise SpmdirError(f"example_args is a {type(example_args).__name__}; expected a tuple of positional arguments")
    if local_inputs and dynamic_shapes is not None:
        raise SpmdirError("pieces of inputs do not tell the whole sizes; give global inputs with dynamic_shapes")
    device_mesh = _default_device_mesh(mesh) if device_mesh is None else device_mesh
    device, rank = _device(device_mesh), device_rank(device_mesh)
    if isinstance(model, nn.Module) and state is None:
        capture = capture_model(model, tuple(example_args), dynamic_shapes)
    else:
        capture = capture_step(model, state, tuple(example_args), device, dynamic_shapes)
    module = import_fx(
        capture.program, mesh, shardings, capture.result_shardings(out_shardings), missing_rule=missing_rule
    )
    run_passes(module, "propagate")
    signature = read_signature(ir.main_function(module), capture)
    keep_places(ir.main_function(module), signature, local_inputs)
    examples = open_sizes(module).hints
    lowered, graph = _lowered(bound(module, examples) if examples else module, mesh, device_mesh)
    originals = _originals(capture, signature)
    return Parallel(
        module if examples else lowered,
        graph,
        {a.name: _own_piece(originals[a.name], a.sharding, mesh, rank, device) for a in signature.held},
        mesh,
        rank,
        device,
        device_mesh,
        signature,
        capture.convention,
        _aliases(capture, originals),
        local_inputs,
        {tuple(examples.items()): graph},
    )


def _lowered(module: ModuleOp, mesh: Mesh, device_mesh: Any) -> tuple[ModuleOp, fx.GraphModule]:
    """A decided module with its collectives, on which the ranks agree, and this rank's program."""
    run_passes(module, "insert-reshard,lower-reshard,fuse-collectives")
    _check_agreement(module, _group(mesh, device_mesh))
    return module, lower_to_fx(module, device_mesh=device_mesh)


def _default_device_mesh(mesh: Mesh) -> Any:
    if not dist.is_initialized():
        raise SpmdirError(
            f"there is no process group; start {mesh.world_size} processes, as with torchrun, "
            "and call torch.distributed.init_process_group first"
        )
    if dist.get_world_size() != mesh.world_size:
        raise SpmdirError(
            f"the process group has {dist.get_world_size()} ranks, mesh {mesh} has {mesh.world_size}; "
            f"start {mesh.world_size} processes, or give the device_mesh of a part of them"
        )
    kind = "cuda" if "nccl" in dist.get_backend_config() and torch.cuda.is_available() else "cpu"
    return dist.device_mesh.init_device_mesh(kind, tuple(mesh.sizes.values()), mesh_dim_names=mesh.axis_names)


def _device(device_mesh: Any) -> torch.device:
    kind = device_mesh.device_type
    return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.get_device_module(kind).current_device())


def _group(mesh: Mesh, device_mesh: Any) -> Any:
    """The process group of all ranks of the mesh."""
    name: Any = device_groups(mesh, device_mesh)(mesh.axis_names)
    return _resolve_process_group(name)


def _check_agreement(module: ModuleOp, group: Any) -> None:
    """Ranks that run different programs wait for each other for ever, or compute nonsense."""
    digest = hashlib.sha256(ir.print_ir(module).encode()).hexdigest()
    digests: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(digests, digest, group=group)
    other = next((index for index, found in enumerate(digests) if found != digests[0]), None)
    if other is not None:
        raise SpmdirError(
            f"ranks 0 and {other} of the mesh would run different programs; "
            "give every rank the same model, shapes and shardings"
        )


def _originals(capture: Capture, signature: Signature) -> dict[str, Tensor]:
    """Name → the whole tensor, of what stays with the ranks."""
    of_state = {leaf.name: tensor for leaf, tensor in zip(signature.state, capture.state, strict=True) if _named(leaf)}
    return {a.name: of_state[a.name] if a.name in of_state else capture.own[a.name] for a in signature.held}


def _named(leaf: Any) -> bool:
    return isinstance(leaf, Argument)


def _own_piece(tensor: Tensor, sharding: Sharding, mesh: Mesh, rank: int, device: torch.device) -> Tensor:
    """The piece in storage of its own, so that the whole can be freed."""
    piece = held_piece(tensor.detach(), sharding, mesh, rank).to(device)
    piece = piece.clone(memory_format=torch.contiguous_format)
    return nn.Parameter(piece, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else piece


def _aliases(capture: Capture, originals: Mapping[str, Tensor]) -> dict[str, str]:
    """Further names of tied parameters → the name that the program has for them."""
    names = {id(tensor): name for name, tensor in originals.items()}
    return {k: names[id(t)] for k, t in capture.own.items() if k not in originals and id(t) in names}


def _gathering(arguments: Sequence[Argument], mesh: Mesh) -> ModuleOp:
    """A program that returns its arguments, held as given, whole."""
    types = [type_of(argument.meta) for argument in arguments]
    block = Block(arg_types=types)
    block.add_op(ReturnOp(*block.args))
    held = [DictionaryAttr({"spmd.sharding": sharding_attr(argument.sharding)}) for argument in arguments]
    whole = [DictionaryAttr({"spmd.sharding": sharding_attr(Sharding((), mesh.name))})] * len(types)
    function = FuncOp("gather", (types, types), Region(block), arg_attrs=ArrayAttr(held), res_attrs=ArrayAttr(whole))
    return ModuleOp([MeshOp.of(mesh), function])
