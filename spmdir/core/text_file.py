"""Files of text that a user names: read at once, bounded in size, as UTF-8; written in one step."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spmdir.core.errors import ParseError, SpmdirError, text_location
from spmdir.core.limits import CHARACTERS

_ARCHIVE = b"PK\x03\x04"
"""How a zip archive begins, which `torch.save` and `torch.export.save` write."""


def read_text_file(path: str | Path, what: str) -> str:
    """Return the text of the file at `path`, its line ends as they are.

    Args:
        what: what messages call it, as in `rules from own.rules`.

    Raises:
        ParseError: the file cannot be read or is not UTF-8 text. LimitError: it is too long.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(CHARACTERS.most + 1)
    except (OSError, ValueError) as error:  # the latter of names that no file can have
        raise ParseError(f"cannot read {what}: {getattr(error, 'strerror', error)}") from None
    return decoded(data, str(path))


def decoded(data: bytes, name: str) -> str:
    """Return the text that `data`, read from the file that messages call `name`, spells in UTF-8."""
    CHARACTERS.check(len(data))
    if data.startswith(_ARCHIVE):
        raise ParseError(
            f"'{name}' is a zip archive; expected text: if torch.export.save wrote it, import it by spmd-translate "
            f"--import-pt2 {name} --mesh AXES, which prints IR"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = text_location(data, error.start, name)
        raise ParseError(f"the byte {data[error.start]:#x} is not UTF-8 text", where) from None


def write_text_file(path: str | Path, text: str) -> None:
    """Write `text` to the file at `path` in one step, so that no reader finds a part of it; to a device as it is.

    Raises:
        SpmdirError: the file cannot be written.
    """
    import tempfile  # 10 ms, and only writing needs it

    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "w", encoding="utf-8") as device:
                device.write(text)
            return
        target = os.path.realpath(path)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".spmdir-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            kept = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else 0o666 & ~_umask()
            os.chmod(temporary, kept)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise SpmdirError(f"cannot write '{path}': {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def file_beside(source: str | None, ending: str) -> Path | None:
    """Return the path of the file NAME`ending` beside the file NAME.py at `source`; None if there is none."""
    path = Path(source).with_suffix(ending) if source else None
    return path if path is not None and path.is_file() else None
