"""Initialise a model that was partitioned on the meta device, one module at a time; ranks keep their shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spmdir.core.arguments import Kind, accepts, instance
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.runtime.default_group import broadcast_from_first, check_agreement
from spmdir.runtime.local_state import LocalShard, blocks_and_shard
from spmdir.runtime.meta_tensors import memory_for_meta, tensors_on_meta
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.shard_blocks import copy_blocks
from spmdir.torch_interop import pytree
from spmdir.torch_interop.dispatch import TorchDispatchMode
from spmdir.torch_interop.modules import own_tables
from spmdir.torch_interop.ops import schema_of
from spmdir.torch_interop.tied_names import tied_names

Init = Callable[[nn.Module], Any]


@accepts(
    sharded=instance(Parallel, nn.Module, expected="the result of parallelize or shard_module"),
    model=instance(nn.Module, expected="an nn.Module"),
    init=Kind(lambda value: isinstance(value, str) or callable(value), "the name of a method, or a function"),
    device=instance(str, torch.device, expected="a torch.device, or the name of one"),
)
def materialize(
    sharded: Parallel | nn.Module,
    model: nn.Module,
    init: Literal["reset_parameters"] | Init = "reset_parameters",
    *,
    device: str | torch.device = "cpu",
) -> None:
    """Initialise the state of a model that was on the meta device, with the values of one device; all ranks call this.

    The modules of `model` are initialised in the order of `model.modules()`. For each, its own parameters and buffers
    are allocated whole and initialised, and every rank keeps its shards. So the values equal those of calling `init` on
    each module of the whole model with the generator of the first rank. A rank needs the memory of its shards and of
    one module. Only modules with a tensor without values are initialised, so loaded values are kept. The state of an
    optimizer is set to zeros.

    Args:
        sharded: the result of `parallelize` or `shard_module` for the model, or of `parallelize` for a training step.
        model: the module on the meta device.
        init: initialises the parameters and buffers of one module: the name of a method, or a function of the module,
            such as `_init_weights` of a Hugging Face model.
        device: the device on which modules are initialised, with its random generator.

    Raises:
        SpmdirError: a module has no `reset_parameters`; `init` leaves a tensor without values or writes to other
            modules; or the state has a tensor without values that the model does not have. All ranks raise.

    Example:
        >>> with torch.device("meta"):
        ...     model = Model()
        >>> parallel = spmdir.parallelize(model, mesh, None, (x,))
        >>> spmdir.checkpoint.materialize(parallel, model)
    """
    generator_state = broadcast_from_first(torch.get_rng_state())
    with ExitStack() as stack, check_agreement("materialize"):
        unset = stack.enter_context(_tensors_without_values(sharded))
        torch.set_rng_state(generator_state)
        blocks_and_shards = {name: blocks_and_shard(name, tensor) for name, tensor in unset.items()}
        state_names = _state_names(sharded, model, blocks_and_shards)
        for name, whole in _initialise_modules(model, init, torch.device(device), state_names.keys()):
            if name in state_names:
                blocks, shard = blocks_and_shards[state_names[name]]
                copy_blocks(blocks, shard, whole)
        for name in sorted(blocks_and_shards.keys() - state_names.values()):
            _, shard = blocks_and_shards[name]
            _set_to_zeros(name, shard)


@contextmanager
def _tensors_without_values(sharded: Parallel | nn.Module) -> Iterator[Mapping[str, Tensor | LocalShard]]:
    """Yield name → allocated tensor of the tensors without values; after the body, they count as initialised."""
    if isinstance(sharded, Parallel):
        yield {name: tensor for name, tensor in sharded.state.items() if name in sharded.unset}
        sharded.note_values(sharded.state)
    else:
        missing = tensors_on_meta(sharded)
        with memory_for_meta(missing):
            yield missing


def _state_names(sharded: Parallel | nn.Module, model: nn.Module, unset: Collection[str]) -> dict[str, str]:
    """Return name in the model → name in the state, for the tensors of the state in `unset`.

    The parameter `fc.weight` is `parameters.fc.weight` in the state of a step. All names of a tied parameter have the
    name of its one tensor in the state.
    """
    is_step = isinstance(sharded, Parallel) and sharded.is_step
    state_name_of: dict[str, str] = {}
    for state_name in unset:
        has_prefix = is_step and state_name.startswith(("parameters.", "buffers."))
        state_name_of[state_name.partition(".")[2] if has_prefix else state_name] = state_name
    named_tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    result: dict[str, str] = {}
    for names in tied_names(named_tensors):
        for known_name in names:
            if known_name in state_name_of:
                result |= dict.fromkeys(names, state_name_of[known_name])
    return result


def _set_to_zeros(name: str, shard: Tensor) -> None:
    """Set a shard of optimizer state to zeros; raise UnsupportedError for a scalar, such as a count of steps."""
    if not shard.dim():
        raise UnsupportedError(
            f"'{name}' of the state is on the meta device, and is not a tensor of the model; expected a "
            "value, since only optimizer state with dimensions is set to zeros: give it one before "
            "parallelize"
        )
    shard.zero_()


def _initialise_modules(
    model: nn.Module, init: str | Init, device: torch.device, missing: Collection[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, whole tensor) of each parameter and buffer of the modules that have a tensor in `missing`.

    The tensors of one module are freed before those of the next are allocated. `model` itself does not change.

    Args:
        missing: the names of the tensors without values.
    """
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        entries = [(table, name) for table in own_tables(module) for name in table]
        own_tensors = {name: (table, table[name]) for table, name in entries if table[name] is not None}
        if not any(prefix + name in missing for name in own_tensors):
            continue
        try:
            for name, (table, tensor) in own_tensors.items():
                table[name] = _blank(tensor, device)
            with torch.no_grad(), _OwnTensors(path):
                _initialise(path, module, init)
            initialised = {name: table[name] for name, (table, _) in own_tensors.items()}
        finally:
            for name, (table, tensor) in own_tensors.items():
                table[name] = tensor
        for name in list(initialised):
            whole = initialised.pop(name)  # freed once the caller has taken its shard
            if whole.is_floating_point() and whole.isnan().any():
                raise SpmdirError(
                    f"the initialisation of {_describe_module(path)} leaves '{name}' without values; "
                    "expected a value of each element: write to all of it"
                )
            yield prefix + name, whole


def _blank(tensor: Any, device: torch.device) -> Tensor:
    """Return a whole tensor on `device`, filled with NaN to detect missing writes; `tensor` itself if it has values."""
    if not tensor.is_meta:
        return tensor
    blank = torch.empty_like(tensor, device=device)
    if blank.is_floating_point():
        blank.detach().fill_(float("nan"))
    return nn.Parameter(blank, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else blank


def _initialise(path: str, module: nn.Module, init: str | Init) -> None:
    """Initialise the own tensors of a module: call the function `init` on it, or its method of the name `init`.

    Raises:
        SpmdirError: the module has no such method.
    """
    if not isinstance(init, str):
        init(module)
    elif hasattr(module, init):
        getattr(module, init)()
    else:
        raise SpmdirError(
            f"{_describe_module(path)} is a {type(module).__name__}, which has parameters or buffers but no "
            f"{init}(); expected a method that initialises them: add it, or pass init=, a function that "
            "initialises the parameters and buffers of each module"
        )


def _describe_module(path: str) -> str:
    """Return the path of a module in quotes, for errors; `the model itself` for the root."""
    return f"'{path}'" if path else "the model itself"


class _OwnTensors(TorchDispatchMode):
    """Raises UnsupportedError if the initialisation of a module writes to tensors of other modules.

    Tensors of other modules are recognised by the meta device.
    """

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op. Raise UnsupportedError if it may write to another module: its tensors are on the meta device."""
        leaves = pytree.tree_leaves(args)
        if schema_of(func).is_mutable and any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves):
            raise UnsupportedError(
                f"the initialisation of {_describe_module(self.path)} writes to tensors of other modules, "
                "but each module is initialised separately; expected writes to its own tensors only: pass "
                "init=, a function that writes only to the parameters and buffers of its module"
            )
        return func(*args, **(kwargs or {}))
