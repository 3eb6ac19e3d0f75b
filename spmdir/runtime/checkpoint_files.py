"""The files of checkpoints: a directory has one folder `step-N` for each, with the digests of its files.

A folder gets the name `step-N` after all its files are on disk, so each folder of this name is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from spmdir.core.errors import SpmdirError
from spmdir.core.progress import say

METADATA, DIGESTS = ".metadata", "digests.json"


def list_complete(directory: Path) -> dict[int, Path]:
    """Return number → path of the complete checkpoints in `directory`."""
    matches = {path: re.fullmatch(r"step-([0-9]{1,18})", path.name) for path in directory.glob("step-*")}
    return {int(match[1]): path for path, match in matches.items() if match}


def prepare_directory(directory: Path, step: int | None) -> tuple[Path, Path]:
    """Return (final path of a checkpoint, new empty directory to write it into). Remove unfinished checkpoints.

    Args:
        directory: the directory of all checkpoints; it is created if needed.
        step: the number of the checkpoint; if None, one more than the last.

    Raises:
        SpmdirError: there is a checkpoint of this number, or the directory cannot be made.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpmdirError(
            f"cannot make the directory '{directory}' of checkpoints: {error.strerror}; expected a path that "
            "can be written: choose another one"
        ) from None
    path = directory / f"step-{max(list_complete(directory), default=-1) + 1 if step is None else step:08d}"
    if path.exists():
        raise SpmdirError(
            f"the checkpoint '{path}' exists; expected a step without a checkpoint: give another step, or "
            "remove it first"
        )
    for leftover in directory.glob(".unfinished-step-*"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    unfinished = directory / f".unfinished-{path.name}"
    unfinished.mkdir()
    return path, unfinished


def publish(unfinished: Path, place: Path, digests: Mapping[str, Any]) -> None:
    """Write the digests of a checkpoint, and rename it to its final path."""
    digests = {**digests, METADATA: file_digest(unfinished / METADATA)}
    with open(unfinished / DIGESTS, "w") as file:
        json.dump(digests, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync(unfinished)
    os.rename(unfinished, place)
    _sync(place.parent)


def _sync(folder: Path) -> None:
    """Flush the entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def find_checkpoint(directory: Path, step: int | None) -> Path:
    """Return the path of the checkpoint with the number `step`, or of the last if `step` is None.

    If `step` is None and torch wrote the directory, it is itself the checkpoint.

    Raises:
        SpmdirError: there is no such checkpoint.
    """
    if step is None and (directory / METADATA).exists():
        return directory
    checkpoints = list_complete(directory)
    if not checkpoints or step not in (None, *checkpoints):
        problem = "no complete checkpoint" if step is None else f"no complete checkpoint of step {step}"
        advice = (
            f"the directory has steps {', '.join(map(str, sorted(checkpoints)))}" if checkpoints else "save one first"
        )
        raise SpmdirError(f"'{directory}' has {problem}; {advice}")
    return checkpoints[max(checkpoints) if step is None else step]


def check_files(place: Path, rank: int, world: int) -> None:
    """Raise SpmdirError unless the files of a checkpoint match their digests.

    Rank `rank` of `world` ranks checks every `world`-th file. A folder named `step-N` was written by spmdir and must
    have digests. Any other folder without digests was written by torch, and passes.
    """
    try:
        digests = json.loads((place / DIGESTS).read_text()) if (place / DIGESTS).exists() else {}
    except ValueError as error:
        raise _damaged_error(place, DIGESTS, f"is not valid JSON: {error}") from error
    if not isinstance(digests, dict) or not all(map(_is_digest, digests, digests.values())):
        raise _damaged_error(place, DIGESTS, "does not contain the lengths and digests of the other files")
    if not digests and re.fullmatch(r"step-[0-9]{1,18}", place.name):
        raise _damaged_error(place, DIGESTS, "is missing or empty")
    for name, digest in sorted(digests.items())[rank::world]:
        file = place / name
        if not file.exists():
            raise _damaged_error(place, name, "is missing")
        if file.stat().st_size != digest["bytes"]:
            raise _damaged_error(place, name, f"has {file.stat().st_size} bytes; expected {digest['bytes']}")
        if file_digest(file) != digest:
            raise _damaged_error(place, name, "differs from the saved bytes")


def _is_digest(name: str, digest: Any) -> bool:
    """Return whether `name` is a file name without folders, and `digest` has the form that `file_digest` returns."""
    return Path(name).name == name and isinstance(digest, dict) and digest.keys() == {"bytes", "sha256"}


def _damaged_error(place: Path, name: str, problem: str) -> SpmdirError:
    """Return the error of a damaged checkpoint, with the advice to load the last other one.

    Args:
        name: the damaged file.
        problem: the verb and object of the sentence about the file, such as "is missing".
    """
    other_steps = sorted(step for step, path in list_complete(place.parent).items() if path != place)
    if other_steps:
        advice = f"load another checkpoint, such as step={other_steps[-1]}"
    else:
        advice = "no other checkpoint exists"
    return SpmdirError(f"the checkpoint '{place}' is damaged: '{name}' {problem}; {advice}")


def file_digest(file: Path) -> dict[str, Any]:
    """Return the entry of a file in `digests.json`: its length as `bytes`, and its SHA-256 digest as `sha256`."""
    say("the digest of {}", file.name)
    with open(file, "rb") as stream:
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def read_metadata(place: Path) -> Metadata:
    """Return the metadata of a checkpoint, after a check that its files have at least the expected lengths."""
    try:
        metadata = FileSystemReader(place).read_metadata()
    except Exception as error:  # unpickling a damaged file may raise anything
        raise _damaged_error(place, METADATA, f"cannot be read: {type(error).__name__}: {error}") from error
    ends: dict[str, int] = {}
    for stored in (metadata.storage_data or {}).values():
        ends[stored.relative_path] = max(ends.get(stored.relative_path, 0), stored.offset + stored.length)
    for name, end in ends.items():
        if not (place / name).exists():
            raise _damaged_error(place, name, "is missing")
        if (place / name).stat().st_size < end:
            raise _damaged_error(place, name, f"has {(place / name).stat().st_size} bytes; expected at least {end}")
    return metadata
