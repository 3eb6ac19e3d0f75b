"""Save and load checkpoints: a checkpoint appears only when it is complete, and a load changes nothing unless it fits.

`torch.distributed.checkpoint` writes and reads the shards. This module adds the numbered checkpoints of a directory,
the digests of their files, the checks before anything is written, and the random generators.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as named
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, WriteItem
from torch.distributed.checkpoint.state_dict_loader import load as load_shards
from torch.distributed.checkpoint.state_dict_saver import save as save_shards
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from spmdir.core.arguments import PATH, Kind, accepts, keyed
from spmdir.core.errors import SpmdirError, UnsupportedError, shown
from spmdir.core.progress import say
from spmdir.runtime.checkpoint_files import (
    check_files,
    file_digest,
    find_checkpoint,
    list_complete,
    prepare_directory,
    publish,
    read_metadata,
)
from spmdir.runtime.default_group import (
    broadcast_from_first,
    check_agreement,
    gather_from_all,
    own_rank,
    shown_by_first,
)
from spmdir.runtime.digests import value_digest
from spmdir.runtime.local_state import LocalShard, checkpointable
from spmdir.runtime.meta_tensors import check_values, memory_for_meta
from spmdir.runtime.parallel import Parallel
from spmdir.torch_interop.state_dicts import flatten_state_dict

GENERATORS = "generators"
OPTIMIZER_OPTIONS = named.StateDictOptions(flatten_optimizer_state_dict=True)
SHOWN = 4
"""The number of differences that an error lists."""

_NAMED = keyed("a dict from names to values")
_STEP = Kind(
    lambda value: type(value) is int and 0 <= value < 10**18, "the number of a step, from 0 to below 10**18"
).optional
_KEEP = Kind(lambda value: type(value) is int and value > 0, "a number of checkpoints, 1 or more").optional


class ProgressSavePlanner(DefaultSavePlanner):
    """The default planner, with a progress message for each write."""

    _written = 0

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """Return the data of a write, and show its number."""
        self._written += 1
        say("saving {} ({} of {})", write_item.index.fqn, self._written, len(self.plan.items))
        return super().resolve_data(write_item)


class ProgressLoadPlanner(DefaultLoadPlanner):
    """The default planner, with a progress message for each read."""

    _read = _all = 0

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        """Return the plan of this rank, and note its number of reads."""
        self._all = len(new_plan.items)
        return super().finish_plan(new_plan)

    def resolve_tensor(self, read_item: ReadItem) -> Any:
        """Return the tensor to read into, and show the number of the read."""
        self._read += 1
        say("loading {} ({} of {})", read_item.dest_index.fqn, self._read, self._all)
        return super().resolve_tensor(read_item)


@accepts(directory=PATH)
@shown_by_first()
def save(directory: str | Path, state: Mapping[str, Any], *, step: int | None = None, keep: int | None = None) -> Path:
    """Save `state` as the next checkpoint of a directory that all ranks share; every rank calls this.

    The checkpoint appears as `step-N` once it is complete. An interrupted save does not change earlier checkpoints.
    The random generators of all ranks are saved too.

    Args:
        directory: the directory of all checkpoints of a run.
        state: name → value. A value is a Parallel, a module, an optimizer of a module in `state`, an object with
            state_dict and load_state_dict such as a scheduler, or a tree of tensors and plain values.
        step: the number of the checkpoint; if None, one more than the last.
        keep: the number of complete checkpoints to keep: this one, and the others with the highest numbers. If None,
            all are kept.

    Returns: the path of the checkpoint.

    Raises:
        SpmdirError: ranks have different values that are not sharded, a value cannot be saved, the checkpoint exists
            already, or a file cannot be written. All ranks raise.

    Example:
        >>> spmdir.checkpoint.save("run", {"model": model, "optimizer": optimizer, "epoch": epoch}, step=1000)
    """
    directory = Path(directory)
    rank = own_rank()
    with check_agreement("checkpoint.save") as status, _track_unstepped_optimizers(state) as unstepped:
        _STEP.check("step", step)
        _KEEP.check("keep", keep)
        status |= {"step": step, "keep": keep, "directory": str(directory)}
        for value in state.values():
            check_values(value)
        values, paths = _flatten_trees(_trees(state))
        for name in unstepped:
            if any(state[name].state.values()):
                raise UnsupportedError(
                    f"'{name}' has taken no step, so it has nothing to save; expected state: save after its first step"
                )
        plain_values = {name: value for name, value in values.items() if not isinstance(value, DTensor)}
        status["saved"] = {name: _digest(name, value) for name, value in plain_values.items()}
        entries = _group_by_state_key(values, paths)
        for device_type, generator_state in _generator_states().items():
            entries[f"{GENERATORS}.{rank}.{device_type}"] = generator_state
    with check_agreement("the beginning of a checkpoint"):
        checkpoint_path = prepare_directory(directory, step) if rank == 0 else None
    checkpoint_path, unfinished = broadcast_from_first(checkpoint_path)
    with _torch_errors("the checkpoint cannot be saved"):
        save_shards(
            entries, checkpoint_id=str(unfinished), planner=ProgressSavePlanner(), no_dist=not dist.is_initialized()
        )
    with check_agreement("the digests of a checkpoint"):
        digests = {file.name: file_digest(file) for file in sorted(unfinished.glob(f"__{rank}_*.distcp"))}
    digests = {name: digest for value in gather_from_all(digests) for name, digest in value.items()}
    with check_agreement("the end of a checkpoint"):
        if rank == 0:
            publish(unfinished, checkpoint_path, digests)
            other_paths = [path for _, path in sorted(list_complete(directory).items()) if path != checkpoint_path]
            surplus = max(0, len(other_paths) - keep + 1) if keep else 0  # the new checkpoint is one of `keep`
            for surplus_path in other_paths[:surplus]:
                shutil.rmtree(surplus_path)
    return checkpoint_path


@accepts(directory=PATH, step=_STEP)
@shown_by_first()
def load(directory: str | Path, state: Mapping[str, Any], *, step: int | None = None) -> Path:
    """Load the last complete checkpoint of a directory into `state`; every rank calls this.

    Tensors are loaded in place. The mesh, the plan and the number of ranks may differ from those of the save. Plain
    values replace those in the dicts and lists of `state`. Keys, shapes, element types and the bytes of all files are
    checked before anything is written. A rank that the save did not have gets the generators of the first rank.

    Args:
        directory: the directory given to `save`, or one that `torch.distributed.checkpoint.save` wrote. Files of the
            latter have no digests, so only their lengths are checked.
        state: as for `save`. Saved names that `state` does not have are ignored.
        step: the number of the checkpoint; the last if None.

    Returns: the path of the checkpoint.

    Raises:
        SpmdirError: there is no complete checkpoint, a file is missing or damaged, or a key, shape or element type of
            the checkpoint differs from that of `state`. All ranks raise, and `state` does not change.

    Example:
        >>> progress = {"epoch": 0}
        >>> spmdir.checkpoint.load("run", {"model": model, "optimizer": optimizer, "progress": progress})
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    with check_agreement("checkpoint.load") as status:
        status |= {"step": step, "directory": str(directory)}
        place = find_checkpoint(Path(directory), step) if rank == 0 else None
    place = broadcast_from_first(place)
    with ExitStack() as loading:
        with check_agreement("the checks of a checkpoint"), _track_unstepped_optimizers(state):
            check_files(place, rank, world)
            metadata = read_metadata(place)
            for entry in state.values():
                if isinstance(entry, nn.Module):
                    loading.enter_context(memory_for_meta(entry.state_dict(keep_vars=True)))
            trees = _trees(state)
            values, paths = _flatten_trees(trees)
            _check_values(place, values, metadata, state)
            for name, path in paths.items():
                if len(path) == 1 and not isinstance(values[name], Tensor):
                    description = shown(values[name])
                    raise UnsupportedError(
                        f"'{name}' is {description}, which cannot be loaded in place; expected a tensor, a "
                        "module, an optimizer or a dict: put it into a dict"
                    )
        generators = _saved_generators(metadata, rank)
        values |= generators
        with _torch_errors(f"the checkpoint '{place}' cannot be loaded"):
            load_shards(
                values, checkpoint_id=str(place), planner=ProgressLoadPlanner(), no_dist=not dist.is_initialized()
            )
    with check_agreement("the restoring of a checkpoint"):
        for name, path in paths.items():
            if not isinstance(values[name], Tensor):
                _replace(trees, path, values[name])
        for name, value in state.items():
            _restore(name, value, trees[name], state)
        for name in generators:
            _set_generator(name.rpartition(".")[2], values[name])
    return place


def _trees(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return name → tree of tensors and plain values. The tree of a dict is the dict itself."""
    if GENERATORS in state:
        raise UnsupportedError(
            f"'{GENERATORS}' is the name of the random generators in a checkpoint; expected another name: "
            "rename this value"
        )
    return {name: _tree(name, value, state) for name, value in state.items()}


def _tree(name: str, value: Any, state: Mapping[str, Any]) -> Any:
    """Return the tensors and plain values of one entry of the state, as a tree of dicts and lists.

    A value that is neither a Parallel, a module, an optimizer nor an object with a `state_dict` is its own tree.
    """
    if isinstance(value, Parallel):
        return value.saved_state
    if isinstance(value, nn.Module):
        return named.get_model_state_dict(value)
    if isinstance(value, Optimizer):
        return named.get_optimizer_state_dict(_module_of(name, value, state), value, options=OPTIMIZER_OPTIONS)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    return value


def _restore(name: str, value: Any, tree: Any, state: Mapping[str, Any]) -> None:
    """Pass the loaded tree to the object `value` if it does not share the memory of the tree.

    Tensors of a Parallel and of a module share it. They were loaded in place.
    """
    if isinstance(value, Parallel):
        value.note_values(tree)
        return
    if isinstance(value, nn.Module):
        if not all(isinstance(leaf, Tensor) for leaf in tree.values()):
            named.set_model_state_dict(value, tree)
    elif isinstance(value, Optimizer):
        named.set_optimizer_state_dict(_module_of(name, value, state), value, tree, options=OPTIMIZER_OPTIONS)
    elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        value.load_state_dict(tree)


def _module_of(name: str, optimizer: Optimizer, state: Mapping[str, Any]) -> nn.Module:
    """Return the module of `state` that has the parameters of the optimizer; its names are those in the checkpoint."""
    parameter_ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for module in state.values():
        if isinstance(module, nn.Module) and parameter_ids <= {id(parameter) for parameter in module.parameters()}:
            return module
    raise UnsupportedError(
        f"'{name}' is an optimizer whose parameters belong to no module of the state; expected this module: "
        'give it too, as in {"model": model, "optimizer": optimizer}, since parameters are saved by '
        "their names"
    )


def _flatten_trees(trees: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (name → leaf of a tree, name → path of the leaf), with DTensors in the form that checkpoints support.

    The path of `model.fc.weight` is ("model", "fc.weight"): its name is the path, joined by dots.
    """
    try:
        flat, paths = flatten_state_dict(dict(trees))
    except ValueError as error:  # names are joined by dots
        raise UnsupportedError(
            f"two values of the state have one name: {error}; expected a different name for each: rename one of them"
        ) from None
    for name, value in flat.items():
        if isinstance(value, LocalShard):
            raise UnsupportedError(f"'{name}' has the sharding <{value.sharding}>: {value.reason}")
        if isinstance(value, DTensor):
            flat[name] = checkpointable(name, value)
    return flat, paths


def _group_by_state_key(values: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return key of the state → its value, or a dict from the rest of each name to the value.

    The names `model.fc.weight` and `epoch` give {"model": {"fc.weight": …}, "epoch": …}.
    """
    grouped: dict[str, Any] = {}
    for name, value in values.items():
        key = paths[name][0]
        if name == key:
            grouped[key] = value
        else:
            grouped.setdefault(key, {})[name[len(key) + 1 :]] = value
    return grouped


def _replace(tree: Any, path: Sequence[Any], value: Any) -> None:
    """Replace the plain value at a path of a tree."""
    *parents, final_key = path
    for key in parents:
        tree = tree[_key_in(tree, key)]
    tree[_key_in(tree, final_key)] = value


def _key_in(container: Any, key: Any) -> Any:
    """Return the key or index in `container`, a dict or list, for the element `key` of a path.

    Paths of torch have texts in place of other keys of dicts: "0" is the key 0 of `{0: value}`.
    """
    if not isinstance(container, Mapping) or key in container:
        return key
    return next(container_key for container_key in container if str(container_key) == key)


def _digest(name: str, value: Any) -> str:
    """Return the digest by which ranks compare a value that only one of them saves.

    Raises:
        UnsupportedError: the value cannot be saved.
    """
    try:
        return value_digest(value)
    except TypeError as error:
        raise UnsupportedError(
            f"'{name}' is {shown(value)}, which cannot be saved: {error}; expected tensors and plain values: "
            "convert it, or leave it out"
        ) from error


def _generator_states() -> dict[str, Tensor]:
    """Return device type → state of its random generator, for the CPU and, if there is one, the accelerator."""
    states = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        states[device.type] = torch.get_device_module(device).get_rng_state()  # type: ignore[union-attr]
    return states


def _saved_generators(metadata: Metadata, rank: int) -> dict[str, Tensor]:
    """Return name → buffer for each saved generator state of `rank`, or of the first rank if `rank` has none."""
    saved = metadata.state_dict_metadata
    saved_rank = rank if f"{GENERATORS}.{rank}.cpu" in saved else 0
    buffers = {}
    for device_type, state in _generator_states().items():
        name = f"{GENERATORS}.{saved_rank}.{device_type}"
        if name in saved:
            buffers[name] = torch.empty_like(state)
    return buffers


def _set_generator(device_type: str, state: Tensor) -> None:
    """Set the random generator of a type of device to a saved state."""
    (torch if device_type == "cpu" else torch.get_device_module(device_type)).set_rng_state(state)


def _check_values(place: Path, values: Mapping[str, Any], metadata: Metadata, state: Mapping[str, Any]) -> None:
    """Raise SpmdirError unless the checkpoint has the names, shapes and types of `values`, and no others.

    Saved names that belong to no key of `state` are ignored.
    """
    saved = metadata.state_dict_metadata
    key_of_name = {name: path[0] for name, path in (metadata.planner_data or {}).items()}
    saved_keys = {key_of_name.get(name, name) for name in saved if not name.startswith(f"{GENERATORS}.")}
    differences = [f"'{name}' is not in the checkpoint" for name in values if name not in saved]
    if values and not saved_keys & state.keys():
        differences = [f"it contains {', '.join(map(repr, sorted(saved_keys)))}, but not {', '.join(map(repr, state))}"]
    absent = {f"{key}.{name}" for key, value in state.items() if isinstance(value, Parallel) for name in value.absent}
    for name in saved:
        if name not in values and name not in absent and key_of_name.get(name, name) in state:
            differences.append(f"'{name}' is only in the checkpoint")
    for name in values.keys() & saved.keys():
        saved_type, expected_type = _describe(saved[name]), _describe(values[name])
        if saved_type != expected_type:
            differences.append(f"'{name}' is {saved_type} in the checkpoint and {expected_type} here")
    if differences:
        shown_differences = "; ".join(sorted(differences)[:SHOWN])
        remainder = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise SpmdirError(
            f"the checkpoint '{place}' does not fit: {shown_differences}{remainder}; expected the same names, shapes "
            "and element types: load it into the model and optimizer that it was saved from, or give the parts that fit"
        )


def _describe(value: Any) -> str:
    """Return the shape and element type of a tensor or of a saved tensor, as text."""
    if isinstance(value, TensorStorageMetadata):
        return f"{list(value.size)} {value.properties.dtype}"
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else "a plain value"


@contextmanager
def _track_unstepped_optimizers(state: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield the names of optimizers that have taken no step, and clear their state if the body raises.

    In the body, `get_optimizer_state_dict` of torch initialises the moments of such an optimizer, by a step without
    gradients. An error must not leave these moments behind.
    """
    _NAMED.check("state", state)
    unstepped = [
        name
        for name, optimizer in state.items()
        if isinstance(optimizer, Optimizer) and not any(optimizer.state.values())
    ]
    try:
        yield unstepped
    except Exception:
        for name in unstepped:
            state[name].state.clear()
        raise


@contextmanager
def _torch_errors(problem: str) -> Iterator[None]:
    """Turn an error of torch.distributed.checkpoint into a SpmdirError of one line."""
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise SpmdirError(
            f"{problem}: rank {rank}: {type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
        ) from error
    except (OSError, RuntimeError) as error:
        raise SpmdirError(f"{problem}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
