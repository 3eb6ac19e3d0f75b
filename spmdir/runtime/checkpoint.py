"""Checkpoints: what is saved is complete or not there, and what is loaded fits or is not touched.

`torch.distributed.checkpoint` writes and reads the shards. Here are the directory in which checkpoints follow each
other, the digests of their files, the checks before anything is written, and the generators.
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
from spmdir.runtime.checkpoint_files import begin, check_files, chosen, complete, file_digest, publish, read_metadata
from spmdir.runtime.default_group import checked, from_first, of_all, own_rank, shown_by_first
from spmdir.runtime.digests import value_digest
from spmdir.runtime.local_state import LocalShard, checkpointable
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.room import check_values, room
from spmdir.torch_interop.state_dicts import flatten_state_dict

GENERATORS = "generators"
FLAT = named.StateDictOptions(flatten_optimizer_state_dict=True)
SHOWN = 4
"""How many differences an error names."""

_NAMED = keyed("a dict of what is saved by names")
_STEP = Kind(
    lambda value: type(value) is int and 0 <= value < 10**18, "the number of a step, from 0 to below 10**18"
).optional
_KEEP = Kind(lambda value: type(value) is int and value > 0, "a number of checkpoints, 1 or more").optional


class ProgressSavePlanner(DefaultSavePlanner):
    """The default planner, which shows the progress of what it writes."""

    _written = 0

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        self._written += 1
        say("saving {} ({} of {})", write_item.index.fqn, self._written, len(self.plan.items))
        return super().resolve_data(write_item)


class ProgressLoadPlanner(DefaultLoadPlanner):
    """The default planner, which shows the progress of what it reads."""

    _read = _all = 0

    def finish_plan(self, new_plan: LoadPlan) -> LoadPlan:
        self._all = len(new_plan.items)
        return super().finish_plan(new_plan)

    def resolve_tensor(self, read_item: ReadItem) -> Any:
        self._read += 1
        say("loading {} ({} of {})", read_item.dest_index.fqn, self._read, self._all)
        return super().resolve_tensor(read_item)


@accepts(directory=PATH)
@shown_by_first()
def save(directory: str | Path, state: Mapping[str, Any], *, step: int | None = None, keep: int | None = None) -> Path:
    """Save `state` as the next checkpoint of a directory that all ranks share; every rank calls this.

    The checkpoint appears as `step-N` once it is complete. A save that is interrupted leaves those before it as they
    are. The random generators of all ranks are saved too.

    Args:
        directory: of all checkpoints of a run.
        state: name → a Parallel, a module, an optimizer of a module that is in `state` too, whatever has state_dict
            and load_state_dict, as a scheduler has, or a tree of tensors and plain values.
        step: the number of the checkpoint; if None, one more than the last.
        keep: how many complete checkpoints stay: this one, and of the others those of the highest numbers; all if None.

    Returns: where the checkpoint is.

    Raises:
        SpmdirError: ranks have different values of what is not sharded, a value cannot be saved, the checkpoint exists
            already, or a file cannot be written. All ranks raise.

    Example:
        >>> spmdir.checkpoint.save("run", {"model": model, "optimizer": optimizer, "epoch": epoch}, step=1000)
    """
    directory = Path(directory)
    rank = own_rank()
    with checked("checkpoint.save") as status, _fresh_optimizers(state) as fresh:
        _STEP.check("step", step)
        _KEEP.check("keep", keep)
        status |= {"step": step, "keep": keep, "directory": str(directory)}
        for one in state.values():
            check_values(one)
        values, paths = _values(_trees(state))
        for name in fresh:
            if any(state[name].state.values()):
                raise UnsupportedError(
                    f"'{name}' has taken no step, so it has nothing to save; save after its first step"
                )
        status["saved"] = {n: _digest(n, value) for n, value in values.items() if not isinstance(value, DTensor)}
        saved = _by_key(values, paths)
        saved |= {f"{GENERATORS}.{rank}.{kind}": drawn for kind, drawn in _generators().items()}
    with checked("the beginning of a checkpoint"):
        place = begin(directory, step) if rank == 0 else None
    place, unfinished = from_first(place)
    with _torch_errors("the checkpoint cannot be saved"):
        save_shards(
            saved, checkpoint_id=str(unfinished), planner=ProgressSavePlanner(), no_dist=not dist.is_initialized()
        )
    with checked("the digests of a checkpoint"):
        digests = {file.name: file_digest(file) for file in sorted(unfinished.glob(f"__{rank}_*.distcp"))}
    digests = {name: digest for one in of_all(digests) for name, digest in one.items()}
    with checked("the end of a checkpoint"):
        if rank == 0:
            publish(unfinished, place, digests)
            others = [path for _, path in sorted(complete(directory).items()) if path != place]
            for old in others[: max(0, len(others) - keep + 1)] if keep else []:
                shutil.rmtree(old)
    return place


@accepts(directory=PATH, step=_STEP)
@shown_by_first()
def load(directory: str | Path, state: Mapping[str, Any], *, step: int | None = None) -> Path:
    """Load the last complete checkpoint of a directory into `state`; every rank calls this.

    Tensors are loaded in place, whatever the mesh, plan and number of ranks that saved them. Plain values replace those
    in the dicts and lists of `state`. Keys, shapes, element types and the bytes of all files are checked before
    anything is written. A rank that did not save continues with the generators of the first one.

    Args:
        directory: as given to `save`, or one that `torch.distributed.checkpoint.save` wrote, whose files
            have no digests: their lengths are checked alone.
        state: as for `save`. What is saved under names that it does not have is left.
        step: which checkpoint; the last if None.

    Returns: where the checkpoint is.

    Raises:
        SpmdirError: there is no complete checkpoint, a file is missing or damaged, or a key, shape or element type of
            the checkpoint is not that of `state`. All ranks raise, and `state` is as it was.

    Example:
        >>> progress = {"epoch": 0}
        >>> spmdir.checkpoint.load("run", {"model": model, "optimizer": optimizer, "progress": progress})
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    with checked("checkpoint.load") as status:
        status |= {"step": step, "directory": str(directory)}
        place = chosen(Path(directory), step) if rank == 0 else None
    place = from_first(place)
    with ExitStack() as loading:
        with checked("the checks of a checkpoint"), _fresh_optimizers(state):
            check_files(place, rank, world)
            metadata = read_metadata(place)
            for one in state.values():
                if isinstance(one, nn.Module):
                    loading.enter_context(room(one.state_dict(keep_vars=True)))
            trees = _trees(state)
            values, paths = _values(trees)
            _check_values(place, values, metadata, state)
            for name, path in paths.items():
                if len(path) == 1 and not isinstance(values[name], Tensor):
                    found = shown(values[name])
                    raise UnsupportedError(f"'{name}' is {found}, which cannot be loaded in place; put it into a dict")
        drawn = _saved_generators(metadata, rank)
        values |= drawn
        with _torch_errors(f"the checkpoint '{place}' cannot be loaded"):
            load_shards(
                values, checkpoint_id=str(place), planner=ProgressLoadPlanner(), no_dist=not dist.is_initialized()
            )
    with checked("the restoring of a checkpoint"):
        for name, path in paths.items():
            if not isinstance(values[name], Tensor):
                _replace(trees, path, values[name])
        for name, value in state.items():
            _restore(name, value, trees[name], state)
        for name in drawn:
            _set_generator(name.rpartition(".")[2], values[name])
    return place


def _trees(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return name → the tree of tensors and plain values of what it names; those of dicts are the dicts themselves."""
    if GENERATORS in state:
        raise UnsupportedError(f"'{GENERATORS}' is the name of the random generators in a checkpoint; choose another")
    return {name: _tree(name, value, state) for name, value in state.items()}


def _tree(name: str, value: Any, state: Mapping[str, Any]) -> Any:
    if isinstance(value, Parallel):
        return dict(value.state)
    if isinstance(value, nn.Module):
        return named.get_model_state_dict(value)
    if isinstance(value, Optimizer):
        return named.get_optimizer_state_dict(_module_of(name, value, state), value, options=FLAT)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    return value


def _restore(name: str, value: Any, tree: Any, state: Mapping[str, Any]) -> None:
    """Give the values that were loaded to what does not hold them itself."""
    if isinstance(value, Parallel):
        value.note_values(tree)
        return
    if isinstance(value, nn.Module):
        if not all(isinstance(leaf, Tensor) for leaf in tree.values()):
            named.set_model_state_dict(value, tree)
    elif isinstance(value, Optimizer):
        named.set_optimizer_state_dict(_module_of(name, value, state), value, tree, options=FLAT)
    elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        value.load_state_dict(tree)


def _module_of(name: str, optimizer: Optimizer, state: Mapping[str, Any]) -> nn.Module:
    """Return the module of `state` that has the parameters of the optimizer, which are saved by their names in it."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for module in state.values():
        if isinstance(module, nn.Module) and owned <= {id(parameter) for parameter in module.parameters()}:
            return module
    raise UnsupportedError(
        f"'{name}' is an optimizer whose parameters belong to no module of the state; give the module too, as in "
        '{"model": model, "optimizer": optimizer}, since parameters are saved by their names'
    )


def _values(trees: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return name → leaf of all trees, with DTensors that checkpoints read rightly, and name → where it is in them."""
    try:
        flat, paths = flatten_state_dict(dict(trees))
    except ValueError as error:  # names are joined by dots
        raise UnsupportedError(f"two values of the state have one name: {error}; rename one of them") from None
    for name, value in flat.items():
        if isinstance(value, LocalShard):
            raise UnsupportedError(f"'{name}' is laid out as <{value.sharding}>: {value.reason}")
        if isinstance(value, DTensor):
            flat[name] = checkpointable(name, value)
    return flat, paths


def _by_key(values: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    """Return key of the state → its values by the rest of their names, so that the metadata tells whose each is."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = paths[name][0]
        if name == key:
            found[key] = value
        else:
            found.setdefault(key, {})[name[len(key) + 1 :]] = value
    return found


def _replace(tree: Any, path: Sequence[Any], value: Any) -> None:
    """Put a plain value where the one of that path is."""
    *parents, last = path
    for key in parents:
        tree = tree[_own_key(tree, key)]
    tree[_own_key(tree, last)] = value


def _own_key(held: Any, key: Any) -> Any:
    """Return the key of a dict or list that is written as `key` in a path, which has text for all keys of dicts."""
    is_other = isinstance(held, Mapping) and key not in held
    return next(own for own in held if str(own) == key) if is_other else key


def _digest(name: str, value: Any) -> str:
    """Return what is compared between ranks of a value that one of them saves for all."""
    try:
        return value_digest(value)
    except TypeError as error:
        raise UnsupportedError(f"'{name}' is {shown(value)}, which cannot be saved: {error}") from error


def _generators() -> dict[str, Tensor]:
    """Return device type → the state of its random generator."""
    found = {"cpu": torch.get_rng_state()}
    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        found[device.type] = torch.get_device_module(device).get_rng_state()  # type: ignore[union-attr]
    return found


def _saved_generators(metadata: Metadata, rank: int) -> dict[str, Tensor]:
    """Return name → a tensor to load for each generator that the checkpoint has for `rank`, or else the first rank."""
    saved = metadata.state_dict_metadata
    own = rank if f"{GENERATORS}.{rank}.cpu" in saved else 0
    found = {f"{GENERATORS}.{own}.{kind}": drawn for kind, drawn in _generators().items()}
    return {name: torch.empty_like(drawn) for name, drawn in found.items() if name in saved}


def _set_generator(kind: str, drawn: Tensor) -> None:
    (torch if kind == "cpu" else torch.get_device_module(kind)).set_rng_state(drawn)


def _check_values(place: Path, values: Mapping[str, Any], metadata: Metadata, state: Mapping[str, Any]) -> None:
    """Raise SpmdirError unless the checkpoint has what `values` are, no more of what `state` names, and no less."""
    saved = metadata.state_dict_metadata
    keys = {name: path[0] for name, path in (metadata.planner_data or {}).items()}
    known = {keys.get(name, name) for name in saved if not name.startswith(f"{GENERATORS}.")}
    differences = [f"'{name}' is not in it" for name in values if name not in saved]
    if values and not known & state.keys():
        differences = [f"it has {', '.join(map(repr, sorted(known)))} and nothing of {', '.join(map(repr, state))}"]
    for name in saved:
        if name not in values and keys.get(name, name) in state:
            differences.append(f"'{name}' is in it alone")
    for name in values.keys() & saved.keys():
        found, expected = _described(saved[name]), _described(values[name])
        if found != expected:
            differences.append(f"'{name}' is {found} in it and {expected} here")
    if differences:
        first = "; ".join(sorted(differences)[:SHOWN])
        more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
        raise SpmdirError(
            f"the checkpoint '{place}' does not fit: {first}{more}; expected the same names, shapes and element types: "
            "load it into the model and optimizer that it was saved from, or give the parts that fit"
        )


def _described(value: Any) -> str:
    """Return the shape and element type of a tensor, or of one that is saved."""
    if isinstance(value, TensorStorageMetadata):
        return f"{list(value.size)} {value.properties.dtype}"
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else "a plain value"


@contextmanager
def _fresh_optimizers(state: Mapping[str, Any]) -> Iterator[list[str]]:
    """Give the names of optimizers that have taken no step, and leave them so where there is an error.

    torch makes the moments of an optimizer by a step without gradients when it is asked for its state by names.
    """
    _NAMED.check("state", state)
    fresh = [name for name, one in state.items() if isinstance(one, Optimizer) and not any(one.state.values())]
    try:
        yield fresh
    except Exception:
        for name in fresh:
            state[name].state.clear()
        raise


@contextmanager
def _torch_errors(what: str) -> Iterator[None]:
    """Turn what torch.distributed.checkpoint raises into an error of one line."""
    try:
        yield
    except CheckpointException as error:
        rank, (first, _) = min(error.failures.items())
        raise SpmdirError(f"{what}: rank {rank}: {type(first).__name__}: {str(first).partition(chr(10))[0]}") from error
    except (OSError, RuntimeError) as error:
        raise SpmdirError(f"{what}: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
