"""Check archives of `torch.export.save` before torch loads them. Archives that could run code require `--trust`.

torch unpickles members of an archive, evaluates expressions of sizes with `eval`, and executes Python that it generates
from the names in the graph. An archive could therefore run any code. The check accepts a fixed list of members, pickles
of tensors and plain values, and a program whose strings pass `spmdir.importer.pt2_strings`.
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
"""Member that lists the tensors of a folder → prefix of the names of their members."""
_ALLOWED_MEMBERS = re.compile(
    r"archive_format|archive_version|version|byteorder|\.format_version|\.storage_alignment|\.data/\w+"
    r"|data/weights/weight_[0-9]+|data/constants/tensor_[0-9]+|extra/[\w./-]+"
)
_TRUST_ADVICE = "pass --trust if you trust its author as much as that of a program that you run"


def load_pt2(path: str, trust: bool = False) -> torch.export.ExportedProgram:
    """Return the program in the archive at `path`, without the guards of its inputs unless it is trusted.

    Args:
        trust: load the archive without checks, even if it runs code.

    Raises:
        SpmdirError: the archive cannot be read, or a member requires `trust`.
    """
    if not os.path.isfile(path):
        raise SpmdirError(f"cannot read '{path}': no such file; expected a .pt2 archive: correct the path")
    with _silence_logging(), _convert_errors(path):
        if trust:
            return _load_program(path) if _PROGRAM in _open_archive(path).get_all_records() else torch.export.load(path)
        check_archive(path)
        with _force_weights_only():
            program = _load_program(path)
        drop_guards(program)
        return program


class _Reader(PT2ArchiveReader):
    """torch's reader of archives, with classes in the trees of the program replaced by built-in containers."""

    def read_bytes(self, name: str) -> bytes:
        """Return the bytes of a member; of the program, with built-in containers in its trees."""
        data = super().read_bytes(name)
        return json.dumps(with_plain_trees(json.loads(data))).encode() if name == _PROGRAM else data


def _load_program(path: str) -> torch.export.ExportedProgram:
    """Return the program of an archive in the layout of torch.export.save since torch 2.8."""
    with _Reader(path) as reader:
        return model_program(reader)


def check_archive(path: str) -> None:
    """Raise SpmdirError unless the members of the archive at `path` contain only data."""
    reader = _open_archive(path)
    sizes = _member_sizes(reader, os.path.getsize(path), path)
    if "archive_format" not in sizes or _PROGRAM not in sizes:
        raise SpmdirError(
            f"'{path}' has no '{_PROGRAM}'; expected the layout of torch.export.save since torch 2.8: save it again, "
            f"or {_TRUST_ADVICE}"
        )
    for member in sizes:
        try:
            _check_member(reader, member, sizes, path)
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # from malformed JSON
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise SpmdirError(
                f"'{path}': the member '{member}' is malformed: {reason}; expected an archive of torch.export.save"
            ) from None


def _check_member(reader: Any, member: str, sizes: dict[str, int], path: str) -> None:
    """Raise SpmdirError unless `member` passes the check of its kind: a pickle, a list of tensors, the program, data.

    Args:
        sizes: member → size in bytes.
        path: the path of the archive, for errors.
    """
    if member in _PICKLES:
        _check_pickle(reader.get_record(member), member, path)
    elif member in _PAYLOADS:
        _check_payloads(json.loads(reader.get_record(member)), member, sizes, path)
    elif member == _PROGRAM:
        check_program(with_plain_trees(json.loads(reader.get_record(member))), f"{path}: {member}", _TRUST_ADVICE)
    elif not _ALLOWED_MEMBERS.fullmatch(member):
        raise SpmdirError(
            f"'{path}' has a member '{member}', which is not part of an exported program; {_TRUST_ADVICE}"
        )


def _open_archive(source: Any) -> Any:
    """Return torch's reader of an archive. The checks use it too, because another reader could find other members."""
    return file_reader(source)


def _member_sizes(reader: Any, limit: int, archive: str) -> dict[str, int]:
    """Return member → size in bytes.

    Args:
        limit: the size of the archive in bytes. Uncompressed members have at most this size in total.
        archive: the name of the archive, for errors.

    Raises:
        SpmdirError: two members have the same name, or members are compressed.
    """
    names = reader.get_all_records()
    sizes = {name: reader.get_record_size(name) for name in names}
    if len(sizes) != len(names):
        raise SpmdirError(f"'{archive}' has several members of one name; expected an archive of torch.export.save")
    if sum(sizes.values()) > limit:
        raise SpmdirError(
            f"'{archive}' has {limit} bytes, but members of {sum(sizes.values())} bytes; expected members without "
            "compression"
        )
    return sizes


def _check_pickle(data: bytes, member: str, path: str) -> None:
    """Raise SpmdirError unless the member, a file of torch.save, contains only tensors and plain values."""
    if not data:
        return
    try:
        sizes = _member_sizes(_open_archive(io.BytesIO(data)), len(data), member)
        # torch's restricted unpickler calls only a fixed list of tensor functions.
        value = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except SpmdirError:
        raise
    except Exception as error:
        # The unpickler names a forbidden function after `GLOBAL`.
        forbidden = [line.strip() for line in str(error).splitlines() if "GLOBAL" in line]
        reason = forbidden[0] if forbidden else type(error).__name__
        raise SpmdirError(
            f"'{path}': the member '{member}' would run code when it is unpickled, or is damaged: {reason}; "
            f"expected tensors and plain values; {_TRUST_ADVICE}"
        ) from None
    # A view may declare a storage that its file does not contain, so that a small file allocates much memory.
    largest = max(sizes.values())
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().nbytes() > largest:
            raise SpmdirError(
                f"'{path}': the member '{member}' has a tensor that is larger than its data; expected an archive of "
                "torch.export.save"
            )


def _check_payloads(config: Any, member: str, sizes: dict[str, int], path: str) -> None:
    """Raise SpmdirError unless each entry of a list of tensors is plain data in a member of the archive."""
    folder, prefix = os.path.dirname(member), _PAYLOADS[member]
    for name, entry in config["config"].items():
        target = f"{folder}/{entry['path_name']}"
        if entry.get("use_pickle") or not entry["path_name"].startswith(prefix):
            raise SpmdirError(
                f"'{path}': the member '{target}' would run code when '{name}' is unpickled; "
                f"expected a plain tensor; {_TRUST_ADVICE}"
            )
        shape = [size["as_int"] for size in entry["tensor_meta"]["sizes"]]
        if target not in sizes or (math.prod(shape) and not sizes[target]):
            raise SpmdirError(f"'{path}': '{name}' has no data in '{target}'; expected an archive of torch.export.save")


@contextmanager
def _force_weights_only() -> Iterator[None]:
    """Force torch.load to unpickle only tensors, by an environment variable that overrides its arguments."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    old_value = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if old_value is None:
            del os.environ[name]
        else:
            os.environ[name] = old_value


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Silence torch's logging, which would print a traceback in addition to the error."""
    disabled_level = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(disabled_level)


@contextmanager
def _convert_errors(path: str) -> Iterator[None]:
    """Convert all errors of torch's loader to SpmdirError."""
    try:
        yield
    except SpmdirError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise SpmdirError(f"cannot load '{path}': {reason}; expected an archive of torch.export.save") from None
