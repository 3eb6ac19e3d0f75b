"""A module with DTensor parameters, whose forward and backward run as programs of the ranks of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.runtime.dry_run import DryRun
from spmdir.runtime.dynamic_dims import Fixed, find_dynamic_dims, fixed_dims
from spmdir.runtime.guards import Guards
from spmdir.runtime.joint_capture import arguments_by_name, bound_arguments, leaf_names
from spmdir.runtime.joint_program import JointProgram
from spmdir.runtime.local_state import like_shard
from spmdir.runtime.meta_tensors import no_values_error
from spmdir.runtime.model_copies import copy_model
from spmdir.runtime.rank_programs import RankPrograms
from spmdir.runtime.ranks import Ranks
from spmdir.runtime.run_joint import run_joint
from spmdir.runtime.signature import Argument
from spmdir.runtime.state_walk import HOOKS, StateWalk
from spmdir.runtime.unreduced_gradients import Reduction, UnreducedGradients
from spmdir.runtime.variants import Places, Structure, Variant, Variants
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import is_inside_transform, without_subclasses
from spmdir.torch_interop.dtypes import TORCH_DTYPES
from spmdir.torch_interop.modules import remove_forward_pre_hook

RUNNER = "_spmdir_runner"
"""The attribute of a sharded module that holds its `Runner`."""

SUMS = "_spmdir_sums"
"""The attribute of a sharded module that holds its unreduced gradients."""


def watch_inner_modules(module: nn.Module) -> None:
    """Let each submodule with parameters raise an error if it is called directly with plain tensors."""
    for inner in module.modules():
        if inner is not module and any(True for _ in inner.parameters(recurse=False)):
            inner.register_forward_pre_hook(_reject_plain_tensors, with_kwargs=True)


def leave_inner_modules(module: nn.Module) -> None:
    """Undo `watch_inner_modules`."""
    for inner in module.modules():
        remove_forward_pre_hook(inner, _reject_plain_tensors)


def _reject_plain_tensors(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise UnsupportedError for plain tensors if the module has DTensor parameters."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_sharded = any(isinstance(parameter, DTensor) for parameter in module.parameters(recurse=False))
    if is_sharded and any(not isinstance(tensor, DTensor) for tensor in tensors):
        raise UnsupportedError(
            f"{str(module).partition(chr(10))[0]} is a submodule of a sharded module, and was called directly with "
            "plain tensors, such as by another method than forward; expected a call of the sharded module: return the "
            "result of the method from forward, or shard a module whose forward calls the method"
        )


@attrs.frozen(eq=False)
class Runner:
    """Runs a sharded module: finds or compiles the program of a call, and runs it.

    Attributes:
        ranks: the ranks of the mesh.
        placements: name → DTensor placements of a parameter or buffer.
        reduction: reduces gradients that were left unreduced.
        dynamic_sizes: argument → its entry in `dynamic_shapes`; empty with local inputs.
        compile: compiles the variant for a call, given the arguments of `Variant.serves` and the call. All ranks call
            it together.
        variants: the compiled variants.
    """

    ranks: Ranks
    placements: Mapping[str, tuple[Any, ...]]
    reduction: Reduction
    dynamic_sizes: Mapping[str, Any]
    compile: Callable[[nn.Module, Structure, bool, Places, tuple[Any, Any]], Variant]
    variants: Variants = attrs.field(factory=Variants, init=False)

    def __deepcopy__(self, memo: Any) -> Runner:
        """Return the runner itself: copies of a module run the same programs with different parameters."""
        return self

    @torch.compiler.disable(reason="the module is a compiled program already")
    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the outputs of `module` for its present parameters and buffers.

        Raises:
            SpmdirError: the layout or type of a parameter has changed, or the arguments do not fit the program.
        """
        _check_transforms()
        call = bound_arguments(module, args, kwargs)
        leaves, spec = pytree.tree_flatten((call[0], dict(call[1])))
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        differentiated = places_requiring_grad(leaves) if torch.is_grad_enabled() else frozenset[int]()
        sums: UnreducedGradients = module.__dict__[SUMS]
        is_unreduced = bool(self.reduction.axes) and torch.is_grad_enabled() and (sums.is_adding or bool(sums.tensors))
        with self.ranks.group.report_errors():
            fixed: Fixed = ()
            if self.dynamic_sizes:
                fixed = fixed_dims(find_dynamic_dims(self.dynamic_sizes, arguments_by_name(module, call)))
        structure = Structure.of(leaves, spec, fixed)
        variant = self.variants.find(module, structure, is_unreduced, differentiated)
        if variant is None:
            with self.ranks.group.report_errors():
                for variant_of_structure in self.variants.of_structure(structure)[:1]:
                    # Raises for inputs that no program of this structure accepts.
                    variant_of_structure.programs.solve_sizes(inputs)
                self.variants.check_limits(module, structure, is_unreduced, leaf_names(module, *call))
            variant = self.variants.add(self.compile(module, structure, is_unreduced, differentiated, call))
        programs = variant.programs
        sizes = programs.find_sizes(inputs)
        program = programs.program_for(sizes, inputs)
        with without_subclasses():  # attributes of an ElementwiseDTensor take 1 us each otherwise
            module_tensors = {}
            for argument in program.state_arguments:
                tensor, placements = get_tensor(module, argument.name), self.placements.get(argument.name)
                module_tensors[argument.name] = _check_tensor(tensor, argument, placements)
            frozen = {name: tensor for name, tensor in module_tensors.items() if not tensor.requires_grad}
        finish_gradients = functools.partial(self._finish_gradients, sums, is_unreduced, frozen)
        return run_joint(program, self.ranks, module_tensors, inputs, finish_gradients)

    def _finish_gradients(
        self, sums: UnreducedGradients, is_unreduced: bool, frozen: Mapping[str, DTensor], gradients: dict[str, Tensor]
    ) -> Mapping[str, Tensor]:
        """Return the gradients of a backward, by name, reduced over the ranks.

        Inside of `no_sync`, gradients of parameters are added to `sums` instead, and are not returned. The first
        backward outside reduces the sums.

        If a parameter was frozen after its gradients had been summed, the sum is added to its `grad` here, because
        autograd does not return a gradient for it.

        Args:
            sums: the unreduced gradients of the module.
            is_unreduced: whether the backward leaves the gradients of parameters unreduced.
            frozen: name → parameter or buffer that requires no gradient.
            gradients: the gradients of the backward. Unreduced gradients are removed from it.
        """
        if is_unreduced:
            sums.add({name: gradients.pop(name) for name in list(gradients) if name in self.placements})
        if not sums.is_adding and sums.tensors:
            for name, reduced_gradient in self.reduction.reduce(sums.take()).items():
                if name in frozen:
                    reduced_gradient, previous = like_shard(frozen[name], reduced_gradient), frozen[name].grad
                    frozen[name].grad = reduced_gradient if previous is None else previous + reduced_gradient
                else:
                    gradients[name] = gradients[name] + reduced_gradient if name in gradients else reduced_gradient
        return gradients


class ShardedModule:
    """The first base class of a sharded module; the second one is the class of the original module."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of the module on this rank, together with the other ranks."""
        return getattr(self, RUNNER).call(self, args, kwargs)

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        """Reset the gradients, including unreduced ones."""
        super().zero_grad(set_to_none)  # type: ignore  # of the other base
        self.__dict__[SUMS].take()

    @contextmanager
    def no_sync(self: Any) -> Iterator[None]:
        """Sum the gradients of calls inside on each rank; the next backward outside reduces the sums."""
        sums = self.__dict__[SUMS]
        was_adding, sums.is_adding = sums.is_adding, True
        try:
            yield
        finally:
            sums.is_adding = was_adding

    def set_requires_gradient_sync(self: Any, requires_gradient_sync: bool) -> None:
        """Set whether the backwards of later calls reduce gradients, as in FSDP2."""
        self.__dict__[SUMS].is_adding = not requires_gradient_sync


def save_pretrained(self: Any, *args: Any, state_dict: Any = None, **kwargs: Any) -> Any:
    """Save a Hugging Face model with the whole tensors `state_dict`.

    Raises:
        SpmdirError: `state_dict` is None. The module itself has only the shards of one rank.
    """
    if state_dict is None:
        raise SpmdirError(
            f"save_pretrained of a sharded {type(self).__name__} would save only the shards of one rank; "
            "expected whole tensors: call spmdir.checkpoint.save_safetensors(directory, model) on all "
            "ranks, and model.config.save_pretrained(directory) on one"
        )
    return type(self).__bases__[1].save_pretrained(self, *args, state_dict=state_dict, **kwargs)


def rank_programs(sharded: nn.Module) -> tuple[RankPrograms[JointProgram], ...]:
    """Return the programs of a sharded module, one for each mode that has run, in the order of their compilation.

    Each has these attributes, of which `print_ir` and the reports accept the modules:

    - `module`: the decided program of all ranks, forward and backward together;
    - `pipeline`: its pipeline;
    - `rank_module`: the program of a rank, with its schedule;
    - `first.forward.graph` and `first.backward.graph`: the graphs of this rank for the example inputs.

    Args:
        sharded: a module that `shard_module` returned, or a copy of it.

    Raises:
        SpmdirError: `sharded` is not such a module.

    Example:
        >>> (program,) = spmdir.report.rank_programs(sharded)
        >>> print(spmdir.report.comm_report(program.module, pipeline=program.pipeline))
    """
    if not isinstance(sharded, ShardedModule):
        raise SpmdirError(
            f"rank_programs found a {type(sharded).__name__}; expected a module that shard_module returned: "
            "pass that module"
        )
    return tuple(variant.programs for variant in sharded.__dict__[RUNNER].variants)


def places_requiring_grad(leaves: Sequence[Any]) -> Places:
    """Return the indices among `leaves` of the tensors that require a gradient."""
    return frozenset(index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad)


def sharded_copy(model: nn.Module, tensors: Mapping[str, Tensor], runner: Runner) -> nn.Module:
    """Return a copy of a module with other parameters and buffers, and a forward that `runner` runs.

    Ties, hooks and modes are kept. The class of the copy is a subclass of the class of `model`, with the same name,
    because libraries write this name into saved files.

    Args:
        tensors: each parameter and buffer by one of its names.
    """
    sharded = copy_model(model, {id(get_tensor(model, name)): tensor for name, tensor in tensors.items()})
    base = type(model)
    forward = functools.wraps(base.forward)(lambda self, *args, **kwargs: ShardedModule.forward(self, *args, **kwargs))
    members = {"forward": forward, "__module__": base.__module__, "__doc__": base.__doc__}
    if hasattr(base, "save_pretrained"):
        members["save_pretrained"] = save_pretrained
    sharded.__class__ = type(base.__name__, (ShardedModule, base), members)
    sharded.__dict__[RUNNER], sharded.__dict__[SUMS] = runner, UnreducedGradients()
    watch_inner_modules(sharded)
    return sharded


def unsharded_copy(sharded: nn.Module) -> nn.Module:
    """Return a copy of a sharded module with its original class and with tensors on the meta device."""
    memo: dict[int, Any] = {id(sharded.__dict__[key]): None for key in (RUNNER, SUMS)}
    for tensor in (*sharded.parameters(), *sharded.buffers()):
        meta = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        memo[id(tensor)] = nn.Parameter(meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else meta
    model = copy_model(sharded, memo)
    del model.__dict__[RUNNER], model.__dict__[SUMS]
    leave_inner_modules(model)
    model.__dict__.pop("forward", None)  # a wrapper of the sharded forward is not part of the program
    model.__class__ = type(sharded).__bases__[1]
    return model


def guards_of(sharded: nn.Module, dry_run: DryRun, device: torch.device) -> Guards:
    """Return the guards of a program that was traced in the present state of a sharded module.

    Raises:
        UnsupportedError: a value of the state differs at each read.
    """
    omitted = frozenset({RUNNER, SUMS, "forward", *HOOKS})  # hooks run around a program
    walk = StateWalk(dry_run.code, {"model": sharded}, omitted, frozenset(dry_run.caches.dicts))
    return Guards.of(walk, dry_run.code, ["model"], device).check_now(sharded)


def get_tensor(module: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer of `module` with a dotted name."""
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _check_transforms() -> None:
    """Raise UnsupportedError inside a transform of torch.func, which wraps all tensors."""
    if is_inside_transform():
        raise UnsupportedError(
            "a sharded module is called inside a transform of torch.func, such as grad or vmap; expected a plain call: "
            "use torch.autograd.grad or backward on the output of the module, or of functional_call"
        )


def _check_tensor(tensor: Tensor, argument: Argument, placements: tuple[Any, ...] | None) -> DTensor:
    """Return a parameter or buffer, after a check that the program accepts its layout and type.

    Args:
        placements: the placements that it had when the module was sharded; None if it did not exist then.

    Raises:
        SpmdirError: the tensor is new, has no values, or has other placements or another element type.
    """
    if placements is None:
        raise SpmdirError(
            f"'{argument.name}' was added after the module was sharded; expected the parameters and buffers that it "
            "had then: shard the changed module"
        )
    if tensor.is_meta:
        raise no_values_error(argument.name)
    dtype = TORCH_DTYPES[argument.meta.dtype]
    if not isinstance(tensor, DTensor) or tensor.placements != placements or tensor.dtype != dtype:
        description = (
            f"DTensor {list(tensor.placements)} of {tensor.dtype}" if isinstance(tensor, DTensor) else "no DTensor"
        )
        raise SpmdirError(
            f"'{argument.name}' has become {description}; expected {list(placements)} of {dtype}, as the module was "
            "sharded: change its values in place, or shard the changed module"
        )
    return tensor
