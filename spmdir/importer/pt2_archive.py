"""Archives of `torch.export.save`, looked into before torch loads them: what would run code needs the user's trust.

torch loads an archive by its own unpickler, by `eval` of the expressions of sizes and by Python that it writes from the
names in a graph, so an archive may do whatever a program may. Here its members are a known list, pickles hold tensors
and plain values alone, and the program's text passes `spmdir.importer.pt2_strings`.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from spmdir.core.errors import SpmdirError
from spmdir.importer.pt2_strings import check_program
from spmdir.importer.pt2_trees import with_plain_trees
from spmdir.torch_interop.archives import PT2ArchiveReader, drop_guards, file_reader, model_program
from spmdir.torch_interop.pytree import tree_leaves

_PROGRAM = "models/model.json"
_PICKLES = ("data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/model.pt")
_PAYLOADS = {
    "data/weights/model_weights_config.json": "weight_",
    "data/constants/model_constants_config.json": "tensor_",
}
"""What lists the tensors of a folder → how the names of their members begin."""
_NAMED = re.compile(
    r"archive_format|archive_version|version|byteorder|\.format_version|\.storage_alignment|\.data/\w+"
    r"|data/weights/weight_[0-9]+|data/constants/tensor_[0-9]+|extra/[\w./-]+"
)
_TRUST = "pass --trust if you trust its author as much as a program of theirs that you run"


def load_pt2(path: str, trust: bool = False) -> torch.export.ExportedProgram:
    """Return the program in the archive at `path`.

    Args:
        trust: leave everything to torch.export.load, which runs what the archive says.

    Raises:
        SpmdirError: it cannot be read, or holds what only `trust` would load; names the member.
    """
    if not os.path.isfile(path):
        raise SpmdirError(f"cannot read '{path}': no such file")
    with _quiet(), _one_error(path):
        if trust:
            return _loaded(path) if _PROGRAM in _open(path).get_all_records() else torch.export.load(path)
        check_archive(path)
        with _weights_only():
            program = _loaded(path)
        drop_guards(program)
        return program


class _Reader(PT2ArchiveReader):
    """torch's reader of archives, which gives the program's trees as Python's own containers."""

    def read_bytes(self, name: str) -> bytes:
        data = super().read_bytes(name)
        return json.dumps(with_plain_trees(json.loads(data))).encode() if name == _PROGRAM else data


def _loaded(path: str) -> torch.export.ExportedProgram:
    """Return the program of an archive of the layout that torch.export.save writes, and of no older one."""
    with _Reader(path) as reader:
        return model_program(reader)


def check_archive(path: str) -> None:
    """Raise SpmdirError unless all that torch would load from the archive at `path` is data."""
    reader = _open(path)
    sizes = _sizes(reader, os.path.getsize(path), path)
    if "archive_format" not in sizes or _PROGRAM not in sizes:
        raise SpmdirError(
            f"'{path}' has no '{_PROGRAM}': it is of another layout than torch.export.save writes since torch 2.8; "
            f"save it again, or {_TRUST}"
        )
    for member in sizes:
        try:
            _check_member(reader, member, sizes, path)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # whatever malformed JSON leads to
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise SpmdirError(
                f"'{path}': the member '{member}' is malformed: {reason}; expected what torch.export.save wrote"
            ) from None


def _check_member(reader: Any, member: str, sizes: dict[str, int], path: str) -> None:
    if member in _PICKLES:
        _check_pickle(reader.get_record(member), member, path)
    elif member in _PAYLOADS:
        _check_payloads(json.loads(reader.get_record(member)), member, sizes, path)
    elif member == _PROGRAM:
        check_program(with_plain_trees(json.loads(reader.get_record(member))), f"{path}: {member}", _TRUST)
    elif not _NAMED.fullmatch(member):
        raise SpmdirError(f"'{path}' has a member '{member}', which is not part of an exported program; {_TRUST}")


def _open(source: Any) -> Any:
    """Return torch's own reader, so that the members checked are those that torch loads."""
    return file_reader(source)


def _sizes(reader: Any, limit: int, what: str) -> dict[str, int]:
    """Return member → bytes; without compression, members cannot be larger than the archive, `limit` bytes."""
    names = reader.get_all_records()
    sizes = {name: reader.get_record_size(name) for name in names}
    if len(sizes) != len(names):
        raise SpmdirError(f"'{what}' has several members of one name; expected what torch.export.save wrote")
    if sum(sizes.values()) > limit:
        raise SpmdirError(
            f"'{what}' has members of {sum(sizes.values())} bytes in {limit}; expected members that are not compressed"
        )
    return sizes


def _check_pickle(data: bytes, member: str, path: str) -> None:
    """Raise SpmdirError unless the member, what torch.save wrote, holds tensors and plain values alone."""
    if not data:
        return
    try:
        sizes = _sizes(_open(io.BytesIO(data)), len(data), member)
        # torch's restricted unpickler: it knows a list of tensor functions and calls nothing else.
        value = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except SpmdirError:
        raise
    except Exception as error:
        reason = (
            next((line.strip() for line in str(error).splitlines() if "GLOBAL" in line), "") or type(error).__name__
        )
        raise SpmdirError(
            f"'{path}': the member '{member}' would run code when it is unpickled, or is damaged: {reason}; "
            f"expected tensors and plain values; {_TRUST}"
        ) from None
    largest = max(sizes.values())
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().nbytes() > largest:
            raise SpmdirError(f"'{path}': the member '{member}' has a tensor that is larger than its data")


def _check_payloads(config: Any, member: str, sizes: dict[str, int], path: str) -> None:
    """Raise SpmdirError unless every entry of a list of tensors is plain data that is there."""
    folder, prefix = os.path.dirname(member), _PAYLOADS[member]
    for name, entry in config["config"].items():
        target = f"{folder}/{entry['path_name']}"
        if entry.get("use_pickle") or not entry["path_name"].startswith(prefix):
            raise SpmdirError(
                f"'{path}': the member '{target}' would run code when '{name}' is unpickled; "
                f"expected a plain tensor; {_TRUST}"
            )
        shape = [size["as_int"] for size in entry["tensor_meta"]["sizes"]]
        if target not in sizes or (math.prod(shape) and not sizes[target]):
            raise SpmdirError(f"'{path}': '{name}' has no data in '{target}'; expected what torch.export.save wrote")


@contextmanager
def _weights_only() -> Iterator[None]:
    """Make torch.load unpickle tensors only, whatever its caller says, by torch's own switch, read at each load."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's logging, which adds a traceback to an error that already says what matters."""
    logged = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logged)


@contextmanager
def _one_error(path: str) -> Iterator[None]:
    """Raise whatever torch's unpacking raises as one kind of error."""
    try:
        yield
    except SpmdirError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise SpmdirError(f"'{path}' cannot be loaded; expected what torch.export.save wrote: {reason}") from None
