"""The directory of checkpoints: they follow each other as `step-N`, and each has the digests of its files.

A checkpoint gets its name when all of it is on disk, so whatever has such a name is complete.
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


def complete(directory: Path) -> dict[int, Path]:
    """Return number → checkpoint of those in `directory`; each is complete, or it would not have its name."""
    found = {path: re.fullmatch(r"step-([0-9]{1,18})", path.name) for path in directory.glob("step-*")}
    return {int(match[1]): path for path, match in found.items() if match}


def begin(directory: Path, step: int | None) -> tuple[Path, Path]:
    """Return where the checkpoint will be, and an empty directory to write it into; unfinished ones are removed."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpmdirError(f"cannot make the directory '{directory}' of checkpoints: {error.strerror}") from None
    place = directory / f"step-{max(complete(directory), default=-1) + 1 if step is None else step:08d}"
    if place.exists():
        raise SpmdirError(f"there is a checkpoint '{place}'; give another step, or remove it first")
    for left in directory.glob(".unfinished-step-*"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()
    unfinished = directory / f".unfinished-{place.name}"
    unfinished.mkdir()
    return place, unfinished


def publish(unfinished: Path, place: Path, digests: Mapping[str, Any]) -> None:
    """Give a checkpoint whose files are on disk its name."""
    digests = {**digests, METADATA: file_digest(unfinished / METADATA)}
    with open(unfinished / DIGESTS, "w") as file:
        json.dump(digests, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync(unfinished)
    os.rename(unfinished, place)
    _sync(place.parent)


def _sync(folder: Path) -> None:
    """Bring the names of the files in a folder to disk."""
    opened = os.open(folder, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def chosen(directory: Path, step: int | None) -> Path:
    """Return the checkpoint to load."""
    if step is None and (directory / METADATA).exists():
        return directory
    there = complete(directory)
    if not there or step not in (None, *there):
        wanted = "no complete checkpoint" if step is None else f"no complete checkpoint of step {step}"
        rest = f"there are those of steps {', '.join(map(str, sorted(there)))}" if there else "save one first"
        raise SpmdirError(f"'{directory}' has {wanted}; {rest}")
    return there[max(there) if step is None else step]


def check_files(place: Path, rank: int, world: int) -> None:
    """Raise SpmdirError unless the files of a checkpoint are what was saved; each rank reads its part of them."""
    try:
        digests = json.loads((place / DIGESTS).read_text()) if (place / DIGESTS).exists() else {}
    except ValueError as error:
        raise _damaged(place, DIGESTS, f"is no JSON: {error}") from error
    if not isinstance(digests, dict) or not all(map(_is_digest, digests, digests.values())):
        raise _damaged(place, DIGESTS, "has something else than the lengths and digests of the files beside it")
    if not digests and re.fullmatch(r"step-[0-9]{1,18}", place.name):
        raise _damaged(place, DIGESTS, "is missing")
    for name, digest in sorted(digests.items())[rank::world]:
        file = place / name
        if not file.exists():
            raise _damaged(place, name, "is missing")
        if file.stat().st_size != digest["bytes"]:
            raise _damaged(place, name, f"has {file.stat().st_size} bytes; expected {digest['bytes']}")
        if file_digest(file) != digest:
            raise _damaged(place, name, "has other bytes than were saved")


def _is_digest(name: str, digest: Any) -> bool:
    return Path(name).name == name and isinstance(digest, dict) and digest.keys() == {"bytes", "sha256"}


def _damaged(place: Path, name: str, what: str) -> SpmdirError:
    older = sorted(step for step, path in complete(place.parent).items() if path != place)
    rest = f"load another one, as step={older[-1]}" if older else "there is no other one"
    return SpmdirError(f"the checkpoint '{place}' is damaged: '{name}' {what}; {rest}")


def file_digest(file: Path) -> dict[str, Any]:
    say("the digest of {}", file.name)
    with open(file, "rb") as stream:
        return {"bytes": os.fstat(stream.fileno()).st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def read_metadata(place: Path) -> Metadata:
    """Return what a checkpoint says of itself, once the files that it needs are long enough."""
    try:
        metadata = FileSystemReader(place).read_metadata()
    except Exception as error:  # a pickle that is damaged raises anything
        raise _damaged(place, METADATA, f"cannot be read: {type(error).__name__}: {error}") from error
    ends: dict[str, int] = {}
    for stored in (metadata.storage_data or {}).values():
        ends[stored.relative_path] = max(ends.get(stored.relative_path, 0), stored.offset + stored.length)
    for name, end in ends.items():
        if not (place / name).exists():
            raise _damaged(place, name, "is missing")
        if (place / name).stat().st_size < end:
            raise _damaged(place, name, f"has {(place / name).stat().st_size} bytes; expected at least {end}")
    return metadata
