"""Load and save safetensors files: every rank reads only its shards, and tensors are written one at a time.

A file is eight bytes with the length of a JSON header, the header with names, types, shapes and offsets, and then the
tensors: https://huggingface.co/docs/safetensors. The safetensors library reads the files. It is not used to write
them, because it needs all tensors in memory at once.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import torch
import torch.distributed as dist
from torch import Tensor, nn

from spmdir.core.arguments import FLAG, PATH, Kind, accepts
from spmdir.core.errors import SpmdirError, UnsupportedError
from spmdir.runtime.default_group import check_agreement, gather_from_all, own_rank
from spmdir.runtime.local_state import LocalShard, blocks_and_shard
from spmdir.runtime.meta_tensors import check_values, memory_for_meta
from spmdir.runtime.parallel import Parallel
from spmdir.runtime.shard_blocks import ShardBlock
from spmdir.torch_interop.bits import flat_bytes

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "BOOL": torch.bool, "U8": torch.uint8,
    "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64, "U16": torch.uint16,
    "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
"""Element type in a header → torch.dtype."""

TYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
INDEX = "model.safetensors.index.json"

Names: TypeAlias = Mapping[str, str | None] | Callable[[str], str | None] | None
"""Name in the state → name in the file; None for a tensor that no file has."""

_NAMES = Kind(
    lambda value: value is None or isinstance(value, Mapping) or callable(value),
    "a dict from names in the state to names in the file, a function that does so, or None",
)
_SIZE = Kind(lambda value: isinstance(value, int) and value > 0, "a number of bytes above 0")


@attrs.frozen(eq=False)
class Entry:
    """A tensor of the state.

    Attributes:
        state_name: the name in the state.
        names: all names in files; the first one is written.
        tensor: a DTensor, or a plain tensor.
    """

    state_name: str
    names: tuple[str, ...]
    tensor: Tensor


@accepts(path=PATH, names=_NAMES, convert=FLAG)
def load_safetensors(path: str | Path, state: Any, names: Names = None, *, convert: bool = False) -> None:
    """Load tensors from safetensors files in place; every rank reads only the slices of its shards.

    Names, shapes and element types of all tensors are checked before anything is written. Other tensors in the files
    are ignored.

    Args:
        path: a file, a directory of files as Hugging Face writes them, or their index.
        state: a Parallel, a module, or a dict from names to tensors. For a step, parameters and buffers are loaded.
        names: name in the state → name in the files, as a dict for some of the names, or a function. None excludes a
            tensor. By default, names are equal, but names of a step are without `parameters.` and `buffers.`.
        convert: whether to convert values of other element types; if False, they are an error.

    Raises:
        SpmdirError: safetensors is not installed, a file is missing or damaged, a tensor is in no file, or a shape or
            element type differs. All ranks raise, and `state` does not change.

    Example:
        >>> spmdir.checkpoint.load_safetensors("Llama-3.2-1B", parallel, convert=True)
    """
    with ExitStack() as files, ExitStack() as loading:
        with check_agreement("load_safetensors"):
            file_of_name = _open_files(Path(path), files)
            entry_slices = [
                (entry, _find_slices(entry, file_of_name, convert, Path(path))) for entry in _entries(state, names)
            ]
            loading.enter_context(memory_for_meta({entry.state_name: entry.tensor for entry, _ in entry_slices}))
            reads = [(blocks_and_shard(entry.names[0], entry.tensor), slices) for entry, slices in entry_slices]
        for (blocks, shard), slices in reads:
            for block in blocks:
                ranges = [slice(offset, offset + size) for offset, size in zip(block.offsets, block.sizes, strict=True)]
                block.view_local(shard).copy_(slices[tuple(ranges)])
        if isinstance(state, Parallel):
            state.note_values(entry.state_name for entry, _ in entry_slices)


@accepts(directory=PATH, names=_NAMES, file_bytes=_SIZE)
def save_safetensors(directory: str | Path, state: Any, names: Names = None, *, file_bytes: int = 5 * 10**9) -> None:
    """Save whole tensors as `model.safetensors`, or as several files with an index, in the form of Hugging Face.

    Tensors are gathered one at a time on the first rank, which writes them. Of tied names, the first one is written.

    Args:
        directory: the directory of the files; it must have no safetensors files.
        state, names: as for `load_safetensors`.
        file_bytes: the maximum number of bytes of tensors in a file with more than one tensor.

    Raises:
        SpmdirError: the format does not support the element type of a tensor, a tensor is not a set of shards, or a
            file cannot be written. All ranks raise.

    Example:
        >>> spmdir.checkpoint.save_safetensors("trained", parallel)
    """
    directory, rank = Path(directory), own_rank()
    with check_agreement("save_safetensors"):
        check_values(state)
        entries = _entries(state, names)
        parts = [blocks_and_shard(entry.names[0], entry.tensor) for entry in entries]
        headers = {entry.names[0]: _tensor_header(entry) for entry in entries}
        if rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            if existing_files := sorted(directory.glob("*.safetensors*")):
                raise SpmdirError(
                    f"'{directory}' already contains '{existing_files[0].name}'; expected a directory "
                    "without safetensors files: choose another one, or delete that file"
                )
    blocks_of_ranks = gather_from_all([blocks for blocks, _ in parts])
    writer, write_error = _write(directory, _divide_into_files(headers, file_bytes)), None
    for index, entry in enumerate(entries):
        tensor = _gather_whole(entry, *parts[index], [blocks[index] for blocks in blocks_of_ranks], rank)
        try:
            if tensor is not None and write_error is None:
                if not index:
                    next(writer)  # a generator must run to its first `yield` before `send`
                writer.send(tensor)
        except StopIteration:  # the last tensor was written
            pass
        except OSError as error:  # the other ranks continue to send, and raise at the end
            write_error = error
    with check_agreement("the files of save_safetensors"):
        if write_error is not None:
            raise SpmdirError(
                f"'{directory}' cannot be written: {write_error}; expected a directory with enough space that "
                "can be written: choose another one"
            ) from write_error


def _entries(state: Any, names: Names) -> list[Entry]:
    """Return the tensors of the state that have a name in the files."""
    to_file_name = names if callable(names) else _default_names(state)
    entry_of_id: dict[int, Entry] = {}
    for state_name, tensor in _tensors(state):
        if not isinstance(tensor, (Tensor, LocalShard)):
            continue
        if isinstance(names, Mapping) and state_name in names:
            file_name = names[state_name]
        else:
            file_name = to_file_name(state_name)
        if file_name is not None:
            entry = entry_of_id.get(id(tensor), Entry(state_name, (), tensor))  # type: ignore[arg-type]
            entry_of_id[id(tensor)] = attrs.evolve(entry, names=(*entry.names, file_name))
    return list(entry_of_id.values())


def _tensors(state: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor), for each of tied names. Buffers of a module that are not persistent are left out."""
    if isinstance(state, Parallel):
        yield from state.state.items()  # type: ignore[misc]
        yield from ((alias, state.state[name]) for alias, name in state.tied.items())  # type: ignore[misc]
        return
    if not isinstance(state, (nn.Module, Mapping)):
        raise UnsupportedError(
            f"the state is a {type(state).__name__}; expected a Parallel, a module or a dict: pass one of them"
        )
    yield from (state.state_dict(keep_vars=True) if isinstance(state, nn.Module) else state).items()


def _default_names(state: Any) -> Callable[[str], str | None]:
    """Return the default function: name in the state → name in the files, or None for a tensor that files do not have.

    For a step, it removes `parameters.` and `buffers.`, and excludes the state of the optimizer.
    """
    if not isinstance(state, Parallel) or not state.is_step:
        return lambda name: name
    return lambda name: name.partition(".")[2] if name.startswith(("parameters.", "buffers.")) else None


def _open_files(path: Path, files: ExitStack) -> dict[str, Any]:
    """Open the files, and return name → open file of the tensor.

    Raises:
        SpmdirError: a file is missing, or is not a safetensors file.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise SpmdirError(
            "the package safetensors is missing; expected it for safetensors files: run pip install "
            "'spmdir[safetensors]'"
        ) from error
    if path.is_dir():
        path = path / INDEX if (path / INDEX).exists() else path
    if path.is_dir() or path.suffix == ".safetensors":
        paths = dict.fromkeys(sorted(path.glob("*.safetensors")) if path.is_dir() else [path])
    else:
        try:
            paths = dict.fromkeys(path.parent / file for file in json.loads(path.read_text())["weight_map"].values())
        except (OSError, ValueError, KeyError) as error:
            raise SpmdirError(
                f"'{path}' is not an index of safetensors files: {error}; expected a "
                "model.safetensors.index.json: correct the path"
            ) from error
    if not paths:
        raise SpmdirError(f"'{path}' has no safetensors files; expected one or more: correct the path")
    file_of_name = {}
    for file in paths:
        try:
            file_handle = files.enter_context(safe_open(file, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise SpmdirError(
                f"'{file}' cannot be read: {error}; expected a complete safetensors file: correct the path, or "
                "copy the file again"
            ) from error
        file_of_name |= dict.fromkeys(file_handle.keys(), file_handle)
    return file_of_name


def _find_slices(entry: Entry, file_of_name: Mapping[str, Any], convert: bool, path: Path) -> Any:
    """Return the tensor `entry` in the files, as an object that reads slices.

    Raises:
        SpmdirError: no file has it, or its shape or element type differs.
    """
    name = next((name for name in entry.names if name in file_of_name), None)
    if name is None:
        raise SpmdirError(
            f"'{path}' has no '{entry.names[0]}'; expected all tensors of the state: pass its name in the "
            "files by names=, or None to exclude it"
        )
    slices = file_of_name[name].get_slice(name)
    shape, dtype = tuple(slices.get_shape()), DTYPES.get(slices.get_dtype())
    if shape != tuple(entry.tensor.shape):
        raise SpmdirError(
            f"'{name}' has shape {list(shape)} in '{path}'; expected {list(entry.tensor.shape)}: load the files "
            "of the same model"
        )
    if dtype != entry.tensor.dtype and not convert:
        raise SpmdirError(
            f"'{name}' is {slices.get_dtype()} in '{path}'; expected {entry.tensor.dtype}: pass convert=True to convert"
        )
    return slices


Header: TypeAlias = dict[str, Any]
"""The entry of a tensor in a header, with the number of bytes in place of the offsets."""


def _tensor_header(entry: Entry) -> Header:
    """Return the type, shape and number of bytes of a tensor; raise UnsupportedError for an unsupported type."""
    tensor = entry.tensor
    if tensor.dtype not in TYPE_NAMES:
        raise UnsupportedError(
            f"'{entry.names[0]}' is {tensor.dtype}, which safetensors files do not support; expected "
            "another element type: convert it"
        )
    size = math.prod(tensor.shape) * tensor.dtype.itemsize
    return {"dtype": TYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "bytes": size}


def _divide_into_files(headers: Mapping[str, Header], max_bytes: int) -> dict[str, dict[str, Header]]:
    """Return file → name → header of the tensors in it, in order.

    Args:
        max_bytes: the maximum number of bytes of tensors in a file with more than one tensor.
    """
    groups: list[dict[str, Header]] = [{}]
    for name, header in headers.items():
        if groups[-1] and sum(member["bytes"] for member in groups[-1].values()) + header["bytes"] > max_bytes:
            groups.append({})
        groups[-1][name] = header
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    names = (f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in itertools.count(1))
    return dict(zip(names, groups, strict=False))


def _write(directory: Path, files: Mapping[str, Mapping[str, Header]]) -> Generator[None, Tensor, None]:
    """Write the tensors sent to this generator, in order. Rename each complete file, and write the index last."""
    for file, headers in files.items():
        with open(directory / f".unfinished-{file}", "wb") as stream:
            stream.write(_file_header(headers))
            for _ in headers:
                tensor = yield
                stream.write(flat_bytes(tensor).numpy().data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(directory / f".unfinished-{file}", directory / file)
    if len(files) > 1:
        total = sum(header["bytes"] for headers in files.values() for header in headers.values())
        file_of_name = {name: file for file, headers in files.items() for name in headers}
        (directory / INDEX).write_text(
            json.dumps({"metadata": {"total_size": total}, "weight_map": file_of_name}, indent=2)
        )


def _file_header(headers: Mapping[str, Header]) -> bytes:
    """Return the length and the header of a file, padded to a multiple of eight bytes.

    Tensors of 8 and 16 bytes have the offsets [0, 8] and [8, 24].
    """
    ends = [*itertools.accumulate((header["bytes"] for header in headers.values()), initial=0)]
    entries = {
        name: {"dtype": header["dtype"], "shape": header["shape"], "data_offsets": [start, end]}
        for (name, header), start, end in zip(headers.items(), ends, ends[1:], strict=False)
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _gather_whole(
    entry: Entry,
    blocks: Sequence[ShardBlock],
    shard: Tensor,
    blocks_of_ranks: Sequence[Sequence[ShardBlock]],
    rank: int,
) -> Tensor | None:
    """Gather a tensor in host memory on the first rank, and return it there; return None on the other ranks.

    If several ranks have the same block, the first of them sends it.

    Args:
        blocks, shard: the blocks of this rank, and its local shard.
        blocks_of_ranks: the blocks of each rank.
    """
    sender_of_block: dict[ShardBlock, int] = {}
    for sender, blocks_of_sender in enumerate(blocks_of_ranks):
        for block in blocks_of_sender:
            # Blocks of two ranks are the same part of the tensor if only their positions in the shards differ.
            sender_of_block.setdefault(attrs.evolve(block, local_offsets=()), sender)
    if rank:
        for block in blocks:
            if sender_of_block[attrs.evolve(block, local_offsets=())] == rank:
                dist.send(block.view_local(shard).contiguous(), 0)
        return None
    local_block = {attrs.evolve(block, local_offsets=()): block for block in blocks}
    tensor = torch.empty(entry.tensor.shape, dtype=entry.tensor.dtype)
    for block, sender in sender_of_block.items():
        if sender:
            part = torch.empty(block.sizes, dtype=tensor.dtype, device=shard.device)
            dist.recv(part, sender)
        else:
            part = local_block[block].view_local(shard)
        block.view_global(tensor).copy_(part)
    return tensor
